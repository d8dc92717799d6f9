//! Files whose header is right and whose tables are not: one case per defect.

use crate::check::bad_table;
use crate::support::{pattern, ptd, pte, Compiled, FieldValue, PtdSpec, PteSpec, RecordSpec};
use weightstream::format::{Ptd, Pte};
use weightstream::{Error, Result};

#[test]
fn unknown_versions_are_refused() {
    let spec = PtdSpec {
        version: 1,
        ..RecordSpec::small_ptd()
    };
    bad_table(
        Ptd::parse("w.ptd", &ptd(&spec)),
        "w.ptd",
        "FlatTensor version 1, expected 0",
    );
    let spec = PteSpec {
        version: 7,
        ..PteSpec::new(&RecordSpec::small(), b"so")
    };
    bad_table(
        Pte::parse("m.pte", &pte(&spec)),
        "m.pte",
        "program version 7, expected 0",
    );
}

/// The small data file with other rows in its table of segments (right: 48 at 0, 64 at 64, 20 at 128,
/// 16 at 192, 16 at 256).
fn with_rows(rows: [(u64, u64); 5]) -> Result<Ptd> {
    Ptd::parse(
        "w.ptd",
        &ptd(&PtdSpec {
            rows: Some(rows.to_vec()),
            ..RecordSpec::small_ptd()
        }),
    )
}

#[test]
fn segments_cover_their_region_in_order_and_without_overlap() {
    with_rows([(0, 48), (64, 64), (128, 20), (192, 16), (256, 16)]).unwrap();
    let unordered = with_rows([(0, 48), (64, 64), (0, 20), (192, 16), (256, 16)]);
    bad_table(
        unordered,
        "w.ptd",
        "segment 2 at 0 overlaps the one before, which ends at 128",
    );
    let overlapping = with_rows([(0, 65), (64, 64), (128, 20), (192, 16), (256, 16)]);
    bad_table(
        overlapping,
        "w.ptd",
        "segment 1 at 64 overlaps the one before, which ends at 65",
    );
    let outside = with_rows([(0, 48), (64, 64), (128, 20), (192, 16), (256, 17)]);
    bad_table(
        outside,
        "w.ptd",
        "segment 4 (17 bytes at 256) leaves the 272 bytes",
    );
    let endless = with_rows([(0, 48), (64, 64), (128, 20), (192, 16), (256, u64::MAX)]);
    bad_table(endless, "w.ptd", "leaves the 272 bytes");
    let hole = with_rows([(0, 48), (64, 64), (128, 20), (208, 16), (256, 16)]);
    bad_table(
        hole,
        "w.ptd",
        "60 bytes in front of segment 3 belong to none",
    );
    let gap_at_start = with_rows([(16, 48), (64, 64), (128, 20), (192, 16), (256, 16)]);
    bad_table(
        gap_at_start,
        "w.ptd",
        "16 bytes in front of segment 0 belong to none",
    );
}

#[test]
fn a_tail_that_belongs_to_no_segment_is_an_error() {
    let mut spec = RecordSpec::small_ptd();
    spec.rows = Some(vec![(0, 48), (64, 64), (128, 20), (192, 16)]);
    spec.entries.pop();
    bad_table(
        Ptd::parse("w.ptd", &ptd(&spec)),
        "w.ptd",
        "64 bytes behind the last segment belong to none",
    );
}

#[test]
fn keys_are_there_once_and_name_a_segment() {
    let mut spec = RecordSpec::small_ptd();
    spec.add("a.weight", None, pattern(8, 3));
    bad_table(
        Ptd::parse("w.ptd", &ptd(&spec)),
        "w.ptd",
        "the key 'a.weight' stands here a second time",
    );
    let mut spec = RecordSpec::small_ptd();
    spec.share("lost", None, 5);
    bad_table(
        Ptd::parse("w.ptd", &ptd(&spec)),
        "w.ptd",
        "'lost' names segment 5 of 5",
    );
    let mut spec = RecordSpec::small_ptd();
    spec.share("", None, 0);
    bad_table(
        Ptd::parse("w.ptd", &ptd(&spec)),
        "w.ptd",
        "an entry has no key",
    );
}

/// The small data file with another layout for its first entry, 'a.weight' of 48 bytes.
fn with_layout(dtype: u8, sizes: &[i32], order: &[u8]) -> Result<Ptd> {
    let mut spec = RecordSpec::small_ptd();
    spec.entries[0].layout = Some((dtype, sizes.to_vec(), order.to_vec()));
    Ptd::parse("w.ptd", &ptd(&spec))
}

