//! What is brought to a device: bytes of the host as they are, or stored bytes that become others on the way.

use super::{DevicePtr, HostBytes};
use crate::error::Result;
use crate::figures::{stored_of, NumberForm};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Makes the bytes of a weight from its stored ones.
pub trait Decode: Send + Sync {
    /// Fills `bytes` with the weight's bytes from `start` on. Stored bytes that nothing can be made of are an error.
    fn decode(&self, stored: &[u8], start: u64, bytes: &mut [u8]) -> Result<()>;

    /// What a device has to know that decodes by itself; `None`: only the host can.
    fn blocks(&self) -> Option<BlockCode<'_>> {
        None
    }
}

/// A weight in the code of [`format::packed`](crate::format::packed), as a decoder needs it that knows the code.
#[derive(Debug, Clone, Copy)]
pub struct BlockCode<'a> {
    /// How its numbers are made of bits.
    pub form: NumberForm,
    /// The exponents with short codes, most frequent first.
    pub exponents: [u8; 13],
    /// Bytes of the whole weight.
    pub bytes: u64,
    /// Where each block begins in the stored bytes, and whether it is raw; where the last one ends. Checked.
    pub directory: &'a [u32],
}

/// Where the bytes of a weight come from, or of a part of it: stored bytes of the host, fewer than the device needs or as many.
#[derive(Clone)]
pub struct Source {
    stored: HostBytes,
    /// Which of the weight's bytes it stands for.
    range: Range<u64>,
    /// What makes them, and how many bytes the whole weight has. `None`: the stored bytes of the range are its bytes.
    decoder: Option<(Arc<dyn Decode>, u64)>,
    /// Where the device has so many of the first stored bytes already.
    kept: Option<(DevicePtr, u64)>,
}

impl From<HostBytes> for Source {
    fn from(stored: HostBytes) -> Source {
        Source {
            range: 0..stored.len(),
            stored,
            decoder: None,
            kept: None,
        }
    }
}

impl Source {
    /// A weight of `bytes` bytes on the device, which a decoder makes of stored ones.
    pub fn decoded(stored: HostBytes, bytes: u64, decoder: Arc<dyn Decode>) -> Source {
        Source {
            stored,
            range: 0..bytes,
            decoder: Some((decoder, bytes)),
            kept: None,
        }
    }

    /// The same where the device has the first `bytes` of the stored bytes at `at`, as long as this source and its parts are brought.
    pub fn with_kept(self, kept: Option<(DevicePtr, u64)>) -> Source {
        Source { kept, ..self }
    }

    /// Where the device has so many of the first stored bytes.
    pub fn kept(&self) -> Option<(DevicePtr, u64)> {
        self.kept
    }

    /// Bytes on the device.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it stands for no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The stored bytes of a whole weight; of a part of one only where they are its bytes.
    pub fn stored(&self) -> HostBytes {
        self.stored
    }

    /// Bytes that a copy of it brings over the link.
    pub fn stored_bytes(&self) -> u64 {
        match self.decoder {
            None => self.len(),
            Some((_, whole)) => {
                let kept = self.kept.map_or(0, |(_, bytes)| bytes);
                stored_of(&self.range, whole, self.stored.len(), kept)
            }
        }
    }

    /// The bytes themselves, where nothing has to be decoded.
    pub fn as_stored(&self) -> Option<HostBytes> {
        self.decoder.is_none().then_some(self.stored)
    }

    /// The bytes `range` of these. Panics if the range is not inside: ranges are the policies' own.
    pub fn part(&self, range: Range<u64>) -> Source {
        let inside = range.start <= range.end && range.end <= self.len();
        assert!(inside, "range outside of a weight's bytes");
        Source {
            stored: match self.decoder {
                None => self.stored.slice(range.clone()),
                Some(_) => self.stored,
            },
            range: self.range.start + range.start..self.range.start + range.end,
            decoder: self.decoder.clone(),
            kept: self.kept,
        }
    }

    /// These bytes and `next` as one, if nothing is decoded and `next` begins where these end.
    pub fn followed_by(&self, next: &Source) -> Option<Source> {
        let joined = self.as_stored()?.followed_by(next.as_stored()?)?;
        Some(joined.into())
    }

    /// What a device has to know that decodes by itself.
    pub fn blocks(&self) -> Option<BlockCode<'_>> {
        let (decoder, _) = self.decoder.as_ref()?;
        decoder.blocks()
    }

    /// Which of the weight's bytes these are.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Writes the bytes to `bytes`, which is as long. Stored bytes that nothing can be made of are an error.
    ///
    /// # Safety
    /// `bytes` is no memory of the stored bytes. These are readable, by the promise in [`HostBytes::new`].
    pub(crate) unsafe fn write_to(&self, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.write_with(&[], bytes) }
    }

    /// The same where these are the first of the stored bytes, whatever is in the file.
    ///
    /// # Safety
    /// As for [`Source::write_to`].
    pub(crate) unsafe fn write_with(&self, kept: &[u8], bytes: &mut [u8]) -> Result<()> {
        // SAFETY: readable and unchanged, by the caller's promise.
        let stored = unsafe {
            match self.stored.is_empty() {
                true => &[],
                false => {
                    std::slice::from_raw_parts(self.stored.as_ptr(), self.stored.len() as usize)
                }
            }
        };
        match &self.decoder {
            Some((decoder, _)) if kept.is_empty() => {
                decoder.decode(stored, self.range.start, bytes)
            }
            Some((decoder, _)) => {
                let all = [kept, &stored[kept.len()..]].concat();
                decoder.decode(&all, self.range.start, bytes)
            }
            None => {
                bytes.copy_from_slice(stored);
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.decoder.is_some() {
            "decoded"
        } else {
            "as stored"
        };
        write!(f, "bytes {:?}, {how}, of {:?}", self.range, self.stored)
    }
}
