//! One execution of a method: where it stands in its trace, which leases are open, and what went wrong.

use super::in_flight::InFlight;
use super::probe_table::ProbeTable;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::schedule::{Event, Follower, KernelTimes, ProbeId, WeightIndex};
use crate::store::{Constants, Method, Store};

/// The state of a pass. One is kept for each method, and used for one pass after the other.
pub struct Pass {
    pub(super) method: Method,
    pub(super) follower: Follower,
    pub(super) probes: ProbeTable,
    /// Whether the lease of each probe is open.
    pub(super) leased: Vec<bool>,
    pub(super) open_leases: usize,
    /// Leases that ended after the last kernel; the policy is told when all of them have (`Session::end_tail`).
    pub(super) ended: Vec<bool>,
    pub(super) running: bool,
    /// First failure of a probe in this pass; what follows it is refused.
    pub(super) failed: Option<Error>,
    /// First failure where nobody could be told: in a release, or in a copy for later.
    kept: Option<Error>,
    /// What had been copied before it.
    pub(super) copied_before: u64,
    pub(super) activations: Activations,
    pub(super) in_flight: InFlight,
    /// Complete passes.
    pub(super) passes: u64,
    /// What the kernels after each mark of the pass belong to, if they are any. Only where this or the next pass is timed.
    pub(super) marks: Option<Vec<Option<Event>>>,
    /// How long kernels run, once they were timed, or as it was given at load.
    pub(super) times: Option<KernelTimes>,
}

/// Bytes of activations.
#[derive(Debug, Default)]
pub(super) struct Activations {
    pub now: u64,
    pub peak: u64,
}

impl Activations {
    pub fn take(&mut self, bytes: u64) {
        self.now += bytes;
        self.peak = self.peak.max(self.now);
    }
}

impl Pass {
    /// Of a method whose reads in place have constants of their own.
    pub(super) fn new(method: Method) -> Pass {
        let reads = method.trace.probes().len();
        Pass {
            follower: Follower::new(&method.trace),
            probes: ProbeTable::new(&method.trace, &method.layouts),
            leased: vec![false; reads],
            ended: vec![false; reads],
            open_leases: 0,
            running: false,
            failed: None,
            kept: None,
            copied_before: 0,
            activations: Activations::default(),
            in_flight: InFlight::default(),
            passes: 0,
            marks: None,
            times: None,
            method,
        }
    }

    /// Its reads are those of `method` from now on: the same events, of tables in another place. Between passes.
    pub(super) fn read(&mut self, method: Method) {
        self.follower = Follower::new(&method.trace);
        self.probes = ProbeTable::new(&method.trace, &method.layouts);
        self.method = method;
    }

    /// It is of another method from now on, of which nothing is known yet. Between passes.
    pub(super) fn begin_anew(&mut self, method: Method) {
        let (activations, in_flight) = (
            std::mem::take(&mut self.activations),
            std::mem::take(&mut self.in_flight),
        );
        *self = Pass {
            activations,
            in_flight: InFlight {
                every_kernel: in_flight.every_kernel,
                ..InFlight::default()
            },
            ..Pass::new(method)
        };
    }

    /// Passes of its method among so many as the shares of all methods are together.
    pub(super) fn share(&mut self, share: u32) {
        self.method.share = share;
    }

    /// The method that it executes.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The weights lie where they lie from now on: all of them for good, or none.
    pub(super) fn place_weights<D: Device>(&mut self, store: &Store<D>) {
        // rule: only-what-stays-keeps-its-address
        match store.policy().everything_stays() {
            true => {
                let weights = self.method.trace.probes().iter();
                let places = weights.map(|&weight| store.lasting_address(weight));
                self.probes.stay(places);
            }
            false => self.probes.move_on(),
        }
    }

    /// The pass before was ended, and so were its leases.
    pub(super) fn check_may_begin(&self, constants: &Constants) -> Result<()> {
        if self.running {
            return Err(Error::Internal(
                "a pass began before the last one was ended".to_string(),
            ));
        }
        // rule: pass-begins-without-leases
        self.check_no_lease(constants)?;
        Ok(())
    }

    pub(super) fn begin(&mut self, copied: u64) {
        self.follower.restart();
        self.in_flight.begin();
        self.running = true;
        self.failed = None;
        self.kept = None;
        self.copied_before = copied;
    }

    pub(super) fn end(&mut self) -> Result<()> {
        if !self.running {
            return Err(Error::Internal(
                "a pass ended that had not begun".to_string(),
            ));
        }
        self.running = false;
        self.in_flight.end(self.follower.position());
        Ok(())
    }

    /// What a pass that ended says of itself.
    pub(super) fn outcome(&mut self, completed: bool, constants: &Constants) -> Result<()> {
        if let Some(kept) = self.kept.take() {
            return Err(kept);
        }
        if !completed {
            return Ok(());
        }
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        // rule: releases-are-compared
        self.follower
            .finish(|id| self.method.probe_name(constants, id))?;
        self.check_no_lease(constants)
    }

    fn check_no_lease(&self, constants: &Constants) -> Result<()> {
        // rule: lease-ends-with-its-pass
        if self.open_leases == 0 {
            return Ok(());
        }
        let open = self.leased.iter().position(|&open| open);
        let open = open.unwrap_or_default() as i64;
        Err(Error::Internal(format!(
            "{} lease(s) outlived the pass, the first one of probe {}: a tensor handle was not deleted",
            self.open_leases,
            self.method.probe_name(constants, open)
        )))
    }

    /// Keeps the first error that cannot be returned where it happens.
    #[cold]
    pub(super) fn keep(&mut self, error: Error) {
        self.kept.get_or_insert(error);
    }

    /// From here on probes are refused with this error, unless there is one already.
    #[cold]
    pub(super) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    pub(super) fn open_lease(&mut self, id: ProbeId) {
        self.leased[id as usize] = true;
        self.open_leases += 1;
    }

    /// The weights of open leases.
    pub(super) fn leased_weights(&self) -> Vec<WeightIndex> {
        let open = (0..).zip(&self.leased).filter(|(_, open)| **open);
        open.map(|(id, _)| self.method.trace.weight(id)).collect()
    }

    /// Whether the lease of probe `id` was open; it is closed then.
    pub(super) fn close_lease(&mut self, id: i64) -> bool {
        let index = usize::try_from(id).ok();
        let open = index.and_then(|id| self.leased.get_mut(id));
        match open {
            // rule: lease-ends-once
            Some(open) if *open => *open = false,
            _ => return false,
        }
        self.open_leases -= 1;
        true
    }

    pub(super) fn validate(&self) -> std::result::Result<(), String> {
        let open = self.leased.iter().filter(|open| **open).count();
        match open == self.open_leases {
            true => Ok(()),
            false => Err(format!("leases: {open} open, {} counted", self.open_leases)),
        }
    }
}
