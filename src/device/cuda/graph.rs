//! One captured graph: what was issued to both streams during a pass, issued again by one call.
//!
//! The copy stream joins the capture by waiting for an event of the compute stream, and is joined back before the end.
//! While a stream is captured the driver refuses whatever would wait for it, and one refused call spoils the capture: so
//! the device refuses such calls itself, and says which.

use super::context::{Context, Entered};
use super::library::{check, log_failure};
use super::stream::Stream;
use super::CudaDevice;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};
use std::sync::Arc;

/// Whether something is captured, and what was.
#[derive(Default)]
pub(super) struct Captured {
    pub(super) now: bool,
    pub(super) graph: Option<Graph>,
}

/// A graph that can be launched.
pub(super) struct Graph {
    raw: CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: a graph may be launched from any thread, by one at a time: its owner is borrowed mutably for that.
unsafe impl Send for Graph {}

impl Graph {
    /// # Safety
    /// `graph` is a graph that was just captured, and nobody else has it.
    unsafe fn of(context: &Arc<Context>, graph: CUgraph, _entered: &Entered<'_>) -> Result<Graph> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a graph by the caller's promise; the driver writes one pointer.
        let made = check("cuGraphInstantiate", unsafe {
            sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0)
        });
        // SAFETY: by the caller's promise; what was instantiated does not need it.
        let gone = unsafe { sys::cuGraphDestroy(graph) };
        log_failure(context.name(), check("cuGraphDestroy", gone));
        made.map(|()| Graph {
            raw,
            context: Arc::clone(context),
        })
    }

    fn launch(&self, stream: &Stream, _entered: &Entered<'_>) -> Result<()> {
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

impl CudaDevice {
    pub(super) fn start_capture(&mut self) -> Result<()> {
        if self.compute.raw().is_null() {
            return Err(Error::Unsupported(format!(
                "the default stream of {} cannot be captured as a graph; load the program with a stream of your own, or \
                 with none",
                self.context.name()
            )));
        }
        if self.stage.is_some() {
            return Err(Error::Unsupported(
                "copies through a staging ring cannot be captured as a graph".to_owned(),
            ));
        }
        let entered = self.context.enter()?;
        // Other threads of the process may go on doing whatever they do.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as `self`.
        check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(self.compute.raw(), mode)
        })?;
        self.captured.now = true;
        let forked = self.events.take(&entered).and_then(|fork| {
            self.compute.record(&fork, &entered)?;
            self.copy.wait(&fork, &entered)
        });
        drop(entered);
        if forked.is_err() {
            // The first error says more.
            let _ = self.stop_capture(false);
        }
        forked
    }

    pub(super) fn stop_capture(&mut self, keep: bool) -> Result<()> {
        let entered = self.context.enter()?;
        let joined = self.events.take(&entered).and_then(|join| {
            self.copy.record(&join, &entered)?;
            self.compute.wait(&join, &entered)
        });
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives as long as `self`; the driver writes one pointer.
        let code = unsafe { sys::cuStreamEndCapture(self.compute.raw(), &mut graph) };
        self.captured.now = false;
        if !keep || code != CUresult::CUDA_SUCCESS || joined.is_err() {
            if !graph.is_null() {
                // SAFETY: just captured, and nobody else has it.
                let gone = unsafe { sys::cuGraphDestroy(graph) };
                log_failure(self.context.name(), check("cuGraphDestroy", gone));
            }
            return match keep {
                true => joined.and(check("cuStreamEndCapture", code)),
                false => Ok(()),
            };
        }
        // SAFETY: just captured, and nobody else has it.
        let graph = unsafe { Graph::of(&self.context, graph, &entered) }?;
        self.captured.graph = Some(graph);
        Ok(())
    }

    pub(super) fn launch_graph(&mut self) -> Result<()> {
        let graph = self.captured.graph.as_ref();
        let graph =
            graph.ok_or_else(|| Error::Internal("there is no graph to replay".to_owned()))?;
        graph.launch(&self.compute, &self.context.enter()?)
    }

    /// Refuses what would end a capture.
    #[inline]
    pub(super) fn not_while_captured(&self, what: &str) -> Result<()> {
        match self.captured.now {
            false => Ok(()),
            true => Err(refused(what)),
        }
    }
}

#[cold]
fn refused(what: &str) -> Error {
    Error::Unsupported(format!(
        "{what} in the middle of a pass cannot be captured as a graph"
    ))
}
