//! Weights of eager code on the CPU: a caller plays passes as `ws.torch.offload` does, and looks at every byte.

use crate::elastic_support::cpu_pool;
use std::ops::Range;
use weightstream::device::{CallerStream, HostBytes, UserStream};
use weightstream::eager::{
    Eager, Entry, OffloadBudget, ReadOutcome, Recorded, RecordedWeight, WeightFiles,
};
use weightstream::elastic::{DevicePool, PassNeeds, Ranges, Segments};
use weightstream::figures::DeviceId;
use weightstream::schedule::Event;
use weightstream::Error;

const BYTES: usize = 3 * 4096 + 64;

/// Weight `index` of a model, filled with bytes of its own.
fn content(index: usize) -> &'static [u8] {
    Vec::leak((0..BYTES).map(|at| (at % 251 + index) as u8).collect())
}

/// Layers that read one weight each, and the last one that of the first layer as well.
fn recorded(name: &str, layers: usize, budget: OffloadBudget) -> (Recorded, Vec<&'static [u8]>) {
    let bytes: Vec<&'static [u8]> = (0..layers).map(content).collect();
    let mut reads: Vec<u32> = (0..layers as u32).collect();
    reads.push(0);
    let last = layers as u32;
    let mut events = Vec::new();
    for layer in 0..last {
        let mine = if layer + 1 == last {
            layer..layer + 2
        } else {
            layer..layer + 1
        };
        events.extend(mine.clone().map(Event::Probe));
        events.push(Event::Kernel(layer));
        events.extend(mine.map(Event::Release));
    }
    let weights = { bytes.iter().enumerate() }
        .map(|(at, bytes)| RecordedWeight::new(format!("w{at}"), HostBytes::from_static(bytes)));
    let recorded = Recorded {
        name: name.to_owned(),
        device: DeviceId::Cpu,
        // SAFETY: null is the default stream.
        stream: unsafe { CallerStream::new(std::ptr::null_mut()) },
        weights: weights.collect(),
        files: WeightFiles::default(),
        entry: Entry {
            reads,
            events,
            gather: Vec::new(),
        },
        budget,
        priority: 0,
        beside: 1000,
    };
    (recorded, bytes)
}

struct Model {
    eager: Eager,
    bytes: Vec<&'static [u8]>,
    at: Vec<u64>,
}

impl Model {
    fn new(name: &str, layers: usize, budget: OffloadBudget) -> Result<Model, Error> {
        let (recorded, bytes) = recorded(name, layers, budget);
        let eager = Eager::new(recorded)?;
        let at = vec![0; layers + 1];
        Ok(Model { eager, bytes, at })
    }

    fn check(&self, read: usize) {
        let expected = self.bytes[read % self.bytes.len()];
        // SAFETY: the weight's bytes, under a lease or in a resident pass.
        let found = unsafe { std::slice::from_raw_parts(self.at[read] as *const u8, BYTES) };
        assert!(found == expected, "read {read}");
    }

    fn layer(&mut self, reads: Range<u32>) -> bool {
        let here = reads.start as usize..reads.end as usize;
        let found = self
            .eager
            .read(reads.clone(), &mut self.at[here.clone()])
            .unwrap();
        assert_ne!(found, ReadOutcome::Gone);
        let moved = found == ReadOutcome::Moved;
        here.for_each(|read| self.check(read));
        self.eager.release(reads).unwrap();
        moved
    }

    /// Whether it was a resident one, and whether a weight was somewhere else than before.
    fn pass(&mut self) -> (bool, bool) {
        let begun = self.eager.begin(0).unwrap();
        let mut moved = false;
        if begun.resident {
            self.eager.addresses(0, &mut self.at).unwrap();
            (0..self.at.len()).for_each(|read| self.check(read));
        } else {
            let last = self.bytes.len() as u32 - 1;
            for layer in 0..last {
                moved |= self.layer(layer..layer + 1);
            }
            moved |= self.layer(last..last + 2);
        }
        self.eager.end(true).unwrap();
        (begun.resident, moved)
    }

    fn floor(&self) -> u64 {
        self.eager.stats().unwrap().floor_bytes
    }
}

/// Four pages a weight, and what lies beside.
const WHOLE: u64 = 8 * 4 * 4096 + 1000;

#[test]
fn passes_read_the_right_bytes_at_every_budget() {
    let floor = Model::new("m", 8, OffloadBudget::Floor).unwrap().floor();
    for budget in [floor, (floor + WHOLE) / 2, WHOLE] {
        let mut model = Model::new("m", 8, OffloadBudget::Bytes(budget)).unwrap();
        for pass in 0..4 {
            let (resident, moved) = model.pass();
            assert_eq!(resident, budget == WHOLE);
            assert_eq!(moved, pass == 0 && !resident, "pass {pass} at {budget}");
        }
        let stats = model.eager.stats().unwrap();
        assert!(stats.peak_bytes + 1000 <= budget, "{stats:?}");
        assert_eq!(stats.budget_bytes, budget);
    }
}

