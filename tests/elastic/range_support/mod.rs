//! Ranges and stores on the simulated device under one cap, and an oracle that knows what each allocation holds.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod groups;
mod ring;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use weightstream::device::sim::{Actor, Order};
use weightstream::device::{HostBytes, Sim};
use weightstream::elastic::range::{AllocId, Answer, Lease, Place, Refusal};
use weightstream::elastic::{
    DevicePool, DeviceState, Membership, PassNeeds, Range, Ranges, Tenant, Wants,
};
use weightstream::{Error, Result};

pub const PAGE: u64 = 256;
pub const UNIT: u64 = 4 * PAGE;
pub const NOISE: usize = 1 << 16;

/// Bytes that live for ever.
pub fn noise() -> &'static [u8] {
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
pub struct Contents {
    pub from: usize,
    pub len: usize,
}

impl Contents {
    pub fn bytes(self) -> &'static [u8] {
        &noise()[self.from..self.from + self.len]
    }

    pub fn host(self) -> HostBytes {
        HostBytes::from_static(self.bytes())
    }
}

/// Writes the contents on a stream, as the caller does after `Fill`.
pub fn write(sim: &mut Sim, stream: Actor, place: Place, contents: Contents) {
    use weightstream::device::Device;
    if stream == Actor::Copy {
        return sim.bring(place.at, contents.host()).unwrap();
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

pub fn read(sim: &mut Sim, place: Place, contents: Contents) {
    sim.kernel(1, &[(place.at, contents.host())]).unwrap();
}

/// A store in numbers: it holds its grant between passes.
pub struct Store(pub AtomicU64);

impl Tenant for Store {
    fn shrink_to(&self, bytes: u64) -> Option<Result<()>> {
        self.0.store(bytes, Ordering::Relaxed);
        Some(Ok(()))
    }
}

pub fn join(pool: &Arc<DevicePool>, floor: u64, total: u64) -> Result<(Membership, Arc<Store>)> {
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

pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    pub fn stream(&mut self) -> Actor {
        match self.below(3) {
            0 => Actor::Copy,
            _ => Actor::Compute,
        }
    }
}

/// One range, as its caller sees it.
pub struct Mine {
    pub range: Range<Sim>,
    pub sizes: Vec<u64>,
    /// What the caller wrote last to each allocation, and under which generation.
    pub written: BTreeMap<AllocId, (u64, Contents)>,
    pub open: Vec<(AllocId, Actor)>,
    pub leases: Vec<Lease>,
    /// Slots of the ring that are leased, and the stream that reads them.
    pub slots: Vec<(AllocId, Actor)>,
}

impl Mine {
    /// Nothing of it is in use.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.leases.is_empty() && self.slots.is_empty()
    }
}

/// A program that runs: its ranges and stores, and what it has seen.
pub struct World {
    pub pool: Arc<DevicePool>,
    pub ranges: Arc<Ranges<Sim>>,
    pub mine: Vec<Mine>,
    pub stores: Vec<(Membership, Arc<Store>)>,
    pub generations: HashSet<u64>,
    pub cap: u64,
}

impl World {
    pub fn new(order: Order, cap: u64) -> World {
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

    pub fn create(&mut self, draw: &mut Draw) {
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
            slots: Vec::new(),
        });
    }

    pub fn step(&mut self, draw: &mut Draw) {
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

    pub fn fault(&mut self, at: usize, draw: &mut Draw) {
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

    pub fn unpin(&mut self, at: usize, draw: &mut Draw) {
        let mine = &mut self.mine[at];
        if mine.open.is_empty() {
            return;
        }
        let one = draw.below(mine.open.len() as u64) as usize;
        let (alloc, stream) = mine.open.swap_remove(one);
        mine.range.unpin(&[alloc], stream).unwrap();
    }

    /// A lease that is given to one stream, and by `used_on` to the one that reads.
    pub fn lease(&mut self, at: usize, draw: &mut Draw) {
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

    pub fn limits(&mut self, at: usize, draw: &mut Draw) {
        let range = &self.mine[at].range;
        let bytes = draw.below(8 * UNIT);
        match draw.below(3) {
            0 => range.set_limit(None).unwrap(),
            1 => range.set_limit(Some(bytes)).unwrap(),
            _ => range.free_bytes(bytes, draw.below(2) == 0).unwrap(),
        };
    }

    pub fn invalidate(&mut self, at: usize, draw: &mut Draw) {
        let mine = &mut self.mine[at];
        let alloc = draw.below(mine.sizes.len() as u64) as AllocId;
        mine.range.invalidate(Some(alloc)).unwrap();
        mine.written.remove(&alloc);
    }

    pub fn stores(&mut self, draw: &mut Draw) {
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
        membership
            .begin_pass(PassNeeds::default(), || Ok(0), |_| Ok(()))
            .unwrap();
        if draw.below(2) == 0 {
            membership.end_pass(|_| Ok(())).unwrap();
        }
    }

    pub fn set_cap(&mut self, draw: &mut Draw) {
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

    pub fn destroy(&mut self, at: usize, draw: &mut Draw) {
        let mine = &self.mine[at];
        let in_use = !(mine.open.is_empty() && mine.leases.is_empty() && mine.slots.is_empty());
        let destroyed = self.mine[at].range.destroy();
        assert_eq!(destroyed.is_err(), in_use, "{destroyed:?}");
        if !in_use {
            drop(self.mine.swap_remove(at));
        } else if draw.below(4) == 0 {
            // Its handle goes, with faults and leases open: nobody can say any more that they end.
            let mine = self.mine.swap_remove(at);
            for (alloc, stream) in mine.open.into_iter().chain(mine.slots) {
                mine.range.unpin(&[alloc], stream).unwrap();
            }
            drop(mine.range);
            drop(mine.leases);
        }
    }

    pub fn check(&mut self) {
        let report = self.pool.report();
        let stores: u64 = report.tenants.iter().map(|tenant| tenant.held).sum();
        let held = self.ranges.held();
        let live = self.ranges.with_device(|sim| sim.live_bytes());
        assert_eq!((report.ranges, report.cap), (held, self.cap), "{report:?}");
        assert_eq!(live, held);
        assert!(stores + held <= self.cap, "{held} of ranges, {report:?}");
    }
}

/// Ranges of whole units under a cap of `units`.
pub fn world(units: u64) -> World {
    World::new(Order::KernelsFirst, units * UNIT)
}

/// A range of so many allocations of one unit each.
pub fn range(world: &World, name: &str, units: u64) -> Range<Sim> {
    let range = world.ranges.create(name, units * UNIT).unwrap();
    for _ in 0..units {
        range.alloc(UNIT).unwrap();
    }
    range
}

pub fn contents() -> Contents {
    Contents {
        from: 7,
        len: UNIT as usize,
    }
}

/// Faults, fills, reads and unpins, as the loop of an eager model does. The answer.
pub fn touch(world: &World, range: &Range<Sim>, alloc: AllocId) -> Answer {
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
pub fn pass(world: &World, range: &Range<Sim>, allocs: u32) -> String {
    let letter = |alloc| match touch(world, range, alloc) {
        Answer::Hit(_) => 'h',
        Answer::Fill(_) => 'f',
        Answer::Refused(_) => '-',
    };
    let letters = (0..allocs).map(letter).collect();
    world.ranges.with_device(Sim::run);
    letters
}

pub fn done(world: &World) {
    if let Err(problems) = world.ranges.with_device(|sim| sim.verdict()) {
        panic!("{problems}");
    }
}
