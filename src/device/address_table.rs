//! What a device checks its callers by: which of its addresses are reserved, what shows there, and what may be done with it.
#![deny(unsafe_code)]

use super::{DevicePtr, PageAccess, Purpose};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// Memory of a device, counted while it is there.
#[derive(Debug)]
pub struct Frame<R> {
    /// The device's own name for it.
    pub raw: R,
    bytes: u64,
    /// The addresses at which it was last allowed to be written; 0 once it no longer is.
    writable: AtomicU64,
    counted: Option<Arc<AtomicU64>>,
}

impl<R> Drop for Frame<R> {
    fn drop(&mut self) {
        if let Some(counted) = &self.counted {
            counted.fetch_sub(self.bytes, Relaxed);
        }
    }
}

/// What shows at some addresses.
#[derive(Debug)]
struct Shown<R> {
    bytes: u64,
    memory: Arc<Frame<R>>,
    access: Option<PageAccess>,
}

/// Bytes of what shows somewhere.
struct Part<'a, R> {
    /// Which of its bytes, from its start.
    offsets: Range<u64>,
    /// The address at which it begins.
    start: u64,
    shown: &'a Shown<R>,
}

/// Which addresses are reserved, what shows there and what may be done with it: what a device checks its callers by. `R` is the
/// device's own name for memory.
#[derive(Debug)]
pub struct AddressTable<R> {
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Shown<R>>,
    /// Bytes of memory that is there, without that of activations.
    counted: Arc<AtomicU64>,
}

impl<R> Default for AddressTable<R> {
    fn default() -> Self {
        AddressTable {
            reserved: BTreeMap::new(),
            mapped: BTreeMap::new(),
            counted: Arc::default(),
        }
    }
}

impl<R> AddressTable<R> {
    /// Counts memory that was just created, until it is dropped.
    pub fn frame(&self, raw: R, bytes: u64, purpose: Purpose) -> Arc<Frame<R>> {
        let counts = purpose != Purpose::Activations;
        if counts {
            self.counted.fetch_add(bytes, Relaxed);
        }
        Arc::new(Frame {
            raw,
            bytes,
            writable: AtomicU64::new(0),
            counted: counts.then(|| Arc::clone(&self.counted)),
        })
    }

    /// Bytes of memory that is there, without that of activations.
    pub fn bytes(&self) -> u64 {
        self.counted.load(Relaxed)
    }

    /// `bytes` addresses from `start` on were reserved.
    pub fn add(&mut self, start: DevicePtr, bytes: u64) {
        self.reserved.insert(start.0, bytes);
    }

    /// The bytes of what was reserved from `start` on, and where memory is mapped there.
    pub fn reservation(&self, start: DevicePtr) -> Result<(u64, Vec<DevicePtr>)> {
        let found = self.reserved.get(&start.0);
        let bytes = *found.ok_or_else(|| stray(start, 0))?;
        let inside = self.mapped.range(start.0..start.0 + bytes);
        Ok((bytes, inside.map(|(at, _)| DevicePtr(*at)).collect()))
    }

    /// They were given back.
    pub fn remove(&mut self, start: DevicePtr) {
        self.reserved.remove(&start.0);
    }

    /// The end of the reserved addresses that `at` is one of.
    fn end_of(&self, at: DevicePtr) -> Option<u64> {
        let (start, bytes) = self.reserved.range(..=at.0).next_back()?;
        Some(start + bytes).filter(|end| at.0 < *end)
    }

    /// Refuses addresses that are not reserved, or of which some have memory. The bytes that are to be mapped.
    pub fn check_map(&self, at: DevicePtr, memory: &Frame<R>) -> Result<u64> {
        let end = at.0.checked_add(memory.bytes);
        let inside = end.is_some_and(|end| self.end_of(at).is_some_and(|last| end <= last));
        let before = end.and_then(|end| self.mapped.range(..end).next_back());
        let taken = before.is_some_and(|(start, one)| start + one.bytes > at.0);
        match inside && !taken {
            true => Ok(memory.bytes),
            false => Err(stray(at, memory.bytes)),
        }
    }

    /// The memory was mapped.
    pub fn insert(&mut self, at: DevicePtr, memory: &Arc<Frame<R>>) {
        let shown = Shown {
            bytes: memory.bytes,
            memory: Arc::clone(memory),
            access: None,
        };
        self.mapped.insert(at.0, shown);
    }

    /// Refuses bytes that are not all of what is mapped there.
    pub fn check_allow(&self, at: DevicePtr, bytes: u64) -> Result<()> {
        let whole = |part: &Part<'_, R>| part.offsets == (0..part.shown.bytes);
        match self.parts(at, bytes) {
            Some(parts) if parts.iter().all(whole) => Ok(()),
            _ => Err(stray(at, bytes)),
        }
    }

    /// An access was allowed.
    pub fn allow(&mut self, at: DevicePtr, bytes: u64, access: PageAccess) {
        for (start, one) in self.mapped.range_mut(at.0..at.0 + bytes) {
            one.access = Some(access);
            let writable = &one.memory.writable;
            match access {
                PageAccess::ReadWrite => writable.store(*start, Relaxed),
                PageAccess::Read => forget(writable, *start),
            }
        }
    }

    /// Bytes of what is mapped at `at`, to be unmapped.
    pub fn mapped(&self, at: DevicePtr) -> Result<u64> {
        let found = self.mapped.get(&at.0).map(|one| one.bytes);
        found.ok_or_else(|| stray(at, 0))
    }

