//! A device for tests: it does nothing until it has to, then in the worst order that its events allow, and says
//! whatever its caller did wrong.
//!
//! - Streams are queues that run only when forced (`synchronize`, `download`, `finish_compute`, [`Sim::run`]), in an
//!   [`Order`] that a seed chooses.
//! - Memory is real bytes. Where it is freed or discarded it is poisoned, when the stream gets there. Bytes that show at
//!   several addresses are one memory: problems name its addresses, not those of the view.
//! - Every access carries a vector clock of both streams and the calling thread, which events hand on. Two accesses
//!   that nothing orders are a [`Violation::Race`] when the second one is issued, even if the bytes happen to be right;
//!   so are bytes that are read and hold nothing ([`Violation::Worthless`]).
//! - The budget is a cap. [`Sim::limit_addresses`] makes the address range as small, so that free memory in pieces does
//!   not serve what is larger than each of them.
//! - [`Sim::fail`] lets the n-th call fail, of all or of one kind.
//! - Live blocks and events are counted.
//!
//! A `Sim` that is dropped with problems that nobody asked for panics: no test can forget to ask.
//!
//! Only there with the cargo feature `sim`, which no default and no shipped library has.
#![deny(unsafe_code)]

mod access;
mod clock;
mod device;
mod faults;
mod graph;
mod issue;
mod pages;
mod problem;
mod regions;
mod replay;
mod space;
mod streams;
mod table;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod unit_tests;
#[cfg(test)]
mod view_tests;

pub use clock::{Access, Actor, Clock, What};
pub use faults::SimFault;
pub use graph::SimGraph;
pub use issue::SimEvent;
pub use problem::Violation;
pub use streams::Order;
pub use table::SimPages;

use super::{DevicePtr, HostBytes, HostRoom, Link};
use crate::error::{Error, Result};
use faults::SimFaults;
use space::Space;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use streams::{Op, SimStream};
use table::SimTable;

/// First address of the weights' memory, and of the activations'. Far from null and from each other.
const WEIGHTS: u64 = 1 << 20;
const SCRATCH: u64 = 1 << 44;

/// Four granules: a weight begins within a page as well as at its start.
const PAGE: u64 = 256;

/// Most problems that are kept.
const PROBLEMS: usize = 16;

/// What was issued to the copy stream, for tests that look at it one by one.
#[derive(Debug, Clone, Copy)]
pub enum Issued {
    /// A copy of weights.
    Copy {
        /// Where to.
        to: DevicePtr,
        /// Where from.
        from: HostBytes,
        /// What it is ordered after.
        clock: Clock,
    },
    /// Bytes were freed or discarded.
    GivenUp {
        /// The first one.
        at: DevicePtr,
    },
}

/// The simulated device.
#[derive(Debug)]
pub struct Sim {
    order: Order,
    one_block: bool,
    budget: Option<u64>,
    /// What was live when the budget was told: a move may hold as much until it has ended.
    allowance: u64,
    weights: Space,
    scratch: Space,
    /// Bytes of activations that stand for host memory.
    in_place: u64,
    page: Option<u64>,
    mapped: SimTable,
    compute: SimStream,
    copy: SimStream,
    /// The calling thread's; in a cell, since asking for an event orders what follows after it.
    host: Cell<Clock>,
    faults: SimFaults,
    problems: Vec<Violation>,
    fetched: Vec<u8>,
    /// Outputs that were asked for: their bytes, once they are fetched, and where they go.
    due: Vec<(Vec<u8>, HostRoom)>,
    copies: u64,
    bytes_copied: u64,
    events: Arc<AtomicUsize>,
    log: Option<Vec<Issued>>,
    graphs: graph::SimGraphs,
    /// What its copies are said to cost, and whether anybody asked.
    link: (Option<Link>, bool),
    /// What it says of the time between marks, if anything.
    times: Option<Vec<u64>>,
    marks: usize,
}

impl Sim {
    /// A device whose weights each get memory of their own.
    pub fn new(order: Order) -> Sim {
        Sim {
            order,
            one_block: false,
            budget: None,
            allowance: 0,
            weights: Space::new(WEIGHTS),
            scratch: Space::new(SCRATCH),
            in_place: 0,
            page: Some(PAGE),
            mapped: SimTable::new(),
            compute: SimStream::new(Actor::Compute),
            copy: SimStream::new(Actor::Copy),
            host: Cell::default(),
            faults: SimFaults::default(),
            problems: Vec::new(),
            fetched: Vec::new(),
            due: Vec::new(),
            copies: 0,
            bytes_copied: 0,
            events: Arc::default(),
            log: None,
            graphs: graph::SimGraphs::default(),
            link: (None, false),
            times: None,
            marks: 0,
        }
    }

    /// A device that asks for one block, which its caller divides.
    pub fn in_one_block(order: Order) -> Sim {
        let mut sim = Sim::new(order);
        sim.one_block = true;
        sim
    }

    /// What a measurement of its copies will find. They cost nothing before.
    pub fn set_link(&mut self, link: Link) {
        self.link.0 = Some(link);
    }

    /// Nanoseconds between the marks of a pass, one after the other. Without them it tells no times.
    pub fn set_times(&mut self, times: Vec<u64>) {
        self.times = Some(times);
    }

    /// So many bytes of addresses for weights, and no more.
    pub fn limit_addresses(&mut self, bytes: u64) {
        self.weights.limit(bytes);
    }

    /// Bytes of a page, a multiple of 64, before anything is mapped; `None` for a device that maps nothing. It is 256 for a
    /// new one.
    pub fn set_page(&mut self, bytes: Option<u64>) {
        self.page = bytes;
    }

