//! Ranges on the simulated device, together with stores under one cap: no kernel reads what it should not, no generation comes twice,
//! lost contents are never silent, and the cap holds. And each rule for itself.

use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use weightstream::device::sim::{Actor, Order, Problem};
use weightstream::device::{DevicePtr, HostBytes, Sim, Units};
use weightstream::elastic::range::{AllocId, Answer, Cause, Lease, Place, Refusal};
use weightstream::elastic::{DevicePool, DeviceState, Membership, Range, Ranges, Tenant, Wants};
use weightstream::{Error, Result};

const PAGE: u64 = 256;
const UNIT: u64 = 4 * PAGE;
const NOISE: usize = 1 << 16;

/// Bytes that live for ever.
fn noise() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut state = 1u64;
        let next = |_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..NOISE).map(next).collect()
    })
}

/// What one allocation holds: some of the noise.
#[derive(Debug, Clone, Copy)]
struct Contents {
    from: usize,
    len: usize,
}

impl Contents {
    fn bytes(self) -> &'static [u8] {
        &noise()[self.from..self.from + self.len]
    }

    fn host(self) -> HostBytes {
        HostBytes::from_static(self.bytes())
    }
}

/// Writes the contents on a stream, as the caller does after `Fill`.
fn write(sim: &mut Sim, stream: Actor, place: Place, contents: Contents) {
    use weightstream::device::Device;
    if stream == Actor::Copy {
        return sim.copy_to_device(place.at, contents.host()).unwrap();
    }
    // An upload goes to one unit.
    let mut at = 0;
    while at < place.bytes {
        let end = (at + 64).min(place.bytes);
        let part = &contents.bytes()[at as usize..end as usize];
        sim.upload(place.at.offset(at), part).unwrap();
        at = end;
    }
}

fn read(sim: &mut Sim, place: Place, contents: Contents) {
    sim.kernel(1, &[(place.at, contents.host())]).unwrap();
}

/// A store in numbers: it holds its grant between passes.
struct Store(AtomicU64);

impl Tenant for Store {
    fn shrink_to(&self, bytes: u64) -> Option<Result<()>> {
        self.0.store(bytes, Ordering::Relaxed);
        Some(Ok(()))
    }
}

fn join(pool: &Arc<DevicePool>, floor: u64, total: u64) -> Result<(Membership, Arc<Store>)> {
    let wants = Wants {
        name: format!("of {total}"),
        total,
        floor,
        priority: 0,
    };
    let state = DeviceState {
        page: PAGE,
        beside: 0,
        free: 0,
    };
    let membership = pool.join(wants, &state)?;
    let store = Arc::new(Store(AtomicU64::new(floor)));
    let tenant: Weak<Store> = Arc::downgrade(&store);
    membership.attach(tenant);
    Ok((membership, store))
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    fn stream(&mut self) -> Actor {
        match self.below(3) {
            0 => Actor::Copy,
            _ => Actor::Compute,
        }
    }
}

/// One range, as its caller sees it.
struct Mine {
    range: Range<Sim>,
    sizes: Vec<u64>,
    /// What the caller wrote last to each allocation, and under which generation.
    written: BTreeMap<AllocId, (u64, Contents)>,
    open: Vec<(AllocId, Actor)>,
    leases: Vec<Lease>,
}

/// A program that runs: its ranges and stores, and what it has seen.
struct World {
    pool: Arc<DevicePool>,
    ranges: Arc<Ranges<Sim>>,
    mine: Vec<Mine>,
    stores: Vec<(Membership, Arc<Store>)>,
    generations: HashSet<u64>,
    cap: u64,
}

impl World {
    fn new(order: Order, cap: u64) -> World {
        let pool = Arc::new(DevicePool::new("sim"));
        pool.set_cap(Some(cap)).unwrap();
        let ranges = Ranges::new(Sim::new(order), &pool);
        World {
            pool,
            ranges,
            mine: Vec::new(),
            stores: Vec::new(),
            generations: HashSet::new(),
            cap,
        }
    }

