//! Entries of a module that runs call by call, on the CPU: each has its own order over the same weights. A caller plays passes as
//! `ws.torch.offload` does, and looks at every byte.

use crate::elastic_support::cpu_pool;
use crate::session_support::draw::{Draw, Seeded};
use proptest::prelude::*;
use std::ops::Range;
use weightstream::device::{CallerStream, HostBytes};
use weightstream::eager::{Eager, Entry, OffloadBudget, Recorded, RecordedWeight, WeightFiles};
use weightstream::figures::DeviceId;
use weightstream::schedule::Event;
use weightstream::Error;

const PAGE: u64 = 4096;

/// Bytes of a module's weights. They stay for ever.
fn contents(pages: &[u64]) -> Vec<&'static [u8]> {
    let one = |(index, pages): (usize, &u64)| {
        let bytes = (0..(pages * PAGE) as usize).map(|at| (at % 251 + 7 * index) as u8);
        &*Vec::leak(bytes.collect())
    };
    pages.iter().enumerate().map(one).collect()
}

/// One call of a layer: what it reads.
type Call = Range<u32>;

/// An entry as it was recorded, and where its reads are.
#[derive(Clone)]
struct Recording {
    entry: Entry,
    calls: Vec<Call>,
    at: Vec<u64>,
}

impl Recording {
    /// Each call reads these weights.
    fn new(calls: &[Vec<u32>]) -> Recording {
        let mut entry = Entry::default();
        let mut ranges = Vec::new();
        for (number, weights) in (0..).zip(calls) {
            let first = entry.reads.len() as u32;
            entry.reads.extend(weights);
            let reads = first..entry.reads.len() as u32;
            entry.events.extend(reads.clone().map(Event::Probe));
            entry.events.push(Event::Kernel(number));
            entry.events.extend(reads.clone().map(Event::Release));
            ranges.push(reads);
        }
        Recording {
            at: vec![0; entry.reads.len()],
            calls: ranges,
            entry,
        }
    }

    /// Each call reads one weight.
    fn of(weights: impl Iterator<Item = u32>) -> Recording {
        Recording::new(&weights.map(|weight| vec![weight]).collect::<Vec<_>>())
    }
}

struct Module {
    eager: Eager,
    bytes: Vec<&'static [u8]>,
    entries: Vec<Recording>,
}

impl Module {
    fn new(
        bytes: &[&'static [u8]],
        first: Recording,
        budget: OffloadBudget,
    ) -> Result<Module, Error> {
        let weights = { bytes.iter().enumerate() }.map(|(at, bytes)| {
            RecordedWeight::new(format!("w{at}"), HostBytes::from_static(bytes))
        });
        let eager = Eager::new(Recorded {
            name: "m".to_owned(),
            device: DeviceId::Cpu,
            // SAFETY: null is the default stream.
            stream: unsafe { CallerStream::new(std::ptr::null_mut()) },
            weights: weights.collect(),
            files: WeightFiles::default(),
            entry: first.entry.clone(),
            budget,
            priority: 0,
            beside: 100,
        })?;
        Ok(Module {
            eager,
            bytes: bytes.to_vec(),
            entries: vec![first],
        })
    }

    fn add(&mut self, entry: Recording) -> Result<(), Error> {
        let at = self.eager.add_entry(entry.entry.clone())?;
        assert_eq!(at as usize, self.entries.len());
        self.entries.push(entry);
        Ok(())
    }

    fn replace(&mut self, at: usize, entry: Recording) -> Result<(), Error> {
        self.eager.replace_entry(at as u32, entry.entry.clone())?;
        self.entries[at] = entry;
        Ok(())
    }

    fn check(&self, entry: usize, read: usize) {
        let Recording { entry, at, .. } = &self.entries[entry];
        let expected = self.bytes[entry.reads[read] as usize];
        // SAFETY: the weight's bytes, under a lease or in a resident pass.
        let found = unsafe { std::slice::from_raw_parts(at[read] as *const u8, expected.len()) };
        assert!(found == expected, "read {read}");
    }

    /// A pass of so many calls, or of all. Whether everything stays.
    fn calls(&mut self, entry: usize, most: usize) -> bool {
        let begun = self.eager.begin(entry as u32).unwrap();
        let calls = self.entries[entry].calls.clone();
        let complete = most >= calls.len();
        if begun.resident {
            let at = &mut self.entries[entry].at;
            self.eager.addresses(entry as u32, at).unwrap();
            (0..at.len()).for_each(|read| self.check(entry, read));
        } else {
            for call in calls.into_iter().take(most) {
                let here = call.start as usize..call.end as usize;
                let at = &mut self.entries[entry].at[here.clone()];
                self.eager.read(call.clone(), at).unwrap();
                here.for_each(|read| self.check(entry, read));
                self.eager.release(call).unwrap();
            }
        }
        self.eager.end(complete).unwrap();
        begun.resident
    }

    fn pass(&mut self, entry: usize) -> bool {
        self.calls(entry, usize::MAX)
    }

    /// One pass after the other, of these entries.
    fn passes(&mut self, entries: &[usize]) {
        entries.iter().for_each(|&entry| {
            self.pass(entry);
        });
    }

    fn floor(&self) -> u64 {
        self.eager.stats().unwrap().floor_bytes
    }

    fn copied(&self) -> u64 {
        self.eager.stats().unwrap().bytes_copied
    }

    /// Bytes that the passes of an entry copied.
    fn copied_by(&self, entry: usize) -> u64 {
        self.eager.entry_stats().unwrap()[entry].bytes_copied
    }
}

/// Twelve weights of a unit of the host's pages each: what stays is moved as it is.
fn twelve() -> Vec<&'static [u8]> {
    contents(&[256; 12])
}

