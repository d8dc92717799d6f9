//! Assertions on errors, for the tests of damaged files.
#![allow(dead_code)] // every test binary uses a part

use weightstream::{Error, Result};

/// Asserts a `Malformed` of `file` at `offset` whose words contain `words`.
#[track_caller]
pub fn assert_malformed<T: std::fmt::Debug>(result: Result<T>, file: &str, at: u64, words: &str) {
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

/// As [`assert_malformed`], for damage in a table: its offset is not known beforehand, but it lies behind the
/// header and inside a small file.
#[track_caller]
pub fn bad_table<T: std::fmt::Debug>(result: Result<T>, file: &str, words: &str) {
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
