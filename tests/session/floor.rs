//! The two least budgets, and that they are exact.
//!
//! **The hard minimum** is what the largest sum of open leases needs, plus the direct constants. With one byte less some
//! probe cannot be served by anybody, since all that is leased then must lie in memory at once; with it every probe is
//! served, if need be by waiting for the last reader of what has to go. Checked by a search over all capacities, and with
//! sessions below the floor, which only these tests can have (`Session::with_any_budget`). The memory adds no holes here:
//! each weight has its own, and addresses are not short.
//!
//! **The floor** promises that copies go on beside the kernels. A copy *waits for* a kernel if it is ordered behind it
//! (its vector clock says so, in whichever order the streams run). For a kernel `k` that reads weights, and `k'` the next
//! one that does, around the end of the pass:
//!
//! - **next**: what is read between `k` and `k'`, and the first read behind `k'` (the one copy more), were copied without
//!   waiting for `k`. Said of all `k` where what is read between them is still leased at `k'`, since the floor's pairs are
//!   made of the leases that kernels run under.
//! - **one more**: at each probe, the next read was copied without waiting for anything issued later than that probe. It
//!   holds for leases under no kernel as well, by the floor's largest sum of open leases.
//! - **only its own**: a copy waits for no lease but those that ended to make room, for it or for a copy in front of it in
//!   the same stream. This one holds at any budget.
//!
//! At the floor all three hold for every program; one granule below it, some program of each shape breaks one of the
//! first two, and of a chain of equal weights every one does.

use crate::session_support::case::GRANULE;
use crate::session_support::code::{program, programs, Shape};
use crate::session_support::draw::Seeded;
use crate::session_support::{kernel, play, Model, Pass};
use proptest::prelude::*;
use std::collections::BTreeMap;
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::sim::{Issued, Order};
use weightstream::device::{DevicePtr, HostBytes, Sim};
use weightstream::residency::{Lru, Policy};
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::session::Session;
use weightstream::store::StoreOptions;
use weightstream::{Error, Result};

/// A session at a budget that load would refuse.
fn session_at(model: &Model, sim: Sim, budget: u64) -> Result<Session<Sim>> {
    let options = StoreOptions {
        budget: Some(budget),
        policy: PolicyKind::Lru,
        ..StoreOptions::default()
    };
    Session::with_any_budget(sim, model.program(), model.host_bytes(), options)
}

/// The first probe at which more is leased than `capacity` bytes hold, and its weight's size. A naive count.
fn first_beyond(model: &Model, capacity: u64) -> Option<(u32, u64)> {
    let trace = &model.method.trace;
    let size = |weight: &u32| {
        model.constants.specs[*weight as usize]
            .bytes
            .div_ceil(GRANULE)
            * GRANULE
    };
    let mut open: BTreeMap<u32, u32> = BTreeMap::new();
    for event in trace.events() {
        match *event {
            Probe(id) => {
                *open.entry(trace.weight(id)).or_default() += 1;
                if open.keys().map(size).sum::<u64>() > capacity {
                    return Some((id, size(&trace.weight(id))));
                }
            }
            Release(id) => {
                let leases = open.get_mut(&trace.weight(id)).unwrap();
                *leases -= 1;
                if *leases == 0 {
                    open.remove(&trace.weight(id));
                }
            }
            Kernel(_) => {}
        }
    }
    None
}

