//! An array into a directory and a payload. Before a block is written, it is decoded and compared.

use std::io::Write;

use super::decode::BlockDecoder;
use super::encode::BlockEncoder;
use super::histogram::Histogram;
use super::layout::{PackedHeader, PADDING, RAW, UNIT};
use crate::error::{Error, Result};
use crate::figures::NumberForm;

/// An array in packed form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedArray {
    /// What a decoder has to know besides the directory.
    pub header: PackedHeader,
    /// Where each block begins and whether it is stored raw. The last entry says where the last
    /// block ends.
    pub directory: Vec<u32>,
    /// The blocks and the padding.
    pub payload: Vec<u8>,
}

impl PackedArray {
    /// Bytes of directory and payload.
    pub fn bytes(&self) -> u64 {
        4 * self.directory.len() as u64 + self.payload.len() as u64
    }
}

/// Packs an array of such numbers that is in memory.
pub fn encode(form: NumberForm, raw: &[u8]) -> Result<PackedArray> {
    let mut histogram = Histogram::new(form);
    histogram.add(raw);
    let header = histogram.header();
    let mut payload = Vec::with_capacity(raw.len() / 10 * 7);
    let mut writer = PackedWriter::new("packed array", header, &mut payload);
    writer.write(raw)?;
    let directory = writer.finish()?;
    Ok(PackedArray {
        header,
        directory,
        payload,
    })
}

/// Packs an array whose raw bytes come in pieces. It holds one block and the directory.
pub struct PackedWriter<'a, W: Write> {
    /// Name of the array, for errors.
    name: &'a str,
    header: PackedHeader,
    to: W,
    encoder: BlockEncoder,
    decoder: BlockDecoder,
    directory: Vec<u32>,
    /// Bytes that were given.
    given: u64,
    /// Units that were written.
    units: u64,
    /// Raw bytes of a block that is not full yet.
    pending: Vec<u8>,
    block: Vec<u8>,
    again: Vec<u8>,
}

impl<'a, W: Write> PackedWriter<'a, W> {
    /// `header` comes from the histogram of the array. Exponents of another array cost bytes, no
    /// more.
    pub fn new(name: &'a str, header: PackedHeader, to: W) -> Self {
        PackedWriter {
            name,
            to,
            encoder: BlockEncoder::new(&header),
            decoder: BlockDecoder::new(&header),
            directory: Vec::new(),
            given: 0,
            units: 0,
            pending: Vec::with_capacity(header.full_block()),
            block: Vec::with_capacity(header.full_block() + UNIT),
            again: vec![0; header.full_block()],
            header,
        }
    }

    /// Takes the next raw bytes of the array, of any length.
    pub fn write(&mut self, mut raw: &[u8]) -> Result<()> {
        let full = self.header.full_block();
        self.given += raw.len() as u64;
        if !self.pending.is_empty() {
            let missing = (full - self.pending.len()).min(raw.len());
            let (first, rest) = raw.split_at(missing);
            self.pending.extend_from_slice(first);
            raw = rest;
            self.write_pending(full)?;
        }
        let mut blocks = raw.chunks_exact(full);
        blocks.try_for_each(|block| self.write_block(block))?;
        self.pending.extend_from_slice(blocks.remainder());
        Ok(())
    }

    /// Writes the last block and the padding. Returns the directory.
    pub fn finish(mut self) -> Result<Vec<u32>> {
        if self.given != self.header.bytes {
            return Err(Error::Mismatch {
                name: self.name.to_owned(),
                fact: "number of bytes",
                expected: format!("{} (its header)", self.header.bytes),
                found: format!("{} (given)", self.given),
            });
        }
        self.write_pending(1)?;
        self.directory.push(self.entry(false)?);
        self.put(&[0; PADDING])?;
        Ok(self.directory)
    }

    /// Writes the pending block if it has at least so many bytes.
    fn write_pending(&mut self, least: usize) -> Result<()> {
        let mut raw = std::mem::take(&mut self.pending);
        if raw.len() >= least {
            self.write_block(&raw)?;
            raw.clear();
        }
        self.pending = raw;
        Ok(())
    }

    fn write_block(&mut self, raw: &[u8]) -> Result<()> {
        let mut block = std::mem::take(&mut self.block);
        block.clear();
        let coded = self.encoder.append(raw, &mut block);
        self.directory.push(self.entry(!coded)?);
        if coded {
            self.compare(&block, raw)?;
        }
        self.units += (block.len() / UNIT) as u64;
        self.put(&block)?;
        self.block = block;
        Ok(())
    }

    fn compare(&mut self, block: &[u8], raw: &[u8]) -> Result<()> {
        let again = &mut self.again[..raw.len()];
        let decoded = self.decoder.decode(block, again);
        if decoded.is_ok() && again == raw {
            return Ok(());
        }
        let number = self.directory.len() - 1;
        let why = decoded.err().map_or("other bytes", |_| "an error");
        let name = self.name;
        Err(Error::Internal(format!(
            "{name}: block {number} decodes to {why}"
        )))
    }

    /// The directory's entry for the next block.
    fn entry(&self, raw: bool) -> Result<u32> {
        let units = u32::try_from(self.units)
            .ok()
            .filter(|units| units & RAW == 0);
        let units = units.ok_or_else(|| {
            let most = u64::from(RAW) * UNIT as u64;
            Error::Unsupported(format!("{}: packed bytes of {most} or more", self.name))
        })?;
        Ok(units | if raw { RAW } else { 0 })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes).map_err(|error| Error::Io {
            file: self.name.to_owned(),
            what: format!("writing packed weights: {error}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(exponent: u8) -> PackedHeader {
        PackedHeader {
            form: NumberForm::Bf16,
            bytes: 8192,
            exponents: [exponent; 13],
        }
    }

    #[test]
    fn a_block_that_decodes_to_something_else_is_not_written() {
        let mut writer = PackedWriter::new("layers.0.q", header(7), Vec::new());
        writer.decoder = BlockDecoder::new(&header(8));
        let sevens = [0x80, 3].repeat(4096);
        let error = writer.write(&sevens).unwrap_err();
        let expected = "layers.0.q: block 0 decodes to other bytes".to_owned();
        assert_eq!(error, Error::Internal(expected));
        assert_eq!(writer.to.len(), 0);
    }

    #[test]
    fn an_array_that_a_directory_cannot_address_is_refused() {
        let mut writer = PackedWriter::new("layers.0.q", header(7), Vec::new());
        writer.units = u64::from(RAW) - 1;
        assert_eq!(writer.entry(true), Ok(u32::MAX));
        writer.units += 1;
        let error = writer.entry(false).unwrap_err().to_string();
        assert!(error.contains("34359738368 or more"), "{error}");
    }
}