#[test]
fn layouts_fill_their_segment() {
    with_layout(6, &[3, 4], &[1, 0]).unwrap();
    bad_table(
        with_layout(9, &[4, 3], &[0, 1]),
        "w.ptd",
        "'a.weight': 9 is not the number of a scalar type",
    );
    bad_table(
        with_layout(255, &[4, 3], &[0, 1]),
        "w.ptd",
        "'a.weight': -1 is not the number",
    );
    bad_table(
        with_layout(6, &[4, 4], &[0, 1]),
        "w.ptd",
        "'a.weight': float32 of sizes [4, 4] takes 64 bytes, and its segment holds",
    );
    bad_table(
        with_layout(15, &[4, 3], &[0, 1]),
        "w.ptd",
        "'a.weight': bfloat16 of sizes [4, 3] takes 24 bytes, and its segment holds",
    );
    bad_table(
        with_layout(6, &[-4, -3], &[0, 1]),
        "w.ptd",
        "'a.weight': float32 of sizes [-4, -3]",
    );
    bad_table(
        with_layout(6, &[i32::MAX; 4], &[0, 1, 2, 3]),
        "w.ptd",
        "takes",
    );
    for order in [&[0u8, 0] as &[u8], &[0], &[0, 2], &[0, 1, 2], &[]] {
        bad_table(
            with_layout(6, &[4, 3], order),
            "w.ptd",
            "does not order 2 dimensions",
        );
    }
}

fn parse_pte(change: impl Fn(&mut PteSpec)) -> Result<()> {
    let mut spec = PteSpec::new(&RecordSpec::small(), b"library");
    change(&mut spec);
    Pte::parse("m.pte", &pte(&spec)).map(drop)
}

#[test]
fn what_a_program_points_to_is_there() {
    parse_pte(|_| ()).unwrap();
    bad_table(
        parse_pte(|spec| spec.named_segment = Some(2)),
        "m.pte",
        "names segment 2 of 2",
    );
    bad_table(
        parse_pte(|spec| spec.processed_at = Some((1, 2))),
        "m.pte",
        "points to data 2 at location 1",
    );
    bad_table(
        parse_pte(|spec| spec.processed_at = Some((0, 0))),
        "m.pte",
        "points to data 0 at location 0",
    );
    bad_table(
        parse_pte(|spec| spec.processed_at = Some((9, 0))),
        "m.pte",
        "points to data 0 at location 9",
    );
    let rows = |spec: &mut PteSpec| spec.rows = Some(vec![(0, 8), (1 << 40, 1 << 20)]);
    bad_table(
        parse_pte(rows),
        "m.pte",
        "bytes in front of segment 1 belong to none",
    );
}

#[test]
fn names_in_a_program_stand_there_once() {
    let twice = |spec: &mut PteSpec| spec.named.push(spec.named[0].clone());
    bad_table(parse_pte(twice), "m.pte", "stands here a second time");
    let twice = |spec: &mut PteSpec| spec.constants.push(spec.constants[3].clone());
    bad_table(
        parse_pte(twice),
        "m.pte",
        "the method 'forward__weight_offload__so_key' stands here a second time",
    );
}

#[test]
fn a_method_has_exactly_one_delegate() {
    let mut spec = PteSpec::new(&RecordSpec::small(), b"library");
    let second = Compiled {
        backend: "XnnpackBackend".to_owned(),
        ..spec.delegates[0].clone()
    };
    spec.delegates.push(second);
    spec.constants
        .push(("plain".to_owned(), FieldValue::Ints(vec![1])));
    let bytes = pte(&spec);
    let program = Pte::parse("m.pte", &bytes).unwrap();
    let error = program.delegate("forward").unwrap_err();
    assert!(
        matches!(&error, Error::Mismatch { name, fact: "number of delegates", .. } if name == "forward")
    );
    assert!(
        error
            .to_string()
            .contains("2 (WeightStreamBackend, XnnpackBackend) in m.pte"),
        "{error}"
    );
    let error = program.delegate("plain").unwrap_err();
    let expected = Error::Missing {
        name: "delegate of method plain".to_owned(),
        place: "m.pte; its methods are 'forward'".to_owned(),
    };
    assert_eq!(error, expected);
}

#[test]
fn names_that_are_not_there_are_missing() {
    let bytes = pte(&PteSpec::new(&RecordSpec::small(), b"library"));
    let program = Pte::parse("m.pte", &bytes).unwrap();
    let missing = |name: &str| Error::Missing {
        name: name.to_owned(),
        place: "m.pte".to_owned(),
    };
    assert_eq!(
        program.delegate("backward").unwrap_err(),
        Error::Missing {
            name: "backward".to_owned(),
            place: "m.pte; its methods are 'forward'".to_owned(),
        }
    );
    assert_eq!(program.named_data("key").unwrap_err(), missing("key"));
    assert_eq!(
        program.constant_method("answer").unwrap_err(),
        missing("answer")
    );
}

#[test]
fn a_constant_method_has_no_inputs() {
    let mut spec = PteSpec::new(&RecordSpec::small(), b"library");
    spec.with_input
        .push("forward__weight_offload__floor".to_owned());
    let bytes = pte(&spec);
    let program = Pte::parse("m.pte", &bytes).unwrap();
    let result = program.constant_method("forward__weight_offload__floor");
    bad_table(
        result,
        "m.pte",
        "'forward__weight_offload__floor': a constant method has no inputs, this has 1",
    );
}
