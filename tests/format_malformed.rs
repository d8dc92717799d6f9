//! Damaged containers: one case per defect, each with the exact variant, the file, the offset and the words.

mod support;

use support::{pattern, ptd, pte, Compiled, FieldValue, PtdSpec, PteSpec, RecordSpec};
use weightstream::format::{Ptd, Pte};
use weightstream::{Error, Result};

/// Asserts a `Malformed` of `file` at `offset` whose words contain `words`.
#[track_caller]
fn assert_malformed<T: std::fmt::Debug>(result: Result<T>, file: &str, at: u64, words: &str) {
    let error = result.expect_err("damage went unnoticed");
    let message = error.to_string();
    assert!(
        message.starts_with(&format!("{file}: malformed at byte {at}: ")),
        "{message}"
    );
    match error {
        Error::Malformed { what, .. } => {
            assert!(what.contains(words), "'{words}' is not in: {what}")
        }
        other => panic!("expected Malformed, found {other:?}"),
    }
}

#[track_caller]
fn bad_ptd(bytes: &[u8], at: u64, words: &str) {
    assert_malformed(Ptd::parse("w.ptd", bytes), "w.ptd", at, words);
}

#[track_caller]
fn bad_pte(bytes: &[u8], at: u64, words: &str) {
    assert_malformed(Pte::parse("m.pte", bytes), "m.pte", at, words);
}

/// As `bad_ptd`, for damage in a table: the offset is that of a table, not known beforehand, but it lies
/// behind the header and inside the tables.
#[track_caller]
fn bad_table<T: std::fmt::Debug>(result: Result<T>, file: &str, words: &str) {
    match result.expect_err("damage went unnoticed") {
        Error::Malformed {
            file: found,
            offset,
            what,
        } => {
            assert_eq!(found, file);
            assert!((8..8192).contains(&offset), "offset {offset}");
            assert!(what.contains(words), "'{words}' is not in: {what}");
        }
        other => panic!("expected Malformed, found {other:?}"),
    }
}

fn good_ptd() -> Vec<u8> {
    ptd(&RecordSpec::small_ptd())
}

fn good_pte() -> Vec<u8> {
    pte(&PteSpec::new(&RecordSpec::small(), b"library"))
}