/// The first probe that the policy does not serve in three passes.
fn first_refused(model: &Model, capacity: u64) -> Option<(u32, u64)> {
    let trace = &model.method.trace;
    let mut lru = Lru::new(trace, &model.constants.specs, GRANULE, capacity);
    let mut actions = Vec::new();
    for _ in 0..3 {
        let mut open = Vec::new();
        for event in trace.events() {
            match *event {
                Probe(id) => {
                    match lru.demand(id, &mut actions) {
                        Ok(_) => {}
                        Err(Error::OutOfMemory { bytes, .. }) => return Some((id, bytes)),
                        Err(error) => panic!("{error}"),
                    }
                    lru.lease(id);
                    open.push(id);
                }
                Release(id) => {
                    lru.release(id);
                    open.retain(|other| *other != id);
                }
                Kernel(_) => continue,
            }
            lru.ahead(&mut actions);
        }
        for id in open.into_iter().rev() {
            lru.release(id);
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// All capacities up to everything: the least that serves all is the hard minimum, all above it do too, and below it
    /// the first probe that is not served is the first one that nobody could serve.
    #[test]
    fn a_search_finds_the_hard_minimum(model in programs()) {
        let floor = model.floor();
        let least = floor.hard_minimum - floor.direct;
        for capacity in (0..=floor.everything).step_by(GRANULE as usize) {
            let refused = first_refused(&model, capacity);
            prop_assert_eq!(refused, first_beyond(&model, capacity), "capacity {}", capacity);
            prop_assert_eq!(refused.is_none(), capacity >= least, "capacity {}", capacity);
        }
    }

    #[test]
    fn a_session_runs_at_the_hard_minimum_and_not_with_a_byte_less(
        model in programs(), seed in any::<u64>(),
    ) {
        let floor = model.floor();
        for order in [Order::CopiesFirst, Order::KernelsFirst, Order::Random(seed)] {
            let mut session = session_at(&model, Sim::new(order), floor.hard_minimum).unwrap();
            for pass in [Pass::Complete, Pass::CompleteIn(seed), Pass::AbortAt(9), Pass::Complete] {
                play(&model, &mut session, pass).unwrap();
            }
            prop_assert_eq!(session.device_mut().verdict(), Ok(()));
            prop_assert!(session.stats().peak_bytes <= floor.hard_minimum);
        }
        if floor.hard_minimum > floor.direct {
            let beyond = first_beyond(&model, floor.hard_minimum - floor.direct - 1).unwrap();
            match session_at(&model, Sim::new(Order::CopiesFirst), floor.hard_minimum - 1) {
                Err(Error::OutOfMemory { bytes, .. }) => prop_assert_eq!(bytes, beyond.1),
                other => prop_assert!(false, "{:?}", other.err()),
            }
        }
    }
}

/// Load itself still refuses whatever is below the floor.
#[test]
fn the_floor_is_what_load_accepts() {
    for number in 0..100 {
        let model = program(Shape::Uneven, &mut Seeded(number));
        let least = model.floor().bytes();
        model
            .session(Sim::new(Order::CopiesFirst), Some(least))
            .unwrap();
        if least > 0 {
            let refused = model.session(Sim::new(Order::CopiesFirst), Some(least - 1));
            assert!(matches!(refused.err(), Some(Error::BudgetTooSmall { .. })));
        }
    }
}

/// One read, with what it waited for.
struct Read {
    id: u32,
    /// The compute stream's time that its copy is ordered behind; `None` if it was there already.
    behind: Option<u64>,
    /// The compute stream's time when it was asked for.
    at: u64,
}

/// A kernel under open leases.
struct Reader {
    time: u64,
    /// Reads issued in front of it, since load.
    reads: usize,
    /// Probes whose leases are open.
    open: Vec<u32>,
}

/// Follows passes and keeps what each copy was ordered behind.
struct Watch<'a> {
    model: &'a Model,
    session: Session<Sim>,
    reads: Vec<Read>,
    readers: Vec<Reader>,
    /// Per weight: what its copy is ordered behind, until it is read.
    copied: Vec<Option<u64>>,
    /// Per weight: the compute stream's time when its last lease ended.
    lease_end: Vec<u64>,
    /// The weight that was copied to each address.
    tenants: BTreeMap<DevicePtr, usize>,
    /// The latest end of a lease that ended to make room.
    made_room: u64,
    broken: Vec<String>,
}

impl Watch<'_> {
    /// `None` if load refuses: a budget below the hard minimum, or too few addresses.
    fn over(model: &Model, sim: Sim, budget: u64) -> Option<Watch<'_>> {
        let session = session_at(model, sim, budget).ok()?;
        let weights = model.bytes.len();
        let mut watch = Watch {
            model,
            session,
            reads: vec![],
            readers: vec![],
            copied: vec![None; weights],
            lease_end: vec![0; weights],
            tenants: BTreeMap::new(),
            made_room: 0,
            broken: vec![],
        };
        watch.session.device_mut().keep_log();
        Some(watch)
    }

    fn play(&mut self) {
        let trace = &self.model.method.trace;
        self.session.begin_pass().unwrap();
        let mut open: Vec<(u32, DevicePtr)> = Vec::new();
        for event in trace.events() {
            match *event {
                Probe(id) => {
                    let ptr = self.session.probe(i64::from(id)).unwrap();
                    open.push((id, ptr));
                    self.follow();
                    let weight = trace.weight(id) as usize;
                    self.reads.push(Read {
                        id,
                        behind: self.copied[weight].take(),
                        at: self.session.device().compute_time(),
                    });
                }
                Kernel(number) => {
                    kernel(self.model, &mut self.session, number, &open);
                    if !open.is_empty() {
                        self.readers.push(Reader {
                            time: self.session.device().compute_time(),
                            reads: self.reads.len(),
                            open: open.iter().map(|(id, _)| *id).collect(),
                        });
                    }
                }
                Release(id) => {
                    open.retain(|(other, _)| *other != id);
                    self.release(id);
                }
            }
        }
        open.into_iter().rev().for_each(|(id, _)| self.release(id));
        self.session.end_pass(true).unwrap();
        self.follow();
    }

    fn release(&mut self, id: u32) {
        let weight = self.model.method.trace.weight(id) as usize;
        self.lease_end[weight] = self.session.device().compute_time();
        self.session.release(i64::from(id));
        self.follow();
    }

    /// Takes down what was issued to the copy stream since the last time.
    fn follow(&mut self) {
        for issued in self.session.device_mut().take_log() {
            match issued {
                Issued::GivenUp { at } => {
                    if let Some(weight) = self.tenants.remove(&at) {
                        self.made_room = self.made_room.max(self.lease_end[weight]);
                    }
                }
                Issued::Copy { to, from, clock } => {
                    let behind = clock.of(weightstream::device::sim::Actor::Compute);
                    if behind > self.made_room {
                        let own = self.made_room;
                        self.broken
                            .push(format!("only its own: behind {behind}, room since {own}"));
                    }
                    self.arrive(to, from, behind);
                }
            }
        }
    }

    /// A copy of one weight, or of several that lie next to each other.
    fn arrive(&mut self, to: DevicePtr, from: HostBytes, behind: u64) {
        let mut found = 0;
        for (weight, bytes) in self.model.host_bytes().iter().enumerate() {
            let offset = bytes.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) as u64;
            if !bytes.is_empty() && offset < from.len() {
                self.copied[weight] = Some(behind);
                self.tenants.insert(to.offset(offset), weight);
                found += bytes.len();
            }
        }
        assert_eq!(found, from.len(), "a copy of something else than weights");
    }

    /// What was promised and did not hold. `promises` are the two that need the floor.
    fn verdict(mut self, promises: bool) -> Vec<String> {
        self.session.device_mut().verdict().unwrap();
        if promises {
            self.check_next();
            self.check_one_more();
        }
        self.broken
    }

    fn check_next(&mut self) {
        for pair in self.readers.windows(2) {
            let (first, next) = (&pair[0], &pair[1]);
            let between = first.reads..next.reads;
            let between_reads = &self.reads[between.clone()];
            if !between_reads
                .iter()
                .all(|read| next.open.contains(&read.id))
            {
                continue;
            }
            let one_more = (between.end + 1).min(self.reads.len());
            for read in &self.reads[between.start..one_more] {
                if read.behind.is_some_and(|behind| behind >= first.time) {
                    self.broken.push(format!(
                        "next: probe {} behind {:?}, kernel at {}",
                        read.id, read.behind, first.time
                    ));
                }
            }
        }
    }

    fn check_one_more(&mut self) {
        for pair in self.reads.windows(2) {
            if pair[1].behind.is_some_and(|behind| behind > pair[0].at) {
                self.broken.push(format!(
                    "one more: probe {} behind {:?}, the probe before it at {}",
                    pair[1].id, pair[1].behind, pair[0].at
                ));
            }
        }
    }
}

