//! Memory that shows at several addresses: a memory file that is mapped twice. The copy thread writes through the one
//! mapping, which is the memory in its order; compiled code reads through the other, piece by piece, and a store into it
//! is a fault of the process instead of a wrong weight.

use super::block::CopyTarget;
use super::frames::{Frames, Run};
use super::memory_file::{failed, too_large};
use crate::device::{DevicePtr, HostBytes};
use crate::error::{Error, Result};
use crate::figures::{KeptPages, View};
use std::collections::BTreeMap;

pub(super) const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Allocation granule: the alignment that compiled code expects of its buffers.
pub(in crate::device) const GRANULE: u64 = 64;

/// Bytes of the system's pages; `None` where there are no memory files.
pub(in crate::device) fn page() -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    // SAFETY: asks for a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let bytes = u64::try_from(bytes).ok()?;
    (bytes > 0 && bytes.is_multiple_of(GRANULE)).then_some(bytes)
}

/// Neighbouring addresses that are ours until this is dropped, which nobody may use later.
pub(super) struct Addresses {
    pub(super) start: *mut u8,
    pub(super) bytes: usize,
}

// SAFETY: addresses that are owned; nothing in them is bound to the thread that took them.
unsafe impl Send for Addresses {}

impl Addresses {
    /// Addresses without memory: an access to them faults.
    pub(super) fn reserve(bytes: u64) -> Result<Addresses> {
        let size = usize::try_from(bytes).map_err(|_| too_large(bytes))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: new addresses, which the system chooses; nothing that exists is touched.
        let start = unsafe { libc::mmap(anywhere, size, libc::PROT_NONE, flags, -1, 0) };
        match start == libc::MAP_FAILED {
            true => Err(failed("reserving addresses with mmap", bytes)),
            false => Ok(Addresses {
                start: start.cast(),
                bytes: size,
            }),
        }
    }

