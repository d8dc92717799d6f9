//! Memory that comes and goes under addresses that stay: what ranges are made of.
//!
//! ```text
//! addresses, reserved:  | unit 0 | unit 1 | unit 2 | u 3 |    a whole number of pages; the last unit may be short
//! memory:                 there    there    -        -       an access without memory is a fault
//! ```
//!
//! # Contract
//! - Taking memory away acts at once, on the host. It waits for no stream and orders nothing. The caller takes a unit only when
//!   the events of all its users are complete.
//! - Memory that was put behind a unit holds nothing of value.
//! - What would touch memory that it does not own a device refuses, so that nothing above needs unsafe code.
//! - A failed call changes nothing, but for memory that was kept.

use super::DevicePtr;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt::Debug;

/// Units of memory of one device, and the events of those who use them.
pub trait Units: Send {
    /// A point in a stream.
    type Event: Send + Sync;

    /// A stream of the caller's.
    type Stream: Copy + PartialEq + Send + Debug;

    /// The device: `cpu`, `cuda:0`.
    fn name(&self) -> &str;

    /// Sizes are rounded up to this many bytes.
    fn page(&self) -> u64;

    /// Bytes that come and go together, a multiple of the page.
    fn unit(&self) -> u64;

    /// Addresses without memory, a multiple of the page.
    fn reserve(&mut self, bytes: u64) -> Result<DevicePtr>;

    /// Gives back what [`Units::reserve`] returned. All memory was taken away before.
    fn release(&mut self, start: DevicePtr) -> Result<()>;

    /// Puts memory behind `bytes` bytes from `at` on, which are reserved and have none: what [`Units::take`] kept if the size is the
    /// same, else new memory.
    fn back(&mut self, at: DevicePtr, bytes: u64) -> Result<()>;

    /// Puts the memory behind `of`, a unit, behind `at` as well, whose addresses are reserved and have none. A byte that is written
    /// at one of them is seen at the other. The memory goes once it was taken from all of them.
    fn mirror(&mut self, at: DevicePtr, of: DevicePtr) -> Result<()>;

    /// Takes away what [`Units::back`] or [`Units::mirror`] put behind `at`. With `keep` the memory stays for the next
    /// [`Units::back`], unless it shows elsewhere.
    fn take(&mut self, at: DevicePtr, keep: bool) -> Result<()>;

    /// Gives memory that was kept back to the system.
    fn trim(&mut self) -> Result<()> {
        Ok(())
    }

    /// An event after everything that was issued to the stream.
    fn record(&mut self, stream: Self::Stream) -> Result<Self::Event>;

    /// What is issued to the stream later waits for `event`.
    fn stream_wait(&mut self, stream: Self::Stream, event: &Self::Event) -> Result<()>;

    /// Whether everything before `event` is complete. Never blocks.
    fn is_done(&self, event: &Self::Event) -> Result<bool>;

    /// Blocks until it is.
    fn wait(&mut self, event: &Self::Event) -> Result<()>;

    /// Memory of the device that nobody uses now.
    fn free_bytes(&self) -> Result<u64>;
}

/// A stream of the caller's that uses units: a `CUstream` or `cudaStream_t`. On the CPU it is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserStream(usize);

impl UserStream {
    /// Null is the default stream, in its legacy meaning.
    ///
    /// # Safety
    /// `stream` is null or a stream that exists until all leases that were given to it have ended and the range was called once more.
    pub unsafe fn new(stream: *mut c_void) -> UserStream {
        // The default stream has two names.
        UserStream(match stream.addr() {
            1 => 0,
            other => other,
        })
    }

    /// The default stream.
    pub const DEFAULT: UserStream = UserStream(0);

    pub(super) fn raw(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0)
    }
}

