//! The files that are read: checked, and what may be packed of them.

use super::report::Reason;
use crate::delegate::packing::{why_raw, WhyRaw};
use crate::delegate::program::check_files;
use crate::figures::NumberForm;
use crate::format::packed::{read_table, TABLE_KEY};
use crate::format::ptd_writer::LEAST_ALIGNMENT;
use crate::format::{PtdEntry, Pte, Record, Records, BACKEND};
use crate::weights::{Catalog, MappedFile, MappedPtd};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// No file needs more, as segments that begin at pages do.
const MOST_ALIGNMENT: u64 = 4096;

/// A data file and the records of its program.
pub struct PackSource {
    pub data: MappedPtd,
    pub path: PathBuf,
    program: MappedFile,
    records: Vec<Record>,
}

type MayPack = std::result::Result<NumberForm, Reason>;

/// Bytes of the file, and the entries that share them.
pub struct RawSegment<'a> {
    pub entries: Vec<(&'a str, &'a PtdEntry)>,
    pub bytes: &'a [u8],
    /// Where they stand in the file.
    at: usize,
    checksums: Vec<Checksum<'a>>,
    /// How they are read as numbers, or why they stay as they are, as far as that is known without a look at them.
    pub form: MayPack,
}

#[derive(Clone, Copy)]
struct Checksum<'a> {
    fqn: &'a str,
    crc32: u32,
}

impl PackSource {
    /// Checks that both files belong together and that the data have every constant. `program`: if it
    /// is not the file of the same name.
    pub fn open(path: &Path, program: Option<&Path>) -> Result<PackSource> {
        let data = MappedPtd::open(path)?;
        check_not_packed(&data)?;
        let beside = path.with_extension("pte");
        let program = match program {
            Some(program) => program,
            None if beside.exists() => &beside,
            None => {
                return Err(Error::Io {
                    file: beside.display().to_string(),
                    what: format!(
                        "the program of '{}' is not here; name it with --program MODEL.pte",
                        data.ptd().name()
                    ),
                })
            }
        };
        check_files(program, path, None)?;
        let program = MappedFile::open(program)?;
        let records = records(&program, &data)?;
        Ok(PackSource {
            data,
            path: path.to_owned(),
            program,
            records,
        })
    }

    /// What errors call the data file.
    pub fn name(&self) -> &str {
        self.data.ptd().name()
    }

    /// Whether `path` leads to the program.
    pub fn program_is_at(&self, path: &Path) -> bool {
        self.program.is_at(path)
    }

    /// That of its segments, at least what ExecuTorch's writer gives.
    pub fn alignment(&self) -> u64 {
        let entries = self.data.ptd().entries();
        let begins = entries.filter(|(_, entry)| !entry.range.is_empty());
        let each = begins.map(|(_, entry)| 1 << entry.range.start.trailing_zeros().min(12));
        let least = each.min().unwrap_or(MOST_ALIGNMENT);
        least.clamp(LEAST_ALIGNMENT, MOST_ALIGNMENT)
    }

    /// Its segments in the order in which they stand in the file.
    /// Those of less than `least` bytes stay raw.
    pub fn segments(&self, least: u64) -> Vec<RawSegment<'_>> {
        let (why, checksums) = (why_raw(&self.records), checksums(&self.records));
        let mut segments: BTreeMap<usize, RawSegment<'_>> = BTreeMap::new();
        for (key, entry) in self.data.ptd().entries() {
            let bytes = &self.data.file().bytes()[entry.range.clone()];
            let form = form_of(why.get(key).copied(), entry, (bytes.len() as u64) < least);
            let segment = segments.entry(entry.segment).or_insert_with(|| RawSegment {
                entries: Vec::new(),
                bytes,
                at: entry.range.start,
                checksums: Vec::new(),
                form,
            });
            segment.entries.push((key, entry));
            // Entries that share bytes are packed together or not at all.
            segment.form = together(segment.form, form);
            let of_key = checksums.get(key).into_iter().flatten();
            segment.checksums.extend(of_key);
        }
        segments.into_values().collect()
    }
}

