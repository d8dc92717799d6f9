//! Memory that shows at several addresses: a memory file that is mapped twice. The copy thread writes through the one
//! mapping, which is the memory in its order; compiled code reads through the other, piece by piece, and a store into it
//! is a fault of the process instead of a wrong weight.

use super::block::Target;
use crate::device::{DevicePtr, HostBytes};
use crate::error::{Error, Result};
use crate::figures::View;
use crate::system_memory;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

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
struct Addresses {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: addresses that are owned; nothing in them is bound to the thread that took them.
unsafe impl Send for Addresses {}

impl Addresses {
    /// Addresses without memory: an access to them faults.
    fn reserve(bytes: u64) -> Result<Addresses> {
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

    /// Shows `memory`, a range of the file, from the address `at` on, counted from the first.
    fn show(&mut self, at: u64, file: &File, memory: Range<u64>, protection: i32) -> Result<()> {
        let bytes = memory.end - memory.start;
        let inside = at
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes as u64);
        assert!(inside, "a view was checked before it was mapped");
        let offset = libc::off_t::try_from(memory.start).map_err(|_| too_large(memory.end))?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the addresses are inside of our own, by the check, so that nothing of others is replaced.
        let shown = unsafe {
            let start = self.start.add(at as usize).cast();
            libc::mmap(
                start,
                bytes as usize,
                protection,
                flags,
                file.as_raw_fd(),
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
    /// The view's addresses, read-only.
    shown: Addresses,
    /// The memory in its own order, writable.
    memory: Addresses,
}

impl Mapped {
    /// `view` was checked, and has bytes.
    fn new(view: &View) -> Result<Mapped> {
        let whole = view.whole();
        check_available(whole)?;
        let mut shown = Addresses::reserve(view.bytes)?;
        let mut memory = Addresses::reserve(whole)?;
        let file = memory_file(whole)?;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        memory.show(0, &file, 0..whole, writable)?;
        let mut at = 0;
        for part in view.behind(0..view.bytes).unwrap_or_default() {
            let bytes = part.end - part.start;
            // rule: host-views-are-read-only
            shown.show(at, &file, part, libc::PROT_READ)?;
            at += bytes;
        }
        Ok(Mapped {
            view: view.clone(),
            shown,
            memory,
        })
    }
}

/// The views of a device, by address.
#[derive(Default)]
pub(super) struct Views {
    by_address: BTreeMap<u64, Mapped>,
    bytes: u64,
}

impl Views {
    /// Bytes of memory behind all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps a view that was checked, and has bytes.
    pub(super) fn map(&mut self, view: &View) -> Result<DevicePtr> {
        let mapped = Mapped::new(view)?;
        let address = mapped.shown.start as u64;
        self.bytes += view.memory;
        self.by_address.insert(address, mapped);
        Ok(DevicePtr(address))
    }

    /// Unmaps what [`Views::map`] returned. Nobody may be copying to it, or reading it.
    pub(super) fn unmap(&mut self, ptr: DevicePtr) -> Result<()> {
        let mapped = self.by_address.remove(&ptr.0).ok_or_else(|| {
            Error::Internal(format!(
                "host memory {:#x}: unmapped, but no view begins there",
                ptr.0
            ))
        })?;
        self.bytes -= mapped.view.memory;
        Ok(())
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
    ) -> Result<Vec<(Target, HostBytes)>> {
        let (mapped, offset) = self.find(ptr).ok_or_else(|| leaves(ptr, src.len()))?;
        let parts = mapped.view.split(offset, src.len());
        let parts = parts.ok_or_else(|| leaves(ptr, src.len()))?;
        let start = mapped.memory.start;
        // rule: host-copies-follow-the-view
        let target = |at: u64| Target(start.wrapping_add(at as usize));
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

/// All pages are taken at once, and a system that runs out of them ends processes. Where it does not say what it has, the
/// call that takes them will.
fn check_available(bytes: u64) -> Result<()> {
    match system_memory::available() {
        Ok(available) if bytes > available.bytes() => Err(Error::OutOfMemory {
            what: format!("weights' pages, of {available}"),
            bytes,
        }),
        _ => Ok(()),
    }
}

/// A file of zeros that is nowhere but in memory, and is gone when it is mapped nowhere.
#[cfg(target_os = "linux")]
fn memory_file(bytes: u64) -> Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string, which the system only shows to people.
    let raw = unsafe { libc::memfd_create(c"weightstream-pages".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(failed("making a memory file with memfd_create", bytes));
    }
    // SAFETY: a descriptor that was just made, and that nobody else has.
    let file = unsafe { File::from_raw_fd(raw) };
    let size = libc::off_t::try_from(bytes).map_err(|_| too_large(bytes))?;
    // All pages at once: one that is missing later would be a bus error in the middle of a pass.
    // SAFETY: a call on a descriptor that is open.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) } {
        0 => Ok(file),
        _ => Err(failed("filling a memory file with fallocate", bytes)),
    }
}

#[cfg(not(target_os = "linux"))]
fn memory_file(_bytes: u64) -> Result<File> {
    Err(Error::Unsupported(
        "memory files are there on Linux only".to_owned(),
    ))
}

/// The system's last error, of a call for so many bytes.
#[cold]
fn failed(call: &'static str, bytes: u64) -> Error {
    let error = std::io::Error::last_os_error();
    match matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOSPC)) {
        true => Error::OutOfMemory {
            what: format!("weights' pages ({call}: {error})"),
            bytes,
        },
        false => Error::Device {
            call,
            what: format!("{bytes} bytes: {error}"),
        },
    }
}

#[cold]
fn too_large(bytes: u64) -> Error {
    Error::OutOfMemory {
        what: "weights' pages".to_owned(),
        bytes,
    }
}
