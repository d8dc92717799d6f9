//! Weights that always stay and weights that never do, on the host and on the simulator, under each policy. Kernels find the
//! right bytes. What stays is copied once; what never stays is copied for each pass; the budget holds.

use crate::session_support::case::{Case, GRANULE};
use crate::session_support::draw::{Draw, Seeded};
use crate::session_support::{chain, model, play, Kernels, Model, Pass};
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{HostDevice, Sim};
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::schedule::WeightKind::{Pinned, Streamed};
use weightstream::schedule::{Floor, WeightKind};
use weightstream::session::{Session, Stats};
use weightstream::store::Methods;
use weightstream::Error;

const SIZE: u64 = 16_384;

/// The same with these weights marked.
fn marked(mut model: Model, marks: &[(usize, WeightKind)]) -> Model {
    for &(weight, kind) in marks {
        model.constants.specs[weight].kind = kind;
    }
    model
}

fn everything(model: &Model) -> u64 {
    Methods::from(model.program()).everything(GRANULE)
}

/// Counters after each of some passes.
fn passes<D: Kernels>(model: &Model, session: &mut Session<D>, count: u64) -> Vec<Stats> {
    let mut one = |_| {
        play(model, session, Pass::Complete).unwrap();
        let stats = session.stats();
        assert!(stats.peak_bytes <= stats.budget_bytes, "{stats:?}");
        stats
    };
    let all = (0..count).map(&mut one).collect();
    session.device_mut().check();
    all
}

/// On both devices and under each policy, at budgets from the floor to all and beyond: the counters at load, then those of
/// six passes, and the policy.
fn on_all(model: &Model, check: impl Fn(Stats, &[Stats], &str)) {
    let (least, all) = (model.floor().bytes(), everything(model));
    for &kind in PolicyKind::ALL {
        for budget in (0..=8).map(|step| least + (all - least) * step / 8) {
            for budget in [budget, budget + SIZE] {
                let host = HostDevice::new().unwrap();
                let mut session = model.session_by(kind, host, Some(budget)).unwrap();
                let before = session.stats();
                let after = passes(model, &mut session, 6);
                check(before, &after, session.policy());
                for one_block in [false, true] {
                    let sim = match one_block {
                        true => Sim::in_one_block(Order::Random(budget)),
                        false => Sim::new(Order::Random(budget)),
                    };
                    let mut session = model.session_by(kind, sim, Some(budget)).unwrap();
                    let before = session.stats();
                    let after = passes(model, &mut session, 6);
                    check(before, &after, session.policy());
                }
            }
        }
    }
}

#[test]
fn what_is_pinned_is_copied_once() {
    let model = marked(chain(&[SIZE; 8]), &[(0, Pinned), (5, Pinned)]);
    on_all(&model, |before, after, _| {
        assert_eq!(
            (before.pinned_bytes, before.direct_bytes),
            (2 * SIZE, 2 * SIZE)
        );
        assert_eq!(before.total_weight_bytes, 6 * SIZE);
        assert!(before.bytes_copied >= 2 * SIZE);
        for stats in after {
            // Of a prefetching policy a pass may copy for the next one as well, but never more than each weight twice.
            assert!(stats.bytes_copied - before.bytes_copied <= 6 * SIZE * (stats.passes + 1));
            assert_eq!(stats.hits + stats.misses, 8 * stats.passes);
        }
    });
    // Where all others go around, the LRU copies each of them in each pass, and nothing else.
    let mut session = model.session(HostDevice::new().unwrap(), None).unwrap();
    let after = passes(&model, &mut session, 6);
    assert_eq!(after[5].bytes_copied_last_pass, 6 * SIZE);
}

/// All weights but one are pinned, and it is a program that has room for all: nothing is copied in a pass.
#[test]
fn with_room_for_all_nothing_is_copied_in_a_pass() {
    let model = marked(chain(&[SIZE; 4]), &[(1, Pinned)]);
    let all = everything(&model);
    for &kind in PolicyKind::ALL {
        let host = HostDevice::new().unwrap();
        let mut session = model.session_by(kind, host, Some(all)).unwrap();
        assert_eq!(session.policy(), "all_resident");
        assert_eq!(session.stats().bytes_copied, 4 * SIZE);
        let after = passes(&model, &mut session, 3);
        assert_eq!(after[2].bytes_copied, 4 * SIZE);
    }
}

#[test]
fn what_never_stays_is_copied_for_each_pass() {
    let model = marked(chain(&[SIZE; 6]), &[(1, Streamed), (4, Streamed)]);
    on_all(&model, |before, after, policy| {
        assert_ne!(policy, "all_resident");
        for stats in after {
            assert!(stats.bytes_copied >= 2 * SIZE * stats.passes, "{stats:?}");
        }
        // With room for all, nothing else is copied.
        if before.budget_bytes >= 7 * SIZE {
            let steady = &after[1..];
            assert!(steady
                .iter()
                .all(|one| one.bytes_copied_last_pass == 2 * SIZE));
        }
    });
}