    fn create(&mut self, draw: &mut Draw) {
        let sizes: Vec<u64> = (0..1 + draw.below(6))
            .map(|_| 1 + draw.below(3 * UNIT))
            .collect();
        let bytes = sizes.iter().map(|size| size.next_multiple_of(256)).sum();
        let range = self
            .ranges
            .create(&format!("r{}", self.mine.len()), bytes)
            .unwrap();
        for size in &sizes {
            range.alloc(*size).unwrap();
        }
        self.mine.push(Mine {
            range,
            sizes,
            written: BTreeMap::new(),
            open: Vec::new(),
            leases: Vec::new(),
        });
    }

    fn step(&mut self, draw: &mut Draw) {
        if self.mine.is_empty() {
            return self.create(draw);
        }
        let at = draw.below(self.mine.len() as u64) as usize;
        match draw.below(24) {
            0..=9 => self.fault(at, draw),
            10..=12 => self.unpin(at, draw),
            13 => self.lease(at, draw),
            14 => drop(self.mine[at].leases.pop()),
            15 => self.mine[at].range.prioritize().unwrap(),
            16 => self.limits(at, draw),
            17 => self.invalidate(at, draw),
            18 => self.ranges.with_device(Sim::run),
            19 => self.stores(draw),
            20 => self.set_cap(draw),
            21 if self.mine.len() < 4 => self.create(draw),
            22 => self.destroy(at, draw),
            _ => self.mine[at].range.deprioritize().unwrap(),
        }
        self.check();
    }

    fn fault(&mut self, at: usize, draw: &mut Draw) {
        let mine = &mut self.mine[at];
        let alloc = draw.below(mine.sizes.len() as u64) as AllocId;
        let stream = draw.stream();
        match mine.range.fault(alloc, stream).unwrap() {
            Answer::Refused(_) => return,
            Answer::Hit(place) => {
                let (generation, contents) = mine.written.get(&alloc).expect("a hit of nothing");
                assert_eq!(
                    place.generation, *generation,
                    "other contents than were written"
                );
                if stream == Actor::Compute {
                    self.ranges.with_device(|sim| read(sim, place, *contents));
                }
            }
            Answer::Fill(place) => {
                assert!(
                    self.generations.insert(place.generation),
                    "a generation came twice"
                );
                let len = place.bytes as usize;
                let from = draw.below((NOISE - len) as u64) as usize;
                let contents = Contents { from, len };
                self.ranges
                    .with_device(|sim| write(sim, stream, place, contents));
                // Another caller cannot have it meanwhile.
                let again = mine.range.fault(alloc, Actor::Compute).unwrap();
                assert_eq!(again, Answer::Refused(Refusal::BeingFilled));
                mine.range.unpin(&[alloc], stream).unwrap();
                mine.written.insert(alloc, (place.generation, contents));
                return;
            }
        }
        mine.open.push((alloc, stream));
        if draw.below(3) > 0 {
            self.unpin(at, draw);
        }
    }

    fn unpin(&mut self, at: usize, draw: &mut Draw) {
        let mine = &mut self.mine[at];
        if mine.open.is_empty() {
            return;
        }
        let one = draw.below(mine.open.len() as u64) as usize;
        let (alloc, stream) = mine.open.swap_remove(one);
        mine.range.unpin(&[alloc], stream).unwrap();
    }

    /// A lease that is given to one stream, and by `used_on` to the one that reads.
    fn lease(&mut self, at: usize, draw: &mut Draw) {
        let mine = &mut self.mine[at];
        let alloc = draw.below(mine.sizes.len() as u64) as AllocId;
        let stream = draw.stream();
        match mine.range.lease(alloc, stream) {
            Err(error) => assert!(matches!(error, Error::InvalidInput(_)), "{error}"),
            Ok((place, lease)) => {
                if stream == Actor::Copy {
                    mine.range.used_on(alloc, Actor::Compute).unwrap();
                }
                if let Some((generation, contents)) = mine.written.get(&alloc) {
                    if place.generation == *generation {
                        self.ranges.with_device(|sim| read(sim, place, *contents));
                    }
                }
                mine.leases.push(lease);
            }
        }
    }