/// Which addresses are reserved, and which of them have memory. The same for all devices; `T` is what a device knows of a unit's
/// memory.
#[derive(Debug)]
pub(super) struct UnitTable<T> {
    reserved: BTreeMap<u64, u64>,
    backed: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for UnitTable<T> {
    fn default() -> Self {
        UnitTable {
            reserved: BTreeMap::new(),
            backed: BTreeMap::new(),
        }
    }
}

impl<T> UnitTable<T> {
    pub fn add(&mut self, start: DevicePtr, bytes: u64) {
        self.reserved.insert(start.0, bytes);
    }

    /// Refuses what is no start of reserved addresses, or has memory.
    pub fn check_released(&self, start: DevicePtr) -> Result<u64> {
        let bytes = *self.reserved.get(&start.0).ok_or_else(|| stray(start, 0))?;
        match self.backed.range(start.0..start.0 + bytes).next() {
            None => Ok(bytes),
            Some((at, _)) => Err(Error::Internal(format!(
                "addresses at {:#x} are given back while the unit at {at:#x} has memory",
                start.0
            ))),
        }
    }

    pub fn remove(&mut self, start: DevicePtr) {
        self.reserved.remove(&start.0);
    }

    /// Refuses addresses that are not reserved, or of which some have memory.
    pub fn check_back(&self, at: DevicePtr, bytes: u64) -> Result<()> {
        let end = at.0.checked_add(bytes).ok_or_else(|| stray(at, bytes))?;
        let inside = |(start, size): (&u64, &u64)| end <= start + size;
        let reserved = self.reserved.range(..=at.0).next_back().is_some_and(inside);
        let before = self.backed.range(..end).next_back();
        let taken = before.is_some_and(|(start, (size, _))| start + size > at.0);
        match reserved && !taken && bytes > 0 {
            true => Ok(()),
            false => Err(stray(at, bytes)),
        }
    }

    pub fn insert(&mut self, at: DevicePtr, bytes: u64, memory: T) {
        self.backed.insert(at.0, (bytes, memory));
    }

    /// The bytes of the unit that begins at `at`, and its memory.
    pub fn get(&self, at: DevicePtr) -> Result<(u64, &T)> {
        let found = self.backed.get(&at.0);
        found
            .map(|(bytes, memory)| (*bytes, memory))
            .ok_or_else(|| stray(at, 0))
    }

    pub fn take(&mut self, at: DevicePtr) -> Option<(u64, T)> {
        self.backed.remove(&at.0)
    }

    /// The units that `bytes` bytes at `at` lie in, with the offsets of the bytes in each; `None` if one of them has no memory.
    #[cfg(feature = "sim")]
    pub fn covering(&self, at: DevicePtr, bytes: u64) -> Option<Vec<(u64, u64, &T)>> {
        let end = at.0.checked_add(bytes)?;
        let mut parts = Vec::new();
        let mut next = at.0;
        while next < end {
            let (start, (size, memory)) = self.backed.range(..=next).next_back()?;
            if start + size <= next {
                return None;
            }
            let stop = end.min(start + size);
            parts.push((next - start, stop - start, memory));
            next = stop;
        }
        Some(parts)
    }

    /// What still has memory.
    pub fn drain(&mut self) -> impl Iterator<Item = (DevicePtr, u64, T)> + '_ {
        let all = std::mem::take(&mut self.backed);
        all.into_iter()
            .map(|(at, (bytes, memory))| (DevicePtr(at), bytes, memory))
    }

    /// All reserved addresses.
    pub fn drain_reserved(&mut self) -> impl Iterator<Item = (DevicePtr, u64)> + '_ {
        let all = std::mem::take(&mut self.reserved);
        all.into_iter().map(|(at, bytes)| (DevicePtr(at), bytes))
    }
}

#[cold]
fn stray(at: DevicePtr, bytes: u64) -> Error {
    Error::Internal(format!(
        "{bytes} bytes at {:#x} are no unit of a range, or not in the state that was asked for",
        at.0
    ))
}
