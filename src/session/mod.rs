//! One loaded method: loads what stays, serves probes, ends leases, counts.
//!
//! The session decides nothing about residency and moves nothing itself: a [`Policy`] says what to load and
//! evict, the session carries it out on the copy stream (`actions.rs`), and the follower of the trace
//! refuses a probe that is not the next one before anything else happens.
//!
//! A pass is `begin_pass`, then probes and releases through [`PassHooks`](crate::aoti::hooks::PassHooks),
//! then `end_pass`. After a failure the pass has to be ended with `end_pass(false)`; the next one starts
//! afresh.
#![deny(unsafe_code)]

mod actions;
mod build;
mod capture;
mod choose;
mod copies;
mod gather;
mod hooks;
mod in_flight;
mod probe_table;
mod refine;
mod rehearse;
mod scratch;
mod stats;
mod verify;

pub use build::{Layout, Program, SessionOptions};
pub use gather::Table;
pub use stats::Stats;

use crate::device::{Device, DevicePtr, HostBytes};
use crate::error::{Error, Result};
use crate::residency::{Action, Layout as Layout2, Policy, Pool};
use crate::schedule::{Floor, Follower, KernelTimes, Trace, WeightSpec};
use copies::Run;
use std::ops::Range;
use std::sync::Arc;

/// What the device holds of one weight.
struct DeviceWeight<E> {
    /// Its address; kept when it is evicted, but then not handed out.
    at: DevicePtr,
    /// Kernels find it there in host memory: it is never copied.
    in_place: Option<DevicePtr>,
    /// Its memory was taken from the pool and holds it.
    pooled: bool,
    /// Its bytes that copies of passes brought and that are there still, or on their way. Not those that stay for good.
    copied: Range<u64>,
    /// Behind its copy. `None` once the compute stream has waited for it.
    ready: Option<Arc<E>>,
    /// Behind the last kernel that read the bytes that are there now.
    last_read: Option<E>,
}

/// One loaded method on one device.
///
/// The bytes that it was built over must outlive it ([`HostBytes::new`]).
pub struct Session<D: Device> {
    device: D,
    pool: Box<dyn Pool<D>>,
    policy: Box<dyn Policy>,
    layout: Layout2,
    follower: Follower,
    tenants: Vec<DeviceWeight<D::Event>>,
    program: Program,
    reads: probe_table::ProbeTable,
    /// What is read in place.
    tables: Vec<Table>,
    /// The bytes of each constant, by index.
    bytes: Vec<HostBytes>,
    floor: Floor,
    /// Memory of the direct constants.
    direct: DevicePtr,
    block: DevicePtr,
    /// Passes are played without copies, at load.
    rehearsing: bool,
    /// After so many complete passes the memory is emptied, see `rehearse.rs`.
    empty_after: Option<usize>,
    passes_since_empty: usize,
    /// Filled by the policy and emptied by the session; kept, so that nothing allocates in a pass.
    actions: Vec<Action>,
    /// Loads whose copy is not issued yet; empty between calls.
    run: Run,
    /// Whether the lease of each probe is open.
    leased: Vec<bool>,
    open_leases: usize,
    /// Leases that ended behind the last kernel; the policy is told when all of them have (`end_tail`).
    ended: Vec<bool>,
    in_pass: bool,
    /// First failure of a probe in this pass; what follows it is refused.
    failed: Option<Error>,
    /// First failure where nobody could be told: in a release, or in a copy for later.
    kept: Option<Error>,
    poisoned: Option<String>,
    stats: Stats,
    /// How often the pool had the bytes for a copy, but not in one piece.
    fragmentation_misses: u64,
    /// How often the device had to wait and tidy up for a read.
    compactions: u64,
    copied_before_pass: u64,
    activation_bytes: u64,
    activation_peak: u64,
    in_flight: in_flight::InFlight,
    /// Until kernels were timed and the plan is final, where it may change.
    refine: Option<Box<refine::Refine>>,
    /// What was found when they were.
    times: Option<KernelTimes>,
    /// If passes may be captured as graphs.
    capture: Option<capture::Capture>,
    /// The CRC-32 of each constant, if every read is verified.
    checksums: Option<verify::Checksums>,
}

impl<D: Device> Session<D> {
    /// How often the pool had the bytes for a copy, but not in one piece.
    pub fn fragmentation_misses(&self) -> u64 {
        self.fragmentation_misses
    }

    /// Whether all weights lie in one block, whose holes are the same in every run.
    pub fn is_one_block(&self) -> bool {
        self.pool.is_one_block()
    }

    /// How often a read was served only after the device had waited for its copies and tidied up.
    pub fn compactions(&self) -> u64 {
        self.compactions
    }

    /// The floor of this program and its parts.
    pub fn floor(&self) -> &Floor {
        &self.floor
    }

    /// The policy at work: `all_resident` where the budget covers everything, whatever was asked for; `lru`; `planned`.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Whether kernels will be timed, in the second complete pass.
    pub fn will_time_kernels(&self) -> bool {
        self.refine.is_some()
    }

