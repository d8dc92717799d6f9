//! What calls of the device put into its streams, and what they learn of them.

use super::clock::{Actor, Clock, What};
use super::graph::Call;
use super::problem::Violation;
use super::streams::Op;
use super::{Issued, Sim};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// More than any test issues between two calls that run them. A caller in an endless loop would otherwise take all the
/// memory of the machine.
const MOST_WAITING: u64 = 1 << 20;

/// A point in one stream, and what lies before it.
#[derive(Debug)]
pub struct SimEvent {
    pub(super) stream: Actor,
    /// Operations of the stream that lie before it.
    pub(super) count: u64,
    pub(super) clock: Clock,
    /// Recorded in a capture: which, and its number there.
    captured: Option<(u64, usize)>,
    /// Counts the live ones; says whose it is, too.
    events: Arc<AtomicUsize>,
}

impl Drop for SimEvent {
    fn drop(&mut self) {
        self.events.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sim {
    pub(super) fn call(&self, name: &'static str) -> Result<()> {
        let mut host = self.host.get();
        host.tick(Actor::Host);
        self.host.set(host);
        let waiting = self.copy.waiting() + self.compute.waiting();
        if waiting > MOST_WAITING {
            return Err(Error::Device {
                call: name,
                what: format!("{waiting} operations wait to be run: an endless loop?"),
            });
        }
        self.faults.call(name)
    }

    pub(super) fn record(&mut self, actor: Actor) -> SimEvent {
        let captured = self.graphs.mark(match actor {
            Actor::Copy => Call::RecordCopy,
            _ => Call::RecordCompute,
        });
        self.events.fetch_add(1, Ordering::Relaxed);
        let host = self.host.get();
        let events = self.events.clone();
        let stream = self.stream(actor);
        let mut clock = stream.clock;
        clock.join(&host);
        SimEvent {
            stream: actor,
            count: stream.issued,
            clock,
            captured,
            events,
        }
    }

    pub(super) fn wait(&mut self, waits: Actor, event: &SimEvent) -> Result<()> {
        if event.stream == waits || !Arc::ptr_eq(&event.events, &self.events) {
            return Err(Error::Internal(format!(
                "the {} was told to wait for an event that is its own or another device's",
                waits.name()
            )));
        }
        if let Some(number) = self.graphs.awaited(event.captured)? {
            self.graphs.keep(|| match waits {
                Actor::Copy => Call::CopyWaits(number),
                _ => Call::ComputeWaits(number),
            });
            return Ok(());
        }
        let stream = self.stream(waits);
        stream.clock.join(&event.clock);
        stream.push(Op::Wait(event.count));
        Ok(())
    }

    /// The calling thread has seen that everything before this is done.
    pub(super) fn learn(&self, clock: &Clock) {
        let mut host = self.host.get();
        host.join(clock);
        self.host.set(host);
    }

    /// Takes memory back that was at `at`, or only its bytes.
    pub(super) fn lose(
        &mut self,
        actor: Actor,
        what: What,
        at: DevicePtr,
        memory: Vec<Range<u64>>,
    ) {
        let access = self.issue(actor, what);
        if let Some(log) = self.log.as_mut().filter(|_| actor == Actor::Copy) {
            log.push(Issued::GivenUp { at });
        }
        for range in memory {
            self.writes(range.clone(), access, false);
            self.stream(actor).push(Op::Poison(range));
        }
    }

    /// New memory for weights.
    pub(super) fn take(&mut self, what: &str, bytes: u64) -> Result<DevicePtr> {
        self.take_dropped()?;
        let live = self.live_bytes().saturating_add(bytes);
        self.check_budget(live, self.allowance, self.mapped_bytes() > 0);
        self.weights.take(what, bytes)
    }

    /// Memory of a smaller budget has moved: kernels run.
    pub(super) fn end_allowance(&mut self) {
        self.allowance = 0;
        self.check_budget(self.live_bytes(), 0, self.mapped_bytes() > 0);
    }

    /// Pages are whole, and the last one of weights may be used in part.
    pub(super) fn check_budget(&mut self, live: u64, allowance: u64, in_pages: bool) {
        let page = self.page.filter(|_| in_pages).unwrap_or(0);
        let over = |budget: &u64| live > (budget + page).max(allowance);
        if let Some(budget) = self.budget.filter(over) {
            self.report(Violation::OverBudget { live, budget });
        }
    }

    pub(super) fn write_on_compute(&mut self, memory: &[Range<u64>], what: What, op: Op) {
        let access = self.issue(Actor::Compute, what);
        for range in memory {
            self.writes(range.clone(), access, true);
        }
        self.compute.push(op);
    }

    pub(super) fn finish_all(&mut self) -> Result<()> {
        if !self.run_until(true, |sim| sim.copy_idle() && sim.compute_idle()) {
            return Err(Error::Internal("the streams wait for each other".into()));
        }
        self.learn(&self.compute.clock);
        self.learn(&self.copy.clock);
        Ok(())
    }

    pub(super) fn block_until_compute_did(&mut self, count: u64) -> Result<()> {
        match self.run_until(true, |sim| sim.compute.done >= count) {
            true => Ok(()),
            false => Err(Error::Internal("the streams wait for each other".into())),
        }
    }
}