/// A weight that is read twice in a pass, with others between: one copy serves both reads where there is room.
#[test]
fn one_copy_serves_all_reads_of_a_pass() {
    let reads = [0, 1, 2, 1, 3, 0, 1];
    let events = (0..reads.len() as u32).flat_map(|id| [Probe(id), Kernel(id), Release(id)]);
    let model = model(&[SIZE; 4], &[100], &reads, &events.collect::<Vec<_>>());
    let model = marked(model, &[(1, Streamed)]);
    on_all(&model, |before, after, policy| {
        let most = if policy == "most_recent" { 3 } else { 1 };
        for stats in after {
            assert!(stats.bytes_copied >= SIZE * stats.passes);
        }
        if before.budget_bytes >= 5 * SIZE {
            let last = after[5].bytes_copied_last_pass;
            assert_eq!(last, most * SIZE, "{policy}");
        }
    });
}

#[test]
fn the_floor_counts_pins_to_the_byte() {
    // Sizes occupy 64, 128, 640, 64 and 192 bytes; the direct constant 64.
    let probes: Vec<u32> = (0..5).collect();
    let events = (0..5).flat_map(|id| [Probe(id), Kernel(id), Release(id)]);
    let events: Vec<_> = events.collect();
    let plain = model(&[64, 100, 600, 64, 130], &[10], &probes, &events);
    let parts = |floor: &Floor| (floor.direct, floor.pinned, floor.bytes());
    assert_eq!(parts(&plain.floor()), (64, 0, 64 + 1088));
    let model = marked(plain.clone(), &[(2, Pinned), (3, Pinned)]);
    // Left are 64, 128 and 192 bytes: a pair, and the largest of them once more, but no more than all.
    assert_eq!(parts(&model.floor()), (64 + 704, 704, 64 + 704 + 384));
    assert_eq!(model.floor().hard_minimum, 64 + 704 + 192);
    assert_eq!(everything(&model), everything(&plain));
    let streamed = marked(plain.clone(), &[(2, Streamed)]);
    assert_eq!(streamed.floor(), plain.floor());
    let least = model.floor().bytes();
    for &kind in PolicyKind::ALL {
        let host = || HostDevice::new().unwrap();
        let refused = model.session_by(kind, host(), Some(least - 1)).err();
        let Some(Error::BudgetTooSmall { floor, parts, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(floor, least);
        assert!(parts.contains("pinned weights 704 bytes"), "{parts}");
        let mut session = model.session_by(kind, host(), Some(least)).unwrap();
        assert_eq!(session.stats().pinned_bytes, 704);
        passes(&model, &mut session, 3);
    }
}

/// A table of which kernels look rows up: read in place, on the device if it is pinned, never copied if it never stays.
#[test]
fn a_table_in_place_may_be_pinned_or_streamed() {
    let mut table = chain(&[SIZE; 5]);
    table.method.gather = vec![2];
    let all = everything(&table);
    for (kind, gathered, copied) in [(Pinned, 0, all), (Streamed, SIZE, all - SIZE)] {
        let model = marked(table.clone(), &[(2, kind)]);
        on_all(&model, |before, after, _| {
            assert_eq!(before.gathered_bytes, gathered);
            if before.budget_bytes >= all {
                assert_eq!(after[5].bytes_copied, copied);
            }
        });
    }
}

#[test]
fn every_read_of_a_pinned_weight_is_verified() {
    let model = marked(chain(&[SIZE; 4]), &[(1, Pinned), (2, Streamed)]);
    let checksums: Vec<u32> = model.bytes.iter().map(|b| crc32fast::hash(b)).collect();
    for wrong in [None, Some(1)] {
        let mut expected = checksums.clone();
        if let Some(weight) = wrong {
            expected[weight] ^= 1;
        }
        let mut session = model.host(None);
        let found = session.verify_every_read(expected);
        match wrong {
            None => {
                found.unwrap();
                passes(&model, &mut session, 3);
            }
            Some(_) => assert!(
                matches!(&found, Err(Error::Mismatch { name, .. }) if name == "Weight.1"),
                "{found:?}"
            ),
        }
    }
}

/// Random programs, budgets, orders, aborted passes; some of the weights marked.
#[test]
fn random_programs_with_marked_weights() {
    let (mut planned, mut evictions, mut aborted) = (0, 0, 0);
    for number in 0..2000 {
        let mut case = Case::of(number);
        let mut draw = Seeded(number ^ 0x70696e);
        for spec in &mut case.model.constants.specs {
            if spec.kind == WeightKind::Weight {
                match draw.below(4) {
                    0 => spec.kind = Pinned,
                    1 => spec.kind = Streamed,
                    _ => {}
                }
            }
        }
        let (least, all) = (case.model.floor().bytes(), everything(&case.model));
        case.budget = match draw.below(3) {
            0 => least,
            1 => least + draw.below(all.saturating_sub(least) + 1),
            _ => all.max(least) + draw.below(2) * GRANULE,
        };
        if draw.one_in(4) {
            case.policy = PolicyKind::MostRecent;
        }
        let outcome = case.run();
        let outcome = outcome.unwrap_or_else(|what| panic!("case {number}: {what}"));
        planned += u32::from(outcome.planned);
        evictions += outcome.evictions;
        aborted += u32::from(outcome.aborted);
    }
    assert!(planned > 100 && evictions > 1000 && aborted > 100);
}
