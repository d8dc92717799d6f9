//! The record against the data file, through a real mapping: present, same dtype, sizes and bytes, same
//! build; sharing of equal bytes; checksums.

use std::path::PathBuf;

use crate::support::{payload, ptd, PtdSpec, RecordSpec};
use weightstream::format::Record;
use weightstream::weights::{verify_crc, Catalog, MappedFile, MappedPtd, NamedData, SharedBytes};
use weightstream::{Error, Result};

/// A folder with one file in it.
struct OnDisk {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn on_disk(bytes: &[u8]) -> OnDisk {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.ptd");
    std::fs::write(&path, bytes).unwrap();
    OnDisk {
        _folder: folder,
        path,
    }
}

fn record(change: impl Fn(&mut RecordSpec)) -> Record {
    let mut spec = RecordSpec::small();
    change(&mut spec);
    Record::from_payload("payload", &payload(&spec)).unwrap()
}

fn catalog(record: &Record, spec: &PtdSpec) -> Result<Catalog> {
    let disk = on_disk(&ptd(spec));
    Catalog::build(record, &MappedPtd::open(&disk.path)?)
}

/// The error of a doctored data file; its message names the file.
#[track_caller]
fn refusal(change: impl Fn(&mut PtdSpec)) -> Error {
    let mut spec = RecordSpec::small_ptd();
    change(&mut spec);
    let error = catalog(&record(|_| ()), &spec).expect_err("damage went unnoticed");
    assert!(error.to_string().contains("model.ptd"), "{error}");
    error
}

#[track_caller]
fn assert_mismatch(error: Error, of: &str, which: &str, here: &str, there: &str) {
    match error {
        Error::Mismatch {
            name,
            fact,
            expected,
            found,
        } => {
            assert_eq!((name.as_str(), fact), (of, which));
            assert!(expected.contains(here), "'{here}' is not in: {expected}");
            assert!(found.contains(there), "'{there}' is not in: {found}");
        }
        other => panic!("expected Mismatch, found {other:?}"),
    }
}

#[test]
fn the_catalog_outlives_the_names_of_its_file() {
    let catalog = catalog(&record(|_| ()), &RecordSpec::small_ptd()).unwrap();
    assert_eq!(catalog.constants().len(), 4);
    for (index, constant) in catalog.constants().iter().enumerate() {
        let bytes = &catalog.segment(constant.segment).bytes;
        assert_eq!(
            bytes.as_slice(),
            RecordSpec::bytes_of(index),
            "{}",
            constant.fqn
        );
        assert_eq!(bytes.len(), constant.nbytes);
    }
    assert_eq!(
        (catalog.weight_bytes(), catalog.direct_bytes()),
        (48 + 64, 20 + 16)
    );
    assert_eq!(catalog.probed(1).unwrap().fqn, "b.weight");
    assert!(catalog.probed(3).is_none());
    assert!(catalog.source().ends_with("model.ptd"));
    verify_crc(&catalog).unwrap();
}

#[test]
fn a_weight_that_is_not_there_is_missing() {
    let error = refusal(|spec| spec.entries.retain(|entry| entry.key != "b.weight"));
    assert!(
        matches!(&error, Error::Missing { name, .. } if name == "b.weight"),
        "{error}"
    );
}

#[test]
fn dtype_sizes_and_layout_must_agree() {
    let other = |index: usize, dtype: u8, sizes: &[i32]| {
        refusal(|spec| {
            let order = (0..sizes.len() as u8).collect();
            spec.entries[index].layout = Some((dtype, sizes.to_vec(), order));
        })
    };
    assert_mismatch(
        other(1, 3, &[2, 8]),
        "b.weight",
        "dtype",
        "float32",
        "int32",
    );
    assert_mismatch(
        other(1, 6, &[8, 2]),
        "b.weight",
        "sizes",
        "[2, 8]",
        "[8, 2]",
    );
    assert_mismatch(other(0, 6, &[12]), "a.weight", "sizes", "[4, 3]", "[12]");
    let error = refusal(|spec| spec.entries[2].layout = None);
    assert_mismatch(
        error,
        "scale",
        "layout",
        "float32 [1, 5]",
        "without a layout",
    );
}

#[test]
fn files_that_do_not_belong_together_are_refused_first() {
    let error = refusal(|spec| {
        spec.segments[4] = vec![0xab; 16];
        spec.entries.remove(0);
    });
    let both = [crate::support::BUILD_ID, "abababababababababababababababab"];
    assert!(error
        .to_string()
        .contains("the two files do not belong together"));
    assert_mismatch(error, "forward", "build id", both[0], both[1]);
    let error = refusal(|spec| spec.entries.truncate(4));
    assert!(
        matches!(&error, Error::Missing { name, .. } if name == "weightstream_build_id_forward")
    );
    let error = refusal(|spec| spec.segments[4].truncate(15));
    assert!(matches!(
        error,
        Error::Mismatch {
            fact: "build id",
            ..
        }
    ));
}

/// A source whose layout says nothing about its bytes, as ExecuTorch's map might be.
struct Lying;

impl NamedData for Lying {
    fn name(&self) -> &str {
        "map"
    }
    fn layout(&self, key: &str) -> Result<Option<weightstream::format::EntryLayout>> {
        let found = record(|_| ())
            .constants
            .into_iter()
            .find(|constant| constant.fqn == key)
            .unwrap();
        let dim_order = (0..found.sizes.len() as u8).collect();
        Ok(Some(weightstream::format::EntryLayout {
            dtype: found.dtype,
            sizes: found.sizes,
            dim_order,
        }))
    }
    fn bytes(&self, key: &str) -> Result<SharedBytes> {
        if key == weightstream::format::packed::TABLE_KEY {
            let (name, place) = (key.to_owned(), self.name().to_owned());
            return Err(Error::Missing { name, place });
        }
        let id = record(|_| ()).build_id.0.to_vec();
        Ok(SharedBytes::from_vec(
            if key.starts_with("weightstream_build_id") {
                id
            } else {
                vec![0; 47]
            },
        ))
    }
}

#[test]
fn the_number_of_bytes_must_agree() {
    let error = Catalog::build(&record(|_| ()), &Lying).unwrap_err();
    assert_mismatch(error, "a.weight", "number of bytes", "48", "47 in map");
}

#[test]
fn equal_bytes_share_a_segment_unless_mutable_or_of_another_kind() {
    // Four constants of equal shape on one segment of the file.
    let with_kinds = |kinds: [i64; 4]| {
        let spec = RecordSpec::bytes_of(3);
        let crc = i64::from(crc32fast::hash(&spec));
        let record = record(|record| {
            record
                .set_ints("kinds", &kinds)
                .set_ints("nbytes", &[16; 4])
                .set_ints("crc32", &[crc; 4]);
            record.set_ints("layouts", &[2, 2, 2, 2, 1].repeat(4));
            record
                .remove("probes")
                .remove("access_order")
                .set_ints("trace", &[]);
        });
        let mut data = PtdSpec::default();
        data.add("a.weight", Some((6, vec![2, 2])), spec);
        for key in ["b.weight", "scale", "cache"] {
            data.share(key, Some((6, vec![2, 2])), 0);
        }
        data.add(
            "weightstream_build_id_forward",
            None,
            record.build_id.0.to_vec(),
        );
        let catalog = catalog(&record, &data).unwrap();
        verify_crc(&catalog).unwrap();
        catalog
            .constants()
            .iter()
            .map(|constant| constant.segment)
            .collect::<Vec<_>>()
    };
    assert_eq!(with_kinds([0, 0, 0, 0]), [0, 0, 0, 0]);
    assert_eq!(
        with_kinds([0, 1, 0, 1]),
        [0, 1, 0, 1],
        "streamed and resident apart"
    );
    assert_eq!(with_kinds([2, 2, 2, 1]), [0, 1, 2, 3], "mutable ones alone");
    assert_eq!(with_kinds([1, 2, 1, 2]), [0, 1, 0, 2]);
}

#[test]
fn damaged_data_is_found_by_its_checksum_and_named() {
    let disk = on_disk(&{
        let mut bytes = ptd(&RecordSpec::small_ptd());
        let weight = RecordSpec::bytes_of(1);
        let at = bytes
            .windows(weight.len())
            .position(|window| window == weight)
            .unwrap();
        bytes[at + 5] ^= 0x10;
        bytes
    });
    let catalog = Catalog::build(&record(|_| ()), &MappedPtd::open(&disk.path).unwrap()).unwrap();
    let error = verify_crc(&catalog).unwrap_err();
    assert!(error.to_string().contains("model.ptd"));
    assert_mismatch(
        error,
        "b.weight",
        "CRC-32 of its bytes",
        "the program's",
        "the data is damaged",
    );
}

#[test]
fn a_checksum_is_compared_for_every_member_of_a_segment() {
    let record = record(|spec| {
        let first = spec.ints_mut("crc32")[0];
        spec.set_ints("crc32", &[first, first ^ 1, 0, 0])
            .set_ints("kinds", &[0, 0, 1, 2]);
        spec.set_ints("nbytes", &[48, 48, 20, 16]);
        spec.ints_mut("layouts")[5..10].copy_from_slice(&[2, 4, 3, 3, 1]);
    });
    let mut data = RecordSpec::small_ptd();
    data.entries[1] = data.entries[0].clone();
    data.entries[1].key = "b.weight".to_owned();
    let error = verify_crc(&catalog(&record, &data).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Mismatch { name, .. } if name == "b.weight"));
}

