//! The constants of a compiled library against those of the record.

use super::*;
use crate::aoti::dtype::DType;
use crate::format::EntryLayout;
use crate::weights::{HostBytes, NamedData};

use crate::delegate::support::{payload, RecordSpec};

/// The data that belongs to [`RecordSpec::small`], in memory.
struct Data(Record);

impl NamedData for Data {
    fn name(&self) -> &str {
        "memory"
    }

    fn layout(&self, key: &str) -> Result<Option<EntryLayout>> {
        let constant = self.0.constants.iter().find(|c| c.fqn == key);
        Ok(constant.map(|c| EntryLayout {
            dtype: c.dtype,
            sizes: c.sizes.clone(),
            dim_order: (0..c.sizes.len() as u8).collect(),
        }))
    }

    fn bytes(&self, key: &str) -> Result<HostBytes> {
        let index = self.0.constants.iter().position(|c| c.fqn == key);
        Ok(HostBytes::from_vec(match index {
            Some(index) => RecordSpec::bytes_of(index),
            None => self.0.build_id.0.to_vec(),
        }))
    }
}

fn catalog() -> Catalog {
    let record = Record::from_payload("payload", &payload(&RecordSpec::small())).unwrap();
    Catalog::build(&record, &Data(record.clone())).unwrap()
}

/// As the compiled library lists them: in an order of its own, sizes rounded up.
fn compiled() -> Vec<ConstantInfo> {
    let recorded = catalog();
    let info = |c: &Constant| ConstantInfo {
        name: c.fqn.replace('.', "_"),
        fqn: c.fqn.clone(),
        dtype: DType(c.dtype.number()),
        kind: 1,
        bytes: c.nbytes.next_multiple_of(COMPILED_ALIGNMENT),
    };
    recorded.constants().iter().rev().map(info).collect()
}

#[track_caller]
fn refused(change: impl Fn(&mut Vec<ConstantInfo>), words: &str) {
    let mut list = compiled();
    change(&mut list);
    let error = match_constants(&catalog(), &list).unwrap_err().to_string();
    assert!(error.contains(words), "'{words}' is not in: {error}");
}

#[test]
fn constants_are_found_by_name() {
    assert_eq!(
        match_constants(&catalog(), &compiled()).unwrap(),
        [3, 2, 1, 0]
    );
    let mut exact = compiled();
    exact[0].bytes = 16;
    assert!(match_constants(&catalog(), &exact).is_ok());
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
