//! Writes a `.ptd`, with little memory: the tables stand in front of the segments, and what they say of
//! these is known only after them. So room for the largest tables that may come is left, the segments are
//! written one after the other, and the tables at last.
//!
//! ```text
//! byte 0     u32 where the root is | 'FT01'
//! byte 8     the header, 40 bytes, and zeros up to 48
//! byte 48    the rest of the tables, and zeros up to the room that was left for them
//! base       the segments, each at a multiple of the alignment
//! ```
//! The header counts the zeros after the tables as part of them, so that no byte of the file belongs to
//! nobody.

use std::io::{Seek, SeekFrom, Write};

use flatbuffers::FlatBufferBuilder;

use super::generated::flat_tensor as fb;
use super::EntryLayout;
use crate::error::{Error, Result};

/// ExecuTorch aligns segments to this by default.
pub const LEAST_ALIGNMENT: u64 = 128;

/// What the tables say of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryRow {
    /// Its key.
    pub key: String,
    /// Layout, if the entry is a tensor.
    pub layout: Option<EntryLayout>,
    /// Index of its segment; entries of equal bytes share one.
    pub segment: usize,
}

/// A `.ptd` that is being written.
pub struct PtdWriter<W: Write + Seek> {
    file: String,
    to: W,
    alignment: u64,
    /// Bytes of header and tables, with the room that is left.
    front: u64,
    base: u64,
    /// Offset from `base` and size of each segment.
    segments: Vec<(u64, u64)>,
    /// Bytes after `base`.
    done: u64,
}

/// Where the rest of the tables begins: after the identifier comes the header, in whole units of 16 bytes.
const HEADER_ROOM: usize = 48;
const HEADER_BYTES: u32 = 40;

impl<W: Write + Seek> PtdWriter<W> {
    /// `most` are the entries with all layouts that they may have, and `segments` how many segments there
    /// will be. `file` is what errors call the file. A power of two aligns the segments.
    pub fn new(
        file: &str,
        mut to: W,
        most: &[EntryRow],
        segments: usize,
        alignment: u64,
    ) -> Result<Self> {
        let tables = tables(file, most, &vec![(0, 0); segments])?;
        let front = (tables.len() + HEADER_ROOM) as u64;
        let alignment = alignment.max(LEAST_ALIGNMENT);
        let base = front.next_multiple_of(alignment);
        let moved = to.seek(SeekFrom::Start(base));
        moved.map_err(|error| failed(file, base, &error))?;
        Ok(PtdWriter {
            file: file.to_owned(),
            to,
            alignment,
            front,
            base,
            segments: Vec::with_capacity(segments),
            done: 0,
        })
    }

    /// Begins the next segment.
    pub fn begin_segment(&mut self) -> Result<()> {
        let padding = self.done.next_multiple_of(self.alignment) - self.done;
        self.put(&vec![0; padding as usize])?;
        self.segments.push((self.done, 0));
        Ok(())
    }

    /// Writes the next bytes of the segment.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.put(bytes)?;
        match self.segments.last_mut() {
            Some((_, size)) => *size += bytes.len() as u64,
            None => {
                return Err(Error::Internal(format!(
                    "{}: bytes of no segment",
                    self.file
                )))
            }
        }
        Ok(())
    }

    /// Writes header and tables. Returns how many bytes the file has.
    pub fn finish(mut self, entries: &[EntryRow]) -> Result<u64> {
        let mut front = tables(&self.file, entries, &self.segments)?;
        let header = self.header();
        front.splice(8..8, header);
        raise_root(&self.file, &mut front)?;
        if front.len() as u64 > self.front {
            return Err(Error::Internal(format!(
                "{}: tables of {} bytes, and {} were left for them",
                self.file,
                front.len(),
                self.front
            )));
        }
        front.resize(self.base as usize, 0);
        let moved = self.to.seek(SeekFrom::Start(0));
        let written = moved.and_then(|_| self.to.write_all(&front));
        let written = written.and_then(|()| self.to.flush());
        written.map_err(|error| failed(&self.file, 0, &error))?;
        Ok(self.base + self.done)
    }

    fn header(&self) -> Vec<u8> {
        let mut header = b"FH01".to_vec();
        header.extend(HEADER_BYTES.to_le_bytes());
        let tables = self.front - HEADER_ROOM as u64;
        for number in [HEADER_ROOM as u64, tables, self.base, self.done] {
            header.extend(number.to_le_bytes());
        }
        header.resize(HEADER_ROOM, 0);
        header
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let at = self.base + self.done;
        let written = self.to.write_all(bytes);
        written.map_err(|error| failed(&self.file, at, &error))?;
        self.done += bytes.len() as u64;
        Ok(())
    }
}

fn failed(file: &str, at: u64, error: &std::io::Error) -> Error {
    Error::Io {
        file: file.to_owned(),
        what: format!("writing at byte {at}: {error}"),
    }
}

/// The root is further away by what was put between it and the begin.
fn raise_root(file: &str, front: &mut [u8]) -> Result<()> {
    let Some(root) = front.first_chunk_mut::<4>() else {
        return Err(Error::Internal(format!("{file}: tables without a root")));
    };
    *root = (u32::from_le_bytes(*root) + HEADER_ROOM as u32).to_le_bytes();
    Ok(())
}

