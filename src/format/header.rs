//! The extended headers. Every flatbuffer file starts with 8 bytes: root offset and identifier. After
//! them, both containers keep a small header that says where the flatbuffer ends and where the segments
//! are. All numbers are little-endian.

use std::ops::Range;

use super::malformed;
use crate::error::Result;

/// Where the extended header stands.
const HEADER_AT: usize = 8;
/// No writer makes headers longer than this; a longer one is damage.
const MAX_HEADER_BYTES: u32 = 4096;

/// What a header says about its file, already checked against the file's length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    /// The flatbuffer is the file's bytes before this offset.
    pub flatbuffer_end: u64,
    /// The bytes of all segments; `None` for a file without any.
    pub segments: Option<Range<u64>>,
}

/// One kind of container file.
struct Kind {
    identifier: &'static [u8; 4],
    what: &'static str,
    other_identifier: &'static [u8; 4],
    other: &'static str,
}

const PROGRAM: Kind = Kind {
    identifier: b"ET12",
    what: "an ExecuTorch program (.pte)",
    other_identifier: b"FT01",
    other: "a .ptd data file",
};
const DATA: Kind = Kind {
    identifier: b"FT01",
    what: "a FlatTensor data file (.ptd)",
    other_identifier: b"ET12",
    other: "a .pte program",
};

/// What people give instead, by how it begins.
const OTHERS: [(&[u8], &str); 2] = [
    (
        b"version https://git-lfs",
        "a pointer of Git LFS, which stands for the file: `git lfs pull` brings the file itself",
    ),
    (
        b"PK\x03\x04",
        "a zip archive, as torch.save and torch.export.save write: export it with `weightstream export`",
    ),
];

/// Reads the header of a `.pte`. A program without segments has none.
pub(super) fn program(file: &str, bytes: &[u8]) -> Result<Extent> {
    let input = Input { file, bytes };
    input.check_identifier(&PROGRAM)?;
    if bytes.get(HEADER_AT..HEADER_AT + 4) != Some(b"eh00".as_slice()) {
        input.check_root()?;
        return Ok(Extent {
            flatbuffer_end: input.len(),
            segments: None,
        });
    }
    let length = input.header_length(24)?;
    let flatbuffer_end = input.u64_at(16)?;
    let base = input.u64_at(24)?;
    // The first version of this header did not say how long the segments are.
    let size = if length >= 32 {
        Some(input.u64_at(32)?)
    } else {
        None
    };
    input.check_flatbuffer_end(flatbuffer_end, length, 16)?;
    let size = match size {
        Some(size) => size,
        None if base == 0 => 0,
        None => input
            .len()
            .checked_sub(base)
            .ok_or_else(|| input.truncated(base))?,
    };
    let segments = input.segment_region(flatbuffer_end, base, size, 24)?;
    Ok(Extent {
        flatbuffer_end,
        segments,
    })
}

/// Reads the header of a `.ptd`, which always has one.
pub(super) fn data(file: &str, bytes: &[u8]) -> Result<Extent> {
    let input = Input { file, bytes };
    input.check_identifier(&DATA)?;
    if input.take::<4>(HEADER_AT)? != *b"FH01" {
        return Err(malformed(
            file,
            HEADER_AT,
            "the header's magic 'FH01' is not here",
        ));
    }
    let length = input.header_length(40)?;
    let (start, size) = (input.u64_at(16)?, input.u64_at(24)?);
    if start < HEADER_AT as u64 + u64::from(length) - 8 {
        let what = format!("the flatbuffer starts at {start}, inside the header of {length} bytes");
        return Err(malformed(file, 16u64, what));
    }
    let flatbuffer_end = start.checked_add(size).ok_or_else(|| {
        malformed(
            file,
            24u64,
            format!("the flatbuffer's size {size} does not fit any file"),
        )
    })?;
    input.check_flatbuffer_end(flatbuffer_end, length, 24)?;
    let segments =
        input.segment_region(flatbuffer_end, input.u64_at(32)?, input.u64_at(40)?, 32)?;
    Ok(Extent {
        flatbuffer_end,
        segments,
    })
}

