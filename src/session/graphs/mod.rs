//! The graphs of a store: one for each method, shapes of its inputs, session and plan.
//!
//! ```text
//!  first call over a shape      call by call: loads its kernels, measures its activations
//!  second call                  captured, and replayed
//!  later calls                  replayed
//! ```
//! - A graph holds addresses of mutable buffers (its session's) and copies of a plan (its generation's): both are in its key.
//! - Graphs of a method begin where its passes begin once the ring is full. Where other passes left another state, the ring is
//!   primed first.
//! - All graphs together take at most the cap. Those that were not used for longest go.

mod block;
mod cache;
mod capture;
mod captured;
mod scratch;
mod up_front;

pub(super) use cache::Capture;
pub use cache::{ByGraph, Ends, GraphKey, Shapes, GRAPH_BYTES};
pub use captured::CapturedPass;
pub use up_front::{capture_up_front, UpFront};

use super::{Session, State};
use crate::device::{Device, DevicePtr};
use crate::error::{bytes_text, Error, Result};
use cache::{Cached, Graphs};
use std::sync::Arc;

impl<D: Device> Session<D> {
    /// Most bytes of all graphs together: the largest figure that was ever asked for. Without one it is [`GRAPH_BYTES`](super::GRAPH_BYTES).
    pub fn raise_graph_cap(&mut self, bytes: Option<u64>) -> Result<()> {
        let asked = &mut self.capture()?.graphs.asked;
        *asked = (*asked).max(bytes);
        Ok(())
    }

    /// What a graph of the method whose turn it is would be for, over these inputs: run by this copy of the compiled code, with
    /// the buffers of this state.
    pub fn graph_key(&self, code: u64, state: Option<&State>, shapes: Shapes) -> GraphKey {
        GraphKey {
            method: self.method,
            code,
            // rule: graph-is-of-one-session
            session: state.map_or(0, State::number),
            // rule: graph-key-has-the-plan
            generation: self.store.generation(),
            shapes,
        }
    }

    /// How the pass that comes is to be run. The ring is as its graph expects it then.
    pub fn next_by_graph(&mut self, key: &GraphKey) -> Result<ByGraph> {
        self.store.check_usable()?;
        self.forget_outdated()?;
        if self.will_time_kernels() {
            // A pass is to be timed, and may bring another plan.
            return Ok(ByGraph::Calls);
        }
        let graphs = &self.capture()?.graphs;
        let seen = graphs.seen.get(&key.of_any_plan());
        let may = seen.is_some_and(|seen| !seen.too_large);
        let is_kept = graphs.all.contains_key(key);
        if !is_kept && !may {
            return Ok(ByGraph::Calls);
        }
        let steady = graphs.steady.get(&key.method).cloned();
        let primed = self.with_graphs(|session, graphs| match graphs.all.get(key) {
            Some(one) => session.prime(&one.pass),
            None => steady.map_or(Ok(false), |state| session.prime_to(&state)),
        })?;
        Ok(match (primed, is_kept) {
            (false, _) => ByGraph::Calls,
            (true, true) => ByGraph::Replay,
            (true, false) => ByGraph::Capture,
        })
    }

    /// A pass with this key, issued call by call, was complete.
    pub fn saw(&mut self, key: &GraphKey) -> Result<()> {
        let capture = self.capture()?;
        let reach = capture.scratch.reach();
        capture.graphs.see(key.of_any_plan(), reach);
        Ok(())
    }

    /// Begins the capture that [`Session::next_by_graph`] said is possible. The address of `inputs` bytes for its inputs, which
    /// stays the same for its replays.
    pub fn begin_capture_of(&mut self, key: &GraphKey, inputs: u64) -> Result<DevicePtr> {
        let reach = self.reach_of(key)?;
        self.begin_capture_over(inputs, reach)
    }

    /// Bytes of the activations of a pass with this key, which was seen.
    pub(super) fn reach_of(&mut self, key: &GraphKey) -> Result<u64> {
        let seen = self.capture()?.graphs.seen.get(&key.of_any_plan());
        seen.map(|seen| seen.reach).ok_or_else(|| {
            Error::Internal("a pass was to be captured before one over its shapes".to_owned())
        })
    }

    /// Most bytes of all graphs together.
    pub(super) fn graph_cap(&self) -> u64 {
        let capture = self.capture.as_ref();
        capture.map_or(0, |capture| capture.graphs.cap())
    }

    /// The capture of a pass with this key failed: the next one is issued call by call.
    pub fn forget_shapes(&mut self, key: &GraphKey) {
        if let Some(capture) = &mut self.capture {
            capture.graphs.seen.remove(&key.of_any_plan());
        }
    }