/// The tables as if no header stood in them.
fn tables(file: &str, entries: &[EntryRow], segments: &[(u64, u64)]) -> Result<Vec<u8>> {
    let mut builder = FlatBufferBuilder::new();
    // A number that is 0 takes as many bytes as any other one: sizes do not depend on values.
    builder.force_defaults(true);
    let rows = segments.iter().map(|&(offset, size_)| {
        let row = fb::DataSegmentArgs { offset, size_ };
        fb::DataSegment::create(&mut builder, &row)
    });
    let rows: Vec<_> = rows.collect();
    let segments = Some(builder.create_vector(&rows));
    let mut rows = Vec::with_capacity(entries.len());
    for entry in entries {
        rows.push(row(file, &mut builder, entry)?);
    }
    let named_data = Some(builder.create_vector(&rows));
    let root = fb::FlatTensorArgs {
        version: 0,
        segments,
        named_data,
    };
    let root = fb::FlatTensor::create(&mut builder, &root);
    builder.finish(root, Some("FT01"));
    Ok(builder.finished_data().to_vec())
}

fn row<'a>(
    file: &str,
    builder: &mut FlatBufferBuilder<'a>,
    entry: &EntryRow,
) -> Result<flatbuffers::WIPOffset<fb::NamedData<'a>>> {
    let large = |what: &str| Error::Unsupported(format!("{file}: '{}': {what}", entry.key));
    let tensor_layout = match &entry.layout {
        None => None,
        Some(layout) => {
            let sizes = layout.sizes.iter().map(|&size| i32::try_from(size));
            let sizes = sizes.collect::<std::result::Result<Vec<i32>, _>>();
            let sizes = sizes.map_err(|_| large("a size that takes more than 31 bits"))?;
            let layout = fb::TensorLayoutArgs {
                scalar_type: fb::ScalarType(layout.dtype.number() as i8),
                sizes: Some(builder.create_vector(&sizes)),
                dim_order: Some(builder.create_vector(&layout.dim_order)),
            };
            Some(fb::TensorLayout::create(builder, &layout))
        }
    };
    let segment_index = u32::try_from(entry.segment);
    let row = fb::NamedDataArgs {
        key: Some(builder.create_string(&entry.key)),
        segment_index: segment_index.map_err(|_| large("too many segments"))?,
        tensor_layout,
    };
    Ok(fb::NamedData::create(builder, &row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Ptd, ScalarType};
    use std::io::Cursor;

    fn rows() -> Vec<EntryRow> {
        let layout = |sizes: &[i64]| {
            Some(EntryLayout {
                dtype: ScalarType::BF16,
                sizes: sizes.to_vec(),
                dim_order: (0..sizes.len() as u8).rev().collect(),
            })
        };
        let row = |key: &str, layout, segment| EntryRow {
            key: key.to_owned(),
            layout,
            segment,
        };
        vec![
            row("a", layout(&[3, 5]), 0),
            row("a.again", layout(&[15]), 0),
            row("build_id", None, 1),
            row("empty", layout(&[0, 7]), 2),
            row("scalar", layout(&[]), 3),
        ]
    }

    /// A file whose largest tables are `most`.
    fn written(most: &[EntryRow], entries: &[EntryRow], alignment: u64) -> Vec<u8> {
        let mut file = Cursor::new(Vec::new());
        let mut writer = PtdWriter::new("file", &mut file, most, 4, alignment).unwrap();
        for bytes in [30, 16, 0, 2] {
            writer.begin_segment().unwrap();
            for _ in 0..bytes {
                writer.write(&[bytes]).unwrap();
            }
        }
        let length = writer.finish(entries).unwrap();
        assert_eq!(length, file.get_ref().len() as u64);
        file.into_inner()
    }

    #[test]
    fn what_is_written_is_read() {
        for alignment in [64, 128, 4096] {
            let file = written(&rows(), &rows(), alignment);
            let ptd = Ptd::parse("file", &file).unwrap();
            assert_eq!(ptd.entries().count(), rows().len());
            for row in rows() {
                let entry = ptd.entry(&row.key).unwrap();
                assert_eq!((&entry.layout, entry.segment), (&row.layout, row.segment));
                let bytes = [30, 16, 0, 2][row.segment];
                assert_eq!(file[entry.range.clone()], vec![bytes; usize::from(bytes)]);
                assert_eq!(entry.range.start as u64 % alignment.max(LEAST_ALIGNMENT), 0);
            }
        }
    }

    /// Tables of fewer layouts are never longer, wherever these are missing, and the file is whole.
    #[test]
    fn entries_may_lose_their_layouts() {
        for without in 0..1 << rows().len() {
            let mut entries = rows();
            for (at, entry) in entries.iter_mut().enumerate() {
                if without & 1 << at != 0 {
                    entry.layout = None;
                }
            }
            let file = written(&rows(), &entries, 128);
            let ptd = Ptd::parse("file", &file).unwrap();
            for row in entries {
                assert_eq!(ptd.entry(&row.key).unwrap().layout, row.layout);
            }
        }
    }

    #[test]
    fn tables_that_grow_are_refused() {
        let mut few = rows();
        few.iter_mut().for_each(|row| row.layout = None);
        let mut writer = PtdWriter::new("file", Cursor::new(Vec::new()), &few, 4, 128).unwrap();
        for _ in 0..4 {
            writer.begin_segment().unwrap();
        }
        assert!(matches!(writer.finish(&rows()), Err(Error::Internal(_))));
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        let mut large = rows();
        large[0].layout.as_mut().unwrap().sizes = vec![1 << 31, 0];
        let error = PtdWriter::new("file", Cursor::new(Vec::new()), &large, 4, 128).err();
        let error = error.unwrap().to_string();
        assert!(error.contains("file: 'a': a size"), "{error}");
        let mut writer = PtdWriter::new("file", Cursor::new(Vec::new()), &rows(), 4, 128).unwrap();
        assert!(writer.write(&[1]).is_err());
    }
}
