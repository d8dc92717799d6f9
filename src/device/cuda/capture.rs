//! Captures what is issued to both streams as a graph, and launches it.

use super::context::{Entered, PrimaryContext};
use super::graph::Graph;
use super::library::{check, log_failure};
use super::CudaDevice;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUgraph, CUstreamCaptureMode};
use std::sync::Arc;

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
            self.copy.wait(&fork, &entered)?;
            match &mut self.unpacking {
                None => Ok(()),
                Some(unpacking) => unpacking.begin_capture(&fork, &entered),
            }
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
        unsafe {
            Graph::of(
                &self.context,
                &self.capture.device,
                graph,
                &self.compute,
                &entered,
            )
        }
    }

    pub(super) fn drop_capture(&mut self) -> Result<()> {
        let (graph, _) = self.take_capture()?;
        destroy(&self.context, graph, &self.context.enter()?);
        Ok(())
    }

    /// Joins the copy stream and ends the capture: the graph, null if there is none, and what went wrong.
    fn take_capture(&mut self) -> Result<(CUgraph, Result<()>)> {
        let context = Arc::clone(&self.context);
        let entered = context.enter()?;
        let joined = self.events.take(&entered).and_then(|join| {
            self.copy.record(&join, &entered)?;
            self.compute.wait(&join, &entered)
        });
        // Also where the capture is spoilt: its events are worth nothing to what comes.
        let ended = match self.unpacking.take() {
            None => Ok(()),
            Some(mut unpacking) => {
                let ended = unpacking.end_capture(&self.issuing(&entered), &self.compute);
                self.unpacking = Some(unpacking);
                ended
            }
        };
        let joined = joined.and(ended);
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
        let entered = self.context.enter()?;
        let Some(unpacking) = &mut self.unpacking else {
            return graph.launch(&self.compute, &entered);
        };
        // The graph's copies go through the slots that passes use.
        let copied = self.events.take(&entered)?;
        self.copy.record(&copied, &entered)?;
        let issued = unpacking.record_behind(&copied, &self.events, &entered)?;
        self.compute.wait(&issued, &entered)?;
        graph.launch(&self.compute, &entered)?;
        let launched = self.events.take(&entered)?;
        self.compute.record(&launched, &entered)?;
        unpacking.follow(launched);
        Ok(())
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

/// Runs calls of the driver that a capture elsewhere in the process may forbid, and that it may not break: memory is mapped while
/// others capture. A context exists.
pub(in crate::device) fn relaxed<R>(work: impl FnOnce() -> R) -> Result<R> {
    struct Back(CUstreamCaptureMode);
    impl Drop for Back {
        fn drop(&mut self) {
            log_failure("the mode of this thread's captures", exchange(&mut self.0));
        }
    }
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange(&mut mode)?;
    let _back = Back(mode);
    Ok(work())
}

fn exchange(mode: &mut CUstreamCaptureMode) -> Result<()> {
    // SAFETY: the driver reads one number, and writes the one of before.
    check("cuThreadExchangeStreamCaptureMode", unsafe {
        sys::cuThreadExchangeStreamCaptureMode(mode)
    })
}

/// Gives up a graph that was just captured and that nobody else has; null if there is none.
fn destroy(context: &PrimaryContext, graph: CUgraph, _entered: &Entered<'_>) {
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
