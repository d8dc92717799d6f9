//! The files behind mapped bytes, for devices that read them instead of touching the mappings.
#![deny(unsafe_code)]

use super::HostBytes;
use crate::error::{Error, Result};
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Something whose bytes can be read at any place, by several threads at once.
pub(crate) trait ReadAt: Send + Sync {
    /// Fills `into` with the bytes from `offset` on. An error names the source and the bytes; a source that
    /// ends early is an error too.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// What weights are copied from.
pub struct HostSource {
    /// Files that some of them lie in.
    pub files: Vec<HostFile>,
    /// Each lies in the mapping of one of the files, or in memory that somebody else has read it into, and keeps.
    pub parts: Vec<HostBytes>,
}

/// A file that weights lie in, and its mapping. Addresses in the mapping say which bytes of the file are
/// meant; whether they are read through it or from the file is the device's choice.
#[derive(Debug, Clone)]
pub struct HostFile {
    name: Arc<str>,
    file: Arc<File>,
    bytes: HostBytes,
}

impl HostFile {
    /// `bytes` are the mapping of the whole of `file`, which errors call `name`.
    pub fn new(name: &str, file: Arc<File>, bytes: HostBytes) -> Self {
        HostFile {
            name: name.into(),
            file,
            bytes,
        }
    }

    /// What errors call the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The mapping of the whole file.
    pub fn bytes(&self) -> HostBytes {
        self.bytes
    }

    /// Where in the file these bytes lie; `None` if they are not of its mapping.
    pub(crate) fn offset_of(&self, bytes: HostBytes) -> Option<u64> {
        self.offset_at(bytes.as_ptr().addr() as u64, bytes.len())
    }

    /// The same as a range.
    pub(crate) fn range_of(&self, bytes: HostBytes) -> Option<Range<u64>> {
        let offset = self.offset_of(bytes)?;
        Some(offset..offset + bytes.len())
    }

    /// The same for so many bytes at an address.
    fn offset_at(&self, address: u64, len: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start())?;
        let end = offset.checked_add(len)?;
        (end <= self.bytes.len()).then_some(offset)
    }

    fn start(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }

    fn failure(&self, offset: u64, bytes: usize, why: String) -> Error {
        Error::Io {
            file: self.name.to_string(),
            what: format!(
                "cannot read bytes {offset}..{}: {why}",
                offset.saturating_add(bytes as u64)
            ),
        }
    }
}

impl ReadAt for HostFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            match self.file.read_at(&mut into[done..], at) {
                Ok(0) => {
                    let end = self.file.metadata().map_or(at, |facts| facts.len().min(at));
                    let why = format!(
                        "the file ends at byte {end}, and had {} when it was opened; while it is in use it must \
                         not be changed",
                        self.bytes.len()
                    );
                    return Err(self.failure(offset, into.len(), why));
                }
                Ok(more) => done += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failure(at, into.len() - done, error.to_string())),
            }
        }
        Ok(())
    }
}

/// Several files, read by the addresses of their mappings.
#[derive(Debug, Clone)]
pub(crate) struct HostFiles(Arc<[HostFile]>);

impl HostFiles {
    pub(crate) fn new(mut files: Vec<HostFile>) -> HostFiles {
        files.sort_by_key(HostFile::start);
        HostFiles(files.into())
    }

    /// What messages call them.
    pub(crate) fn name(&self) -> String {
        match &*self.0 {
            [one] => one.name().to_owned(),
            all => {
                let first = all.first().map_or("none", |first| first.name());
                format!("{} files, such as {first}", all.len())
            }
        }
    }

    /// Whether these bytes are of one of the mappings.
    pub(crate) fn have(&self, bytes: HostBytes) -> bool {
        self.find(bytes.as_ptr().addr() as u64, bytes.len())
            .is_some()
    }

    /// Whether a mapping begins at this address.
    pub(crate) fn begin_at(&self, address: usize) -> bool {
        let found = self
            .0
            .binary_search_by_key(&(address as u64), HostFile::start);
        found.is_ok()
    }

    fn find(&self, address: u64, len: u64) -> Option<(&HostFile, u64)> {
        let after = self.0.partition_point(|file| file.start() <= address);
        let file = self.0[..after].last()?;
        Some((file, file.offset_at(address, len)?))
    }
}