    /// How long kernels ran, once they were timed.
    pub fn kernel_times(&self) -> Option<&KernelTimes> {
        self.times.as_ref()
    }

    /// What it was made of.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// All constants, by index.
    pub fn weights(&self) -> &[WeightSpec] {
        &self.program.weights
    }

    /// The recorded trace.
    pub fn trace(&self) -> &Trace {
        &self.program.trace
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, for what runs on its compute stream between probes.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Counters since load.
    pub fn stats(&self) -> Stats {
        Stats {
            peak_bytes: self.pool.peak_bytes(),
            ..self.stats
        }
    }

    /// Bytes of activations that are allocated now.
    pub fn activation_bytes(&self) -> u64 {
        self.activation_bytes
    }

    /// Most bytes of activations that were ever allocated at one time.
    pub fn activation_peak_bytes(&self) -> u64 {
        self.activation_peak
    }

    /// The address of a direct constant, final from load on; `None` for weights that are read through probes.
    pub fn direct_address(&self, index: usize) -> Option<DevicePtr> {
        let spec = self.program.weights.get(index)?;
        (!build::is_probed(spec)).then(|| self.tenants[index].at)
    }

    /// Starts a pass. An error if the last one was not ended, if a lease of it is still open, or if the
    /// session cannot be trusted any more.
    pub fn begin_pass(&mut self) -> Result<()> {
        if let Some(why) = &self.poisoned {
            return Err(Error::Poisoned(why.clone()));
        }
        if self.in_pass {
            return Err(Error::Internal(
                "a pass began before the last one was ended".to_string(),
            ));
        }
        self.check_no_lease()?;
        self.finish_replays()?;
        self.follower.restart();
        self.in_flight.begin();
        if let Some(capture) = &mut self.capture {
            capture.scratch.begin();
        }
        self.in_pass = true;
        self.failed = None;
        self.kept = None;
        self.copied_before_pass = self.stats.bytes_copied;
        Ok(())
    }

    /// Ends a pass; `completed` says that the compiled code returned without an error. Returns the first
    /// error that was kept during the pass; of a completed one also a divergence from the trace, and a
    /// lease that is still open.
    pub fn end_pass(&mut self, completed: bool) -> Result<()> {
        if !self.in_pass {
            return Err(Error::Internal(
                "a pass ended that had not begun".to_string(),
            ));
        }
        self.in_pass = false;
        self.in_flight.end(self.follower.position());
        self.end_tail();
        self.stats.bytes_copied_last_pass = self.stats.bytes_copied - self.copied_before_pass;
        let outcome = self.outcome(completed);
        match completed && outcome.is_ok() {
            true => {
                self.stats.passes += 1;
                self.empty_when_due();
                self.refine_when_due();
            }
            false => {
                self.forget_marks();
                self.start_afresh();
            }
        }
        outcome
    }

    fn outcome(&mut self, completed: bool) -> Result<()> {
        if let Some(kept) = self.kept.take() {
            return Err(kept);
        }
        if !completed {
            return Ok(());
        }
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        self.follower
            .finish(|id| build::probe_name(&self.program, id))?;
        self.check_no_lease()
    }

    fn check_no_lease(&self) -> Result<()> {
        if self.open_leases == 0 {
            return Ok(());
        }
        let open = self
            .leased
            .iter()
            .position(|&open| open)
            .unwrap_or_default();
        Err(Error::Internal(format!(
            "{} lease(s) outlived the pass, the first one of probe {}: a tensor handle was not deleted",
            self.open_leases,
            build::probe_name(&self.program, open as i64)
        )))
    }

    /// Keeps the first error that cannot be returned where it happens.
    #[cold]
    fn keep(&mut self, error: Error) {
        self.kept.get_or_insert(error);
    }

    /// Recounts everything; an error says what does not add up. For tests and bug reports.
    pub fn validate(&self) -> Result<()> {
        self.policy.validate().map_err(Error::Internal)?;
        self.pool.validate().map_err(Error::Internal)?;
        let granule = self.device.granule();
        let sizes = self
            .program
            .weights
            .iter()
            .zip(&self.tenants)
            .filter(|(_, t)| t.pooled);
        let pooled: u64 = sizes.map(|(w, _)| w.occupied(granule)).sum();
        let used = self.pool.used_bytes();
        let fixed = self.floor.direct + self.layout.bytes();
        let open = self.leased.iter().filter(|open| **open).count();
        let planned = self.policy.pool_bytes();
        let bytes = used == fixed + pooled && pooled == planned && used <= self.stats.budget_bytes;
        match bytes && open == self.open_leases {
            true => Ok(()),
            false => Err(Error::Internal(format!(
                "pool: {used} used, {fixed} fixed, {pooled} by weights, {planned} by the policy; \
                 leases: {open} open, {} counted",
                self.open_leases
            ))),
        }
    }
}