#[test]
fn files_that_cannot_be_mapped_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| MappedPtd::open(&folder.path().join(name)).unwrap_err();
    let error = open("absent.ptd");
    assert!(
        matches!(&error, Error::Io { file, what } if file.ends_with("absent.ptd") && what.contains("open"))
    );
    let error = open(".");
    assert!(
        matches!(&error, Error::Io { what, .. } if what.contains("not a regular file")),
        "{error}"
    );
    let disk = on_disk(b"");
    let error = MappedPtd::open(&disk.path).unwrap_err();
    assert!(matches!(&error, Error::Malformed { file, offset: 0, what }
        if file.ends_with("model.ptd") && what.contains("is empty")));
}

#[test]
fn a_mapped_file_lends_its_own_bytes() {
    let disk = on_disk(b"some bytes");
    let file = MappedFile::open(&disk.path).unwrap();
    let all = file.host_bytes();
    drop(file);
    assert_eq!(all.as_slice(), b"some bytes");
}

#[test]
fn foreign_bytes_are_read_where_they_are() {
    let theirs = [7u8; 9];
    // SAFETY: `theirs` outlives the value, which does not leave this function.
    let ours = unsafe { SharedBytes::foreign(theirs.as_ptr(), theirs.len()) }.unwrap();
    assert_eq!(
        (ours.addr(), ours.as_slice()),
        (theirs.as_ptr(), theirs.as_slice())
    );
    // SAFETY: no byte is read: the call refuses.
    let null = unsafe { SharedBytes::foreign(std::ptr::null(), 1) };
    assert!(matches!(null, Err(Error::Internal(_))));
    // SAFETY: no bytes, any address.
    let none = unsafe { SharedBytes::foreign(std::ptr::null(), 0) }.unwrap();
    assert!(none.is_empty() && none.as_slice().is_empty());
}
