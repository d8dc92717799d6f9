//! Ranges and stores on the simulated device under one cap, in random programs: passes, some of which end early, of stores with
//! plans and rings of their own, between faults, slots and unpins of ranges. Caps and priorities change, stores and ranges come and
//! go; segments of another allocator, and groups of captures, take memory from all of them. Some passes give way, as those of offloaded
//! modules do. Nobody loses memory to one of lower rank. No kernel reads what it should not, each store finds its own bits, the cap
//! holds, and lost contents are never silent.

use crate::elastic_support::{Store, PAGE};
use crate::range_support::groups::Groups;
use crate::range_support::{done, Draw, Mine, World, UNIT};
use crate::session_support::code::programs;
use crate::session_support::{Kernels, Model, Pass};
use proptest::prelude::*;
use std::sync::Arc;
use weightstream::device::sim::{Actor, Order};
use weightstream::device::{DevicePtr, Sim};
use weightstream::elastic::{Rank, Ranked, Reorder, Segments};
use weightstream::store::{ElasticBytes, Methods};
use weightstream::Error;

struct Together {
    world: World,
    stores: Vec<Arc<Store<Sim>>>,
    /// Those that wait for their load.
    models: Vec<Model>,
    order: Order,
    floors: u64,
    everything: u64,
    segments: Segments<Sim>,
    live: Vec<DevicePtr>,
    groups: Groups,
}

/// Who holds how much, by rank: stores, and ranges.
type Held = Vec<(Rank, u64)>;

impl Together {
    fn new(order: Order, models: Vec<Model>, draw: &mut Draw) -> Together {
        let bytes = |model: &Model| {
            ElasticBytes::of(&Methods::from(model.program()), &Sim::new(order)).unwrap()
        };
        let all: Vec<ElasticBytes> = models.iter().map(bytes).collect();
        let floors = all.iter().map(|one| one.least).sum();
        let everything = all.iter().map(|one| one.everything.max(one.least)).sum();
        let cap = cap(draw, floors, everything);
        let world = World::new(order, cap);
        Together {
            segments: Segments::new(&world.ranges),
            live: Vec::new(),
            groups: Groups::new(&world.ranges),
            world,
            stores: Vec::new(),
            models,
            order,
            floors,
            everything,
        }
    }

    fn step(&mut self, draw: &mut Draw) {
        let at = draw.below(self.stores.len() as u64) as usize;
        let mine = draw.below(self.world.mine.len() as u64) as usize;
        let before = self.held();
        match draw.below(24) {
            0..=5 if !self.stores.is_empty() => {
                self.pass(at, draw);
                let rank = self.stores[at].membership().rank();
                keeps_higher_ones(&before.1, &self.held().1, |range| range > rank);
                keeps_higher_ones(&before.0, &self.held().0, |store| store > rank);
            }
            6 if !self.stores.is_empty() => self.stores[at].membership().reorder(reorder(draw)),
            20 => self.segment(draw),
            22 | 23 => self.groups.step(draw),
            21 if !self.world.mine.is_empty() => {
                let range = &self.world.mine[mine].range;
                range.reorder(reorder(draw)).unwrap();
            }
            _ if draw.below(4) == 0 && !self.world.mine.is_empty() => {
                let rank = self.world.mine[mine].range.rank().unwrap();
                self.world.fault(mine, draw);
                keeps_higher_ones(&before.1, &self.held().1, |range| range > rank);
                keeps_higher_ones(&before.0, &self.held().0, |store| store >= rank);
            }
            7 if self.stores.len() > 1 => drop(self.stores.swap_remove(at)),
            8 => self.set_cap(draw),
            9 | 10 if !self.world.mine.is_empty() => self.world.slot(mine, draw),
            11 if !self.world.mine.is_empty() => self.world.set_ring(mine, draw),
            12 if !self.world.mine.is_empty() => self.world.end_slot(mine, draw),
            13 | 14 => self.load(draw),
            _ => self.world.step(draw),
        }
        self.check();
    }

    /// Everything is given back.
    fn end(mut self) {
        for store in &self.stores {
            store.with(|session| session.device_mut().check());
        }
        for at in std::mem::take(&mut self.live) {
            self.segments.free(at, Actor::Compute);
        }
        self.groups.end();
        done(&self.world);
    }

