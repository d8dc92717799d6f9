//! SimGraphs: what is captured is kept call by call, and called again by a replay, so that its races are found there too.
//!
//! The rules of the driver hold: a capture begins with idle streams, allocates nothing, waits for no event from before, and
//! its events are worth nothing after it.

use crate::device::{DevicePtr, HostBytes, Source, NODE_BYTES};
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// One call that was captured. Events go by their number.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Kernel(u32, Vec<(DevicePtr, HostBytes)>),
    Copy(DevicePtr, Source),
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
pub struct SimGraph(pub(super) Vec<Call>, Arc<Live>);

/// SimGraphs that are there, where they take memory as a driver takes it: in steps, which it never gives back.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Bytes of a step; 0: nobody can tell what graphs take.
    pub(super) step: AtomicU64,
    /// How often they take what their nodes say.
    pub(super) times: AtomicU64,
    bytes: AtomicU64,
    most: AtomicU64,
}

impl Live {
    pub(super) fn taken(&self) -> Option<u64> {
        let step = self.step.load(Relaxed);
        let most = self.most.load(Relaxed) * self.times.load(Relaxed);
        (step > 0).then(|| most.next_multiple_of(step))
    }
}

impl Drop for SimGraph {
    fn drop(&mut self) {
        self.1.bytes.fetch_sub(self.nodes() * NODE_BYTES, Relaxed);
    }
}

impl SimGraph {
    pub(super) fn new(calls: Vec<Call>, live: &Arc<Live>) -> SimGraph {
        let graph = SimGraph(calls, Arc::clone(live));
        let more = graph.nodes() * NODE_BYTES;
        let all = live.bytes.fetch_add(more, Relaxed) + more;
        live.most.fetch_max(all, Relaxed);
        graph
    }

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
pub(super) struct SimGraphs {
    pub(super) calls: Option<Vec<Call>>,
    /// Number of this capture, and its events so far.
    pub(super) number: u64,
    pub(super) events: usize,
    /// What was issued to the copy stream when the last replay ended.
    pub(super) replayed: u64,
    pub(super) live: Arc<Live>,
}

impl SimGraphs {
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
