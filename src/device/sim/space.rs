//! A range of addresses with real bytes behind it. First fit, so that freed memory is used again as soon as it can be,
//! also by other sizes, and so that free memory in pieces serves nothing that is larger than each of them.

use super::regions::Regions;
use crate::device::{DevicePtr, HostBytes, Source};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// What memory holds that nobody wrote to, or that was given up.
pub(super) const POISON: u8 = 0xDB;

/// Alignment of everything that is handed out.
const ALIGNMENT: u64 = 64;

#[derive(Debug)]
pub(super) struct Space {
    base: u64,
    /// Bytes from `base` on that may be handed out at all.
    limit: Option<u64>,
    bytes: Vec<u8>,
    /// Live blocks: start and length.
    live: BTreeMap<u64, u64>,
    pub(super) regions: Regions,
}

impl Space {
    pub(super) fn new(base: u64) -> Space {
        Space {
            base,
            limit: None,
            bytes: Vec::new(),
            live: BTreeMap::new(),
            regions: Regions::default(),
        }
    }

    pub(super) fn limit(&mut self, bytes: u64) {
        self.limit = Some(bytes);
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live.values().sum()
    }

    pub(super) fn live_blocks(&self) -> usize {
        self.live.len()
    }

    /// Hands out the lowest piece that is large enough.
    pub(super) fn take(&mut self, what: &str, bytes: u64) -> Result<DevicePtr> {
        self.take_in(what, bytes, 0)
    }

    /// The same where memory comes in pages: the last one may lie behind the limit in part.
    pub(super) fn take_in(&mut self, what: &str, bytes: u64, page: u64) -> Result<DevicePtr> {
        let mut at = self.base;
        let mut largest = 0;
        for (start, len) in &self.live {
            if start - at >= bytes {
                break;
            }
            largest = largest.max(start - at);
            at = (start + len).next_multiple_of(ALIGNMENT);
        }
        let end = at.saturating_add(bytes);
        let limit = self.limit.map(|limit| limit + page);
        if let Some(limit) = limit.filter(|limit| end > self.base + limit) {
            let rest = (self.base + limit).saturating_sub(at);
            return Err(Error::OutOfMemory {
                what: format!(
                    "{what}: {} of {limit} bytes are free, in pieces of at most {}",
                    limit - self.live_bytes().min(limit),
                    largest.max(rest)
                ),
                bytes,
            });
        }
        let needed = (end - self.base) as usize;
        if needed > self.bytes.len() {
            self.bytes.resize(needed, POISON);
        }
        self.live.insert(at, bytes);
        Ok(DevicePtr(at))
    }

    /// Takes a block back. Its bytes are still to be poisoned, when the stream gets there.
    pub(super) fn give(&mut self, ptr: DevicePtr, bytes: u64) -> Result<Range<u64>> {
        match self.live.get(&ptr.0) {
            Some(&len) if len == bytes => {
                self.live.remove(&ptr.0);
                Ok(ptr.0..ptr.0 + bytes)
            }
            _ => Err(Error::Internal(format!(
                "{bytes} bytes at {:#x} were freed that are no block",
                ptr.0
            ))),
        }
    }

    /// The addresses of `bytes` bytes, if they lie within one live block.
    pub(super) fn within(&self, ptr: DevicePtr, bytes: u64) -> Option<Range<u64>> {
        let end = ptr.0.checked_add(bytes)?;
        let (start, len) = self.live.range(..=ptr.0).next_back()?;
        (end <= start + len).then_some(ptr.0..end)
    }

    pub(super) fn bytes(&self, range: &Range<u64>) -> &[u8] {
        &self.bytes[self.indices(range)]
    }

    pub(super) fn bytes_mut(&mut self, range: &Range<u64>) -> &mut [u8] {
        let indices = self.indices(range);
        &mut self.bytes[indices]
    }

    fn indices(&self, range: &Range<u64>) -> Range<usize> {
        (range.start - self.base) as usize..(range.end - self.base) as usize
    }
}

/// The bytes of a source. As for [`read`].
#[allow(unsafe_code)]
pub(super) fn fill(src: &Source, kept: &[u8], bytes: &mut [u8]) {
    // SAFETY: readable by the same promise; `bytes` is this device's own.
    let written = unsafe { src.write_with(kept, bytes) };
    written.expect("the simulator is given bytes that can be decoded");
}

/// The bytes behind a promise. With `fill` the only place where this device reads what it does not own.
#[allow(unsafe_code)]
pub(super) fn read(src: &HostBytes) -> &[u8] {
    match src.is_empty() {
        true => &[],
        // SAFETY: readable and unchanged as long as the device lives, by the promise in `HostBytes::new`; the
        // result is used while the device runs what it was handed.
        false => unsafe { std::slice::from_raw_parts(src.as_ptr(), src.len() as usize) },
    }
}
