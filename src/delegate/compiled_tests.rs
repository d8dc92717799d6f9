//! The constants of a compiled library against those of the record.

use super::*;
use crate::aoti::dtype::DType;
use crate::delegate::support::{payload, RecordSpec};

fn recorded() -> Vec<RecordedConstant> {
    let record = Record::from_payload("payload", &payload(&RecordSpec::small())).unwrap();
    record.constants
}

/// As the compiled library lists them: in an order of its own, sizes rounded up.
fn compiled() -> Vec<ConstantInfo> {
    let recorded = recorded();
    let info = |c: &RecordedConstant| ConstantInfo {
        name: c.fqn.replace('.', "_"),
        fqn: c.fqn.clone(),
        dtype: DType(c.dtype.number()),
        kind: 1,
        bytes: c.nbytes.next_multiple_of(COMPILED_ALIGNMENT),
    };
    recorded.iter().rev().map(info).collect()
}

#[track_caller]
fn refused(change: impl Fn(&mut Vec<ConstantInfo>), words: &str) {
    let mut list = compiled();
    change(&mut list);
    let error = match_constants(&recorded(), &list).unwrap_err().to_string();
    assert!(error.contains(words), "'{words}' is not in: {error}");
}

#[test]
fn constants_are_found_by_name() {
    assert_eq!(
        match_constants(&recorded(), &compiled()).unwrap(),
        [3, 2, 1, 0]
    );
    let mut exact = compiled();
    exact[0].bytes = 16;
    assert!(match_constants(&recorded(), &exact).is_ok());
}

#[test]
fn what_the_library_says_otherwise_is_refused_by_name() {
    refused(|list| list[1].bytes += 64, "scale");
    refused(|list| list[1].bytes -= 63, "bytes");
    refused(|list| list[2].dtype = DType(4), "dtype");
    refused(|list| drop(list.pop()), "a.weight");
    refused(|list| list[0].fqn = "other".to_owned(), "other");
    refused(|list| list[0] = list[1].clone(), "number of constants");
}
