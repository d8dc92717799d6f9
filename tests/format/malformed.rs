//! Damaged files as a whole and damaged headers: one case per defect, each with the exact variant, the file,
//! the offset and the words. Damaged tables: `format_tables.rs`; records: `format_record.rs`.

use crate::check::{assert_malformed, bad_table};
use crate::support::{ptd, pte, PteSpec, RecordSpec};
use weightstream::format::{Ptd, Pte};
use weightstream::Error;

#[track_caller]
fn bad_ptd(bytes: &[u8], at: u64, words: &str) {
    assert_malformed(Ptd::parse("w.ptd", bytes), "w.ptd", at, words);
}

#[track_caller]
fn bad_pte(bytes: &[u8], at: u64, words: &str) {
    assert_malformed(Pte::parse("m.pte", bytes), "m.pte", at, words);
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
        "not an ExecuTorch program (.pte), but a zip archive, as torch.save",
    );
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n";
    bad_pte(pointer, 4, "a pointer of Git LFS");
    bad_ptd(pointer, 4, "`git lfs pull` brings the file itself");
    bad_pte(b"hello, world\n", 4, "found 'o, w'");
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
            for words in [&words, "is truncated"] {
                assert!(message.contains(words), "{file} cut at {len}: {message}");
            }
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