#[test]
fn a_budget_that_changes_tells_of_weights_that_moved() {
    let mut model = Model::new("m", 8, OffloadBudget::Bytes(WHOLE)).unwrap();
    let floor = model.floor();
    let mut before = model.eager.begin(0).unwrap().generation;
    model.eager.end(true).unwrap();
    for budget in [floor, (floor + WHOLE) / 2, WHOLE, floor] {
        model.eager.set_budget(budget).unwrap();
        let begun = model.eager.begin(0).unwrap();
        assert_ne!(begun.generation, before);
        before = begun.generation;
        model.eager.end(false).unwrap();
        for _ in 0..3 {
            model.pass();
        }
    }
}

#[test]
fn the_least_budget_is_exact() {
    let floor = Model::new("m", 8, OffloadBudget::Floor).unwrap().floor();
    let refused = |error: Error| {
        let text = error.to_string();
        assert!(text.contains(&format!("(budget={floor})")), "{text}");
        match error {
            Error::BudgetTooSmall {
                floor: least,
                parts,
                ..
            } => {
                assert!(parts.contains("1000 bytes"), "{parts}");
                assert_eq!(least, floor);
            }
            other => panic!("{other}"),
        }
    };
    refused(
        Model::new("m", 8, OffloadBudget::Bytes(floor - 1))
            .map(|_| ())
            .unwrap_err(),
    );
    refused(
        Model::new("m", 8, OffloadBudget::Bytes(0))
            .map(|_| ())
            .unwrap_err(),
    );
    let mut model = Model::new("m", 8, OffloadBudget::Bytes(floor)).unwrap();
    refused(model.eager.set_budget(floor - 1).unwrap_err());
    model.eager.set_budget(WHOLE).unwrap();
    model.eager.set_budget(floor).unwrap();
    model.pass();
}

#[test]
fn one_pass_runs_at_a_time() {
    for budget in [OffloadBudget::Floor, OffloadBudget::Bytes(WHOLE)] {
        let mut model = Model::new("m", 8, budget).unwrap();
        assert!(model.eager.end(true).is_err());
        model.eager.begin(0).unwrap();
        assert_eq!(model.eager.begin(0).unwrap_err(), Error::Busy);
        assert_eq!(model.eager.set_budget(WHOLE).unwrap_err(), Error::Busy);
        model.eager.end(false).unwrap();
        model.pass();
    }
}

#[test]
fn a_pass_that_goes_astray_leaves_the_next_one_right() {
    let mut model = Model::new("m", 8, OffloadBudget::Floor).unwrap();
    model.pass();
    let reads = |model: &mut Model, reads: Range<u32>| {
        let mut at = vec![0; reads.len()];
        model.eager.read(reads, &mut at)
    };
    // Another read than the next one; reads that are too many, of which the first ones begin; a pass that ends early.
    model.eager.begin(0).unwrap();
    assert!(matches!(
        reads(&mut model, 3..4),
        Err(Error::Divergence { .. })
    ));
    model.eager.end(false).unwrap();
    model.pass();
    model.eager.begin(0).unwrap();
    for layer in 0..7 {
        model.layer(layer..layer + 1);
    }
    assert!(reads(&mut model, 7..12).is_err());
    model.eager.end(false).unwrap();
    model.pass();
    model.eager.begin(0).unwrap();
    model.layer(0..1);
    assert!(matches!(
        model.eager.end(true),
        Err(Error::Divergence { .. })
    ));
    model.pass();
}

/// Everything stays of one model, and its pass runs: the other one, of higher priority, gets nothing of it before the pass ends.
#[test]
fn memory_does_not_move_under_a_pass() {
    let (_alone, pool) = cpu_pool();
    let floor = Model::new("m", 8, OffloadBudget::Floor).unwrap().floor();
    pool.set_cap(Some(WHOLE + floor)).unwrap();
    let mut low = Model::new("low", 8, OffloadBudget::Shared).unwrap();
    low.pass();
    assert!(low.pass().0, "{}", pool.report().to_json());
    let (mut recorded, bytes) = recorded("high", 8, OffloadBudget::Shared);
    recorded.priority = 1;
    let mut high = Model {
        eager: Eager::new(recorded).unwrap(),
        bytes,
        at: vec![0; 9],
    };
    assert!(low.eager.begin(0).unwrap().resident);
    low.eager.addresses(0, &mut low.at).unwrap();
    high.pass();
    (0..9).for_each(|read| low.check(read));
    low.eager.end(true).unwrap();
    high.pass();
    assert!(high.pass().0, "{}", pool.report().to_json());
    assert!(!low.pass().0);
    let report = pool.report();
    assert!(report.tenants.iter().map(|one| one.held).sum::<u64>() <= report.cap);
    pool.set_cap(None).unwrap();
}