impl RawSegment<'_> {
    /// What errors call it.
    pub fn name(&self) -> &str {
        let fqn = self.checksums.first().map(|one| one.fqn);
        let key = self.entries.first().map(|(key, _)| *key);
        fqn.or(key).unwrap_or_default()
    }

    /// Compares the CRC-32 of its bytes with that of each constant that has them.
    pub fn check(&self, file: &str, found: u32) -> Result<()> {
        let differs = self.checksums.iter().find(|one| one.crc32 != found);
        let Some(Checksum { fqn, crc32 }) = differs else {
            return Ok(());
        };
        Err(Error::Mismatch {
            name: (*fqn).to_owned(),
            fact: "CRC-32 of its bytes",
            expected: format!("{crc32:08x} (the program's)"),
            found: format!(
                "{found:08x} in {file}, {} bytes from byte {} on: the data is damaged; copy or export it again",
                self.bytes.len(),
                self.at
            ),
        })
    }
}

/// `why`: nothing of an entry that the program does not name. `small`: its bytes are too few.
fn form_of(why: Option<Option<WhyRaw>>, entry: &PtdEntry, small: bool) -> MayPack {
    let (Some(why), Some(layout)) = (why, &entry.layout) else {
        return Err(Reason::Other);
    };
    match (why, layout.dtype.form()) {
        (Some(why), _) => Err(Reason::Record(why)),
        (None, None) => Err(Reason::Record(WhyRaw::Type)),
        // The table of packed entries counts dimensions in a byte.
        _ if layout.sizes.len() > usize::from(u8::MAX) => Err(Reason::Large),
        _ if small => Err(Reason::Small),
        (None, Some(form)) => Ok(form),
    }
}

/// Of two entries with the same bytes; the first reason in their order.
fn together(one: MayPack, other: MayPack) -> MayPack {
    match (one, other) {
        (Err(one), Err(other)) => Err(one.min(other)),
        (Err(why), _) | (_, Err(why)) => Err(why),
        (Ok(one), Ok(other)) if one == other => Ok(one),
        _ => Err(Reason::Record(WhyRaw::Type)),
    }
}

fn check_not_packed(data: &MappedPtd) -> Result<()> {
    let Some(entry) = data.ptd().entry(TABLE_KEY) else {
        return Ok(());
    };
    let (name, range) = (data.ptd().name(), entry.range.clone());
    let table = read_table(name, range.start as u64, &data.file().bytes()[range])?;
    Err(Error::Io {
        file: name.to_owned(),
        what: format!(
            "{} of its entries are packed already; pack the file that it was made of",
            table.len()
        ),
    })
}

/// The records of all methods that run here, held against the data.
fn records(program: &MappedFile, data: &MappedPtd) -> Result<Vec<Record>> {
    let pte = Pte::parse(program.name(), program.bytes())?;
    let mut all: Vec<Record> = Vec::new();
    for method in pte.methods() {
        if pte.delegate(method).is_ok_and(|one| one.backend == BACKEND) {
            let records = Records::of(&pte, method)?;
            Catalog::of_program(records.own(), &records.union()?.constants, data)?;
            // The payload has the others too, and their delegates have them once more.
            all.extend(records.all().iter().cloned());
        }
    }
    all.sort_by(|one, other| one.method.cmp(&other.method));
    all.dedup();
    match all.is_empty() {
        false => Ok(all),
        true => Err(Error::Missing {
            name: BACKEND.to_owned(),
            place: format!("{}: no method has a delegate of it", program.name()),
        }),
    }
}

/// Of each key the checksums of the constants that have its bytes.
fn checksums(records: &[Record]) -> BTreeMap<&str, Vec<Checksum<'_>>> {
    let mut all: BTreeMap<&str, Vec<Checksum<'_>>> = BTreeMap::new();
    for constant in records.iter().flat_map(|record| &record.constants) {
        all.entry(&constant.key).or_default().push(Checksum {
            fqn: &constant.fqn,
            crc32: constant.crc32,
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_with_the_same_bytes_are_coded_as_the_same_numbers_or_not_at_all() {
        let (bf16, f16) = (Ok(NumberForm::Bf16), Ok(NumberForm::F16));
        assert_eq!(together(bf16, bf16), bf16);
        assert_eq!(together(bf16, f16), Err(Reason::Record(WhyRaw::Type)));
        assert_eq!(together(bf16, Err(Reason::Large)), Err(Reason::Large));
        let both = together(Err(Reason::Other), Err(Reason::Small));
        assert_eq!(both, Err(Reason::Small));
    }
}
