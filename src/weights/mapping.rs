//! Files in memory. This is the only place that maps, and it maps for reading only. The pages stay the
//! file's own, clean and shared, and are never counted as this process's memory.
//!
//! A mapped file must not be changed. A write by another process would show in the weights. If the file
//! is truncated, a read after its new end ends the process with SIGBUS. To replace a file that may be in
//! use, write a new one beside it and rename it over the old.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use super::{NamedData, SharedBytes};
use crate::error::{Error, Result};
use crate::format::{EntryLayout, Ptd, PtdEntry};

/// A file, mapped for reading. Clones share the mapping.
#[derive(Debug, Clone)]
pub struct MappedFile {
    name: String,
    map: Arc<Mmap>,
    file: Arc<File>,
    in_memory: bool,
}

impl MappedFile {
    /// Maps the file at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let io = |call: &str, error: std::io::Error| Error::Io {
            file: name.clone(),
            what: format!("{call}: {error}"),
        };
        let file = open_regular(path).map_err(|error| io("cannot open", error))?;
        // SAFETY: the mapping is private to `MappedFile`, which only lends shared slices of it. Linux cannot
        // keep others from truncating or rewriting the file while it is mapped; not to do so is the
        // documented duty of those who replace files (module doc).
        let map = unsafe { Mmap::map(&file) }.map_err(|error| io("cannot map", error))?;
        let in_memory = is_in_memory(&file).map_err(|error| io("cannot stat", error))?;
        Ok(MappedFile {
            name,
            map: Arc::new(map),
            file: Arc::new(file),
            in_memory,
        })
    }

    /// The file itself, for those who read it without touching the mapping.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Whether `path` leads to this file, whatever it is called there.
    pub fn is_at(&self, path: &Path) -> bool {
        let id = |facts: std::fs::Metadata| (facts.dev(), facts.ino());
        match (self.file.metadata(), path.metadata()) {
            (Ok(here), Ok(there)) => id(here) == id(there),
            _ => false,
        }
    }

    /// Whether the file lies in a file system that is memory itself. Its pages are then no cache of a disk, and
    /// holding them takes no memory that is free now.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// The path, as errors show it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The bytes of the file as a value that keeps the mapping alive.
    pub fn host_bytes(&self) -> SharedBytes {
        let all = 0..self.map.len();
        // The range is the owner's own length, so this cannot fail; an empty value would be caught by any check.
        SharedBytes::new(self.map.clone(), all)
            .unwrap_or_else(|_| SharedBytes::from_vec(Vec::new()))
    }
}

/// Opens a file for reading, and nothing else: a FIFO would wait for its writer.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!(
            "this is {}, not a regular file",
            kind_text(kind)
        ))),
    }
}

/// The bytes of a regular file.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn kind_text(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ => "a device",
    }
}

/// Whether the file is in tmpfs, ramfs or hugetlbfs.
fn is_in_memory(file: &File) -> std::io::Result<bool> {
    const RAMFS: libc::c_long = 0x8584_58f6;
    // SAFETY: zero is a value of every field.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the system writes the one structure.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &mut facts) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let kinds = [libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC, RAMFS];
    Ok(kinds.contains(&facts.f_type))
}

/// A `.ptd`, mapped and checked.
#[derive(Debug, Clone)]
pub struct MappedPtd {
    file: MappedFile,
    ptd: Ptd,
}

impl MappedPtd {
    /// Maps and checks the file at `path`. Reads its header and tables, not the weights.
    pub fn open(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path)?;
        let ptd = Ptd::parse(file.name(), file.bytes())?;
        Ok(MappedPtd { file, ptd })
    }

    /// Its index.
    pub fn ptd(&self) -> &Ptd {
        &self.ptd
    }

    /// The mapped file.
    pub fn file(&self) -> &MappedFile {
        &self.file
    }

    fn entry(&self, key: &str) -> Result<&PtdEntry> {
        self.ptd.entry(key).ok_or_else(|| Error::Missing {
            name: key.to_owned(),
            place: self.file.name.clone(),
        })
    }
}

impl NamedData for MappedPtd {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn layout(&self, key: &str) -> Result<Option<EntryLayout>> {
        Ok(self.entry(key)?.layout.clone())
    }

    fn bytes(&self, key: &str) -> Result<SharedBytes> {
        SharedBytes::new(self.file.map.clone(), self.entry(key)?.range.clone())
    }
}

/// Bytes that somebody outside of this library keeps alive.
struct Foreign {
    addr: *const u8,
    len: usize,
}

// SAFETY: the bytes are only read, and `SharedBytes::foreign` makes its caller promise that every thread may.
unsafe impl Send for Foreign {}
// SAFETY: as above: shared reading of bytes that nobody writes.
unsafe impl Sync for Foreign {}

impl AsRef<[u8]> for Foreign {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `SharedBytes::foreign` made its caller promise readable, unchanged bytes for this value's life.
        unsafe { std::slice::from_raw_parts(self.addr, self.len) }
    }
}

impl SharedBytes {
    /// Bytes that somebody else keeps, such as ExecuTorch's `NamedDataMap` over a mapped file.
    ///
    /// # Safety
    /// `addr..addr + len` is readable from every thread, and its bytes do not change, until this value and
    /// all its clones are gone (and with them every catalog and copy that was made of them). With `len` 0
    /// any address will do.
    pub unsafe fn foreign(addr: *const u8, len: usize) -> Result<Self> {
        if len > 0 && (addr.is_null() || isize::try_from(len).is_err()) {
            return Err(Error::Internal(format!("foreign bytes: {len} at {addr:p}")));
        }
        SharedBytes::new(Arc::new(Foreign { addr, len }), 0..len)
    }
}
