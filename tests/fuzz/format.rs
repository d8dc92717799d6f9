//! Random damage: whatever the bytes, parsing ends with a value or an error, never with a panic; and what a
//! parser accepts is consistent in itself.

use crate::fuzz_support::driver::{self, Report};
use crate::fuzz_support::files::{exercise_ptd, exercise_pte, exercise_record, Target};
use crate::fuzz_support::memory::Counting;
use crate::support::{payload, ptd, pte, PteSpec, RecordSpec};
use flatbuffers::FlatBufferBuilder;
use proptest::prelude::*;
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

#[test]
fn many_packed_arrays() {
    many(Target::Packed);
}

#[test]
fn many_tables_of_packed_entries() {
    many(Target::PackedTable);
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

/// A file that names its one long list again and again. The verifier lets it look 32 times as large as it is; what
/// is made of it is then still within the cap of `driver`.
#[test]
fn a_file_that_folds_itself_up_stays_within_the_cap() {
    for (target, fold) in [
        (Target::Record, folded_record as fn(u32) -> Vec<u8>),
        (Target::Pte, folded_pte),
    ] {
        let mut most = Report::default();
        let mut deepest = 0;
        for times in [1, 8, 16, 24, 28, 30, 31, 40] {
            let bytes = fold(times);
            driver::execute(target, &bytes, &mut most).unwrap();
            if matches!(target, Target::Record) {
                let text = weightstream::format::Record::from_payload("r", &bytes).unwrap_err();
                // Refused for its fields, and not for its tables: they were read.
                deepest += u32::from(!text.to_string().contains("tables are damaged"));
            } else {
                deepest += u32::from(weightstream::format::Pte::parse("p", &bytes).is_ok());
            }
        }
        println!("{}: {most:?}", target.name());
        assert!((2..8).contains(&deepest), "{deepest}");
        assert!(most.most_per_byte > 20.0, "{most:?}: nothing was folded");
    }
}

/// A record whose fields, `times` of them, are one list of strings that are all the same string.
fn folded_record(times: u32) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let text = fbb.create_string("");
    let shared = fbb.create_vector(&vec![text; 4000]);
    let mut fields = Vec::new();
    for number in 0..times {
        let name = fbb.create_string(&format!("x_{number}"));
        let start = fbb.start_table();
        fbb.push_slot_always(4, name);
        fbb.push_slot_always(8, shared);
        fields.push(fbb.end_table(start));
    }
    let version = fbb.create_vector(&[2_i64]);
    let name = fbb.create_string("format_version");
    let start = fbb.start_table();
    fbb.push_slot_always(4, name);
    fbb.push_slot_always(6, version);
    fields.push(fbb.end_table(start));
    let fields = fbb.create_vector(&fields);
    let start = fbb.start_table();
    fbb.push_slot_always(4, fields);
    let root = fbb.end_table(start);
    fbb.finish(root, Some("WSR1"));
    fbb.finished_data().to_vec()
}

/// A program whose constant methods, `times` of them, return one string in one list of thousands of outputs.
fn folded_pte(times: u32) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let text = fbb.create_string("text");
    let start = fbb.start_table();
    fbb.push_slot_always(4, text);
    let string = fbb.end_table(start);
    let start = fbb.start_table();
    fbb.push_slot_always(4, 6_u8);
    fbb.push_slot_always(6, string);
    let value = fbb.end_table(start);
    let values = fbb.create_vector(&[value]);
    let outputs = fbb.create_vector(&vec![0_i32; 8000]);
    let mut plans = Vec::new();
    let version = fbb.create_string("forward");
    for number in 0..times {
        let name = match number {
            0 => version,
            _ => fbb.create_string(&format!("forward__weight_offload__x_{number:02}")),
        };
        let start = fbb.start_table();
        fbb.push_slot_always(4, name);
        fbb.push_slot_always(8, values);
        fbb.push_slot_always(12, outputs);
        plans.push(fbb.end_table(start));
    }
    let plans = fbb.create_vector(&plans);
    let start = fbb.start_table();
    fbb.push_slot_always(4, 0_u32);
    fbb.push_slot_always(6, plans);
    let root = fbb.end_table(start);
    fbb.finish(root, Some("ET12"));
    fbb.finished_data().to_vec()
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
