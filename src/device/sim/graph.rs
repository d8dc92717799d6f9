//! Graphs: what is captured is kept call by call, and called again by a replay, so that its races are found there too.
//!
//! The rules of the driver hold: a capture begins with idle streams, allocates nothing, waits for no event from before, and
//! its events are worth nothing after it.

use crate::device::{DevicePtr, HostBytes};
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
pub struct SimGraph(pub(super) Vec<Call>);

impl SimGraph {
    /// What a driver would have a node for: waits are edges.
    pub(super) fn nodes(&self) -> u64 {
        let work = |call: &&Call| {
            matches!(
                call,
                Call::Kernel(..) | Call::Copy(..) | Call::Across(..) | Call::Zero(..)
            )
        };
        self.0.iter().filter(work).count() as u64
    }
}

/// What is being captured.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    pub(super) calls: Option<Vec<Call>>,
    /// Number of this capture, and its events so far.
    pub(super) number: u64,
    pub(super) events: usize,
    /// What was issued to the copy stream when the last replay ended.
    pub(super) replayed: u64,
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

pub(super) fn refused(what: &str) -> Error {
    Error::Unsupported(format!("{what} cannot be captured in a graph"))
}