    fn load(&mut self, draw: &mut Draw) {
        let Some(model) = self.models.pop() else {
            return;
        };
        let priority = draw.below(3) as i64;
        match Store::new(&self.world.pool, model, Sim::new(self.order), priority) {
            Ok(store) => self.stores.push(store),
            // Ranges or passes hold what its floor takes.
            Err(Error::CapTooSmall { .. } | Error::OutOfMemory { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn pass(&mut self, at: usize, draw: &mut Draw) {
        let store = &self.stores[at];
        let events = store.model.method.trace.events().len() as u64;
        let pass = match draw.below(4) {
            0 => Pass::AbortAt(draw.below(events + 1) as usize),
            1 => Pass::GiveWayAt(draw.below(events + 1) as usize),
            _ => Pass::CompleteIn(draw.below(u64::MAX)),
        };
        store.pass(pass).unwrap();
    }

    fn set_cap(&mut self, draw: &mut Draw) {
        let cap = cap(draw, self.floors, self.everything);
        match self.world.pool.set_cap(Some(cap)) {
            Ok(()) => self.world.cap = cap,
            Err(Error::CapTooSmall { least, .. }) => assert!(least > cap, "{least} of {cap}"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Stores, and ranges.
    fn held(&self) -> (Held, Held) {
        let store =
            |store: &Arc<Store<Sim>>| (store.membership().rank(), store.membership().held());
        let range = |mine: &Mine| {
            let report = mine.range.residency().unwrap();
            (mine.range.rank().unwrap(), report.resident)
        };
        let stores = self.stores.iter().map(store).collect();
        (stores, self.world.mine.iter().map(range).collect())
    }

    /// A segment begins or ends. While nobody has pinned memory, it fails only if floors and segments fill the cap.
    fn segment(&mut self, draw: &mut Draw) {
        if !self.live.is_empty() && draw.below(2) == 0 {
            let at = self
                .live
                .swap_remove(draw.below(self.live.len() as u64) as usize);
            assert!(self.segments.free(at, Actor::Compute));
            return;
        }
        match self.segments.alloc(1 + draw.below(6 * UNIT)) {
            Ok(at) => self.live.push(at),
            Err(Error::OutOfMemory { bytes, .. }) => {
                let mine = &self.world.mine;
                let pinned = mine.iter().any(|mine| !mine.is_idle());
                let rings: u64 = mine
                    .iter()
                    .map(|mine| mine.range.residency().unwrap().ring)
                    .sum();
                let report = self.world.pool.report();
                // Of ranges whose handles are gone leases may be open.
                let ranges = report
                    .order
                    .iter()
                    .filter(|place| place.kind == "range")
                    .count();
                let running = report.tenants.iter().any(|one| one.running);
                let pinned = pinned || running || ranges > mine.len();
                let floors: u64 = report.tenants.iter().map(|one| one.floor).sum();
                let held = |place: &Ranked| place.kind == "held";
                let held: u64 = report
                    .order
                    .iter()
                    .filter(|one| held(one))
                    .map(|one| one.held)
                    .sum();
                // Grants move in whole pages, and units may be larger.
                let slack = (self.stores.len() + self.world.mine.len()) as u64 * UNIT;
                assert!(
                    pinned || floors + held + rings + bytes + slack > self.world.cap,
                    "{report:?}"
                );
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The cap, and that each store holds what the pool says at most.
    fn check(&mut self) {
        self.world.check();
        for store in &self.stores {
            let live = store.with(|session| session.device().live_bytes());
            // The last page may be used in part.
            let held = store.membership().held() + 256;
            assert!(live <= held, "{live} of {held} bytes");
        }
    }
}

fn reorder(draw: &mut Draw) -> Reorder {
    match draw.below(4) {
        0 => Reorder::First,
        1 => Reorder::Last,
        _ => Reorder::To(draw.below(3) as i64),
    }
}

/// What those of a rank that is too high hold has not become less.
fn keeps_higher_ones(before: &Held, after: &Held, higher: impl Fn(Rank) -> bool) {
    for ((rank, before), (_, after)) in before.iter().zip(after) {
        assert!(
            !higher(*rank) || after >= before,
            "{rank:?} lost: {before} to {after}"
        );
    }
}

fn cap(draw: &mut Draw, floors: u64, everything: u64) -> u64 {
    floors + draw.below(everything + 16 * UNIT - floors) + PAGE
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// `PROPTEST_CASES=100000` for many.
    #[test]
    fn ranges_and_stores_share_a_device(
        models in prop::collection::vec(programs(), 1..4),
        order in prop_oneof![Just(Order::CopiesFirst), Just(Order::KernelsFirst), any::<u64>().prop_map(Order::Random)],
        steps in prop::collection::vec(any::<u64>(), 8..80),
        seed in any::<u64>(),
    ) {
        let mut all = Together::new(order, models, &mut Draw(seed));
        all.load(&mut Draw(seed));
        for step in &steps {
            all.step(&mut Draw(*step));
        }
        all.end();
    }

    /// What runs on one device takes nothing from what another one has.
    #[test]
    fn two_devices_have_nothing_in_common(
        models in prop::collection::vec(programs(), 2..5),
        steps in prop::collection::vec(any::<u64>(), 8..60),
        seed in any::<u64>(),
    ) {
        let (first, second) = models.split_at(models.len() / 2);
        let draw = &mut Draw(seed);
        let mut both = [first, second].map(|models| {
            let mut one = Together::new(Order::Random(seed), models.to_vec(), draw);
            one.load(draw);
            one
        });
        for (at, step) in steps.iter().enumerate() {
            let [one, other] = &mut both;
            let (one, other) = if at % 2 == 0 { (one, other) } else { (other, one) };
            let before = (other.held(), other.world.pool.report());
            one.step(&mut Draw(*step));
            prop_assert_eq!(&before, &(other.held(), other.world.pool.report()));
        }
        both.into_iter().for_each(Together::end);
    }
}