/// What did not hold in four passes at this budget; `None` if the budget is below the hard minimum.
fn broken(model: &Model, budget: u64, promises: bool) -> Option<Vec<String>> {
    broken_on(model, Sim::new(Order::Random(budget)), budget, promises)
}

fn broken_on(model: &Model, sim: Sim, budget: u64, promises: bool) -> Option<Vec<String>> {
    let mut watch = Watch::over(model, sim, budget)?;
    (0..4).for_each(|_| watch.play());
    Some(watch.verdict(promises))
}

#[test]
fn at_the_floor_copies_wait_for_no_other_lease_and_below_it_they_do() {
    for shape in Shape::ALL {
        let (mut enough, mut too_little) = (0, 0);
        // Found soon, for all shapes; the bound only ends the test where nothing is found.
        for number in 0..5000 {
            if number >= 200 && too_little > 0 {
                break;
            }
            let model = program(shape, &mut Seeded(number));
            let floor = model.floor();
            let at_floor = broken(&model, floor.bytes(), true).unwrap();
            assert!(at_floor.is_empty(), "{shape:?} {number}: {at_floor:#?}");
            // Where the floor is everything, less of it is another way to run.
            if floor.bytes() < floor.direct + floor.everything {
                match broken(&model, floor.bytes() - GRANULE, true) {
                    Some(below) if below.is_empty() => enough += 1,
                    Some(_) => too_little += 1,
                    // Less than the hard minimum.
                    None => {}
                }
            }
        }
        println!(
            "{shape:?}: a granule less was too little {too_little} times, enough {enough} times"
        );
        assert!(
            too_little > 0,
            "{shape:?}: a granule less than the floor is always enough"
        );
        if shape == Shape::Chain {
            assert_eq!(enough, 0, "a chain of equal weights needs the whole floor");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_floors_promise_holds_for_every_program(model in programs()) {
        let floor = model.floor();
        prop_assert_eq!(broken(&model, floor.bytes(), true), Some(vec![]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Also between the hard minimum and the floor, and above it.
    #[test]
    fn a_copy_waits_for_the_leases_that_made_room_only(model in programs(), share in 0..=100u64) {
        let floor = model.floor();
        let room = floor.direct + floor.everything - floor.hard_minimum;
        let budget = floor.hard_minimum + room * share / 100;
        prop_assert_eq!(broken(&model, budget, false), Some(vec![]));
        // Where memory falls into pieces, a weight may stay for a while after its last lease ended.
        let mut sim = Sim::in_one_block(Order::Random(share));
        sim.limit_addresses(budget - budget % GRANULE);
        let in_pieces = broken_on(&model, sim, budget, false).unwrap_or_default();
        prop_assert_eq!(in_pieces, Vec::<String>::new());
    }
}
