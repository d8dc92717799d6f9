//! One random case: a program, a budget, a pool, an order of the streams and some passes; and what must hold for it.

use super::code::{program, Shape};
use super::draw::{Draw, Seeded};
use super::{play, Model, Pass};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{Device, Sim};
use weightstream::schedule::Event::Probe;
use weightstream::session::Session;

pub const GRANULE: u64 = 64;

/// Everything that is random.
#[derive(Debug)]
pub struct Case {
    pub shape: Shape,
    pub model: Model,
    pub budget: u64,
    pub policy: PolicyKind,
    /// One block that the session divides; otherwise each weight has memory of its own.
    pub one_block: bool,
    /// No more addresses than the budget: memory may fall into pieces.
    pub capped: bool,
    /// Bytes of a page that can show at several addresses.
    pub page: Option<u64>,
    pub order: Order,
    pub passes: Vec<Pass>,
}

/// How a case went.
#[derive(Debug, Default, Clone, Copy)]
pub struct Outcome {
    /// The load was refused, since the memory would fall into pieces.
    pub refused: bool,
    pub evictions: u64,
    /// By a plan.
    pub planned: bool,
    /// Some reads were in place.
    pub gathered: bool,
    /// A pass was aborted.
    pub aborted: bool,
    /// The pool had the bytes for a copy, but in pieces.
    pub fragmentation_misses: u64,
    /// Some copy in a pass was of several weights.
    pub joined: bool,
}

/// Some reads of every fourth case are in place.
fn gathered(model: &Model, number: u64) -> Vec<u32> {
    let mut draw = Seeded(number ^ 0x6761_7468_6572);
    let (some, one_of) = (draw.one_in(4), draw.between(1, 8));
    let probes = 0..model.method.trace.probes().len() as u32;
    probes.filter(|_| draw.one_in(one_of) && some).collect()
}

impl Case {
    /// The case of this number.
    pub fn of(number: u64) -> Case {
        let mut draw = Seeded(number);
        let shape = Shape::ALL[draw.below(Shape::ALL.len() as u64) as usize];
        let mut model = program(shape, &mut draw);
        model.method.gather = gathered(&model, number);
        let events = model.method.trace.events().len() as u64;
        let mut case = Case {
            shape,
            budget: budget(&model, &mut draw),
            policy: PolicyKind::Lru,
            model,
            one_block: draw.one_in(2),
            capped: draw.one_in(3),
            page: None,
            order: match draw.below(4) {
                0 => Order::CopiesFirst,
                1 => Order::KernelsFirst,
                _ => Order::Random(draw.next()),
            },
            passes: (0..draw.between(2, 5))
                .map(|_| pass(events, &mut draw))
                .collect(),
        };
        if draw.one_in(2) {
            case.policy = PolicyKind::Planned;
            case.page = [None, Some(64), Some(64), Some(128), Some(256)][draw.below(5) as usize];
        }
        case
    }

