//! Captured graphs: what was issued to both streams during a pass, issued again by one call.
//!
//! The copy stream joins the capture by waiting for an event of the compute stream, and is joined back before the end.
//! While a stream is captured the driver refuses whatever would wait for it, and one refused call spoils the capture: so
//! the device refuses such calls itself, and says which.

use super::context::{Context, Entered};
use super::library::{check, log_failure};
use super::stream::Stream;
use crate::error::Result;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec};
use std::sync::Arc;

/// Whether something is being captured.
#[derive(Default)]
pub(super) struct Capture {
    pub(super) now: bool,
    /// Stands for the device: graphs keep it, so that none is replayed on another one.
    pub(super) device: Arc<()>,
}

/// A graph that can be launched.
pub struct Graph {
    raw: CUgraphExec,
    nodes: u64,
    context: Arc<Context>,
    pub(super) device: Arc<()>,
}

// SAFETY: a graph may be launched from any thread, by one at a time: its owner is borrowed mutably for that.
unsafe impl Send for Graph {}

impl Graph {
    /// # Safety
    /// `graph` is a graph that was just captured, and nobody else has it.
    pub(super) unsafe fn of(
        context: &Arc<Context>,
        device: &Arc<()>,
        graph: CUgraph,
        _entered: &Entered<'_>,
    ) -> Result<Graph> {
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
        counted.map(|()| graph)
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
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        // SAFETY: made in `of`, and nobody else has it. A launch that still runs keeps what it needs.
        let code = unsafe { sys::cuGraphExecDestroy(self.raw) };
        log_failure(self.context.name(), check("cuGraphExecDestroy", code));
    }
}
