//! A directory, checked, and with it blocks of a payload into elements.

use std::ops::Range;

use super::super::malformed;
use super::decode::{BlockDecoder, Damage};
use super::layout::{fixed_bytes, whole_units, PackedHeader, PADDING, RAW, UNIT};
use crate::error::{Error, Result};

/// A directory whose blocks cover the payload, each with a length that a block can have.
#[derive(Debug, Clone, Copy)]
pub struct Directory<'a> {
    file: &'a str,
    header: &'a PackedHeader,
    entries: &'a [u32],
}

/// Where a block is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPlace {
    /// Its bytes in the payload.
    pub bytes: Range<u64>,
    /// Whether these are the raw bytes, and zeros after them.
    pub raw: bool,
}

/// Decodes blocks of a whole payload into their raw bytes. After an error `out` has some of them.
pub fn decode(
    file: &str,
    header: &PackedHeader,
    directory: &[u32],
    payload: &[u8],
    blocks: Range<u32>,
    out: &mut [u8],
) -> Result<()> {
    let directory = Directory::new(file, header, directory, payload.len() as u64)?;
    let span = directory.span(blocks.clone())?;
    let piece = payload.get(span.start as usize..).unwrap_or_default();
    directory.decode(blocks, piece, out)
}

impl<'a> Directory<'a> {
    /// Checks the directory of a payload of so many bytes. `file` names the array in errors.
    pub fn new(
        file: &'a str,
        header: &'a PackedHeader,
        entries: &'a [u32],
        payload: u64,
    ) -> Result<Self> {
        let directory = Directory {
            file,
            header,
            entries,
        };
        let expected = header.blocks().saturating_add(1);
        if entries.len() as u64 != expected {
            let found = entries.len();
            let what = format!("expected {expected} directory entries, found {found}");
            return Err(malformed(file, 4 * found, what));
        }
        directory.check_ends(payload)?;
        (0..entries.len() - 1).try_for_each(|number| directory.check_entry(number))?;
        Ok(directory)
    }