/// `bytes` with the little-endian `value` at `at`.
fn with_u64(mut bytes: Vec<u8>, at: usize, value: u64) -> Vec<u8> {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn with_u32(mut bytes: Vec<u8>, at: usize, value: u32) -> Vec<u8> {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn empty_files_say_so() {
    bad_ptd(b"", 0, "the file is empty");
    bad_pte(b"", 0, "the file is empty");
}

#[test]
fn swapped_and_foreign_files_say_so() {
    bad_ptd(
        &good_pte(),
        4,
        "found 'ET12', which is a .pte program: were the two files swapped?",
    );
    bad_pte(
        &good_ptd(),
        4,
        "found 'FT01', which is a .ptd data file: were the two files swapped?",
    );
    bad_pte(
        b"PK\x03\x04\x00\x01\x02\x03rest",
        4,
        "not an ExecuTorch program (.pte)",
    );
    bad_ptd(
        &[0; 64],
        4,
        "expected identifier 'FT01', found '\\x00\\x00\\x00\\x00'",
    );
}

#[test]
fn every_truncation_is_an_error_that_says_both_lengths() {
    for (file, bytes) in [("ptd", good_ptd()), ("pte", good_pte())] {
        for len in 1..bytes.len() {
            let cut = &bytes[..len];
            let error = match file {
                "ptd" => Ptd::parse("f", cut).expect_err("cut"),
                _ => Pte::parse("f", cut).expect_err("cut"),
            };
            let words = format!("the file has {len}");
            let message = error.to_string();
            // A cut just behind the identifier leaves a .pte that looks as if it had no header.
            let no_header = file == "pte" && (8..12).contains(&len);
            assert!(
                no_header || message.contains(&words),
                "{file} cut at {len}: {message}"
            );
            assert!(
                no_header || message.contains("is truncated"),
                "{file} cut at {len}: {message}"
            );
        }
    }
}

#[test]
fn truncation_names_the_length_of_the_header() {
    let bytes = good_ptd();
    let words = format!(
        "says at least {} bytes, the file has {}",
        bytes.len(),
        bytes.len() - 1
    );
    bad_ptd(&bytes[..bytes.len() - 1], bytes.len() as u64 - 1, &words);
    let bytes = good_pte();
    let words = format!(
        "says at least {} bytes, the file has {}",
        bytes.len(),
        bytes.len() - 1
    );
    bad_pte(&bytes[..bytes.len() - 1], bytes.len() as u64 - 1, &words);
}

#[test]
fn trailing_bytes_are_an_error() {
    let mut bytes = good_ptd();
    let len = bytes.len() as u64;
    bytes.push(0);
    bad_ptd(&bytes, len, "the file is too long");
    let mut bytes = good_pte();
    let len = bytes.len() as u64;
    bytes.extend([0; 64]);
    bad_pte(&bytes, len, "the file is too long");
}

#[test]
fn bad_header_fields_of_a_data_file() {
    let good = good_ptd();
    bad_ptd(
        &with_u32(good.clone(), 8, 0x3130_4846 + 1),
        8,
        "magic 'FH01'",
    );
    bad_ptd(
        &with_u32(good.clone(), 12, 39),
        12,
        "the header's length is 39",
    );
    bad_ptd(
        &with_u32(good.clone(), 12, u32::MAX),
        12,
        "the header's length is 4294967295",
    );
    bad_ptd(
        &with_u64(good.clone(), 16, 8),
        16,
        "starts at 8, inside the header",
    );
    bad_ptd(
        &with_u64(good.clone(), 24, u64::MAX),
        24,
        "does not fit any file",
    );
    bad_ptd(
        &with_u64(good.clone(), 24, 1 << 40),
        good.len() as u64,
        "is truncated",
    );
    bad_ptd(
        &with_u64(good.clone(), 32, u64::MAX),
        32,
        "do not fit any file",
    );
    bad_ptd(&with_u64(good.clone(), 32, 64), 32, "before the tables end");
    bad_ptd(
        &with_u64(good.clone(), 40, u64::MAX),
        32,
        "do not fit any file",
    );
    bad_ptd(
        &with_u64(good.clone(), 40, 1 << 50),
        good.len() as u64,
        "is truncated",
    );
}

#[test]
fn bad_header_fields_of_a_program() {
    let good = good_pte();
    bad_pte(
        &with_u32(good.clone(), 12, 23),
        12,
        "the header's length is 23",
    );
    bad_pte(
        &with_u32(good.clone(), 12, 1 << 20),
        12,
        "the header's length is 1048576",
    );
    bad_pte(&with_u64(good.clone(), 16, 39), 16, "inside the header");
    bad_pte(
        &with_u64(good.clone(), 16, u64::MAX),
        good.len() as u64,
        "is truncated",
    );
    bad_pte(
        &with_u64(good.clone(), 24, u64::MAX),
        24,
        "do not fit any file",
    );
    bad_pte(&with_u64(good.clone(), 24, 48), 24, "before the tables end");
    bad_pte(
        &with_u64(good.clone(), 32, u64::MAX),
        24,
        "do not fit any file",
    );
    bad_pte(
        &with_u64(good.clone(), 32, 1 << 50),
        good.len() as u64,
        "is truncated",
    );
    // An old header without the segments' size: the base alone may leave the file.
    let old = with_u64(with_u32(good.clone(), 12, 24), 24, 1 << 50);
    bad_pte(&old, good.len() as u64, "is truncated");
}

#[test]
fn a_program_whose_header_was_damaged_does_not_pass_for_one_without() {
    let good = good_pte();
    let tables_end = u64_at(&good, 16);
    let damaged = with_u32(good.clone(), 8, 0);
    let error = Pte::parse("m.pte", &damaged).unwrap_err();
    assert!(
        error.to_string().contains("leaves the 0 bytes of segments"),
        "{error}"
    );
    // Nor does one that says it has no segments.
    let none = with_u64(with_u64(good.clone(), 24, 0), 32, 0);
    bad_pte(&none, tables_end, "the file is too long");
    bad_table(
        Pte::parse("m.pte", &none[..tables_end as usize]),
        "m.pte",
        "leaves the 0 bytes of segments",
    );
}

#[test]
fn unused_bytes_between_tables_and_segments_are_an_error() {
    // 64 zero bytes more than the padding needs, base and sizes adapted: a hole nobody checks.
    for at_base in [32, 24] {
        let mut bytes = if at_base == 32 {
            good_ptd()
        } else {
            good_pte()
        };
        let base = u64_at(&bytes, at_base) as usize;
        let (hole, tables_end) = (base.next_power_of_two() * 2 + 8 - base, base);
        bytes.splice(tables_end..tables_end, vec![0; hole]);
        let bytes = with_u64(bytes, at_base, (base + hole) as u64);
        let error = match at_base {
            32 => Ptd::parse("f", &bytes).map(drop),
            _ => Pte::parse("f", &bytes).map(drop),
        };
        bad_table(error, "f", "unused bytes in front of the segments");
    }
}

#[test]
fn a_root_or_table_that_points_outside_is_an_error() {
    bad_ptd(
        &with_u32(good_ptd(), 0, u32::MAX),
        u64::from(u32::MAX),
        "the tables are damaged",
    );
    bad_pte(
        &with_u32(good_pte(), 0, 0x7fff_fffc),
        0x7fff_fffc,
        "the tables are damaged",
    );
    let misplaced = with_u32(good_ptd(), 0, 53);
    assert!(matches!(
        Ptd::parse("w.ptd", &misplaced),
        Err(Error::Malformed { offset: 53, .. })
    ));
}

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
        "'a.weight': float32 of sizes [4, 4] does not fill",
    );
    bad_table(
        with_layout(15, &[4, 3], &[0, 1]),
        "w.ptd",
        "'a.weight': bfloat16 of sizes [4, 3] does not fill",
    );
    bad_table(
        with_layout(6, &[-4, -3], &[0, 1]),
        "w.ptd",
        "'a.weight': float32 of sizes [-4, -3]",
    );
    bad_table(
        with_layout(6, &[i32::MAX; 4], &[0, 1, 2, 3]),
        "w.ptd",
        "does not fill",
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
    let rows = |spec: &mut PteSpec| spec.rows = Some(vec![(0, 8), (u64::MAX & !127, 1 << 20)]);
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
        place: "m.pte".to_owned(),
    };
    assert_eq!(error, expected);
}

#[test]
fn names_that_are_not_there_are_missing() {
    let bytes = good_pte();
    let program = Pte::parse("m.pte", &bytes).unwrap();
    let missing = |name: &str| Error::Missing {
        name: name.to_owned(),
        place: "m.pte".to_owned(),
    };
    assert_eq!(
        program.delegate("backward").unwrap_err(),
        missing("backward")
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
