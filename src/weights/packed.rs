//! Weights that a data file has packed: what it says of them, checked, and their raw bytes.
#![deny(unsafe_code)]

use std::collections::BTreeMap;

use super::{NamedData, SharedBytes};
use crate::error::{Error, Result};
use crate::format::packed::{
    directory_of, read_table, Directory, PackedEntry, PackedHeader, TABLE_KEY,
};

/// A packed weight without its bytes: how they become the raw ones.
#[derive(Debug, Clone)]
pub struct PackedWeight {
    /// What errors call it.
    name: String,
    header: PackedHeader,
    /// CRC-32 of the stored bytes.
    crc32: u32,
    directory: Vec<u32>,
    /// Bytes of the payload.
    payload: usize,
}

/// The packed entries of a data file, by key. A file without a table has none.
pub fn packed_entries(data: &dyn NamedData) -> Result<BTreeMap<String, PackedEntry>> {
    match data.bytes(TABLE_KEY) {
        Ok(table) => read_table(data.name(), 0, table.as_slice()),
        Err(Error::Missing { .. }) => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

impl PackedWeight {
    /// The weight of these stored bytes, which errors call `name`; its directory is checked. Reads no other of them.
    pub fn new(
        name: String,
        header: PackedHeader,
        crc32: u32,
        stored: &SharedBytes,
    ) -> Result<Self> {
        let bytes = stored.as_slice();
        let parts = header.parts(bytes.len()).ok_or_else(|| Error::Mismatch {
            name: name.clone(),
            fact: "number of stored bytes",
            expected: format!("blocks and a directory for {} raw bytes", header.bytes),
            found: bytes.len().to_string(),
        })?;
        let directory = directory_of(&bytes[parts.directory]);
        let payload = parts.payload.len();
        Directory::new(&name, &header, &directory, payload as u64)?;
        Ok(PackedWeight {
            name,
            header,
            crc32,
            directory,
            payload,
        })
    }

    /// What a decoder has to know.
    pub fn header(&self) -> &PackedHeader {
        &self.header
    }

    /// Where each block begins in the payload, and whether it is raw; where the last one ends.
    pub fn directory(&self) -> &[u32] {
        &self.directory
    }

    /// Raw bytes of the weight.
    pub fn bytes(&self) -> u64 {
        self.header.bytes
    }

    /// Fills `out` with the raw bytes from `start` on. After an error `out` has some of them.
    pub fn decode(&self, stored: &[u8], start: u64, out: &mut [u8]) -> Result<()> {
        let end = start.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.bytes()) {
            return Err(Error::Mismatch {
                name: self.name.clone(),
                fact: "range of bytes",
                expected: format!("one within 0..{}", self.bytes()),
                found: format!("{} bytes from {start} on", out.len()),
            });
        }
        let payload = stored.get(..self.payload).unwrap_or_default();
        // What begins or ends inside of a block is cut out of that block.
        let full = self.header.full_block();
        let block = full as u64;
        let before = ((start.next_multiple_of(block) - start) as usize).min(out.len());
        let (head, rest) = out.split_at_mut(before);
        let after = match end == Some(self.bytes()) {
            true => 0,
            false => rest.len() % full,
        };
        let whole = rest.len() - after;
        let (rest, tail) = rest.split_at_mut(whole);
        let at = start + before as u64;
        self.decode_inside(payload, start, head)?;
        self.decode_blocks(payload, (at / block) as u32, rest)?;
        self.decode_inside(payload, at + whole as u64, tail)
    }

    /// Bytes from the middle of a block on, or up to it.
    fn decode_inside(&self, payload: &[u8], start: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let full = self.header.full_block() as u64;
        let (index, skipped) = (start / full, (start % full) as usize);
        let mut block = vec![0; self.header.block_bytes(index)];
        self.decode_blocks(payload, index as u32, &mut block)?;
        out.copy_from_slice(&block[skipped..skipped + out.len()]);
        Ok(())
    }

    /// Whole blocks from this one on; the last one of the weight may be short.
    fn decode_blocks(&self, payload: &[u8], first: u32, out: &mut [u8]) -> Result<()> {
        let blocks = self.blocks();
        let wanted = first..first + out.len().div_ceil(self.header.full_block()) as u32;
        let span = blocks.span(wanted.clone())?;
        let piece = payload.get(span.start as usize..).unwrap_or_default();
        blocks.decode(wanted, piece, out)
    }

    /// CRC-32 of the raw bytes. First the stored bytes are compared with theirs.
    pub fn raw_crc32(&self, stored: &[u8]) -> Result<u32> {
        let found = crc32fast::hash(stored);
        if found != self.crc32 {
            return Err(Error::Mismatch {
                name: self.name.clone(),
                fact: "CRC-32 of its stored bytes",
                expected: format!("{:08x} (of when it was packed)", self.crc32),
                found: format!("{found:08x}: the data is damaged; pack it again"),
            });
        }
        let mut hasher = crc32fast::Hasher::new();
        let mut piece = vec![0; 128 * self.header.full_block()];
        let mut at = 0;
        while at < self.bytes() {
            let length = (self.bytes() - at).min(piece.len() as u64);
            let piece = &mut piece[..length as usize];
            self.decode(stored, at, piece)?;
            hasher.update(piece);
            at += length;
        }
        Ok(hasher.finalize())
    }

    fn blocks(&self) -> Directory<'_> {
        Directory::checked_before(&self.name, &self.header, &self.directory)
    }
}
