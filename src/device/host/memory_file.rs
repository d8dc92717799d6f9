//! A file that is nowhere but in memory, and is gone when nobody has parts of it any more.

use crate::error::{Error, Result};
use crate::system_memory;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// Each part of it is used once: one that went back to the system is a hole for ever, which costs nothing.
pub struct MemoryFile {
    file: File,
    end: AtomicU64,
    made_in: u32,
}

/// A part of a memory file. Dropped, it goes back to the system; it may show nowhere.
pub struct FilePages {
    file: Arc<MemoryFile>,
    range: Range<u64>,
}

impl MemoryFile {
    pub(super) fn new() -> Result<Arc<MemoryFile>> {
        Ok(Arc::new(MemoryFile {
            file: create()?,
            end: AtomicU64::new(0),
            made_in: std::process::id(),
        }))
    }

    /// A child has the file of its parent, which goes on to use it: nothing may be taken from it, or given back, there.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.made_in == std::process::id()
    }

    /// Memory, a piece of each size, all of it there: a page that is missing later would be a bus error in the middle of a pass.
    pub(super) fn take(self: &Arc<MemoryFile>, sizes: &[u64]) -> Result<Vec<FilePages>> {
        let bytes = sizes.iter().sum();
        check_available(bytes)?;
        let start = self.end.fetch_add(bytes, Relaxed);
        start.checked_add(bytes).ok_or_else(|| too_large(bytes))?;
        let mut at = start;
        let part = |size: &u64| {
            at += size;
            FilePages {
                file: Arc::clone(self),
                range: at - size..at,
            }
        };
        // On an error what was filled goes back.
        let parts: Vec<FilePages> = sizes.iter().map(part).collect();
        self.call(
            "filling a memory file with fallocate",
            0,
            start..start + bytes,
        )?;
        Ok(parts)
    }

    fn call(&self, call: &'static str, mode: i32, range: Range<u64>) -> Result<()> {
        let bytes = range.end - range.start;
        let (start, size) = (offset(range.start)?, offset(bytes)?);
        // SAFETY: a call on a descriptor that is open. No mapping shows pages that it frees: the table of addresses has a handle for
        // each.
        match unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start, size) } {
            0 => Ok(()),
            _ => Err(failed(call, bytes)),
        }
    }
}

impl FilePages {
    pub(super) fn as_raw_fd(&self) -> i32 {
        self.file.file.as_raw_fd()
    }

    /// Bytes from the file's start.
    pub(super) fn offset(&self) -> Result<libc::off_t> {
        offset(self.range.start)
    }
}

fn offset(bytes: u64) -> Result<libc::off_t> {
    libc::off_t::try_from(bytes).map_err(|_| too_large(bytes))
}

impl Drop for FilePages {
    fn drop(&mut self) {
        // rule: a-child-frees-nothing-of-its-parent
        if !self.file.is_of_this_process() {
            return;
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let call = "giving pages of a memory file back with fallocate";
        if let Err(error) = self.file.call(call, mode, self.range.clone()) {
            log::warn!("{error}");
        }
    }
}

#[cfg(target_os = "linux")]
fn create() -> Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string, which the system only shows to people.
    let raw = unsafe { libc::memfd_create(c"weightstream-pages".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(failed("making a memory file with memfd_create", 0));
    }
    // SAFETY: a descriptor that was just made, and that nobody else has.
    Ok(unsafe { File::from_raw_fd(raw) })
}

#[cfg(not(target_os = "linux"))]
fn create() -> Result<File> {
    Err(Error::Unsupported(
        "memory files are there on Linux only".to_owned(),
    ))
}

/// All pages are taken at once, and a system that runs out of them ends processes. Where it does not say what it has, the
/// call that takes them will.
pub(super) fn check_available(bytes: u64) -> Result<()> {
    match system_memory::available() {
        Ok(available) if bytes > available.bytes() => Err(Error::OutOfMemory {
            what: format!("weights' pages, of {available}"),
            bytes,
        }),
        _ => Ok(()),
    }
}

/// The system's last error, of a call for so many bytes.
#[cold]
pub(super) fn failed(call: &'static str, bytes: u64) -> Error {
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
pub(super) fn too_large(bytes: u64) -> Error {
    Error::OutOfMemory {
        what: "weights' pages".to_owned(),
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the system counts for the file.
    fn resident(file: &MemoryFile) -> u64 {
        use std::os::unix::fs::MetadataExt;
        file.file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn what_is_dropped_goes_back_to_the_system() {
        let page = super::super::page().unwrap();
        let file = MemoryFile::new().unwrap();
        let mut both = file.take(&[5 * page, 3 * page]).unwrap();
        assert_eq!(resident(&file), 8 * page);
        drop(both.remove(0));
        assert_eq!(resident(&file), 3 * page);
        drop(both);
        assert_eq!(resident(&file), 0);
    }
}