    /// Shows a part of the file from the address `at` on, counted from the first.
    fn show(&mut self, at: u64, frames: &Frames, run: Run, protection: i32) -> Result<()> {
        let Run { file, bytes, .. } = run;
        let inside = at
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes as u64);
        assert!(inside, "a view was checked before it was mapped");
        let offset = libc::off_t::try_from(file).map_err(|_| too_large(file))?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the addresses are inside of our own, by the check, so that nothing of others is replaced.
        let shown = unsafe {
            let start = self.start.add(at as usize).cast();
            libc::mmap(
                start,
                bytes as usize,
                protection,
                flags,
                frames.file.as_raw_fd(),
                offset,
            )
        };
        match shown == libc::MAP_FAILED {
            true => Err(failed("mapping memory with mmap", bytes)),
            false => Ok(()),
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: all of it was mapped by `reserve`, and is given back here only.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// One view, mapped.
pub(super) struct Mapped {
    view: View,
    /// The view's addresses.
    shown: Addresses,
    /// The memory in its own order, writable.
    memory: Addresses,
    frames: Frames,
}

impl Mapped {
    /// `view` was checked, and has bytes; `frames` are its memory.
    fn new(view: &View, access: i32, frames: Frames) -> Result<Mapped> {
        let whole = view.whole();
        let runs = |range| {
            let missing = || Error::Internal(format!("a view of {whole} bytes has less memory"));
            frames.runs(range).ok_or_else(missing)
        };
        let mut shown = Addresses::reserve(view.bytes)?;
        let mut memory = Addresses::reserve(whole)?;
        for run in runs(0..whole)? {
            memory.show(run.memory, &frames, run, WRITABLE)?;
        }
        let mut at = 0;
        for part in view.behind(0..view.bytes).unwrap_or_default() {
            for run in runs(part)? {
                shown.show(at, &frames, run, access)?;
                at += run.bytes;
            }
        }
        Ok(Mapped {
            view: view.clone(),
            shown,
            memory,
            frames,
        })
    }

    /// The memory is seen as `view` says, with `kept` pages in it. Nobody uses the old addresses any more.
    fn moved(self, view: &View, access: i32, kept: &[KeptPages]) -> Result<Mapped> {
        let Mapped {
            shown,
            memory,
            frames,
            ..
        } = self;
        drop((shown, memory));
        Mapped::new(view, access, frames.moved(view.whole(), kept)?)
    }
}

/// The views of a device, by address.
#[derive(Default)]
pub(super) struct Views {
    by_address: BTreeMap<u64, Mapped>,
    bytes: u64,
    /// Kernels may write to views that are mapped from now on.
    pub(super) writable: bool,
}

impl Views {
    /// What kernels may do at the addresses of a view.
    fn access(&self) -> i32 {
        match self.writable {
            true => WRITABLE,
            false => libc::PROT_READ,
        }
    }

    /// Bytes of memory behind all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps a view that was checked, and has bytes.
    pub(super) fn map(&mut self, view: &View) -> Result<DevicePtr> {
        let mapped = Mapped::new(view, self.access(), Frames::new(view.whole())?)?;
        Ok(self.insert(mapped))
    }

    fn insert(&mut self, mapped: Mapped) -> DevicePtr {
        let address = mapped.shown.start as u64;
        self.bytes += mapped.view.memory;
        self.by_address.insert(address, mapped);
        DevicePtr(address)
    }

    /// Shows the memory of what [`Views::map`] returned as `view` says, which was checked, and has bytes. On an error nothing is
    /// mapped. Nobody may be copying to the old addresses, or reading them.
    pub(super) fn remap(
        &mut self,
        ptr: DevicePtr,
        view: &View,
        kept: &[KeptPages],
    ) -> Result<DevicePtr> {
        let access = self.access();
        let mapped = self.take(ptr)?.moved(view, access, kept)?;
        Ok(self.insert(mapped))
    }

    /// Unmaps what [`Views::map`] returned. Nobody may be copying to it, or reading it.
    pub(super) fn unmap(&mut self, ptr: DevicePtr) -> Result<()> {
        self.take(ptr).map(drop)
    }

    fn take(&mut self, ptr: DevicePtr) -> Result<Mapped> {
        let mapped = self.by_address.remove(&ptr.0).ok_or_else(|| {
            Error::Internal(format!(
                "host memory {:#x}: unmapped, but no view begins there",
                ptr.0
            ))
        })?;
        self.bytes -= mapped.view.memory;
        Ok(mapped)
    }

    /// Whether `ptr` is an address of one of the views.
    pub(super) fn contain(&self, ptr: DevicePtr) -> bool {
        self.find(ptr).is_some()
    }

    /// The view with the address `ptr`, and the offset there.
    fn find(&self, ptr: DevicePtr) -> Option<(&Mapped, u64)> {
        let (start, mapped) = self.by_address.range(..=ptr.0).next_back()?;
        let offset = ptr.0 - start;
        (offset < mapped.view.bytes).then_some((mapped, offset))
    }

    /// Where a copy of `src` to `ptr`, an address of a view, writes, and what goes there: where neighbouring pieces are no
    /// neighbours in memory, it is a copy for each.
    pub(super) fn targets(
        &self,
        ptr: DevicePtr,
        src: HostBytes,
    ) -> Result<Vec<(CopyTarget, HostBytes)>> {
        let (mapped, offset) = self.find(ptr).ok_or_else(|| leaves(ptr, src.len()))?;
        let parts = mapped.view.split(offset, src.len());
        let parts = parts.ok_or_else(|| leaves(ptr, src.len()))?;
        let start = mapped.memory.start;
        let target = |at: u64| CopyTarget(start.wrapping_add(at as usize));
        Ok(parts
            .into_iter()
            .map(|(at, part)| (target(at), src.slice(part)))
            .collect())
    }

    /// Reads `dst.len()` bytes from `ptr`, an address of a view. No copy to it may be under way.
    pub(super) fn read(&self, ptr: DevicePtr, dst: &mut [u8]) -> Result<()> {
        let bytes = dst.len() as u64;
        let inside = |(mapped, offset): &(&Mapped, u64)| bytes <= mapped.view.bytes - offset;
        let (mapped, offset) = self
            .find(ptr)
            .filter(inside)
            .ok_or_else(|| leaves(ptr, bytes))?;
        // SAFETY: inside of the view's addresses, which are readable as long as it is in this list; nobody writes the
        // memory behind them now: the caller's promise.
        unsafe {
            let start = mapped.shown.start.add(offset as usize);
            std::ptr::copy_nonoverlapping(start, dst.as_mut_ptr(), dst.len());
        }
        Ok(())
    }
}

/// What is written to `ptr` by anything but a copy of weights.
#[cold]
pub(super) fn only_read(ptr: DevicePtr) -> Error {
    Error::Internal(format!(
        "host memory {:#x} is a view's: kernels and uploads only read there, copies of weights write",
        ptr.0
    ))
}

#[cold]
fn leaves(ptr: DevicePtr, bytes: u64) -> Error {
    Error::Internal(format!(
        "host memory {:#x}: {bytes} bytes that leave their view",
        ptr.0
    ))
}
