//! A file that is nowhere but in memory, and is gone when it is mapped nowhere.

use super::frames::Run;
use crate::error::{Error, Result};
use crate::system_memory;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Pages of memory, by their place in the file.
pub(super) struct MemoryFile {
    file: File,
    bytes: u64,
}

impl MemoryFile {
    /// With memory behind all of it: a page that is missing later would be a bus error in the middle of a pass.
    pub fn new(bytes: u64) -> Result<MemoryFile> {
        let file = MemoryFile {
            file: create(bytes)?,
            bytes: 0,
        };
        check_available(bytes)?;
        file.allocate(0..bytes)?;
        Ok(MemoryFile { bytes, ..file })
    }

    /// Bytes from the start to the end, whether there is memory behind them or not.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn as_raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Memory for the range `wanted` of a view's memory: of the parts of the file that are `free`, lowest first, and then new
    /// ones at the end.
    pub fn fill(&mut self, wanted: Range<u64>, free: &mut Vec<Range<u64>>) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        let mut at = wanted.start;
        while at < wanted.end {
            let left = wanted.end - at;
            let taken = match free.first_mut() {
                Some(range) => {
                    let end = range.end.min(range.start + left);
                    let taken = range.start..end;
                    range.start = end;
                    if range.is_empty() {
                        free.remove(0);
                    }
                    taken
                }
                None => {
                    check_available(left)?;
                    let taken = self.bytes..self.bytes + left;
                    self.bytes = taken.end;
                    taken
                }
            };
            // It may have gone back to the system before.
            self.allocate(taken.clone())?;
            let bytes = taken.end - taken.start;
            runs.push(Run {
                memory: at,
                file: taken.start,
                bytes,
            });
            at += bytes;
        }
        Ok(runs)
    }

    fn allocate(&self, range: Range<u64>) -> Result<()> {
        self.call("filling a memory file with fallocate", 0, range)
    }

    /// Gives the memory behind a part of it back to the system.
    pub fn release(&self, range: Range<u64>) -> Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.call(
            "giving pages of a memory file back with fallocate",
            mode,
            range,
        )
    }

    fn call(&self, call: &'static str, mode: i32, range: Range<u64>) -> Result<()> {
        let bytes = range.end - range.start;
        let offset = |bytes: u64| libc::off_t::try_from(bytes).map_err(|_| too_large(bytes));
        let (start, size) = (offset(range.start)?, offset(bytes)?);
        // SAFETY: a call on a descriptor that is open. No mapping that anybody uses shows pages that it frees: those are only
        // freed once the old addresses are gone.
        match unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start, size) } {
            0 => Ok(()),
            _ => Err(failed(call, bytes)),
        }
    }

    /// Bytes that the system counts for the file.
    #[cfg(test)]
    pub fn resident_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        self.file.metadata().unwrap().blocks() * 512
    }
}

#[cfg(target_os = "linux")]
fn create(bytes: u64) -> Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string, which the system only shows to people.
    let raw = unsafe { libc::memfd_create(c"weightstream-pages".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(failed("making a memory file with memfd_create", bytes));
    }
    // SAFETY: a descriptor that was just made, and that nobody else has.
    Ok(unsafe { File::from_raw_fd(raw) })
}

#[cfg(not(target_os = "linux"))]
fn create(_bytes: u64) -> Result<File> {
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
