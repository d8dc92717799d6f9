//! Captured graphs: what was issued to both streams during a pass, issued again by one call.
//!
//! The copy stream joins the capture by waiting for an event of the compute stream, and is joined back before the end.
//! While a stream is captured the driver refuses whatever would wait for it, and one refused call spoils the capture: so
//! the device refuses such calls itself, and says which.
//!
//! # Memory
//! No call of the driver says what a graph takes. So the device's free memory is asked for before a graph is instantiated and
//! uploaded, and after that; and around its end. The driver takes memory in steps, of which later graphs use the rest, and may
//! keep that of graphs that went for later ones: only the sum over all graphs says something.

use super::context::{Entered, PrimaryContext};
use super::library::{check, log_failure};
use super::stream::Stream;
use crate::device::NODE_BYTES;
use crate::error::Result;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// What one graph may take beyond four times its nodes. More is what others took at the same moment.
const STEPS: u64 = 64 << 20;

/// Whether something is being captured.
#[derive(Default)]
pub(super) struct Capture {
    pub(super) now: bool,
    /// Stands for the device: graphs keep it, so that none is replayed on another one.
    pub(super) device: Arc<GraphMemory>,
}

/// Bytes that the driver took for graphs of one device, and did not get back.
#[derive(Default)]
pub(super) struct GraphMemory(AtomicU64);

impl GraphMemory {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Free memory of the device around a new graph of so many nodes.
    fn grew(&self, nodes: u64, before: u64, after: u64) {
        let seen = before.saturating_sub(after);
        let expected = nodes * NODE_BYTES;
        // Other processes, and other threads of this one, take memory too.
        let taken = match seen <= 4 * expected + STEPS {
            true => seen,
            false => expected,
        };
        let sum = self.0.fetch_add(taken, Ordering::Relaxed) + taken;
        log::debug!(
            "a graph of {nodes} nodes, {expected} bytes by their number: free memory {before}, then {after} bytes; {sum} taken \
             for all graphs"
        );
    }

    /// Free memory around the end of a graph.
    fn shrank(&self, before: u64, after: u64) {
        let back = after.saturating_sub(before);
        let less = |bytes: u64| Some(bytes.saturating_sub(back));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// A graph that can be launched.
pub struct Graph {
    raw: CUgraphExec,
    nodes: u64,
    context: Arc<PrimaryContext>,
    pub(super) device: Arc<GraphMemory>,
}

// SAFETY: a graph may be launched from any thread, by one at a time: its owner is borrowed mutably for that.
unsafe impl Send for Graph {}

impl Graph {
    /// # Safety
    /// `graph` is a graph that was just captured, and nobody else has it.
    pub(super) unsafe fn of(
        context: &Arc<PrimaryContext>,
        device: &Arc<GraphMemory>,
        graph: CUgraph,
        stream: &Stream,
        entered: &Entered<'_>,
    ) -> Result<Graph> {
        let before = context.free_bytes(entered);
        let mut nodes = 0;
        // SAFETY: a graph by the caller's promise; without room for nodes the driver writes only how many there are.
        let counted = check("cuGraphGetNodes", unsafe {
            sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes)
        });
        let mut raw = std::ptr::null_mut();
        // SAFETY: a graph by the caller's promise; the driver writes one pointer.
        let made = check("cuGraphInstantiate", unsafe {
            sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0)
        });
        // SAFETY: by the caller's promise; what was instantiated does not need it.
        let gone = unsafe { sys::cuGraphDestroy(graph) };
        log_failure(context.name(), check("cuGraphDestroy", gone));
        let graph = made.map(|()| Graph {
            raw,
            nodes: nodes as u64,
            context: Arc::clone(context),
            device: Arc::clone(device),
        })?;
        counted?;
        graph.upload(stream, entered)?;
        device.grew(graph.nodes, before?, context.free_bytes(entered)?);
        Ok(graph)
    }

    /// Gives it the memory that its first launch would take, and waits for that.
    fn upload(&self, stream: &Stream, entered: &Entered<'_>) -> Result<()> {
        // SAFETY: both live.
        check("cuGraphUpload", unsafe {
            sys::cuGraphUpload(self.raw, stream.raw())
        })?;
        stream.synchronize(entered)
    }

    pub(super) fn nodes(&self) -> u64 {
        self.nodes
    }

    pub(super) fn launch(&self, stream: &Stream, _entered: &Entered<'_>) -> Result<()> {
        // SAFETY: both live. The memory that it reads and writes is the device's, which outlives it.
        check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(self.raw, stream.raw())
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Some(entered) = self.context.enter_to_drop() else {
            return;
        };
        let before = self.context.free_bytes(&entered);
        // SAFETY: made in `of`, and nobody else has it. A launch that still runs keeps what it needs.
        let code = unsafe { sys::cuGraphExecDestroy(self.raw) };
        log_failure(self.context.name(), check("cuGraphExecDestroy", code));
        if let (Ok(before), Ok(after)) = (before, self.context.free_bytes(&entered)) {
            self.device.shrank(before, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The driver takes a step for the first graph, and nothing for the second one.
    #[test]
    fn steps_of_the_driver_are_summed() {
        let taken = GraphMemory::default();
        taken.grew(100, 900 * MIB, 898 * MIB);
        taken.grew(100, 898 * MIB, 898 * MIB);
        assert_eq!(taken.bytes(), 2 * MIB);
        taken.shrank(898 * MIB, 898 * MIB);
        assert_eq!(taken.bytes(), 2 * MIB);
        taken.shrank(898 * MIB, 900 * MIB);
        assert_eq!(taken.bytes(), 0);
        // More came back than graphs had: others gave it.
        taken.shrank(0, 900 * MIB);
        assert_eq!(taken.bytes(), 0);
    }

    #[test]
    fn what_others_take_is_not_a_graphs() {
        let taken = GraphMemory::default();
        taken.grew(100, 9000 * MIB, 4000 * MIB);
        assert_eq!(taken.bytes(), 100 * NODE_BYTES);
        // Or gave back meanwhile.
        taken.grew(100, 4000 * MIB, 9000 * MIB);
        assert_eq!(taken.bytes(), 100 * NODE_BYTES);
    }
}
