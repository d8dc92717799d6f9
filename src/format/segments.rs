//! The table of segments: raw bytes after the flatbuffer. Segments stand in file order and do not overlap.
//! They cover their region but for alignment padding, so no byte of a file escapes every check.

use std::ops::Range;

use super::malformed;
use crate::error::Result;

/// No writer aligns to more than 64 MiB.
const MAX_ALIGNMENT_BITS: u32 = 26;

/// Padding before `offset` is shorter than the alignment it was made for. The largest alignment that can
/// be meant is the largest power of two in the offset.
pub(super) fn padding_limit(offset: u64) -> u64 {
    1 << offset.trailing_zeros().min(MAX_ALIGNMENT_BITS)
}

/// One row of a table of segments.
pub(super) struct SegmentRow {
    /// Where the row stands in the file.
    pub at: usize,
    /// Offset from the start of the region.
    pub offset: u64,
    /// Exact bytes.
    pub size: u64,
}

/// The absolute byte range of every segment, checked.
pub(super) fn ranges(
    file: &str,
    region: Option<Range<u64>>,
    rows: impl Iterator<Item = SegmentRow>,
) -> Result<Vec<Range<usize>>> {
    let (base, region_size) =
        region.map_or((0, 0), |region| (region.start, region.end - region.start));
    let mut ranges = Vec::new();
    let mut covered = 0;
    for (index, row) in rows.enumerate() {
        let end = check_row(file, index, &row, covered, region_size)?;
        ranges.push(absolute(file, base, row.offset)?..absolute(file, base, end)?);
        covered = end;
    }
    let tail = region_size - covered;
    if tail > 0 && tail >= padding_limit(region_size) {
        let what = format!("{tail} bytes behind the last segment belong to none");
        return Err(malformed(file, base.saturating_add(covered), what));
    }
    Ok(ranges)
}

/// Checks one row against the bytes covered so far, and returns where it ends in the region.
fn check_row(
    file: &str,
    index: usize,
    row: &SegmentRow,
    covered: u64,
    region_size: u64,
) -> Result<u64> {
    let SegmentRow { at, offset, size } = *row;
    if offset < covered {
        let what =
            format!("segment {index} at {offset} overlaps the one before, which ends at {covered}");
        return Err(malformed(file, at, what));
    }
    if offset > covered && offset - covered >= padding_limit(offset) {
        let what = format!(
            "{} bytes in front of segment {index} belong to none",
            offset - covered
        );
        return Err(malformed(file, at, what));
    }
    match offset.checked_add(size) {
        Some(end) if end <= region_size => Ok(end),
        _ => {
            let what = format!(
                "segment {index} ({size} bytes at {offset}) leaves the {region_size} bytes of segments"
            );
            Err(malformed(file, at, what))
        }
    }
}

fn absolute(file: &str, base: u64, offset: u64) -> Result<usize> {
    base.checked_add(offset)
        .and_then(|position| usize::try_from(position).ok())
        .ok_or_else(|| {
            malformed(
                file,
                base,
                format!("segment offset {offset} is out of range"),
            )
        })
}