struct Input<'a> {
    file: &'a str,
    bytes: &'a [u8],
}

impl Input<'_> {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn take<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let end = at + N;
        let found = self
            .bytes
            .get(at..end)
            .and_then(|found| found.try_into().ok());
        found.ok_or_else(|| self.truncated(end as u64))
    }

    fn u64_at(&self, at: usize) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(at)?))
    }

    fn truncated(&self, needed: u64) -> crate::Error {
        let what = format!(
            "the file is truncated: its header says at least {needed} bytes, the file has {}; copy or download it again",
            self.len()
        );
        malformed(self.file, self.len(), what)
    }

    /// The tables of a program without a header begin inside of the file.
    fn check_root(&self) -> Result<()> {
        let root = u64::from(u32::from_le_bytes(self.take(0)?));
        match root + 4 <= self.len() && self.len() > HEADER_AT as u64 {
            true => Ok(()),
            false => Err(self.truncated(root.max(HEADER_AT as u64) + 4)),
        }
    }

    fn check_identifier(&self, kind: &Kind) -> Result<()> {
        if self.bytes.is_empty() {
            let what = format!("the file is empty; expected {}", kind.what);
            return Err(malformed(self.file, 0u64, what));
        }
        let known = OTHERS
            .iter()
            .find(|(begins, _)| self.bytes.starts_with(begins));
        if let Some((_, other)) = known {
            let what = format!("this is not {}, but {other}", kind.what);
            return Err(malformed(self.file, 4u64, what));
        }
        let found: [u8; 4] = self.take(4)?;
        if found == *kind.identifier {
            return Ok(());
        }
        let mut what = format!("this is not {}: expected identifier ", kind.what);
        what += &format!("'{}', ", kind.identifier.escape_ascii());
        what += &format!("found '{}'", found.escape_ascii());
        if found == *kind.other_identifier {
            what += &format!(", which is {}: were the two files swapped?", kind.other);
        }
        Err(malformed(self.file, 4u64, what))
    }

    fn header_length(&self, least: u32) -> Result<u32> {
        let at = HEADER_AT + 4;
        let length = u32::from_le_bytes(self.take(at)?);
        if !(least..=MAX_HEADER_BYTES).contains(&length) {
            let what = format!(
                "the header's length is {length}, expected {least} to {MAX_HEADER_BYTES} bytes"
            );
            return Err(malformed(self.file, at, what));
        }
        Ok(length)
    }

    fn check_flatbuffer_end(&self, end: u64, header_length: u32, at: u64) -> Result<()> {
        if end < HEADER_AT as u64 + u64::from(header_length) {
            let what = format!("the flatbuffer ends at byte {end}, inside the header");
            return Err(malformed(self.file, at, what));
        }
        if end > self.len() {
            return Err(self.truncated(end));
        }
        Ok(())
    }

    /// The segments' bytes: from the flatbuffer's end to the end of the file, which must be exactly where the
    /// header says. `at` is where the base stands.
    fn segment_region(
        &self,
        after: u64,
        base: u64,
        size: u64,
        at: u64,
    ) -> Result<Option<Range<u64>>> {
        let end = base.checked_add(size).ok_or_else(|| {
            let what = format!("segments at {base} of {size} bytes do not fit any file");
            malformed(self.file, at, what)
        })?;
        if base == 0 && size == 0 {
            self.check_end(after)?;
            return Ok(None);
        }
        if base < after {
            let what = format!("segments start at {base}, before the tables end at {after}");
            return Err(malformed(self.file, at, what));
        }
        if end > self.len() {
            return Err(self.truncated(end));
        }
        if base - after >= super::segments::padding_limit(base) {
            let what = format!("{} unused bytes in front of the segments", base - after);
            return Err(malformed(self.file, after, what));
        }
        self.check_end(end)?;
        Ok(Some(base..end))
    }

    fn check_end(&self, end: u64) -> Result<()> {
        if end == self.len() {
            return Ok(());
        }
        let what = format!(
            "the file is too long: its header says {end} bytes, the file has {}",
            self.len()
        );
        Err(malformed(self.file, end, what))
    }
}
