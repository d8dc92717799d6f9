//! Which file a mapped address belongs to. ExecuTorch hands out named data as an address and nothing
//! else; where that address lies in a file mapping, the file is the `.ptd`, and it is opened once,
//! whole, and checked like any other. Where it lies in memory (`LoadMode::File`), the weights are used there.
#![deny(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::config;
use crate::error::{Error, Result};

const MAPS: &str = "/proc/self/maps";

/// Path of the file that is mapped at `address`; `None` if it is memory of no file.
pub fn file_at(address: usize) -> Result<Option<PathBuf>> {
    let maps = std::fs::read(MAPS).map_err(|error| Error::Io {
        file: MAPS.to_owned(),
        what: format!("cannot read it: {error}"),
    })?;
    match find(&maps, address) {
        MappedFrom::File(path) => Ok(Some(path)),
        MappedFrom::Memory => Ok(None),
        MappedFrom::Deleted(path) => Err(Error::Option {
            key: config::DATA.to_owned(),
            what: format!(
                "is needed, the path of the .ptd: the named data cannot be used, since its file '{}' was deleted",
                path.display()
            ),
        }),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum MappedFrom {
    File(PathBuf),
    Deleted(PathBuf),
    Memory,
}

/// A line is `start-end perms offset device inode   path`; memory of no file has inode 0.
fn find(maps: &[u8], address: usize) -> MappedFrom {
    let line = maps
        .split(|&byte| byte == b'\n')
        .find(|line| covers(line, address));
    line.and_then(path_of).map_or(MappedFrom::Memory, place)
}

fn covers(line: &[u8], address: usize) -> bool {
    let range = line.split(|&byte| byte == b' ').next().unwrap_or_default();
    let range = std::str::from_utf8(range).unwrap_or_default();
    let bounds = range.split_once('-').and_then(|(start, end)| {
        Some((
            usize::from_str_radix(start, 16).ok()?,
            usize::from_str_radix(end, 16).ok()?,
        ))
    });
    bounds.is_some_and(|(start, end)| (start..end).contains(&address))
}

fn path_of(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line;
    for field in 0..5 {
        let end = rest.iter().position(|&byte| byte == b' ')?;
        if field == 4 && &rest[..end] == b"0" {
            return None;
        }
        rest = rest[end..].trim_ascii_start();
    }
    rest.starts_with(b"/").then_some(rest)
}

fn place(path: &[u8]) -> MappedFrom {
    match path.strip_suffix(b" (deleted)") {
        Some(path) => MappedFrom::Deleted(unescape(path)),
        None => MappedFrom::File(unescape(path)),
    }
}

/// The kernel writes a newline in a path as `\012`.
fn unescape(path: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(&byte) = rest.first() {
        let newline = rest.starts_with(b"\\012");
        out.push(if newline { b'\n' } else { byte });
        rest = &rest[if newline { 4 } else { 1 }..];
    }
    PathBuf::from(OsStr::from_bytes(&out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS_TEXT: &[u8] = b"\
5500-5600 r-xp 00001000 fe:01 1234                       /usr/bin/program
5600-5700 rw-p 00000000 00:00 0                          [heap]
7f00-7f80 r--s 00000000 fe:01 77                         /data/my weights.ptd
7f80-7f90 r--s 00000000 fe:01 78                         /data/gone.ptd (deleted)
7f90-7fa0 rw-p 00000000 00:00 0 
7fa0-7fb0 rw-s 00000000 00:05 99                         /data/a\\012b.ptd
";

    #[test]
    fn an_address_in_a_mapping_is_its_file() {
        assert_eq!(
            find(MAPS_TEXT, 0x7f00),
            MappedFrom::File("/data/my weights.ptd".into())
        );
        assert_eq!(
            find(MAPS_TEXT, 0x7f7f),
            MappedFrom::File("/data/my weights.ptd".into())
        );
        assert_eq!(
            find(MAPS_TEXT, 0x7fa1),
            MappedFrom::File("/data/a\nb.ptd".into())
        );
    }

    #[test]
    fn a_deleted_file_is_said_to_be_deleted() {
        assert_eq!(
            find(MAPS_TEXT, 0x7f80),
            MappedFrom::Deleted("/data/gone.ptd".into())
        );
    }

    #[test]
    fn heap_anonymous_memory_and_gaps_are_no_file() {
        for address in [0x5600, 0x7f90, 0x10, 0x7fb0] {
            assert_eq!(find(MAPS_TEXT, address), MappedFrom::Memory, "{address:x}");
        }
    }

    #[test]
    fn heap_bytes_of_this_process_are_no_file() {
        let heap = vec![1_u8; 1 << 20];
        assert_eq!(file_at(heap.as_ptr() as usize), Ok(None));
    }
}
