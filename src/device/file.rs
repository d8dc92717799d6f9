//! The file behind mapped bytes, for devices that read it instead of touching the mapping.
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
pub enum HostSource {
    /// These ranges of a file.
    File(HostFile, Vec<Range<u64>>),
    /// Memory that somebody else has read them into, and keeps.
    Memory(Vec<HostBytes>),
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
        let start = self.bytes.as_ptr().addr();
        let offset = bytes.as_ptr().addr().checked_sub(start)? as u64;
        let end = offset.checked_add(bytes.len())?;
        (end <= self.bytes.len()).then_some(offset)
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
