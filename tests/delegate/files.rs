//! The check of both files of a program before anybody reads them: they say the same in both places of the record,
//! belong together, and are as the export left them.

use std::path::PathBuf;

use crate::support::{payload, ptd, pte, PteSpec, RecordSpec};
use weightstream::delegate::{program::check_files, Program};
use weightstream::{Error, Options, Result};

const CRC: &str = "weightstream_program_crc32_forward";

struct Files {
    program: PteSpec,
    /// Changes the bytes of the finished program.
    damage: fn(&mut [u8]),
    /// Which bytes of the program's checksum the `.ptd` holds.
    crc_bytes: usize,
    with_crc: bool,
}

impl Files {
    fn new() -> Files {
        Files {
            program: PteSpec::new(&RecordSpec::small(), b"library"),
            damage: |_| {},
            crc_bytes: 4,
            with_crc: true,
        }
    }

    fn check(&self) -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| -> PathBuf { folder.path().join(name) };
        let mut bytes = pte(&self.program);
        let mut data = RecordSpec::small_ptd();
        if self.with_crc {
            let tables = weightstream::format::Pte::parse("m", &bytes).unwrap();
            let crc = crc32fast::hash(tables.tables()).to_le_bytes();
            data.add(CRC, None, crc[..self.crc_bytes].to_vec());
        }
        (self.damage)(&mut bytes);
        std::fs::write(path("m.pte"), bytes).unwrap();
        std::fs::write(path("m.ptd"), ptd(&data)).unwrap();
        check_files(&path("m.pte"), &path("m.ptd"), None)
    }
}

#[test]
fn files_of_one_export_pass() {
    assert_eq!(Files::new().check(), Ok(()));
    let mut without = Files::new();
    without.with_crc = false;
    assert_eq!(without.check(), Ok(()));
}

/// Taken out: the comparison of the two places of the record.
#[test]
fn the_record_must_say_the_same_in_both_places() {
    let mut files = Files::new();
    let mut other = RecordSpec::small();
    other.set_ints("activations", &[321]);
    files.program.delegates[0].processed = payload(&other);
    let error = files.check().unwrap_err();
    assert!(
        matches!(&error, Error::Mismatch { fact: "record", name, .. } if name == "forward"),
        "{error}"
    );
}

/// Taken out: the comparison of the program's checksum. The damage is in a name that no parser looks at.
#[test]
fn a_program_that_was_changed_is_malformed() {
    let mut files = Files::new();
    files.damage = |bytes| {
        let at = bytes.windows(11).position(|w| w == b"method_name").unwrap();
        bytes[at] = b'n';
    };
    let error = files.check().unwrap_err();
    assert!(
        matches!(&error, Error::Malformed { what, .. } if what.contains("was changed after its export")),
        "{error}"
    );
    let mut short = Files::new();
    short.crc_bytes = 3;
    assert!(
        short.check().is_err(),
        "three bytes are no checksum to trust"
    );
}

#[test]
fn files_that_are_none_or_one_are_refused_at_once_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let mut record = RecordSpec::small();
    record.set_ints("hard_minimum", &[256]);
    std::fs::write(path("m.pte"), pte(&PteSpec::new(&record, b"library"))).unwrap();
    std::fs::hard_link(path("m.pte"), path("same.ptd")).unwrap();
    let fifo = crate::support::fifo(folder.path());
    let data = |options: &Options, data: PathBuf| {
        let program = Program::open(&path("m.pte")).unwrap();
        program.load("forward", data, options).err().unwrap()
    };
    let none = Options::default();
    let cases = [
        (
            Program::open(&fifo).err().unwrap(),
            "fifo: cannot open: this is a FIFO",
        ),
        (
            check_files(&path("m.pte"), &fifo, None).unwrap_err(),
            "this is a FIFO",
        ),
        (data(&none, fifo), "this is a FIFO"),
        (data(&none, folder.path().to_owned()), "this is a directory"),
        (
            data(&none, path("m.pte")),
            "m.pte: this file was given twice",
        ),
        (
            data(&none, path("same.ptd")),
            "same.ptd: this file was given twice",
        ),
        (
            check_files(&path("m.pte"), &path("m.pte"), None).unwrap_err(),
            "given twice",
        ),
    ];
    for (error, expected) in cases {
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
