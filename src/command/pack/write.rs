//! Segment by segment, packed or as it is.

use super::progress::PackProgress;
use super::report::{refuse_nothing_packed, PackReport, Reason};
use super::source::{PackSource, RawSegment};
use super::target::NewFile;
use crate::format::packed::{
    count, store, write_table, PackedEntry, PackedHeader, Stored, TABLE_KEY,
};
use crate::format::{EntryRow, PtdWriter};
use crate::Result;
use std::collections::BTreeMap;
use std::fs::File;

/// Bytes of a piece that is copied.
const PIECE: usize = 4 << 20;

/// Writes all segments, the table of packed entries and the tables of the file.
pub fn write(
    source: &PackSource,
    segments: &[RawSegment<'_>],
    file: &NewFile,
    threads: usize,
) -> Result<PackReport> {
    let mut rows = rows(segments);
    let name = file.name();
    let count = segments.len() + 1;
    let mut writing = Writing {
        source: source.name(),
        to: PtdWriter::new(&name, file.file(), &rows, count, source.alignment())?,
        threads,
        packed: BTreeMap::new(),
        report: PackReport::new(source.data.file().bytes().len() as u64),
        progress: PackProgress::of(segments.iter().map(|one| one.bytes.len() as u64).sum()),
    };
    for segment in segments {
        writing.segment(segment)?;
    }
    let Writing {
        mut to,
        packed,
        mut report,
        ..
    } = writing;
    refuse_nothing_packed(source.name(), &report)?;
    for row in &mut rows {
        if let Some((_, stored)) = packed.get(&row.key) {
            row.layout = Some(PackedEntry::layout_in_file(*stored));
        }
    }
    let packed = packed.into_iter().map(|(key, (entry, _))| (key, entry));
    let table = write_table(&packed.collect());
    to.begin_segment()?;
    to.write(&table)?;
    report.file_bytes = to.finish(&rows)?;
    Ok(report)
}

/// All entries as they are in the source, and the table.
fn rows(segments: &[RawSegment<'_>]) -> Vec<EntryRow> {
    let mut rows = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        rows.extend(segment.entries.iter().map(|(key, entry)| EntryRow {
            key: (*key).to_owned(),
            layout: entry.layout.clone(),
            segment: index,
        }));
    }
    rows.push(EntryRow {
        key: TABLE_KEY.to_owned(),
        layout: None,
        segment: segments.len(),
    });
    rows
}

struct Writing<'a> {
    source: &'a str,
    to: PtdWriter<&'a File>,
    threads: usize,
    /// With their stored bytes.
    packed: BTreeMap<String, (PackedEntry, u64)>,
    report: PackReport,
    progress: PackProgress,
}

impl Writing<'_> {
    fn segment(&mut self, segment: &RawSegment<'_>) -> Result<()> {
        self.to.begin_segment()?;
        let reason = match segment.form {
            Err(reason) => {
                self.copy(segment, true)?;
                reason
            }
            Ok(form) => {
                let counted = count(segment.name(), form, segment.bytes, self.threads)?;
                segment.check(self.source, counted.crc32)?;
                let histogram = &counted.histogram;
                match worth_it(histogram.gains(), histogram.most_bytes()) {
                    Ok(()) => return self.pack(segment, counted.histogram.header()),
                    Err(reason) => {
                        self.copy(segment, false)?;
                        reason
                    }
                }
            }
        };
        self.report.stays(reason, segment);
        Ok(())
    }

    fn copy(&mut self, segment: &RawSegment<'_>, check: bool) -> Result<()> {
        let mut crc32 = crc32fast::Hasher::new();
        for piece in segment.bytes.chunks(PIECE) {
            if check {
                crc32.update(piece);
            }
            self.to.write(piece)?;
            self.progress.add(piece.len(), piece.len());
        }
        match check {
            true => segment.check(self.source, crc32.finalize()),
            false => Ok(()),
        }
    }

    fn pack(&mut self, segment: &RawSegment<'_>, header: PackedHeader) -> Result<()> {
        let (to, progress) = (&mut self.to, &mut self.progress);
        let put = |stored: &[u8], raw: usize| {
            to.write(stored)?;
            progress.add(raw, stored.len());
            Ok(())
        };
        let stored = store(segment.name(), segment.bytes, &header, self.threads, put)?;
        let Stored { bytes, crc32 } = stored;
        for (key, entry) in &segment.entries {
            // What has no layout stays raw.
            let Some(layout) = entry.layout.clone() else {
                continue;
            };
            let entry = PackedEntry {
                layout,
                header,
                crc32,
            };
            self.packed.insert((*key).to_owned(), (entry, bytes));
        }
        self.report.packed(segment, bytes);
        Ok(())
    }
}

/// Whether to pack bytes that gain enough and take at most so many. This is estimated from the histogram,
/// before anything is coded: nothing is written twice. The estimate is never too low, and some thousandths
/// too high for weights as training leaves them.
fn worth_it(gains: bool, most: u64) -> std::result::Result<(), Reason> {
    // The file says how many u32 an entry has, in 31 bits; a directory can address four times as much.
    match gains {
        false => Err(Reason::Gain),
        true if most / 4 > i32::MAX as u64 => Err(Reason::Large),
        true => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_cannot_say_stays_raw() {
        let largest = 4 * (i32::MAX as u64 + 1);
        assert_eq!(worth_it(true, largest - 1), Ok(()));
        assert_eq!(worth_it(true, largest), Err(Reason::Large));
        assert_eq!(worth_it(false, 1), Err(Reason::Gain));
    }
}
