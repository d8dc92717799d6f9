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

pub(super) use cache::PassGraphs;
pub use cache::{ByGraph, Ends, GraphKey, Shapes, GRAPH_BYTES};
pub use captured::CapturedPass;
pub use up_front::{capture_up_front, UpFront};

use super::{Pass, Session, State};
use crate::device::{Device, DevicePtr};
use crate::error::{bytes_text, Error, Result};
use crate::store::Store;
use cache::{Cached, PassKey, SeenPass};
use std::collections::HashMap;
use std::sync::Arc;

impl<D: Device> Session<D> {
    /// What captures and replays use, each beside the others.
    fn graphs(&mut self) -> Result<(&mut PassGraphs<D>, &mut Store<D>, &mut Pass)> {
        let graphs = self.graphs.as_mut().ok_or_else(captures_nothing)?;
        Ok((graphs, &mut self.store, &mut self.passes[self.method]))
    }

    /// Most bytes of all graphs together: the largest figure that was ever asked for. Without one it is [`GRAPH_BYTES`].
    pub fn raise_graph_cap(&mut self, bytes: Option<u64>) -> Result<()> {
        let asked = &mut self.graphs()?.0.asked;
        *asked = (*asked).max(bytes);
        Ok(())
    }

    /// What a graph of the method whose turn it is would be for, over these inputs: run by this copy of the compiled code, with
    /// the buffers of this state.
    pub fn graph_key(&self, code: u64, state: Option<&State>, shapes: Shapes) -> GraphKey {
        GraphKey {
            pass: PassKey {
                method: self.method,
                code,
                // rule: graph-is-of-one-session
                session: state.map_or(0, State::number),
                shapes,
            },
            // rule: graph-key-has-the-plan
            generation: self.store.generation(),
        }
    }

    /// How the pass that comes is to be run. The ring is as its graph expects it then.
    pub fn next_by_graph(&mut self, key: &GraphKey) -> Result<ByGraph> {
        self.store.check_usable()?;
        // A pass that is timed may bring another plan.
        let may_change = self.will_time_kernels();
        let (graphs, store, pass) = self.graphs()?;
        graphs.forget_outdated(key, store)?;
        let seen = graphs.seen.get(&key.pass);
        let Some(seen) = seen.filter(|seen| !seen.too_large && !may_change) else {
            return Ok(ByGraph::Calls);
        };
        let (state, how) = match &seen.graph {
            Some(one) => (Some(&one.pass.pass.primed), ByGraph::Replay),
            None => (graphs.steady.get(&key.pass.method), ByGraph::Capture),
        };
        let block = &mut graphs.scratch.block;
        let primed = state.map_or(Ok(false), |state| {
            captured::prime(state, store, pass, block)
        })?;
        Ok(if primed { how } else { ByGraph::Calls })
    }

    /// A pass with this key, issued call by call, was complete.
    pub fn saw(&mut self, key: &GraphKey) -> Result<()> {
        let (graphs, ..) = self.graphs()?;
        graphs.see(&key.pass, graphs.scratch.reach());
        Ok(())
    }

    /// Begins the capture that [`Session::next_by_graph`] said is possible. The address of `inputs` bytes for its inputs, which
    /// stays the same for its replays.
    pub fn begin_capture_of(&mut self, key: &GraphKey, inputs: u64) -> Result<DevicePtr> {
        let reach = self.reach_of(key)?;
        self.begin_capture_over(inputs, reach)
    }

    /// Bytes of the activations of a pass with this key, which was seen.
    fn reach_of(&mut self, key: &GraphKey) -> Result<u64> {
        let seen = self.graphs()?.0.seen.get(&key.pass);
        seen.map(|seen| seen.reach).ok_or_else(not_seen)
    }

    /// The capture of a pass with this key failed: the next one is issued call by call.
    pub fn forget_shapes(&mut self, key: &GraphKey) {
        if let Some(graphs) = &mut self.graphs {
            // One whose graph was kept before the failure goes on with it: its memory is not lost.
            if graphs
                .seen
                .get(&key.pass)
                .is_some_and(|seen| seen.graph.is_none())
            {
                graphs.seen.remove(&key.pass);
            }
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
        let (graphs, store, _) = self.graphs()?;
        let bytes = store.device.graph_bytes(&pass.graph);
        let (cap, used) = (graphs.cap(), graphs.tick());
        graphs.most = graphs.most.max(graphs.counted() + bytes);
        let Some(seen) = graphs.seen.get_mut(&key.pass) else {
            pass.end(store, &mut graphs.scratch.block)?;
            return Err(not_seen());
        };
        if bytes > cap {
            seen.too_large = true;
            log::warn!(
                "a graph of {} is more than all graphs of the program may take ({}): its passes are issued call by call",
                bytes_text(bytes),
                bytes_text(cap)
            );
            pass.end(store, &mut graphs.scratch.block)?;
            return Ok(false);
        }
        let before = seen.graph.replace(Cached {
            pass,
            ends: Arc::new(ends),
            bytes,
            used,
        });
        if let Some(before) = before {
            before.pass.end(store, &mut graphs.scratch.block)?;
        }
        graphs.evict_down_to(cap, &key.pass, store)?;
        Ok(true)
    }

    /// Where the graph of this key reads its inputs and leaves its outputs. No replay is under way that uses these addresses.
    pub fn ends_of(&mut self, key: &GraphKey) -> Result<Arc<Ends>> {
        let (graphs, ..) = self.graphs()?;
        graphs.scratch.block.check_turn()?;
        Ok(kept(&mut graphs.seen, key)?.ends.clone())
    }

    /// Replays the graph of this key, which [`Session::next_by_graph`] said is there, or which was just kept.
    pub fn replay_kept(&mut self, key: &GraphKey) -> Result<()> {
        let (graphs, store, pass) = self.graphs()?;
        let used = graphs.tick();
        let one = kept(&mut graphs.seen, key)?;
        one.used = used;
        one.pass.replay(store, pass, &mut graphs.scratch.block)
    }

    /// A session of a method ends: its graphs go, and its shapes are forgotten.
    pub fn forget_graphs_of(&mut self, method: usize, state: Option<&State>) -> Result<()> {
        let number = state.map_or(0, State::number);
        let Some(graphs) = &mut self.graphs else {
            return Ok(());
        };
        let of_it = |key: &PassKey| key.method == method && key.session == number;
        let gone = graphs.seen.extract_if(|key, _| of_it(key));
        let gone = gone.filter_map(|(_, seen)| seen.graph).collect();
        graphs.end(gone, &mut self.store)
    }

    /// After a complete pass that was issued call by call: where the next one of the method begins.
    pub(super) fn keep_steady(&mut self) {
        if let Some(graphs) = self.graphs.as_mut().filter(|graphs| !graphs.is_capturing()) {
            graphs.steady.insert(self.method, self.store.state());
        }
    }
}

fn kept<'a, D: Device>(
    seen: &'a mut HashMap<PassKey, SeenPass<D>>,
    key: &GraphKey,
) -> Result<&'a mut Cached<D>> {
    let graph = seen.get_mut(&key.pass).and_then(|seen| seen.graph.as_mut());
    graph.ok_or_else(|| Error::Internal("there is no graph of these shapes".to_owned()))
}

#[cold]
fn captures_nothing() -> Error {
    Error::Internal("this session captures nothing".to_owned())
}

#[cold]
fn not_seen() -> Error {
    Error::Internal("a pass was to be captured before one over its shapes".to_owned())
}
