//! An array into its stored bytes, by several threads. Blocks do not depend on one another: each
//! thread codes a chunk of whole blocks, and chunks are joined in their order. So the stored bytes are
//! the same for any number of threads.
//!
//! Chunks are coded in rounds, one for each thread. While a round is coded, the one before it is handed
//! out. Memory: two chunks for each thread, and the directory.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use super::histogram::Histogram;
use super::layout::{PackedHeader, MOST_BLOCK_BYTES, PADDING, RAW, UNIT};
use super::writer::PackedWriter;
use crate::error::{Error, Result};
use crate::figures::NumberForm;

/// Most raw bytes of a chunk.
pub(super) const CHUNK_BYTES: usize = 256 * MOST_BLOCK_BYTES;
/// Fewest, but for the last chunk: less is done sooner than a thread starts.
pub(super) const LEAST_CHUNK_BYTES: usize = 16 * MOST_BLOCK_BYTES;

/// What the first pass over an array found.
#[derive(Debug, Clone)]
pub struct Counted {
    /// Its exponents.
    pub histogram: Histogram,
    /// CRC-32 of its raw bytes.
    pub crc32: u32,
}

/// What was handed out of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of payload and directory.
    pub bytes: u64,
    /// Their CRC-32.
    pub crc32: u32,
}

/// Counts the exponents of the numbers in `raw` and computes its CRC-32.
pub fn count(name: &str, form: NumberForm, raw: &[u8], threads: usize) -> Result<Counted> {
    let mut histogram = Histogram::new(form);
    let mut crc32 = crc32fast::Hasher::new();
    let one = |chunk: &[u8]| {
        let mut histogram = Histogram::new(form);
        histogram.add(chunk);
        let mut crc32 = crc32fast::Hasher::new();
        crc32.update(chunk);
        Ok((histogram, crc32))
    };
    in_rounds(name, raw, threads, one, |_, (next, next_crc32)| {
        histogram.merge(&next);
        crc32.combine(&next_crc32);
        Ok(())
    })?;
    Ok(Counted {
        histogram,
        crc32: crc32.finalize(),
    })
}

/// Codes `raw`. `put` gets the stored bytes piece by piece, each with the number of raw bytes that it
/// stands for.
pub fn store(
    name: &str,
    raw: &[u8],
    header: &PackedHeader,
    threads: usize,
    mut put: impl FnMut(&[u8], usize) -> Result<()>,
) -> Result<Stored> {
    let mut joined = Joined::default();
    let one = |chunk: &[u8]| Chunk::code(name, chunk, header);
    in_rounds(name, raw, threads, one, |raw_bytes, chunk| {
        joined.add(name, &chunk)?;
        put(&chunk.payload, raw_bytes)
    })?;
    let (end, stored) = joined.finish(name)?;
    put(&end, 0)?;
    Ok(stored)
}

/// Whole blocks; small arrays are cut so that each thread gets some.
fn chunk_bytes(raw: usize, threads: usize) -> usize {
    let each = raw.div_ceil(threads).next_multiple_of(MOST_BLOCK_BYTES);
    each.clamp(LEAST_CHUNK_BYTES, CHUNK_BYTES)
}

/// Does `one` for each chunk of `raw`, `threads` of them at a time. `take` gets the number of raw bytes
/// of each and what came of it, in their order.
fn in_rounds<T: Send>(
    name: &str,
    raw: &[u8],
    threads: usize,
    one: impl Fn(&[u8]) -> Result<T> + Sync,
    mut take: impl FnMut(usize, T) -> Result<()>,
) -> Result<()> {
    let threads = threads.max(1);
    let chunk_bytes = chunk_bytes(raw.len(), threads);
    let mut before: Vec<(usize, T)> = Vec::new();
    for round in raw.chunks(chunk_bytes.saturating_mul(threads)) {
        let one = &one;
        before = std::thread::scope(|scope| {
            let running = round.chunks(chunk_bytes);
            let running =
                running.map(|chunk| start(name, scope, move || Ok((chunk.len(), one(chunk)?))));
            let running = running.collect::<Result<Vec<_>>>()?;
            for (bytes, done) in before.drain(..) {
                take(bytes, done)?;
            }
            running
                .into_iter()
                .map(|thread| end(name, thread))
                .collect::<Result<Vec<_>>>()
        })?;
    }
    before
        .into_iter()
        .try_for_each(|(bytes, done)| take(bytes, done))
}

fn start<'scope, T: Send + 'scope>(
    name: &str,
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> Result<T> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<T>>> {
    let started = Builder::new().spawn_scoped(scope, work);
    started.map_err(|error| {
        Error::Unsupported(format!(
            "{name}: the system starts no thread for it: {error}; take fewer threads"
        ))
    })
}

fn end<T>(name: &str, thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    let ended = thread.join();
    ended.unwrap_or_else(|_| {
        Err(Error::Internal(format!(
            "{name}: a thread that packs it panicked"
        )))
    })
}

/// Some blocks of an array, coded.
struct Chunk {
    /// Counts from the chunk's own begin.
    directory: Vec<u32>,
    /// Without padding.
    payload: Vec<u8>,
    crc32: crc32fast::Hasher,
}

impl Chunk {
    fn code(name: &str, raw: &[u8], whole: &PackedHeader) -> Result<Chunk> {
        let header = PackedHeader {
            bytes: raw.len() as u64,
            ..*whole
        };
        let mut payload = Vec::with_capacity(raw.len() / 10 * 7);
        let mut writer = PackedWriter::new(name, header, &mut payload);
        writer.write(raw)?;
        let directory = writer.finish()?;
        payload.truncate(payload.len() - PADDING);
        let mut crc32 = crc32fast::Hasher::new();
        crc32.update(&payload);
        Ok(Chunk {
            directory,
            payload,
            crc32,
        })
    }
}

/// The chunks so far.
#[derive(Default)]
struct Joined {
    directory: Vec<u32>,
    units: u64,
    crc32: crc32fast::Hasher,
}

impl Joined {
    fn add(&mut self, name: &str, chunk: &Chunk) -> Result<()> {
        // The last entry is where the chunk ends, which the next one says again.
        let blocks = chunk.directory.len().saturating_sub(1);
        for &entry in &chunk.directory[..blocks] {
            let moved = self.units + u64::from(entry & !RAW);
            self.directory.push(address(name, moved)? | entry & RAW);
        }
        self.units += (chunk.payload.len() / UNIT) as u64;
        self.crc32.combine(&chunk.crc32);
        Ok(())
    }

    /// The padding and the directory.
    fn finish(mut self, name: &str) -> Result<(Vec<u8>, Stored)> {
        self.directory.push(address(name, self.units)?);
        let mut end = vec![0; PADDING];
        end.extend(self.directory.iter().flat_map(|entry| entry.to_le_bytes()));
        self.crc32.update(&end);
        let stored = Stored {
            bytes: self.units * UNIT as u64 + end.len() as u64,
            crc32: self.crc32.finalize(),
        };
        Ok((end, stored))
    }
}

fn address(name: &str, units: u64) -> Result<u32> {
    let units = u32::try_from(units).ok().filter(|units| units & RAW == 0);
    units.ok_or_else(|| {
        let most = u64::from(RAW) * UNIT as u64;
        Error::Unsupported(format!("{name}: packed bytes of {most} or more"))
    })
}