impl ReadAt for HostFiles {
    fn read_at(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let found = self.find(address, into.len() as u64);
        let (file, offset) = found.ok_or_else(|| {
            Error::Internal(format!(
                "{} bytes at {address:#x} are not of {}",
                into.len(),
                self.name()
            ))
        })?;
        file.read_at(offset, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A file whose mapping is a vector that is never freed: only its addresses are used.
    fn file(content: &[u8]) -> (tempfile::NamedTempFile, HostFile) {
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(content).unwrap();
        let bytes = HostBytes::from_static(Vec::leak(content.to_vec()));
        let opened = Arc::new(File::open(named.path()).unwrap());
        (named, HostFile::new("model.ptd", opened, bytes))
    }

    #[test]
    fn addresses_name_places_of_the_file() {
        let (_named, file) = file(&[1, 2, 3, 4, 5]);
        assert_eq!(file.offset_of(file.bytes().slice(2..5)), Some(2));
        assert_eq!(file.offset_of(file.bytes().slice(5..5)), Some(5));
        assert_eq!(file.offset_of(HostBytes::from_static(&[1, 2])), None);
        let mut found = [0; 3];
        file.read_at(2, &mut found).unwrap();
        assert_eq!(found, [3, 4, 5]);
    }

    #[test]
    fn several_files_are_read_by_address() {
        // Mappings that lie end to end.
        let memory = HostBytes::from_static(Vec::leak((0..100).collect()));
        let parts = [60..100, 0..30, 30..60];
        let named: Vec<_> = { parts.iter() }
            .map(|part| {
                let mut named = tempfile::NamedTempFile::new().unwrap();
                let content: Vec<u8> = part.clone().map(|byte| byte as u8).collect();
                named.write_all(&content).unwrap();
                named
            })
            .collect();
        let one = |(part, named): (&Range<u64>, &tempfile::NamedTempFile)| {
            let opened = Arc::new(File::open(named.path()).unwrap());
            HostFile::new(&format!("{part:?}"), opened, memory.slice(part.clone()))
        };
        let files = HostFiles::new(parts.iter().zip(&named).map(one).collect());
        let start = memory.as_ptr().addr();
        for range in [0..30, 3..17, 30..31, 59..60, 60..100, 99..100] {
            assert!(files.have(memory.slice(range.clone())), "{range:?}");
            let mut found = vec![0; (range.end - range.start) as usize];
            let at = start as u64 + range.start;
            files.read_at(at, &mut found).unwrap();
            let expected: Vec<u8> = range.map(|byte| byte as u8).collect();
            assert_eq!(found, expected);
        }
        assert!(files.begin_at(start + 30) && !files.begin_at(start + 31));
        // Across two files, and of none.
        assert!(!files.have(memory.slice(29..31)));
        let text = files.read_at(start as u64 + 90, &mut [0; 11]).unwrap_err();
        assert!(
            text.to_string().contains("3 files, such as 0..30"),
            "{text}"
        );
        assert!(files.read_at(start as u64 - 1, &mut [0; 1]).is_err());
        assert!(HostFiles::new(Vec::new()).read_at(5, &mut [0; 1]).is_err());
    }

    #[test]
    fn a_file_that_was_cut_is_an_error_with_its_end() {
        let (named, file) = file(&[7; 100]);
        named.as_file().set_len(40).unwrap();
        let text = file.read_at(32, &mut [0; 16]).unwrap_err().to_string();
        assert!(
            text.contains("model.ptd: cannot read bytes 32..48: the file ends at byte 40")
                && text.contains("had 100"),
            "{text}"
        );
        file.read_at(24, &mut [0; 16]).unwrap();
    }

    #[test]
    fn what_the_system_says_is_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Arc::new(File::open(folder.path()).unwrap());
        let bytes = HostBytes::from_static(&[0; 8]);
        let file = HostFile::new("model.ptd", opened, bytes);
        let text = file.read_at(0, &mut [0; 8]).unwrap_err().to_string();
        assert!(
            text.contains("model.ptd: cannot read bytes 0..8") && text.contains("os error 21"),
            "{text}"
        );
    }
}