    fn limits(&mut self, at: usize, draw: &mut Draw) {
        let range = &self.mine[at].range;
        let bytes = draw.below(8 * UNIT);
        match draw.below(3) {
            0 => range.set_limit(None).unwrap(),
            1 => range.set_limit(Some(bytes)).unwrap(),
            _ => range.free_bytes(bytes, draw.below(2) == 0).unwrap(),
        };
    }

    fn invalidate(&mut self, at: usize, draw: &mut Draw) {
        let mine = &mut self.mine[at];
        let alloc = draw.below(mine.sizes.len() as u64) as AllocId;
        mine.range.invalidate(Some(alloc)).unwrap();
        mine.written.remove(&alloc);
    }

    fn stores(&mut self, draw: &mut Draw) {
        if self.stores.len() < 2 && draw.below(3) == 0 {
            let floor = PAGE * (1 + draw.below(4));
            let total = floor + PAGE * draw.below(16);
            match join(&self.pool, floor, total) {
                Ok(store) => self.stores.push(store),
                Err(Error::CapTooSmall { .. } | Error::OutOfMemory { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            return;
        }
        if self.stores.is_empty() {
            return;
        }
        let at = draw.below(self.stores.len() as u64) as usize;
        if draw.below(4) == 0 {
            drop(self.stores.swap_remove(at));
            return;
        }
        let (membership, _) = &self.stores[at];
        membership.begin_pass(|| Ok(0), |_| Ok(())).unwrap();
        if draw.below(2) == 0 {
            membership.end_pass(|_| Ok(())).unwrap();
        }
    }

    fn set_cap(&mut self, draw: &mut Draw) {
        let cap = PAGE * draw.below(64);
        match self.pool.set_cap(Some(cap)) {
            Ok(()) => self.cap = cap,
            Err(Error::CapTooSmall {
                cap: asked, least, ..
            }) => {
                assert!(asked == cap && least > cap, "{least} of {cap}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn destroy(&mut self, at: usize, draw: &mut Draw) {
        let in_use = !self.mine[at].open.is_empty() || !self.mine[at].leases.is_empty();
        let destroyed = self.mine[at].range.destroy();
        assert_eq!(destroyed.is_err(), in_use, "{destroyed:?}");
        if !in_use {
            drop(self.mine.swap_remove(at));
        } else if draw.below(4) == 0 {
            // Its handle goes, with faults and leases open: nobody can say any more that they end.
            let mine = self.mine.swap_remove(at);
            for (alloc, stream) in mine.open {
                mine.range.unpin(&[alloc], stream).unwrap();
            }
            drop(mine.range);
            drop(mine.leases);
        }
    }

    fn check(&mut self) {
        let report = self.pool.report();
        let stores: u64 = report.tenants.iter().map(|tenant| tenant.held).sum();
        let held = self.ranges.held();
        let live = self.ranges.with_device(|sim| sim.live_bytes());
        assert_eq!((report.ranges, report.cap), (held, self.cap), "{report:?}");
        assert_eq!(live, held);
        assert!(stores + held <= self.cap, "{held} of ranges, {report:?}");
    }
}

fn run(order: Order, cap: u64, steps: &[u64]) {
    let mut world = World::new(order, cap);
    for step in steps {
        world.step(&mut Draw(*step));
    }
    let verdict = world.ranges.with_device(|sim| sim.verdict());
    if let Err(problems) = verdict {
        panic!("{problems}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// `PROPTEST_CASES=100000` for many.
    #[test]
    fn random_programs_share_a_device(
        order in prop_oneof![Just(Order::CopiesFirst), Just(Order::KernelsFirst), any::<u64>().prop_map(Order::Random)],
        pages in 4u64..64,
        steps in prop::collection::vec(any::<u64>(), 1..160),
    ) {
        run(order, pages * PAGE, &steps);
    }
}

/// Ranges of whole units under a cap of `units`.
fn world(units: u64) -> World {
    World::new(Order::KernelsFirst, units * UNIT)
}

/// A range of so many allocations of one unit each.
fn range(world: &World, name: &str, units: u64) -> Range<Sim> {
    let range = world.ranges.create(name, units * UNIT).unwrap();
    for _ in 0..units {
        range.alloc(UNIT).unwrap();
    }
    range
}

fn contents() -> Contents {
    Contents {
        from: 7,
        len: UNIT as usize,
    }
}

/// Faults, fills, reads and unpins, as the loop of an eager model does. The answer.
fn touch(world: &World, range: &Range<Sim>, alloc: AllocId) -> Answer {
    let answer = range.fault(alloc, Actor::Compute).unwrap();
    let Some(place) = answer.place() else {
        return answer;
    };
    world.ranges.with_device(|sim| {
        if matches!(answer, Answer::Fill(_)) {
            write(sim, Actor::Compute, place, contents());
        }
        read(sim, place, contents());
    });
    range.unpin(&[alloc], Actor::Compute).unwrap();
    answer
}

/// A pass over all of them, after which the streams are idle: `h`it, `f`ill, `-` refused.
fn pass(world: &World, range: &Range<Sim>, allocs: u32) -> String {
    let letter = |alloc| match touch(world, range, alloc) {
        Answer::Hit(_) => 'h',
        Answer::Fill(_) => 'f',
        Answer::Refused(_) => '-',
    };
    let letters = (0..allocs).map(letter).collect();
    world.ranges.with_device(Sim::run);
    letters
}

fn done(world: &World) {
    if let Err(problems) = world.ranges.with_device(|sim| sim.verdict()) {
        panic!("{problems}");
    }
}

#[test]
fn a_range_costs_addresses_and_no_memory() {
    let world = world(4);
    let range = world.ranges.create("a", 3 * UNIT + 1).unwrap();
    assert_eq!(
        range.addresses().unwrap().1,
        3 * UNIT + PAGE,
        "rounded up to a page"
    );
    let allocs = [0; 3].map(|_| range.alloc(UNIT).unwrap());
    let last = allocs[2];
    assert_eq!(world.ranges.held(), 0);
    let refused = range.alloc(PAGE + 1).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("'a', of whose 3328 bytes 256 are left"),
        "{refused}"
    );
    assert!(matches!(range.alloc(0), Err(Error::InvalidInput(_))));
    assert!(matches!(
        range.fault(last + 1, Actor::Compute),
        Err(Error::InvalidInput(_))
    ));
    assert!(matches!(
        world.ranges.create("b", 0),
        Err(Error::InvalidInput(_))
    ));
    done(&world);
}

/// The pass of an eager model that does not fit: low addresses stay, and nothing is faulted in and out.
#[test]
fn low_addresses_stay_and_the_rest_is_refused() {
    let world = world(2);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ff--");
    assert_eq!(pass(&world, &a, 4), "hh--");
    assert_eq!(
        a.fault(3, Actor::Compute),
        Ok(Answer::Refused(Refusal::NothingLower))
    );
    // A low address that comes late takes from the top.
    let b = range(&world, "b", 4);
    assert_eq!(pass(&world, &b, 4), "ff--");
    b.free_bytes(2 * UNIT, true).unwrap();
    b.prioritize().unwrap();
    assert!(matches!(touch(&world, &b, 2), Answer::Fill(_)));
    assert!(matches!(touch(&world, &b, 3), Answer::Fill(_)));
    world.ranges.with_device(Sim::run);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    assert_eq!(b.watermark().unwrap().bytes, 3 * UNIT);
    assert_eq!(
        b.fault(3, Actor::Compute),
        Ok(Answer::Refused(Refusal::AboveWatermark))
    );
    let evicted = b.residency().unwrap().counts.evicted_bytes;
    assert_eq!(evicted[Cause::LowerAddress as usize], UNIT);
    done(&world);
}

#[test]
fn the_newest_range_takes_from_older_ones_and_sets_their_watermark() {
    let world = world(4);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ffff");
    let b = range(&world, "b", 2);
    assert_eq!(pass(&world, &b, 2), "ff");
    let watermark = a.watermark().unwrap();
    assert_eq!(watermark.bytes, 2 * UNIT);
    assert_eq!(
        watermark.why.unwrap(),
        "a fault of range 'b', which has a higher priority"
    );
    // Without prioritize nothing moves any more.
    assert_eq!(pass(&world, &a, 4), "hh--");
    assert_eq!(pass(&world, &b, 2), "hh");
    a.prioritize().unwrap();
    assert_eq!(a.watermark().unwrap().why, None);
    assert_eq!(pass(&world, &a, 4), "hhff");
    assert_eq!(pass(&world, &b, 2), "--");
    // b comes last either way: it takes nothing from a.
    assert_eq!(b.watermark().unwrap().bytes, 0);
    a.deprioritize().unwrap();
    b.prioritize().unwrap();
    assert_eq!(pass(&world, &b, 2), "ff");
    done(&world);
}

#[test]
fn the_lowest_range_gives_first() {
    let world = world(3);
    let [a, b, c] = ["a", "b", "c"].map(|name| range(&world, name, 1));
    for one in [&a, &b, &c] {
        assert_eq!(pass(&world, one, 1), "f");
    }
    a.prioritize().unwrap();
    let d = range(&world, "d", 1);
    // Now d, a, c, b.
    assert_eq!(pass(&world, &d, 1), "f");
    assert_eq!(pass(&world, &a, 1), "h");
    assert_eq!(pass(&world, &c, 1), "h");
    assert_eq!(pass(&world, &b, 1), "-");
    done(&world);
}

/// The kernel still reads: the fault is refused, waits for nobody, and takes nothing that is worth more.
#[test]
fn pages_that_kernels_use_stay() {
    let world = world(2);
    let a = range(&world, "a", 2);
    assert_eq!(pass(&world, &a, 2), "ff");
    touch(&world, &a, 1);
    let b = range(&world, "b", 1);
    assert_eq!(
        b.fault(0, Actor::Compute),
        Ok(Answer::Refused(Refusal::InUse))
    );
    let freed = a.free_bytes(UNIT, false).unwrap();
    assert_eq!((freed.bytes, freed.pending), (0, UNIT));
    assert_eq!(
        a.watermark().unwrap().why,
        None,
        "a refusal moves no watermark"
    );
    world.ranges.with_device(Sim::run);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    // With a wait it goes.
    touch(&world, &a, 0);
    assert_eq!(a.free_bytes(UNIT, true).unwrap().bytes, UNIT);
    done(&world);
}

#[test]
fn pinned_pages_stay_and_are_named() {
    let world = world(2);
    let a = range(&world, "a", 2);
    assert_eq!(pass(&world, &a, 2), "ff");
    a.fault(1, Actor::Compute).unwrap();
    let freed = a.free_bytes(2 * UNIT, true).unwrap();
    assert_eq!((freed.bytes, freed.pinned), (UNIT, UNIT));
    let b = range(&world, "b", 2);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    assert_eq!(
        b.fault(1, Actor::Compute),
        Ok(Answer::Refused(Refusal::InUse))
    );
    let error = a.destroy().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("'a' cannot end: allocation 1 has 1 leases"),
        "{error}"
    );
    // A pinned page above the watermark keeps its contents.
    assert!(matches!(touch(&world, &a, 1), Answer::Hit(_)));
    a.unpin(&[1], Actor::Compute).unwrap();
    let twice = a.unpin(&[1], Actor::Compute).unwrap_err();
    assert!(
        twice.to_string().contains("more often than it was faulted"),
        "{twice}"
    );
    a.destroy().unwrap();
    done(&world);
}

#[test]
fn a_limit_holds_and_may_rise_again() {
    let world = world(8);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ffff");
    assert_eq!(a.set_limit(Some(2 * UNIT)).unwrap().bytes, 2 * UNIT);
    assert_eq!(pass(&world, &a, 4), "hh--");
    assert_eq!(
        a.fault(3, Actor::Compute),
        Ok(Answer::Refused(Refusal::OverLimit))
    );
    assert_eq!(a.watermark().unwrap().why, None);
    a.set_limit(None).unwrap();
    assert_eq!(pass(&world, &a, 4), "hhff");
    // A low address has the range give a high one.
    a.invalidate(Some(0)).unwrap();
    a.free_bytes(4 * UNIT, true).unwrap();
    a.prioritize().unwrap();
    a.set_limit(Some(UNIT)).unwrap();
    assert!(matches!(touch(&world, &a, 2), Answer::Fill(_)));
    world.ranges.with_device(Sim::run);
    assert!(matches!(touch(&world, &a, 0), Answer::Fill(_)));
    assert_eq!(a.residency().unwrap().resident, UNIT);
    done(&world);
}

#[test]
fn contents_that_are_invalidated_are_written_again_after_their_readers() {
    let world = world(2);
    let a = range(&world, "a", 1);
    let Answer::Fill(first) = touch(&world, &a, 0) else {
        panic!("nothing was there");
    };
    a.invalidate(None).unwrap();
    // The kernel of `touch` has not run; the copy stream waits for it.
    let Answer::Fill(second) = a.fault(0, Actor::Copy).unwrap() else {
        panic!("invalid contents are no hit");
    };
    assert_eq!(first.at, second.at);
    assert!(second.generation > first.generation);
    world
        .ranges
        .with_device(|sim| write(sim, Actor::Copy, second, contents()));
    a.unpin(&[0], Actor::Copy).unwrap();
    // And the next reader for the copy.
    assert!(matches!(touch(&world, &a, 0), Answer::Hit(_)));
    // A fill that failed: what it wrote is worth nothing.
    a.invalidate(None).unwrap();
    assert!(matches!(a.fault(0, Actor::Compute), Ok(Answer::Fill(_))));
    a.invalidate(Some(0)).unwrap();
    a.unpin(&[0], Actor::Compute).unwrap();
    assert!(matches!(touch(&world, &a, 0), Answer::Fill(_)));
    done(&world);
}

#[test]
fn a_lease_ends_on_any_thread_and_its_page_stays_until_the_kernel_is_done() {
    let world = world(1);
    let a = range(&world, "a", 1);
    touch(&world, &a, 0);
    let (place, lease) = a.lease(0, Actor::Copy).unwrap();
    a.used_on(0, Actor::Compute).unwrap();
    world.ranges.with_device(Sim::run);
    world.ranges.with_device(|sim| read(sim, place, contents()));
    let b = range(&world, "b", 1);
    let refused = |b: &Range<Sim>| {
        assert_eq!(
            b.fault(0, Actor::Compute),
            Ok(Answer::Refused(Refusal::InUse))
        );
    };
    refused(&b);
    std::thread::spawn(move || drop(lease)).join().unwrap();
    refused(&b);
    assert!(matches!(
        a.used_on(0, Actor::Copy),
        Err(Error::InvalidInput(_))
    ));
    world.ranges.with_device(Sim::run);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    assert!(matches!(
        a.lease(0, Actor::Compute),
        Err(Error::InvalidInput(_))
    ));
    done(&world);
}

#[test]
fn a_range_whose_handle_is_gone_ends_with_its_last_lease() {
    let world = world(1);
    let a = range(&world, "a", 1);
    touch(&world, &a, 0);
    let (_, lease) = a.lease(0, Actor::Compute).unwrap();
    drop(a);
    assert_eq!(world.ranges.held(), UNIT);
    drop(lease);
    // The first try to record the end of the lease fails, the next one does not.
    world
        .ranges
        .with_device(|sim| sim.fail_call("record_compute", 0));
    assert_eq!(world.ranges.held(), UNIT);
    assert_eq!(world.ranges.held(), UNIT);
    world.ranges.with_device(Sim::run);
    let b = range(&world, "b", 1);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    assert_eq!(world.pool.report().ranges, UNIT);
    done(&world);
}

/// By the stream that wrote them, contents are found without a call of the device.
#[test]
fn a_hit_calls_no_device() {
    let world = world(2);
    let a = range(&world, "a", 2);
    pass(&world, &a, 2);
    let calls = |world: &World| world.ranges.with_device(|sim| sim.calls());
    let before = calls(&world);
    a.fault(0, Actor::Compute).unwrap();
    let mut answers = Vec::new();
    a.fault_many(&[0, 1, 1], Actor::Compute, |answer| answers.push(answer))
        .unwrap();
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Answer::Hit(_))),
        "{answers:?}"
    );
    assert_eq!(calls(&world), before);
    // One event for all of them.
    a.unpin(&[0, 0, 1, 1], Actor::Compute).unwrap();
    assert_eq!(calls(&world), before + 1);
    done(&world);
}

#[test]
fn stores_come_first_and_ranges_take_what_they_leave() {
    let world = world(4);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ffff");
    // The floor of a store that joins.
    let (store, _tenant) = join(&world.pool, UNIT, 2 * UNIT).unwrap();
    assert_eq!(world.ranges.held(), 3 * UNIT);
    // Its grant, in its first pass.
    store.begin_pass(|| Ok(0), |_| Ok(())).unwrap();
    store.end_pass(|_| Ok(())).unwrap();
    assert_eq!((store.held(), world.ranges.held()), (2 * UNIT, 2 * UNIT));
    let why = a.watermark().unwrap().why.unwrap();
    assert!(why.contains("cap"), "{why}");
    a.prioritize().unwrap();
    assert_eq!(pass(&world, &a, 4), "hh--");
    drop(store);
    assert_eq!(pass(&world, &a, 4), "hhff");
    let counts = a.residency().unwrap().counts;
    assert_eq!(counts.evicted_bytes[Cause::Cap as usize], 2 * UNIT);
    assert_eq!(counts.refused[Refusal::NothingLower as usize], 2);
    done(&world);
}

#[test]
fn a_smaller_cap_takes_pages_and_is_refused_where_they_are_leased() {
    let world = world(4);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ffff");
    touch(&world, &a, 3);
    // It waits for the kernel.
    world.pool.set_cap(Some(3 * UNIT)).unwrap();
    assert_eq!(world.ranges.held(), 3 * UNIT);
    a.fault(0, Actor::Compute).unwrap();
    a.fault(1, Actor::Compute).unwrap();
    let Err(Error::CapTooSmall { cap, least, floors }) = world.pool.set_cap(Some(UNIT)) else {
        panic!("leased pages were taken");
    };
    assert_eq!((cap, least), (UNIT, 2 * UNIT));
    assert!(floors.contains("leased pages of ranges 2048"), "{floors}");
    assert_eq!(world.pool.report().cap, 3 * UNIT);
    a.unpin(&[0, 1], Actor::Compute).unwrap();
    world.pool.set_cap(Some(UNIT)).unwrap();
    assert_eq!(world.ranges.held(), UNIT);
    done(&world);
}

/// Of free memory: a cap that sinks takes pages at the next miss.
#[test]
fn a_cap_that_follows_free_memory_leaves_a_reserve() {
    use weightstream::device::Device;
    const MB: u64 = 1 << 20;
    let world = World::new(Order::KernelsFirst, 0);
    world.pool.set_cap(None).unwrap();
    let free = |bytes: u64| {
        world
            .ranges
            .with_device(|sim| sim.set_budget(bytes).unwrap())
    };
    free(256 * MB + 2 * UNIT);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ff--");
    // Another program took a unit.
    free(256 * MB + UNIT);
    assert!(matches!(a.fault(2, Actor::Compute), Ok(Answer::Refused(_))));
    assert_eq!(world.ranges.held(), UNIT);
    done(&world);
}

/// The device has less than the cap says: refused, and nothing is counted as held.
#[test]
fn a_device_that_is_full_refuses() {
    let world = world(4);
    let a = range(&world, "a", 4);
    assert!(matches!(touch(&world, &a, 0), Answer::Fill(_)));
    world.ranges.with_device(|sim| sim.limit_addresses(UNIT));
    assert_eq!(
        a.fault(1, Actor::Compute),
        Ok(Answer::Refused(Refusal::DeviceFull))
    );
    assert_eq!(
        (world.ranges.held(), world.pool.report().ranges),
        (UNIT, UNIT)
    );
    done(&world);
}

/// Each call of the device fails once: an error, no panic, and what is counted is what is there.
#[test]
fn a_call_that_fails_leaves_the_count_right() {
    for call in [
        "back_unit",
        "take_unit",
        "record_compute",
        "is_done",
        "release_units",
    ] {
        for after in 0..3 {
            let world = world(2);
            let a = range(&world, "a", 2);
            pass(&world, &a, 2);
            let b = range(&world, "b", 2);
            world.ranges.with_device(|sim| sim.fail_call(call, after));
            for alloc in 0..2 {
                if let Ok(Answer::Fill(place)) = b.fault(alloc, Actor::Compute) {
                    world
                        .ranges
                        .with_device(|sim| write(sim, Actor::Compute, place, contents()));
                    if b.unpin(&[alloc], Actor::Compute).is_err() {
                        b.unpin(&[alloc], Actor::Compute).unwrap();
                    }
                }
            }
            let live = world.ranges.with_device(|sim| sim.live_bytes());
            assert_eq!(
                (world.ranges.held(), world.pool.report().ranges),
                (live, live),
                "{call}"
            );
            for one in [&a, &b] {
                if one.destroy().is_err() {
                    one.destroy().unwrap();
                }
            }
            assert_eq!(world.pool.report().ranges, 0, "{call}");
            world.ranges.with_device(|sim| sim.fail(None));
            done(&world);
        }
    }
}

/// Three threads with a range each, under a cap for one and a half of them.
#[test]
fn threads_share_a_device() {
    let world = World::new(Order::Random(3), 6 * UNIT);
    let ranges: Vec<_> = (0..3)
        .map(|at| range(&world, &format!("r{at}"), 4))
        .collect();
    std::thread::scope(|scope| {
        for range in &ranges {
            let world = &world;
            scope.spawn(move || {
                for round in 0..40 {
                    if round % 7 == 0 {
                        range.prioritize().unwrap();
                    }
                    pass(world, range, 4);
                    assert!(world.ranges.held() <= 6 * UNIT);
                }
            });
        }
    });
    done(&world);
}

/// The simulator itself: without the event the program is wrong, and it says so.
#[test]
fn a_page_that_goes_early_is_seen() {
    let mut sim = Sim::new(Order::CopiesFirst);
    let at = sim.reserve(UNIT).unwrap();
    sim.back(at, UNIT).unwrap();
    let place = Place {
        at: DevicePtr(at.0),
        bytes: UNIT,
        generation: 1,
    };
    write(&mut sim, Actor::Compute, place, contents());
    read(&mut sim, place, contents());
    Units::take(&mut sim, at, false).unwrap();
    let problems = sim.take_problems();
    assert!(
        problems
            .iter()
            .any(|one| matches!(one, Problem::Race { .. })),
        "{problems:?}"
    );
}