    /// SimGraphs take `times` what their nodes say, in steps of so many bytes.
    pub fn take_for_graphs(&mut self, times: u64, step: u64) {
        self.graphs.live.times.store(times, Ordering::Relaxed);
        self.graphs.live.step.store(step, Ordering::Relaxed);
    }

    /// One call will fail; `None` takes that back.
    pub fn fail(&mut self, fault: impl Into<Option<SimFault>>) {
        self.faults.set(fault.into());
    }

    /// The call of this name fails once, after so many that work.
    pub fn fail_call(&mut self, call: &'static str, after: u64) {
        self.fail(SimFault {
            call: Some(call),
            after,
            lost: false,
        });
    }

    /// The fault that has not come yet.
    pub fn pending_fault(&self) -> Option<SimFault> {
        self.faults.pending()
    }

    /// The call that failed last because it was told to, and its number.
    pub fn failed_call(&self) -> Option<(&'static str, u64)> {
        self.faults.fired()
    }

    /// How many calls of the device there were.
    pub fn calls(&self) -> u64 {
        self.faults.calls()
    }

    /// Bytes allocated and not freed, mapped memory among them, without activations.
    pub fn live_bytes(&self) -> u64 {
        let dropped = |range: &std::ops::Range<u64>| range.start < SCRATCH;
        self.weights.live_bytes() - self.mapped.dropped_bytes(dropped)
    }

    /// Bytes of mapped memory, in whole pages.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped.table.bytes()
    }

    /// Blocks allocated and not freed, without activations; each unit of mapped memory is one.
    pub fn live_blocks(&self) -> usize {
        self.weights.live_blocks()
    }

    /// Bytes of activations allocated and not freed.
    pub fn live_scratch_bytes(&self) -> u64 {
        let dropped = |range: &std::ops::Range<u64>| range.start >= SCRATCH;
        self.scratch.live_bytes() - self.in_place - self.mapped.dropped_bytes(dropped)
    }

    /// Counts the events that exist; goes on when the device is gone.
    pub fn live_events(&self) -> Arc<AtomicUsize> {
        self.events.clone()
    }

    /// Copies to the device that were issued.
    pub fn copies_issued(&self) -> u64 {
        self.copies
    }

    /// Bytes of all copies to the device that were issued.
    pub fn bytes_copied(&self) -> u64 {
        self.bytes_copied
    }

    /// The time of the compute stream: of the last thing issued to it.
    pub fn compute_time(&self) -> u64 {
        self.compute.clock.of(Actor::Compute)
    }

    /// From now on keeps what is issued to the copy stream.
    pub fn keep_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// What was issued to the copy stream since the last time.
    pub fn take_log(&mut self) -> Vec<Issued> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Issues a kernel that reads these ranges, and finds these bytes there. The bytes must outlive the device, by
    /// the promise in [`HostBytes::new`].
    pub fn kernel(&mut self, number: u32, reads: &[(DevicePtr, HostBytes)]) -> Result<()> {
        let kept = || graph::Call::Kernel(number, reads.to_vec());
        if self.graphs.keep(kept) {
            return Ok(());
        }
        self.end_allowance();
        let access = self.issue(Actor::Compute, What::Kernel(number));
        let mut ranges = Vec::with_capacity(reads.len());
        for (ptr, expected) in reads.iter().filter(|(_, e)| !e.is_empty()) {
            let mut at = 0;
            for range in self.anywhere(*ptr, expected.len())? {
                let bytes = range.end - range.start;
                self.reads(range.clone(), access);
                ranges.push((range, expected.slice(at..at + bytes)));
                at += bytes;
            }
        }
        self.compute.push(Op::Kernel(access, ranges));
        Ok(())
    }

    /// Runs all that can run.
    pub fn run(&mut self) {
        self.run_until(false, |sim| sim.copy_idle() && sim.compute_idle());
    }

    /// Everything issued to the stream from now on waits until the result is dropped.
    pub fn hold(&mut self, stream: Actor) -> Hold {
        let open = Arc::new(AtomicBool::new(false));
        self.stream(stream).push(Op::Gate(open.clone()));
        Hold(open)
    }

    /// Runs all that can run, and takes the problems that there were.
    pub fn take_problems(&mut self) -> Vec<Violation> {
        self.run();
        std::mem::take(&mut self.problems)
    }

    /// Runs all that can run; an error lists the problems that there were.
    pub fn verdict(&mut self) -> std::result::Result<(), String> {
        let problems = self.take_problems();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(listed(&problems)),
        }
    }

    fn report(&mut self, problem: Violation) {
        if self.problems.len() < PROBLEMS {
            self.problems.push(problem);
        }
    }

    fn stream(&mut self, actor: Actor) -> &mut SimStream {
        match actor {
            Actor::Copy => &mut self.copy,
            _ => &mut self.compute,
        }
    }

    fn copy_idle(&self) -> bool {
        self.copy.done == self.copy.issued
    }

    fn compute_idle(&self) -> bool {
        self.compute.done == self.compute.issued
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.run();
        if !self.problems.is_empty() {
            let list = listed(&self.problems);
            panic!("a simulated device was dropped with problems that nobody asked for:\n{list}");
        }
    }
}

/// Holds a stream. Dropped, it lets it go on.
#[derive(Debug)]
pub struct Hold(Arc<AtomicBool>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn listed(problems: &[Violation]) -> String {
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

fn stray(ptr: DevicePtr, bytes: u64) -> Error {
    Error::Internal(format!(
        "{bytes} bytes at {:#x} are not within a live block or view",
        ptr.0
    ))
}
