//! Graphs: what is captured is kept call by call, and called again by a replay, so that its races are found there too.
//!
//! The rules of the driver hold: a capture begins with idle streams, allocates nothing, waits for no event from before, and
//! its events are worth nothing after it.

use super::Sim;
use super::SimEvent;
use crate::device::{Device, DevicePtr, HostBytes};
use crate::error::{Error, Result};

/// One call that was captured. Events go by their number.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Kernel(u32, Vec<(DevicePtr, HostBytes)>),
    Copy(DevicePtr, HostBytes),
    Discard(DevicePtr, u64),
    Across(DevicePtr, DevicePtr, u64),
    Zero(DevicePtr, u64),
    RecordCompute,
    RecordCopy,
    CopyWaits(usize),
    ComputeWaits(usize),
}

/// A captured pass.
#[derive(Debug)]
pub struct SimGraph(Vec<Call>);

/// What is being captured.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    calls: Option<Vec<Call>>,
    /// Number of this capture, and its events so far.
    number: u64,
    events: usize,
    /// What was issued to the copy stream when the last replay ended.
    replayed: u64,
}

impl Graphs {
    /// Keeps a call, if something is captured: then nothing else is to happen.
    pub(super) fn keep(&mut self, call: impl FnOnce() -> Call) -> bool {
        match &mut self.calls {
            Some(calls) => {
                calls.push(call());
                true
            }
            None => false,
        }
    }

    /// The mark of an event that is recorded now: of which capture, and its number there.
    pub(super) fn mark(&mut self, call: Call) -> Option<(u64, usize)> {
        self.calls.as_mut()?.push(call);
        self.events += 1;
        Some((self.number, self.events - 1))
    }

    /// The number of the event to wait for, if something is captured.
    pub(super) fn awaited(&self, mark: Option<(u64, usize)>) -> Result<Option<usize>> {
        match (&self.calls, mark) {
            (None, None) => Ok(None),
            (Some(_), Some((number, event))) if number == self.number => Ok(Some(event)),
            (Some(_), _) => Err(refused("waiting for an event from before it")),
            (None, Some(_)) => Err(Error::Device {
                call: "wait",
                what: "the event was captured in a graph".to_owned(),
            }),
        }
    }

    pub(super) fn refuse(&self, what: &str) -> Result<()> {
        match self.calls {
            None => Ok(()),
            Some(_) => Err(refused(what)),
        }
    }
}

fn refused(what: &str) -> Error {
    Error::Unsupported(format!("{what} cannot be captured in a graph"))
}

impl Sim {
    pub(super) fn start_capture(&mut self) -> Result<()> {
        self.graphs.refuse("a capture")?;
        if !self.copy_idle() || !self.compute_idle() {
            return Err(refused("what is still under way when it begins"));
        }
        self.graphs.number += 1;
        self.graphs.events = 0;
        self.graphs.calls = Some(Vec::new());
        Ok(())
    }

    pub(super) fn stop_capture(&mut self) -> Result<SimGraph> {
        let calls = self.graphs.calls.take();
        let calls = calls.ok_or_else(|| Error::Internal("nothing is being captured".to_owned()))?;
        Ok(SimGraph(calls))
    }

    pub(super) fn play_graph(&mut self, graph: &SimGraph) -> Result<()> {
        if !self.copy_idle() && self.copy.issued != self.graphs.replayed {
            return Err(Error::Internal(
                "a graph does not wait for copies that are under way".to_owned(),
            ));
        }
        // After everything issued to the compute stream, and before all that is issued later.
        let begin = self.record_compute()?;
        self.copy_wait(&begin)?;
        let mut events: Vec<SimEvent> = Vec::new();
        for call in &graph.0 {
            match *call {
                Call::Kernel(number, ref reads) => self.kernel(number, reads)?,
                Call::Copy(dst, src) => self.copy_to_device(dst, src)?,
                Call::Discard(ptr, bytes) => self.discard(ptr, bytes)?,
                Call::Across(dst, src, bytes) => self.copy_across(dst, src, bytes)?,
                Call::Zero(ptr, bytes) => self.zero(ptr, bytes)?,
                Call::RecordCompute => events.push(self.record_compute()?),
                Call::RecordCopy => events.push(self.record_copy()?),
                Call::CopyWaits(event) => self.copy_wait(&events[event])?,
                Call::ComputeWaits(event) => self.compute_wait(&events[event])?,
            }
        }
        let end = self.record_copy()?;
        self.graphs.replayed = self.copy.issued;
        self.compute_wait(&end)
    }
}
