//! Random damage: whatever the bytes, parsing ends with a value or an error, never with a panic; and what a
//! parser accepts is consistent in itself.

mod support;

use proptest::prelude::*;
use support::{payload, ptd, pte, PteSpec, RecordSpec};
use weightstream::format::{Ptd, Pte, Record};

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

/// Asks everything that can be asked of a program.
fn exercise_pte(bytes: &[u8]) {
    let Ok(program) = Pte::parse("m.pte", bytes) else {
        return;
    };
    for method in program.methods() {
        let _ = program.delegate(method);
        let _ = program.constant_method(method);
        let _ = Record::from_pte(&program, method);
    }
    for key in program.named_data_keys() {
        assert!(program.named_data(key).unwrap().len() <= bytes.len());
    }
}

/// What a data file says is inside of it, and its tensors fill their bytes.
fn exercise_ptd(bytes: &[u8]) {
    let Ok(data) = Ptd::parse("w.ptd", bytes) else {
        return;
    };
    for (key, entry) in data.entries() {
        let found = bytes
            .get(entry.range.clone())
            .unwrap_or_else(|| panic!("{key} is outside"));
        if let Some(layout) = &entry.layout {
            let dense = layout.dtype.dense_bytes(layout.sizes.iter().copied());
            assert_eq!(dense, Some(found.len() as u64), "{key}");
            assert_eq!(layout.dim_order.len(), layout.sizes.len());
        }
    }
}

fn exercise_record(bytes: &[u8]) {
    let Ok(record) = Record::from_payload("payload", bytes) else {
        return;
    };
    assert_eq!(record.probes.len(), record.access_order.len());
    for id in 0..record.probes.len() as u32 {
        assert!(record.probed(id).is_some());
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