    /// Plays it. An error says what did not hold.
    pub fn run(&self) -> Result<Outcome, String> {
        catch_unwind(AssertUnwindSafe(|| self.play())).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            Err(format!("panicked: {}", text.unwrap_or_default()))
        })
    }

    fn play(&self) -> Result<Outcome, String> {
        let mut sim = match self.one_block {
            true => Sim::in_one_block(self.order),
            false => Sim::new(self.order),
        };
        sim.set_page(self.page);
        if self.capped {
            sim.limit_addresses(self.budget - self.budget % GRANULE);
        }
        let events = sim.live_events();
        let mut session = match self.model.session_by(self.policy, sim, Some(self.budget)) {
            Ok(session) => session,
            Err(error) if self.capped && error.to_string().contains("fall into pieces") => {
                return Ok(Outcome {
                    refused: true,
                    ..Outcome::default()
                })
            }
            Err(error) => return Err(format!("the load: {error}")),
        };
        let at_load = session.device().copies_issued();
        for (at, pass) in self.passes.iter().enumerate() {
            let played = play(&self.model, &mut session, *pass);
            played.map_err(|error| format!("pass {at}, {pass:?}: {error}"))?;
            self.check(&mut session, *pass)
                .map_err(|what| format!("pass {at}, {pass:?}: {what}"))?;
        }
        session.device_mut().verdict()?;
        self.count(&session)?;
        let outcome = Outcome {
            refused: false,
            evictions: session.stats().evictions,
            planned: session.policy() == "planned",
            gathered: session.stats().gathered_bytes > 0,
            aborted: !self.passes.iter().all(Pass::is_complete),
            fragmentation_misses: session.store().fragmentation_misses(),
            joined: session.device().copies_issued() - at_load < loads(&session),
        };
        drop(session);
        same(
            "events that outlive their session",
            events.load(Ordering::Relaxed),
            0,
        )?;
        Ok(outcome)
    }

    /// Behind each pass.
    fn check(&self, session: &mut Session<Sim>, pass: Pass) -> Result<(), String> {
        let stats = session.stats();
        session.validate().map_err(|error| error.to_string())?;
        let sim = session.device();
        let weights = self.model.constants.specs.len();
        within("peak", stats.peak_bytes, stats.budget_bytes)?;
        // The last page may be used in part.
        let pages = sim.page().filter(|_| sim.mapped_bytes() > 0).unwrap_or(0);
        within("live bytes", sim.live_bytes(), stats.budget_bytes + pages)?;
        let events = sim.live_events().load(Ordering::Relaxed);
        within("live events", events as u64, 2 * weights as u64)?;
        same("bytes of activations", sim.live_scratch_bytes(), 0)?;
        let streams = stats.total_weight_bytes + stats.direct_bytes > stats.budget_bytes;
        let single = session.policy() == "lru" && !self.one_block;
        if !pass.is_complete() && streams && single {
            same(
                "live bytes behind an aborted pass",
                sim.live_bytes(),
                stats.direct_bytes,
            )?;
        }
        Ok(())
    }

    /// At the end: each probe was served and counted, and nothing else.
    fn count(&self, session: &Session<Sim>) -> Result<(), String> {
        let events = self.model.method.trace.events();
        let probes = |pass: &Pass| {
            let issued = events.iter().take(pass.end(events.len()));
            issued.filter(|e| matches!(e, Probe(_))).count() as u64
        };
        let stats = session.stats();
        let complete = self.passes.iter().filter(|p| p.is_complete());
        same("passes", stats.passes, complete.count() as u64)?;
        let served = self.passes.iter().map(probes).sum();
        same("probes served", stats.hits + stats.misses, served)?;
        same(
            "bytes copied",
            stats.bytes_copied,
            session.device().bytes_copied(),
        )
    }
}

fn loads(session: &Session<Sim>) -> u64 {
    let stats = session.stats();
    stats.misses + stats.prefetches
}

/// Often the floor or close above it, where there is least room.
fn budget(model: &Model, draw: &mut impl Draw) -> u64 {
    let floor = model.floor();
    let least = floor.bytes();
    let room = (floor.direct + floor.everything).saturating_sub(least);
    match draw.below(10) {
        0..5 => least,
        5 | 6 => least + draw.below(8 * GRANULE),
        7 => least + draw.below(room + 1),
        8 => least + room.saturating_sub(draw.between(1, GRANULE)),
        _ => least + room + draw.below(2) * GRANULE,
    }
}

fn pass(events: u64, draw: &mut impl Draw) -> Pass {
    let at = draw.below(events + 1) as usize;
    match draw.below(8) {
        0..4 => Pass::Complete,
        4 | 5 => Pass::CompleteIn(draw.next()),
        6 => Pass::AbortAt(at),
        _ => Pass::DivergeAt(at),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: {found:?}, expected {expected:?}")),
    }
}

fn within(what: &str, found: u64, most: u64) -> Result<(), String> {
    match found <= most {
        true => Ok(()),
        false => Err(format!("{what}: {found}, at most {most} allowed")),
    }
}
