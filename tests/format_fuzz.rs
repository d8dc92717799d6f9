//! Random damage: whatever the bytes, parsing ends with a value or an error, never with a panic; and what a
//! parser accepts is consistent in itself.

mod fuzz_support;
mod support;

use fuzz_support::driver::{self, Report};
use fuzz_support::files::{exercise_ptd, exercise_pte, exercise_record, Target};
use fuzz_support::memory::Counting;
use proptest::prelude::*;
use support::{payload, ptd, pte, PteSpec, RecordSpec};
use weightstream::format::Ptd;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// So many executions of each target with one seed, and as many with another one each time. `make fuzz RUNS=` does
/// millions.
const EXECUTIONS: u64 = 10_000;

/// Whole files made at random, damaged in headers, tables, offsets and data, with checksums put right: no panic, no
/// hang, no memory beyond what follows from the file's size.
fn many(target: Target) {
    let fresh = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for seed in [1, fresh] {
        let mut report = Report::default();
        driver::run(target, seed, 0..EXECUTIONS, &mut report);
        println!("{}, seed {seed}: {report:?}", target.name());
        let deep = report.accepted as f64 / EXECUTIONS as f64;
        assert!(
            deep > 0.05,
            "only {deep} of the damaged files were accepted: the damage is too coarse"
        );
        assert!(
            deep < 0.95,
            "{deep} of the damaged files were accepted: they are not damaged"
        );
    }
}

#[test]
fn many_programs() {
    many(Target::Pte);
}

#[test]
fn many_data_files() {
    many(Target::Ptd);
}

#[test]
fn many_records() {
    many(Target::Record);
}

#[test]
fn many_loads() {
    many(Target::Load);
}

/// Places to overwrite and what with; low places (headers, root, tables) more often than data.
fn damage() -> impl Strategy<Value = Vec<(usize, u8)>> {
    let place = prop_oneof![0..64usize, 0..1024usize, any::<usize>()];
    prop::collection::vec((place, any::<u8>()), 1..8)
}

fn apply(bytes: &mut [u8], damage: &[(usize, u8)]) {
    for (place, value) in damage {
        let at = place % bytes.len();
        bytes[at] = *value;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_programs(damage in damage(), cut in any::<prop::sample::Index>()) {
        let mut bytes = pte(&PteSpec::new(&RecordSpec::small(), b"library"));
        apply(&mut bytes, &damage);
        exercise_pte(&bytes);
        exercise_pte(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn damaged_data_files(damage in damage(), cut in any::<prop::sample::Index>()) {
        let mut spec = RecordSpec::small_ptd();
        spec.share("tied", Some((6, vec![12])), 0);
        let mut bytes = ptd(&spec);
        apply(&mut bytes, &damage);
        exercise_ptd(&bytes);
        exercise_ptd(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn damaged_records(damage in damage(), cut in any::<prop::sample::Index>()) {
        let mut bytes = payload(&RecordSpec::small());
        apply(&mut bytes, &damage);
        exercise_record(&bytes);
        exercise_record(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn any_bytes_behind_a_right_start(tail in prop::collection::vec(any::<u8>(), 0..256)) {
        for start in [b"\x10\0\0\0ET12eh00\x20\0\0\0", b"\x10\0\0\0FT01FH01\x28\0\0\0", b"\x0c\0\0\0WSR1\0\0\0\0\x04\0\0\0"] {
            let bytes = [start.as_slice(), &tail].concat();
            exercise_pte(&bytes);
            exercise_ptd(&bytes);
            exercise_record(&bytes);
        }
    }

    /// Damage to the bytes of one weight touches neither the tables nor another weight.
    #[test]
    fn damage_in_one_weight_stays_there(at in 0..64usize, value in any::<u8>()) {
        let good = ptd(&RecordSpec::small_ptd());
        let before = Ptd::parse("w.ptd", &good).unwrap();
        let range = before.entry("b.weight").unwrap().range.clone();
        let mut bytes = good.clone();
        bytes[range.start + at] = value;
        let after = Ptd::parse("w.ptd", &bytes).unwrap();
        prop_assert_eq!(&after, &before);
        for (key, entry) in after.entries().filter(|(key, _)| *key != "b.weight") {
            prop_assert_eq!(&bytes[entry.range.clone()], &good[entry.range.clone()], "{}", key);
        }
    }
}