/// Memory that is needed in a pass comes from its weights: what is leased stays, and the next pass has everything again.
#[test]
fn weights_of_a_pass_give_way_to_a_segment() {
    let (_alone, pool) = cpu_pool();
    let (floor, everything) = sizes(&pool);
    let ranges = Ranges::of(DeviceId::Cpu).unwrap();
    let segments = Segments::new(&ranges);
    let stream = UserStream::DEFAULT;
    for needed in [1, (everything - floor) / 4096 * 4096 - 4096] {
        pool.set_cap(Some(everything)).unwrap();
        let mut model = Model::new("m", 8, OffloadBudget::Shared).unwrap();
        model.pass();
        assert!(model.pass().0);
        let needs = PassNeeds {
            gives_way: true,
            by_reads: true,
            ..PassNeeds::default()
        };
        // A pass that did not say so keeps its memory.
        assert!(model.eager.begin(0).unwrap().resident);
        let refused = segments.alloc(needed);
        assert!(refused.is_err(), "{needed}: {:?}", pool.report());
        model.eager.end(true).unwrap();
        // So does one that may, and finds everything where it stays.
        let stays = PassNeeds {
            by_reads: false,
            ..needs
        };
        assert!(model.eager.begin_with(0, stays).unwrap().resident);
        assert!(segments.alloc(needed).is_err());
        model.eager.end(true).unwrap();
        assert!(!model.eager.begin_with(0, needs).unwrap().resident);
        model.layer(0..1);
        let mut at = [0];
        model.eager.read(1..2, &mut at).unwrap();
        let segment = segments.alloc(needed).unwrap();
        model.at[1] = at[0];
        model.check(1);
        assert_eq!(model.eager.read(2..3, &mut [0]), Ok(ReadOutcome::Gone));
        model.eager.release(1..2).unwrap();
        assert_eq!(model.eager.read(2..3, &mut [0]), Ok(ReadOutcome::Gone));
        model.eager.end(false).unwrap();
        let report = pool.report();
        assert!(
            report.tenants[0].held + report.ranges <= everything,
            "{report:?}"
        );
        model.pass();
        assert!(segments.free(segment, stream));
        model.pass();
        assert!(model.pass().0, "{:?}", pool.report());
    }
    pool.set_cap(None).unwrap();
}

/// A pass leaves the room that it says it needs, as far as its floor allows.
#[test]
fn a_pass_leaves_room_for_what_it_needs() {
    let (_alone, pool) = cpu_pool();
    let (floor, everything) = sizes(&pool);
    pool.set_cap(Some(everything)).unwrap();
    let mut model = Model::new("m", 8, OffloadBudget::Shared).unwrap();
    model.pass();
    for room in [0, 8192, everything - floor, everything] {
        let needs = PassNeeds {
            room,
            ..PassNeeds::default()
        };
        model.eager.begin_with(0, needs).unwrap();
        let held = pool.report().tenants[0].held;
        assert!(
            held == floor || held + room <= everything,
            "{held} beside {room}"
        );
        model.eager.end(false).unwrap();
    }
    model.pass();
    assert!(model.pass().0);
    pool.set_cap(None).unwrap();
}

/// The least and the most that such a module holds.
fn sizes(pool: &DevicePool) -> (u64, u64) {
    pool.set_cap(Some(WHOLE)).unwrap();
    let _model = Model::new("m", 8, OffloadBudget::Shared).unwrap();
    let report = pool.report();
    (report.tenants[0].floor, report.tenants[0].total)
}

/// The device has the new bytes of whatever it held, in the ring too, and nothing moves.
#[test]
fn weights_that_change_are_copied_again() {
    for budget in [
        OffloadBudget::Floor,
        OffloadBudget::Bytes(WHOLE * 3 / 4),
        OffloadBudget::Bytes(WHOLE),
    ] {
        let (mut recorded, bytes) = recorded("m", 8, budget);
        let memory: Vec<*mut u8> = { bytes.iter() }
            .map(|bytes| Vec::leak(bytes.to_vec()).as_mut_ptr())
            .collect();
        for (weight, memory) in recorded.weights.iter_mut().zip(&memory) {
            // SAFETY: it lives for ever, and is written while no copy runs.
            weight.bytes = unsafe { HostBytes::new(*memory, BYTES as u64) };
        }
        let eager = Eager::new(recorded).unwrap();
        let at = vec![0; 9];
        let mut model = Model { eager, bytes, at };
        model.pass();
        for changed in [0, 7, 3, 0] {
            // Copies ahead of the next pass are over.
            model.eager.copy_again(&[]).unwrap();
            let new = content(100 + changed);
            // SAFETY: as large, and nobody reads it now.
            unsafe { memory[changed].copy_from_nonoverlapping(new.as_ptr(), BYTES) };
            model.bytes[changed] = new;
            model.eager.copy_again(&[changed as u32]).unwrap();
            assert!(!model.pass().1, "a weight moved");
        }
        let none = model.eager.copy_again(&[8]).unwrap_err().to_string();
        assert!(
            none.contains("weight 8 is said to have changed, of 8 weights"),
            "{none}"
        );
        model.eager.begin(0).unwrap();
        assert!(matches!(model.eager.copy_again(&[0]), Err(Error::Busy)));
        model.eager.end(false).unwrap();
    }
}