    /// A directory that was checked before, by [`Directory::new`].
    pub fn checked_before(file: &'a str, header: &'a PackedHeader, entries: &'a [u32]) -> Self {
        Directory {
            file,
            header,
            entries,
        }
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u32 {
        // Each block has an entry of its own between 0 and 2^31.
        (self.entries.len() - 1) as u32
    }

    /// Where block `index` is; `None` if there is no such block.
    pub fn block(&self, index: u32) -> Option<BlockPlace> {
        let two = self.entries.get(index as usize..)?.get(..2)?;
        Some(BlockPlace {
            bytes: offset(two[0])..offset(two[1]),
            raw: two[0] & RAW != 0,
        })
    }

    /// The bytes of these blocks in the payload.
    pub fn span(&self, blocks: Range<u32>) -> Result<Range<u64>> {
        let two = [blocks.start, blocks.end].map(|index| self.entries.get(index as usize));
        match two {
            [Some(&begin), Some(&end)] if blocks.start <= blocks.end => {
                Ok(offset(begin)..offset(end))
            }
            _ => Err(Error::Mismatch {
                name: self.file.to_owned(),
                fact: "range of blocks",
                expected: format!("one within 0..{}", self.blocks()),
                found: format!("{blocks:?}"),
            }),
        }
    }

    /// The raw bytes of these blocks in the array.
    pub fn raw_span(&self, blocks: Range<u32>) -> Result<Range<u64>> {
        self.span(blocks.clone())?;
        let full = self.header.full_block() as u64;
        let at = |block: u32| (u64::from(block) * full).min(self.header.bytes);
        Ok(at(blocks.start)..at(blocks.end))
    }

    /// Decodes these blocks into their raw bytes. `piece` is the payload from the first of them on.
    /// After an error `out` has some of them.
    pub fn decode(&self, blocks: Range<u32>, piece: &[u8], out: &mut [u8]) -> Result<()> {
        let (span, raw) = (self.span(blocks.clone())?, self.raw_span(blocks.clone())?);
        if out.len() as u64 != raw.end - raw.start {
            return Err(Error::Mismatch {
                name: self.file.to_owned(),
                fact: "number of raw bytes",
                expected: format!("{} (blocks {blocks:?})", raw.end - raw.start),
                found: format!("{} (the buffer)", out.len()),
            });
        }
        let mut decoder = BlockDecoder::new(self.header);
        for (index, out) in blocks.zip(out.chunks_mut(self.header.full_block())) {
            self.decode_block(&mut decoder, index, span.start, piece, out)?;
        }
        Ok(())
    }

    /// `base` is where the piece begins in the payload.
    fn decode_block(
        &self,
        decoder: &mut BlockDecoder,
        index: u32,
        base: u64,
        piece: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        let place = self.span(index..index + 1)?;
        let within = (place.start - base) as usize..(place.end - base) as usize;
        let Some(block) = piece.get(within) else {
            let found = base + piece.len() as u64;
            let end = place.end;
            let what =
                format!("block {index}: expected its end at {end}, found the payload's at {found}");
            return Err(malformed(self.file, place.start, what));
        };
        if self.entries[index as usize] & RAW != 0 {
            // The directory was checked: a raw block is at least as long as its raw bytes.
            out.copy_from_slice(&block[..out.len()]);
            return Ok(());
        }
        decoder.decode(block, out).map_err(|Damage { at, what }| {
            let what = format!("block {index} at {}: {what}", place.start);
            malformed(self.file, place.start + at as u64, what)
        })
    }

    /// The first block begins at 0; the last one ends where the padding begins.
    fn check_ends(&self, payload: u64) -> Result<()> {
        let (first, last) = (self.entries[0], self.entries[self.entries.len() - 1]);
        if offset(first) != 0 {
            let found = offset(first);
            return Err(self.wrong(0, format!("expected offset 0, found {found}")));
        }
        let index = self.entries.len() - 1;
        if last & RAW != 0 {
            return Err(self.wrong(index, "expected an end, found a raw block".to_owned()));
        }
        let found = offset(last) + PADDING as u64;
        if found != payload {
            let what = format!(
                "expected a payload of {payload} bytes with its padding, found an end at {found}"
            );
            return Err(self.wrong(index, what));
        }
        Ok(())
    }

    /// Entry and next entry are as far apart as a block can be long.
    fn check_entry(&self, number: usize) -> Result<()> {
        let [begin, end] = [number, number + 1].map(|i| offset(self.entries[i]));
        if end <= begin {
            let what = format!("expected an offset after {begin}, found {end}");
            return Err(self.wrong(number + 1, what));
        }
        let (bytes, found) = (self.header.block_bytes(number as u64), end - begin);
        let stored = whole_units(bytes) as u64;
        let raw = self.entries[number] & RAW != 0;
        let (form, element) = (self.header.form, self.header.form.bytes());
        let least = whole_units(fixed_bytes(form, bytes / element)) as u64;
        let (least, most) = match raw {
            true => (stored, stored),
            // A block that gains nothing is stored raw, so a buffer of raw size holds any block.
            false => (least, stored - UNIT as u64),
        };
        if (raw || bytes.is_multiple_of(element)) && (least..=most).contains(&found) {
            return Ok(());
        }
        let kind = if raw { "raw" } else { "coded" };
        let what = format!(
            "a {kind} block at {begin} of {bytes} raw bytes: \
             expected {least} to {most} bytes, found {found}"
        );
        Err(self.wrong(number, what))
    }

    fn wrong(&self, entry: usize, what: String) -> Error {
        malformed(
            self.file,
            4 * entry,
            format!("directory entry {entry}: {what}"),
        )
    }
}

/// Where the block of an entry begins in the payload.
fn offset(entry: u32) -> u64 {
    u64::from(entry & !RAW) * UNIT as u64
}