const WEIGHT: u64 = 256 * PAGE;

#[test]
fn entries_share_weights_and_what_stays() {
    let whole = 12 * WEIGHT + 100;
    let mut module =
        Module::new(&twelve(), Recording::of(0..6), OffloadBudget::Bytes(whole)).unwrap();
    assert!(module.pass(0));
    assert_eq!(module.copied(), 6 * WEIGHT);
    let before = module.eager.begin(0).unwrap().generation;
    module.eager.end(true).unwrap();
    module.add(Recording::of(6..12)).unwrap();
    assert_eq!(module.copied(), 12 * WEIGHT);
    module.add(Recording::of((0..12).rev())).unwrap();
    assert!(module.pass(2) && module.pass(1) && module.pass(0));
    assert_eq!(module.copied(), 12 * WEIGHT);
    let begun = module.eager.begin(0).unwrap();
    assert_ne!(begun.generation, before);
    module.eager.end(false).unwrap();
    let passes: Vec<u64> = { module.eager.entry_stats().unwrap().iter() }
        .map(|entry| entry.passes)
        .collect();
    assert_eq!(passes, [3, 1, 1]);
    assert_eq!(module.eager.stats().unwrap().budget_bytes, whole);
}

#[test]
fn the_least_budget_follows_where_nobody_said_a_number() {
    let wide = || Recording::new(&[vec![0, 1, 2, 3], vec![4]]);
    let bytes = twelve();
    let mut floor = Module::new(&bytes, Recording::of(0..6), OffloadBudget::Floor).unwrap();
    let least = floor.floor();
    floor.pass(0);
    floor.add(wide()).unwrap();
    let more = floor.floor();
    assert!(more > least);
    assert_eq!(floor.eager.stats().unwrap().budget_bytes, more);
    floor.passes(&[0, 1]);
    floor.replace(1, Recording::of(3..5)).unwrap();
    assert_eq!(floor.eager.stats().unwrap().budget_bytes, least);
    floor.passes(&[0, 1]);

    let mut fixed = Module::new(&bytes, Recording::of(0..6), OffloadBudget::Bytes(least)).unwrap();
    fixed.pass(0);
    for _ in 0..2 {
        match fixed.add(wide()) {
            Err(Error::BudgetTooSmall { budget, floor, .. }) => {
                assert_eq!((budget, floor), (least, more));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(fixed.floor(), least);
        assert!(fixed.eager.begin(1).is_err());
        fixed.pass(0);
    }
    fixed.eager.set_budget(more).unwrap();
    fixed.add(wide()).unwrap();
    fixed.pass(1);
    // A number was said.
    assert!(fixed.add(Recording::new(&[(0..8).collect()])).is_err());
    assert!(fixed.eager.set_budget(least).is_err());
}

#[test]
fn what_is_no_entry_is_refused() {
    let mut module = Module::new(&twelve(), Recording::of(0..6), OffloadBudget::Floor).unwrap();
    let mut rows = Recording::of(0..6);
    for wrong in [vec![6], vec![1, 1], vec![2, 0]] {
        rows.entry.gather = wrong;
        assert!(matches!(
            module.add(rows.clone()),
            Err(Error::InvalidInput(_))
        ));
    }
    assert!(matches!(
        module.add(Recording::of(11..13)),
        Err(Error::Malformed { .. })
    ));
    assert!(matches!(module.eager.begin(1), Err(Error::InvalidInput(_))));
    let unknown = module.eager.replace_entry(1, Recording::of(0..2).entry);
    assert!(matches!(unknown, Err(Error::InvalidInput(_))));
    module.eager.begin(0).unwrap();
    assert!(matches!(module.add(Recording::of(0..2)), Err(Error::Busy)));
    assert!(matches!(
        module.replace(0, Recording::of(0..2)),
        Err(Error::Busy)
    ));
    module.eager.end(false).unwrap();
    module.pass(0);
}

/// The rows lie in the host's memory; where all of it stays, on the device.
#[test]
fn rows_are_read_where_the_table_lies() {
    let bytes = twelve();
    let mut first = Recording::of(0..6);
    first.entry.gather = vec![1];
    let whole = 12 * WEIGHT + 100;
    let mut module = Module::new(&bytes, first, OffloadBudget::Bytes(whole)).unwrap();
    let in_place = |module: &Module, entry: usize, read: usize| {
        let Recording { entry, at, .. } = &module.entries[entry];
        at[read] == bytes[entry.reads[read] as usize].as_ptr() as u64
    };
    assert!(module.pass(0) && !in_place(&module, 0, 1));
    let mut second = Recording::of((0..12).rev());
    second.entry.gather = vec![0, 10];
    module.add(second).unwrap();
    assert!(module.pass(1) && !in_place(&module, 1, 0));
    assert_eq!(module.eager.stats().unwrap().gathered_bytes, 0);
    for budget in [whole / 2, whole * 3 / 4] {
        module.eager.set_budget(budget).unwrap();
        assert!(!module.pass(0) && in_place(&module, 0, 1) && !in_place(&module, 0, 0));
        assert!(!module.pass(1) && in_place(&module, 1, 0) && in_place(&module, 1, 10));
        assert_eq!(module.eager.stats().unwrap().gathered_bytes, 2 * WEIGHT);
    }
    // Everything else stays.
    module.eager.set_budget(whole - 2 * WEIGHT).unwrap();
    assert!(module.pass(0) && in_place(&module, 0, 1));
    assert!(module.pass(1) && in_place(&module, 1, 0));
    module.eager.set_budget(whole).unwrap();
    assert!(module.pass(0) && !in_place(&module, 0, 1));
    assert!(module.pass(1) && !in_place(&module, 1, 0));
}

/// A pipeline: what runs once a picture streams, and what runs 28 times stays.
#[test]
fn what_runs_often_stays() {
    // An encoder, a transformer, a decoder: six weights each.
    let bytes = contents(&[256; 18]);
    let budget = 100 + 9 * WEIGHT;
    let mut module =
        Module::new(&bytes, Recording::of(0..6), OffloadBudget::Bytes(budget)).unwrap();
    module.add(Recording::of(6..12)).unwrap();
    module.add(Recording::of(12..18)).unwrap();
    let picture = |module: &mut Module| {
        let before = [0, 1, 2].map(|entry| module.copied_by(entry));
        module.passes(&[&[0][..], &[1; 28], &[2]].concat());
        [0, 1, 2].map(|entry| module.copied_by(entry) - before[entry])
    };
    picture(&mut module);
    picture(&mut module);
    let plans = module.eager.stats().unwrap().replans;
    assert!((1..4).contains(&plans), "{plans}");
    let [encoder, transformer, decoder] = picture(&mut module);
    assert!(
        encoder >= 3 * WEIGHT && decoder >= 3 * WEIGHT,
        "{encoder}, {decoder}"
    );
    // A switch fills the ring, and no more.
    assert!(transformer <= 2 * WEIGHT, "{transformer}");
    // It settles.
    (0..20).for_each(|_| {
        picture(&mut module);
    });
    let settled = module.eager.stats().unwrap().replans;
    assert!(settled <= plans + 1, "{settled}");
}

/// Entries of modules that share the device: the pool gives what a new floor lacks, or says that it cannot.
#[test]
fn a_pool_gives_what_a_new_entry_needs() {
    let (_alone, pool) = cpu_pool();
    let bytes = twelve();
    let wide = || Recording::new(&[(0..6).collect(), vec![6]]);
    let [least, more] = [Recording::of(0..6), wide()].map(|first| {
        let module = Module::new(&bytes, first, OffloadBudget::Floor).unwrap();
        module.floor()
    });
    assert!(more > least + 3 * WEIGHT);
    let held = || {
        let report = pool.report();
        let held: u64 = report.tenants.iter().map(|one| one.held).sum();
        assert!(held <= report.cap, "{}", report.to_json());
        report
            .tenants
            .iter()
            .map(|one| (one.held, one.floor, one.total))
            .collect::<Vec<_>>()
    };
    pool.set_cap(Some(least + more - 1)).unwrap();
    let mut one = Module::new(&bytes, Recording::of(0..6), OffloadBudget::Shared).unwrap();
    let mut other = Module::new(&bytes, Recording::of(0..12), OffloadBudget::Shared).unwrap();
    for _ in 0..3 {
        one.pass(0);
        other.pass(0);
    }
    let before = held();
    match one.add(wide()) {
        Err(Error::CapTooSmall {
            cap, least: needed, ..
        }) => {
            assert_eq!((cap, needed), (least + more - 1, least + more));
        }
        error => panic!("{error:?}"),
    }
    assert_eq!(held(), before);
    one.pass(0);
    other.pass(0);
    pool.set_cap(Some(least + more)).unwrap();
    one.add(wide()).unwrap();
    let now = held();
    assert_eq!((now[0].0, now[0].1), (more, more));
    assert!(now[0].2 > before[0].2, "seven weights are of use to it now");
    assert_eq!(one.floor(), more);
    for _ in 0..3 {
        one.pass(1);
        other.pass(0);
        one.pass(0);
        held();
    }
    // While a pass of the other one runs, that keeps what it holds.
    one.replace(1, Recording::of(2..4)).unwrap();
    assert_eq!(held()[0].1, least);
    other.passes(&[0; 40]);
    other.eager.begin(0).unwrap();
    assert!(one.replace(1, wide()).is_err());
    held();
    other.eager.end(false).unwrap();
    one.replace(1, wide()).unwrap();
    one.pass(1);
    other.pass(0);
    one.pass(0);
    held();
    pool.set_cap(None).unwrap();
}

/// Calls that read up to three weights each, some of them again.
fn drawn(draw: &mut Seeded, weights: u64) -> Recording {
    let mut call = |_| {
        let mut reads: Vec<u32> = (0..draw.between(1, 3))
            .map(|_| draw.below(weights) as u32)
            .collect();
        reads.sort_unstable();
        reads.dedup();
        reads
    };
    let calls: Vec<_> = (0..9).map(&mut call).collect();
    let calls = &calls[..1 + draw.below(9) as usize];
    let mut recording = Recording::new(calls);
    let reads = 0..recording.entry.reads.len() as u32;
    recording.entry.gather = reads.filter(|_| draw.one_in(8)).collect();
    recording
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Up to four entries that join at any time; passes, some of which end early; budgets, and orders that change.
    #[test]
    fn entries_in_any_order_read_their_own_weights(seed in any::<u64>()) {
        let mut draw = Seeded(seed);
        let pages: Vec<u64> = (0..draw.between(2, 12)).map(|_| draw.between(1, 6)).collect();
        let (bytes, count) = (contents(&pages), pages.len() as u64);
        let whole = pages.iter().sum::<u64>() * PAGE + 100;
        let first = drawn(&mut draw, count);
        let mut module = match draw.one_in(3) {
            true => Module::new(&bytes, first, OffloadBudget::Floor).unwrap(),
            false => {
                let floor = Module::new(&bytes, first.clone(), OffloadBudget::Floor).unwrap().floor();
                let budget = floor + draw.below(whole + PAGE - floor.min(whole));
                Module::new(&bytes, first, OffloadBudget::Bytes(budget)).unwrap()
            }
        };
        for _ in 0..14 {
            let (at, next) = (draw.below(module.entries.len() as u64) as usize, drawn(&mut draw, count));
            let before = (module.copied(), module.eager.stats().unwrap().budget_bytes);
            let changed = match draw.below(8) {
                0 | 1 if module.entries.len() < 4 => module.add(next),
                2 => module.replace(at, next),
                3 => module.eager.set_budget(draw.below(whole + PAGE)),
                4 => { module.calls(at, draw.below(5) as usize); Ok(()) }
                _ => { module.pass(at); Ok(()) }
            };
            let stats = module.eager.stats().unwrap();
            match changed {
                Ok(()) => {}
                Err(Error::BudgetTooSmall { budget, floor, .. }) => {
                    prop_assert!(floor > budget);
                    prop_assert_eq!((stats.bytes_copied, stats.budget_bytes), before);
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
            prop_assert!(stats.floor_bytes <= stats.budget_bytes, "{stats:?}");
            prop_assert!(stats.peak_bytes + 100 <= stats.budget_bytes, "{stats:?}");
            // Nothing is copied twice where everything stays.
            if stats.budget_bytes >= whole && before.1 >= whole {
                let read = |weight: u32| module.entries.iter().any(|one| one.entry.reads.contains(&weight));
                let all: u64 = (0..count as u32).filter(|&one| read(one)).map(|one| bytes[one as usize].len() as u64).sum();
                prop_assert!(stats.bytes_copied - before.0 <= all);
            }
        }
    }

    /// The same of two modules that share the device, under caps that change.
    #[test]
    fn entries_of_modules_that_share_read_their_own_weights(seed in any::<u64>()) {
        let mut draw = Seeded(seed);
        let (_alone, pool) = cpu_pool();
        let pages: Vec<u64> = (0..draw.between(3, 10)).map(|_| draw.between(1, 6)).collect();
        let (bytes, count) = (contents(&pages), pages.len() as u64);
        let whole = 2 * (pages.iter().sum::<u64>() * PAGE + 100);
        pool.set_cap(Some(whole)).unwrap();
        let mut modules = [(); 2].map(|()| Module::new(&bytes, drawn(&mut draw, count), OffloadBudget::Shared).unwrap());
        for _ in 0..20 {
            let module = &mut modules[draw.below(2) as usize];
            let at = draw.below(module.entries.len() as u64) as usize;
            let next = drawn(&mut draw, count);
            let changed = match draw.below(8) {
                0 if module.entries.len() < 3 => module.add(next),
                1 => module.replace(at, next),
                2 => pool.set_cap(Some(draw.below(whole))),
                3 => { module.calls(at, draw.below(5) as usize); Ok(()) }
                _ => { module.pass(at); Ok(()) }
            };
            let refused = matches!(changed, Ok(()) | Err(Error::CapTooSmall { .. }));
            prop_assert!(refused, "{changed:?}");
            let report = pool.report();
            let held: u64 = report.tenants.iter().map(|one| one.held).sum();
            prop_assert!(held <= report.cap, "{}", report.to_json());
            for (module, tenant) in modules.iter().zip(&report.tenants) {
                let stats = module.eager.stats().unwrap();
                prop_assert_eq!((stats.budget_bytes, stats.floor_bytes), (tenant.held, tenant.floor));
                prop_assert!(stats.peak_bytes + 100 <= stats.budget_bytes && tenant.floor <= tenant.held);
            }
        }
        drop(modules);
        pool.set_cap(None).unwrap();
    }
}
