//! Captured graphs: what was issued to both streams during a pass, issued again by one call.
//!
//! The copy stream joins the capture by waiting for an event of the compute stream, and is joined back before the end.
//! While a stream is captured the driver refuses whatever would wait for it, and one refused call spoils the capture: so
//! the device refuses such calls itself, and says which.

use super::context::{Context, Entered};
use super::library::{check, log_failure};
use super::stream::Stream;
use super::CudaDevice;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};
use std::sync::Arc;

/// Whether something is being captured.
#[derive(Default)]
pub(super) struct Capture {
    pub(super) now: bool,
    /// Stands for the device: graphs keep it, so that none is replayed on another one.
    device: Arc<()>,
}

/// A graph that can be launched.
pub struct Graph {
    raw: CUgraphExec,
    context: Arc<Context>,
    device: Arc<()>,
}

// SAFETY: a graph may be launched from any thread, by one at a time: its owner is borrowed mutably for that.
unsafe impl Send for Graph {}

impl Graph {
    /// # Safety
    /// `graph` is a graph that was just captured, and nobody else has it.
    unsafe fn of(
        context: &Arc<Context>,
        device: &Arc<()>,
        graph: CUgraph,
        _entered: &Entered<'_>,
    ) -> Result<Graph> {
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
            device: Arc::clone(device),
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
        self.capture.now = true;
        let forked = self.events.take(&entered).and_then(|fork| {
            self.compute.record(&fork, &entered)?;
            self.copy.wait(&fork, &entered)
        });
        drop(entered);
        if forked.is_err() {
            // The first error says more.
            let _ = self.drop_capture();
        }
        forked
    }

    pub(super) fn stop_capture(&mut self) -> Result<Graph> {
        let (graph, outcome) = self.take_capture()?;
        let entered = self.context.enter()?;
        if let Err(error) = outcome {
            destroy(&self.context, graph, &entered);
            return Err(error);
        }
        // SAFETY: just captured, and nobody else has it.
        unsafe { Graph::of(&self.context, &self.capture.device, graph, &entered) }
    }

    pub(super) fn drop_capture(&mut self) -> Result<()> {
        let (graph, _) = self.take_capture()?;
        destroy(&self.context, graph, &self.context.enter()?);
        Ok(())
    }

    /// Joins the copy stream and ends the capture: the graph, null if there is none, and what went wrong.
    fn take_capture(&mut self) -> Result<(CUgraph, Result<()>)> {
        let entered = self.context.enter()?;
        let joined = self.events.take(&entered).and_then(|join| {
            self.copy.record(&join, &entered)?;
            self.compute.wait(&join, &entered)
        });
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives as long as `self`; the driver writes one pointer.
        let code = unsafe { sys::cuStreamEndCapture(self.compute.raw(), &mut graph) };
        self.capture.now = false;
        Ok((graph, joined.and(check("cuStreamEndCapture", code))))
    }

    pub(super) fn launch_graph(&mut self, graph: &Graph) -> Result<()> {
        if !Arc::ptr_eq(&graph.device, &self.capture.device) {
            return Err(Error::Internal(
                "a graph of another device was to be replayed".to_owned(),
            ));
        }
        graph.launch(&self.compute, &self.context.enter()?)
    }

    /// Refuses what would end a capture.
    #[inline]
    pub(super) fn not_while_captured(&self, what: &str) -> Result<()> {
        match self.capture.now {
            false => Ok(()),
            true => Err(refused(what)),
        }
    }
}

/// Gives up a graph that was just captured and that nobody else has; null if there is none.
fn destroy(context: &Context, graph: CUgraph, _entered: &Entered<'_>) {
    if !graph.is_null() {
        // SAFETY: by the caller's promise above.
        let gone = unsafe { sys::cuGraphDestroy(graph) };
        log_failure(context.name(), check("cuGraphDestroy", gone));
    }
}

#[cold]
fn refused(what: &str) -> Error {
    Error::Unsupported(format!(
        "{what} in the middle of a pass cannot be captured as a graph"
    ))
}
