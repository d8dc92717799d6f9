//! What is kept of graphs: for which passes they are, how large they are, and which one was used last.

use super::block::Blocks;
use super::captured::{Begun, CapturedPass};
use super::scratch::Scratch;
use crate::aoti::outputs::Kept;
use crate::device::{Device, DevicePtr, GRAPH_STEP};
use crate::store::StoreState;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of all graphs of a store, where nobody says a figure.
pub const GRAPH_BYTES: u64 = 128 << 20;

/// Shapes that are remembered without a graph. Beyond that the ones seen first are forgotten.
const MOST_SEEN: usize = 4096;

/// The type and the sizes of each input.
pub type Shapes = Vec<(i32, Vec<i64>)>;

/// What a graph is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GraphKey {
    pub(super) method: usize,
    /// Which copy of the compiled code: each loads its kernels for itself.
    pub(super) code: u64,
    pub(super) session: u64,
    pub(super) generation: u64,
    pub(super) shapes: Shapes,
}

/// How the next pass of a key is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByGraph {
    /// Call by call. Tell [`Session::saw`](super::Session::saw) once it is complete.
    Calls,
    /// It can be captured, and is replayed then.
    Capture,
    /// By its graph.
    Replay,
}

/// Where a graph reads its inputs and leaves its outputs.
#[derive(Debug, Default)]
pub struct Ends {
    /// Address and bytes of each input that is used.
    pub inputs: Vec<Option<(DevicePtr, u64)>>,
    /// The outputs.
    pub outputs: Vec<Kept>,
}

pub(in crate::session) struct Cached<D: Device> {
    pub pass: CapturedPass<D>,
    pub ends: Arc<Ends>,
    pub bytes: u64,
    /// When it was used last.
    pub used: u64,
}

/// A shape that was seen, and has no graph.
pub(in crate::session) struct Seen {
    /// Bytes of its activations.
    pub reach: u64,
    /// Its graph alone takes more than the cap.
    pub too_large: bool,
    pub since: u64,
}

/// All graphs of a store.
pub(in crate::session) struct Graphs<D: Device> {
    pub asked: Option<u64>,
    pub all: HashMap<GraphKey, Cached<D>>,
    pub seen: HashMap<GraphKey, Seen>,
    /// Where passes of each method begin, once the ring is full.
    pub steady: HashMap<usize, StoreState>,
    /// Counts uses.
    pub clock: u64,
    /// The most bytes of all of them so far, by their nodes.
    pub most: u64,
}

impl<D: Device> Default for Graphs<D> {
    fn default() -> Self {
        Graphs {
            asked: None,
            all: HashMap::new(),
            seen: HashMap::new(),
            steady: HashMap::new(),
            clock: 0,
            most: 0,
        }
    }
}

impl<D: Device> Graphs<D> {
    /// Most bytes of all of them.
    pub fn cap(&self) -> u64 {
        self.asked.unwrap_or(GRAPH_BYTES)
    }

    /// Bytes of all of them, by their nodes.
    pub fn counted(&self) -> u64 {
        self.all.values().map(|one| one.bytes).sum()
    }

    /// What they need of what the device took for graphs, if that is more than a step. It may have kept what graphs had that went:
    /// that is for later ones.
    pub fn needed(&self, taken: Option<u64>) -> u64 {
        let counted = self.counted();
        let taken = taken.filter(|taken| *taken > GRAPH_STEP).unwrap_or(0);
        let part = u128::from(taken) * u128::from(counted);
        let part = part.checked_div(u128::from(self.most));
        counted.max(part.unwrap_or(0) as u64)
    }

    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The graph that was not used for longest, but for this one.
    pub fn oldest_but(&self, key: &GraphKey) -> Option<GraphKey> {
        let others = self.all.iter().filter(|(other, _)| *other != key);
        let oldest = others.min_by_key(|(_, one)| one.used);
        oldest.map(|(key, _)| key.clone())
    }

    pub fn see(&mut self, key: GraphKey, reach: u64) {
        if self.seen.len() >= MOST_SEEN {
            let first = self.seen.iter().min_by_key(|(_, one)| one.since);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.seen.remove(&first);
            }
        }
        let since = self.tick();
        let seen = Seen {
            reach,
            too_large: false,
            since,
        };
        self.seen.entry(key).or_insert(seen);
    }
}

impl GraphKey {
    /// Kernels and activations are the same under all plans.
    pub(super) fn of_any_plan(&self) -> GraphKey {
        GraphKey {
            generation: 0,
            ..self.clone()
        }
    }
}

/// What a session that captures keeps.
pub(in crate::session) struct Capture<D: Device> {
    pub graphs: Graphs<D>,
    pub scratch: Scratch,
    pub blocks: Blocks,
    /// The pass that is being captured.
    pub now: Option<Begun>,
    /// What was issued last is a replay: its kernels and copies left no events to wait for.
    pub replayed: bool,
}