    /// What was mapped there no longer is.
    pub fn take(&mut self, at: DevicePtr) {
        if let Some(one) = self.mapped.remove(&at.0) {
            forget(&one.memory.writable, at.0);
        }
    }

    /// All that is mapped, with its bytes, to be taken away.
    pub fn drain_mapped(&mut self) -> Vec<(DevicePtr, u64)> {
        let all = std::mem::take(&mut self.mapped).into_iter();
        all.map(|(at, one)| (DevicePtr(at), one.bytes)).collect()
    }

    /// All that is reserved, with its bytes, to be given back.
    pub fn drain_reserved(&mut self) -> Vec<(DevicePtr, u64)> {
        let all = std::mem::take(&mut self.reserved).into_iter();
        all.map(|(at, bytes)| (DevicePtr(at), bytes)).collect()
    }

    /// What is mapped at `ptr`, and where that begins.
    fn find(&self, ptr: DevicePtr) -> Option<(u64, &Shown<R>)> {
        let (start, one) = self.mapped.range(..=ptr.0).next_back()?;
        (ptr.0 < start + one.bytes).then_some((*start, one))
    }

    /// Whether something is mapped at `ptr`.
    pub fn contain(&self, ptr: DevicePtr) -> bool {
        self.find(ptr).is_some()
    }

    /// The memory of `bytes` bytes at `ptr`, in their order: `None` where some have no
    /// memory, or are of another reservation.
    fn parts(&self, ptr: DevicePtr, bytes: u64) -> Option<Vec<Part<'_, R>>> {
        let end = ptr.0.checked_add(bytes)?;
        if end > self.end_of(ptr)? {
            return None;
        }
        let mut parts = Vec::new();
        let mut next = ptr.0;
        while next < end {
            let (start, one) = self.find(DevicePtr(next))?;
            let stop = end.min(start + one.bytes);
            parts.push(Part {
                offsets: next - start..stop - start,
                start,
                shown: one,
            });
            next = stop;
        }
        Some(parts)
    }

    /// The device's memory behind `bytes` bytes at `ptr` that may be read, in their order, and which bytes of each.
    pub fn behind(&self, ptr: DevicePtr, bytes: u64) -> Option<Vec<(Range<u64>, &R)>> {
        let parts = self.parts(ptr, bytes)?.into_iter();
        parts
            .map(|Part { offsets, shown, .. }| shown.access.map(|_| (offsets, &shown.memory.raw)))
            .collect()
    }

    /// Whether `bytes` bytes at `ptr` may be read.
    pub fn cover(&self, ptr: DevicePtr, bytes: u64) -> bool {
        let parts = self.parts(ptr, bytes);
        parts.is_some_and(|parts| parts.iter().all(|part| part.shown.access.is_some()))
    }

    /// Refuses what is written where kernels only read: a GPU would find out in the middle of a stream, and lose the context. `name` is the
    /// device's. Addresses at which nothing is mapped are not refused here.
    pub fn check_written(&self, name: &str, ptr: DevicePtr, bytes: u64) -> Result<()> {
        let end = ptr.0.saturating_add(bytes.max(1));
        let first = self.find(ptr).map_or(ptr.0, |(start, _)| start);
        let mut reached = self.mapped.range(first..end);
        match reached.any(|(_, one)| one.access != Some(PageAccess::ReadWrite)) {
            true => Err(Error::Internal(format!(
                "{name} {:#x} is a view's: kernels and uploads only read there, copies of weights write",
                ptr.0
            ))),
            false => Ok(()),
        }
    }

    /// Where a copy of weights of `bytes` bytes to `ptr` writes, and which of its bytes go there: to addresses of the same memory that
    /// are writable. What is a neighbour there too is one part. `None` if nothing is mapped at `ptr`: then it is other memory, or nobody's.
    #[allow(clippy::type_complexity, reason = "a part is an address and a range")]
    pub fn targets(
        &self,
        ptr: DevicePtr,
        bytes: u64,
    ) -> Option<Result<Vec<(DevicePtr, Range<u64>)>>> {
        self.find(ptr)?;
        let Some(parts) = self.parts(ptr, bytes) else {
            return Some(Err(stray(ptr, bytes)));
        };
        let mut targets: Vec<(DevicePtr, Range<u64>)> = Vec::new();
        let mut done = 0;
        for part in parts {
            let (offsets, shown) = (part.offsets, part.shown);
            let writable = match shown.access {
                Some(PageAccess::ReadWrite) => part.start,
                _ => shown.memory.writable.load(Relaxed),
            };
            if writable == 0 {
                return Some(Err(stray(ptr, bytes)));
            }
            let to = writable + offsets.start;
            let size = offsets.end - offsets.start;
            match targets.last_mut() {
                Some((at, part)) if at.0 + (part.end - part.start) == to => part.end += size,
                _ => targets.push((DevicePtr(to), done..done + size)),
            }
            done += size;
        }
        Some(Ok(targets))
    }
}

/// It can no longer be written at these addresses.
fn forget(writable: &AtomicU64, at: u64) {
    // Where it fails, other addresses have been allowed since.
    let _ = writable.compare_exchange(at, 0, Relaxed, Relaxed);
}

#[cold]
fn stray(at: DevicePtr, bytes: u64) -> Error {
    Error::Internal(format!(
        "{bytes} bytes at {:#x} are no pages of this device, or not in the state that was asked for",
        at.0
    ))
}
