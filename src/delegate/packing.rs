//! Which constants may be stored packed: decided by the records alone. Packed weights are decoded in
//! whole blocks on their way to the device. So what kernels read where it lies stays raw, and so do rows
//! that are copied one by one.
#![deny(unsafe_code)]

use super::gather;
use crate::format::{ConstantKind, Record, RecordedConstant};
use std::collections::BTreeMap;

/// Why the bytes of a constant stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhyRaw {
    /// A method loads it once, and keeps it or writes to it.
    Resident,
    /// Kernels may take rows of it where it lies, by some option of a load, or find rows by it.
    Rows,
    /// The code is one for floating-point numbers.
    Type,
}

/// Of each key that these records name: why its bytes stay as they are; `None` if they may be packed.
/// Methods share the bytes of a key, and any constant of it may forbid.
pub fn why_raw<'a>(
    records: impl IntoIterator<Item = &'a Record>,
) -> BTreeMap<&'a str, Option<WhyRaw>> {
    let mut all: BTreeMap<&str, Option<WhyRaw>> = BTreeMap::new();
    for record in records {
        let by_rows = read_by_rows(record);
        for (at, constant) in record.constants.iter().enumerate() {
            let why = own(constant).or(by_rows[at].then_some(WhyRaw::Rows));
            let known = all.entry(&constant.key).or_default();
            // The first reason in their order, so that the order of methods does not count.
            *known = [*known, why].into_iter().flatten().min();
        }
    }
    all
}

fn own(constant: &RecordedConstant) -> Option<WhyRaw> {
    match (constant.kind, constant.dtype.form()) {
        (ConstantKind::Direct | ConstantKind::Mutable, _) => Some(WhyRaw::Resident),
        (ConstantKind::Weight, Some(_)) => None,
        (ConstantKind::Weight, None) => Some(WhyRaw::Type),
    }
}

/// Of each constant of a method: whether rows of it are read, or it tells where rows are.
fn read_by_rows(record: &Record) -> Vec<bool> {
    let probes = gather::by_any_option(record).into_iter();
    let probes = probes.chain(record.places.iter().map(|one| one.probe));
    let weights = probes.filter_map(|probe| record.probes.get(probe as usize).copied());
    let told = record.places.iter().map(|one| one.constant);
    let mut by_rows = vec![false; record.constants.len()];
    for constant in weights.chain(told) {
        if let Some(one) = by_rows.get_mut(constant as usize) {
            *one = true;
        }
    }
    by_rows
}

#[cfg(test)]
mod tests {
    use super::super::support::{payload, RecordSpec};
    use super::*;
    use crate::format::Records;

    /// `a.weight` and `b.weight` are bf16 here, each of 8 elements a row.
    fn spec() -> RecordSpec {
        let mut spec = RecordSpec::small();
        spec.ints_mut("dtypes")[..2].fill(15);
        let nbytes = spec.ints_mut("nbytes");
        nbytes[0] /= 2;
        nbytes[1] /= 2;
        spec
    }

    fn record(spec: &RecordSpec) -> Record {
        let records = Records::from_payload("record", &payload(spec)).unwrap();
        records.own().clone()
    }

    #[track_caller]
    fn assert_raw(records: &[Record], expected: [Option<WhyRaw>; 4]) {
        let keys = ["a.weight", "b.weight", "cache", "scale"];
        let expected: Vec<_> = keys.into_iter().zip(expected).collect();
        let found: Vec<_> = why_raw(records).into_iter().collect();
        assert_eq!(found, expected);
        let backwards: Vec<_> = why_raw(records.iter().rev()).into_iter().collect();
        assert_eq!(found, backwards);
    }

    const RESIDENT: Option<WhyRaw> = Some(WhyRaw::Resident);

    #[test]
    fn weights_of_floats_may_be_packed() {
        assert_raw(&[record(&spec())], [None, None, RESIDENT, RESIDENT]);
        let type_ = Some(WhyRaw::Type);
        let mut int16 = spec();
        int16.ints_mut("dtypes")[..2].fill(2);
        assert_raw(&[record(&int16)], [type_, type_, RESIDENT, RESIDENT]);
    }

    #[test]
    fn tables_stay_raw_whether_the_rule_takes_them_or_not() {
        let rows = Some(WhyRaw::Rows);
        // At most one row; an unknown number of them, which only an option takes; more than half.
        for most in [1, -1, 100] {
            let mut spec = spec();
            spec.set_ints("gathers", &[1, most]);
            assert_raw(&[record(&spec)], [None, rows, RESIDENT, RESIDENT]);
        }
    }

    #[test]
    fn rows_that_may_lie_apart_stay_raw_with_what_tells_of_them() {
        let mut record = record(&spec());
        record.places.push(crate::format::Places {
            probe: 0,
            constant: 1,
            row_bytes: 6,
        });
        let rows = Some(WhyRaw::Rows);
        assert_raw(&[record], [rows, rows, RESIDENT, RESIDENT]);
    }

    #[test]
    fn any_method_and_any_name_may_forbid() {
        let (first, mut other) = (record(&spec()), record(&spec()));
        other.constants[0].kind = ConstantKind::Direct;
        other.constants[2].key = "b.weight".to_owned();
        let found = why_raw([&first, &other]);
        assert_eq!(found["a.weight"], RESIDENT);
        assert_eq!(found["b.weight"], RESIDENT);
        assert_eq!(why_raw([]), BTreeMap::new());
    }
}
