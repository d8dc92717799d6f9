//! Which graphs there are: for which passes they are, how large they are, and which one was used last.

use super::captured::{Begun, CapturedPass};
use super::scratch::Scratch;
use crate::aoti::outputs::Kept;
use crate::device::{Device, DevicePtr, GRAPH_STEP};
use crate::error::Result;
use crate::store::{Store, StoreState};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of all graphs of a store, where nobody says a figure.
pub const GRAPH_BYTES: u64 = 128 << 20;

/// Shapes that are remembered without a graph. Beyond that the ones seen first are forgotten.
const MOST_SEEN: usize = 4096;

/// The type and the sizes of each input.
pub type Shapes = Vec<(i32, Vec<i64>)>;

/// Passes that are alike under any plan: the same kernels over the same sizes, with the same buffers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PassKey {
    pub method: usize,
    /// Which copy of the compiled code: each loads its kernels for itself.
    pub code: u64,
    pub session: u64,
    pub shapes: Shapes,
}

/// What a graph is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GraphKey {
    pub(super) pass: PassKey,
    /// The plan whose copies it has.
    pub(super) generation: u64,
}

/// How the next pass of a key is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByGraph {
    /// Call by call. Tell [`Session::saw`](crate::session::Session::saw) once it is complete.
    Calls,
    /// It can be captured, and is replayed then.
    Capture,
    /// It is replayed.
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

/// A pass that was complete once.
pub(super) struct SeenPass<D: Device> {
    /// Bytes of its activations.
    pub reach: u64,
    /// Its graph alone takes more than the cap.
    pub too_large: bool,
    /// When it was seen first.
    pub since: u64,
    pub graph: Option<Cached<D>>,
}

/// A graph that is kept.
pub(super) struct Cached<D: Device> {
    pub pass: CapturedPass<D>,
    pub ends: Arc<Ends>,
    pub bytes: u64,
    /// When it was used last.
    pub used: u64,
}

/// What a session keeps whose passes may be captured.
pub(in crate::session) struct PassGraphs<D: Device> {
    /// The most bytes of all graphs that were asked for.
    pub(super) asked: Option<u64>,
    /// The passes that were complete once, with their graphs.
    pub(super) seen: HashMap<PassKey, SeenPass<D>>,
    /// The generation of the plan, and the block, of all graphs that are kept.
    captured_under: (u64, Option<u64>),
    /// Where passes of each method begin, once the ring is full.
    pub(super) steady: HashMap<usize, StoreState>,
    /// Counts uses.
    clock: u64,
    /// The most bytes of all of them so far, by their nodes.
    pub(super) most: u64,
    /// Where activations lie, with the block that all graphs share.
    pub scratch: Scratch,
    /// The pass that is being captured.
    pub(super) begun: Option<Begun>,
}

impl<D: Device> PassGraphs<D> {
    pub(super) fn new() -> Self {
        PassGraphs {
            asked: None,
            seen: HashMap::new(),
            captured_under: (0, None),
            steady: HashMap::new(),
            clock: 0,
            most: 0,
            scratch: Scratch::new(),
            begun: None,
        }
    }

    /// Whether what is issued goes into a graph.
    pub fn is_capturing(&self) -> bool {
        self.begun.is_some()
    }

    /// Most bytes of all of them.
    pub(super) fn cap(&self) -> u64 {
        self.asked.unwrap_or(GRAPH_BYTES)
    }

    /// Those that are kept.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&PassKey, &Cached<D>)> {
        let seen = self.seen.iter();
        seen.filter_map(|(key, seen)| Some((key, seen.graph.as_ref()?)))
    }

    /// Bytes of all of them, by their nodes.
    pub(super) fn counted(&self) -> u64 {
        self.kept().map(|(_, one)| one.bytes).sum()
    }

    /// What they need of what the device took for graphs, if that is more than a step. It may have kept what graphs had that went:
    /// that is for later ones.
    fn needed(&self, taken: Option<u64>) -> u64 {
        let counted = self.counted();
        let taken = taken.filter(|taken| *taken > GRAPH_STEP).unwrap_or(0);
        let part = u128::from(taken) * u128::from(counted);
        let part = part.checked_div(u128::from(self.most));
        counted.max(part.unwrap_or(0) as u64)
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A pass like these was complete, whose activations reach so far.
    pub(super) fn see(&mut self, key: &PassKey, reach: u64) {
        if self.seen.contains_key(key) {
            return;
        }
        if self.seen.len() >= MOST_SEEN {
            let without = self.seen.iter().filter(|(_, one)| one.graph.is_none());
            let first = without.min_by_key(|(_, one)| one.since);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.seen.remove(&first);
            }
        }
        let seen = SeenPass {
            reach,
            too_large: false,
            since: self.tick(),
            graph: None,
        };
        self.seen.insert(key.clone(), seen);
    }

    /// Gives graphs up until all of them take at most `cap`; not the one of this key. Those that were not used for longest go.
    pub(super) fn evict_down_to(
        &mut self,
        cap: u64,
        but: &PassKey,
        store: &mut Store<D>,
    ) -> Result<()> {
        let taken = store.device.graphs_taken();
        let mut gone = Vec::new();
        while self.needed(taken) > cap {
            let others = self.kept().filter(|(key, _)| *key != but);
            let oldest = others.min_by_key(|(_, one)| one.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            // It is captured again only if it comes twice.
            gone.extend(self.seen.remove(&oldest).and_then(|seen| seen.graph));
        }
        self.give_up(gone, store)
    }

    /// What was captured under another plan, or in a block that is gone, is never replayed again. The next pass is of this key.
    pub(super) fn forget_outdated(&mut self, key: &GraphKey, store: &mut Store<D>) -> Result<()> {
        let block = &self.scratch.block;
        let now = (key.generation, block.number());
        if self.captured_under == now {
            return Ok(());
        }
        self.captured_under = now;
        let graphs = self.seen.values_mut().map(|seen| &mut seen.graph);
        let outdated = |one: &mut Cached<D>| one.pass.is_outdated(store, block);
        let gone: Vec<_> = graphs.filter_map(|one| one.take_if(outdated)).collect();
        match gone.is_empty() {
            true => Ok(()),
            false => self.give_up(gone, store),
        }
    }

    fn give_up(&mut self, gone: Vec<Cached<D>>, store: &mut Store<D>) -> Result<()> {
        store.stats.graphs_evicted += gone.len() as u64;
        self.end(gone, store)
    }

    /// They have gone from the list: gives their memory back, and counts those that are left.
    pub(super) fn end(&mut self, gone: Vec<Cached<D>>, store: &mut Store<D>) -> Result<()> {
        let block = &mut self.scratch.block;
        let given = gone.into_iter().map(|one| one.pass.end(store, block));
        let given = given.fold(Ok(()), Result::and);
        store.stats.graphs = self.kept().count() as u64;
        // In a process where graphs went, the driver has memory for the next ones already.
        let taken = store.device.graphs_taken().unwrap_or(0);
        store.stats.graph_bytes = self.counted().max(taken);
        given
    }
}