    /// Keeps the graph of a key. `false` if it alone is larger than all graphs may be: then passes of this key are issued call
    /// by call.
    pub fn keep_graph(
        &mut self,
        key: &GraphKey,
        pass: CapturedPass<D>,
        ends: Ends,
    ) -> Result<bool> {
        let bytes = self.store.device.graph_bytes(&pass.graph);
        let graphs = &mut self.capture()?.graphs;
        let (cap, used) = (graphs.cap(), graphs.tick());
        graphs.most = graphs.most.max(graphs.counted() + bytes);
        if bytes > cap {
            if let Some(seen) = graphs.seen.get_mut(&key.of_any_plan()) {
                seen.too_large = true;
            }
            log::warn!(
                "a graph of {} is more than all graphs of the program may take ({}): its passes are issued call by call",
                bytes_text(bytes),
                bytes_text(cap)
            );
            self.forget_graph(pass)?;
            return Ok(false);
        }
        let ends = Arc::new(ends);
        let kept = Cached {
            pass,
            ends,
            bytes,
            used,
        };
        let before = graphs.all.insert(key.clone(), kept);
        if let Some(before) = before {
            self.forget_graph(before.pass)?;
        }
        self.evict_down_to(cap, key)?;
        self.count_graphs();
        Ok(true)
    }

    /// Gives graphs up until all of them take at most `cap`; not the one of this key.
    fn evict_down_to(&mut self, cap: u64, key: &GraphKey) -> Result<()> {
        let taken = self.store.device.graphs_taken();
        while self.capture()?.graphs.needed(taken) > cap {
            let Some(oldest) = self.capture()?.graphs.oldest_but(key) else {
                break;
            };
            // It is captured again only if it comes twice.
            self.capture()?.graphs.seen.remove(&oldest.of_any_plan());
            self.give_up(|other| *other == oldest)?;
        }
        Ok(())
    }

    /// Where the graph of this key reads its inputs and leaves its outputs. No replay is under way that uses these addresses.
    pub fn ends_of(&mut self, key: &GraphKey) -> Result<Arc<Ends>> {
        let capture = self.capture()?;
        capture.blocks.check_turn()?;
        let found = capture.graphs.all.get(key);
        found.map(|one| one.ends.clone()).ok_or_else(no_graph)
    }

    /// Replays the graph of this key, which [`Session::next_by_graph`] said is there, or which was just kept.
    pub fn replay_kept(&mut self, key: &GraphKey) -> Result<()> {
        self.with_graphs(|session, graphs| {
            let used = graphs.tick();
            let one = graphs.all.get_mut(key).ok_or_else(no_graph)?;
            one.used = used;
            session.replay(&one.pass)
        })
    }

    /// A session of a method ends: its graphs go, and its shapes are forgotten.
    pub fn forget_graphs_of(&mut self, method: usize, state: Option<&State>) -> Result<()> {
        let number = state.map_or(0, State::number);
        let of_it = |key: &GraphKey| key.method == method && key.session == number;
        let Some(capture) = self.capture.as_mut() else {
            return Ok(());
        };
        capture.graphs.seen.retain(|key, _| !of_it(key));
        let evicted = self.store.stats.graphs_evicted;
        let gone = self.give_up(of_it);
        self.store.stats.graphs_evicted = evicted;
        gone
    }

    /// What was captured under another plan, or in a block that is gone, is never replayed again.
    fn forget_outdated(&mut self) -> Result<()> {
        let generation = self.store.generation();
        let outdated = |capture: &Capture<D>, key: &GraphKey, one: &Cached<D>| {
            key.generation != generation || capture.blocks.is_gone(&one.pass.pass.held)
        };
        let capture = self.capture()?;
        let all = capture.graphs.all.iter();
        let keys = all.filter(|(key, one)| outdated(capture, key, one));
        let keys: Vec<GraphKey> = keys.map(|(key, _)| key.clone()).collect();
        match keys.is_empty() {
            true => Ok(()),
            false => self.give_up(|key| keys.contains(key)),
        }
    }

    fn give_up(&mut self, which: impl Fn(&GraphKey) -> bool) -> Result<()> {
        let graphs = &mut self.capture()?.graphs;
        let gone: Vec<_> = graphs.all.extract_if(|key, _| which(key)).collect();
        self.store.stats.graphs_evicted += gone.len() as u64;
        let given = gone.into_iter().map(|(_, one)| self.forget_graph(one.pass));
        let given = given.fold(Ok(()), Result::and);
        self.count_graphs();
        given
    }

    fn count_graphs(&mut self) {
        if let Some(capture) = &self.capture {
            self.store.stats.graphs = capture.graphs.all.len() as u64;
            let taken = self.store.device.graphs_taken();
            // In a process where graphs went, the driver has memory for the next ones already.
            self.store.stats.graph_bytes = capture.graphs.counted().max(taken.unwrap_or(0));
        }
    }

    /// After a complete pass that was issued call by call: where the next one of the method begins.
    pub(in crate::session) fn keep_steady(&mut self) {
        if self.is_capturing() {
            return;
        }
        if let Some(capture) = &mut self.capture {
            let state = self.store.state();
            capture.graphs.steady.insert(self.method, state);
        }
    }

    /// Graphs are used beside the rest of the session.
    fn with_graphs<R>(
        &mut self,
        work: impl FnOnce(&mut Self, &mut Graphs<D>) -> Result<R>,
    ) -> Result<R> {
        let mut graphs = std::mem::take(&mut self.capture()?.graphs);
        let outcome = work(self, &mut graphs);
        self.capture()?.graphs = graphs;
        outcome
    }
}

#[cold]
fn no_graph() -> Error {
    Error::Internal("there is no graph of these shapes".to_owned())
}
