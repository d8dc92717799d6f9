//! In which pieces a packed weight is brought, and what memory that takes. Needs no device.
#![deny(unsafe_code)]

use super::GRANULE;
use crate::device::BlockCode;
use std::ops::Range;

/// Slots of the ring: one is filled while another is read, and the third lets both run ahead.
pub(super) const SLOTS: usize = 3;

/// Raw bytes of a block, and bytes of a unit in a directory. The code's own, see [`format::packed`](crate::format::packed).
const BLOCK: u64 = 8192;
const UNIT: u64 = 16;
const RAW: u32 = 1 << 31;
/// Bytes after a block that its decoder may read.
const PADDING: u64 = 16;
const ELEMENT: u64 = 2;

/// Blocks of a piece at the most: about 11 MB in the file.
const PIECE: u32 = 2048;

/// Blocks of a piece that is on the device already: a kernel counts their elements in 32 bits.
const KEPT_PIECE: u32 = 1 << 18;

/// Blocks that one copy brings into a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredPiece {
    /// Their numbers.
    pub blocks: Range<u32>,
    /// The device has their stored bytes already.
    pub kept: bool,
    /// Their stored bytes, with those after the last block that its decoder may read.
    pub stored: Range<u64>,
    /// Their raw bytes in the weight, from whole blocks.
    pub raw: Range<u64>,
    /// Elements from the first block to the weight's end.
    pub elements: u32,
    /// Which of the elements from the first block on are wanted: multiples of 8.
    pub wanted: Range<u32>,
}

fn offset(entry: u32) -> u64 {
    u64::from(entry & !RAW) * UNIT
}

/// Blocks that a slot has to hold for weights with these directories.
pub(super) fn most_blocks<'a>(directories: impl Iterator<Item = &'a [u32]>) -> u32 {
    let blocks = directories.map(|entries| entries.len().saturating_sub(1));
    (blocks.max().unwrap_or(0) as u32).min(PIECE)
}

/// Bytes of a slot of so many blocks, none of which is longer than its raw bytes.
pub(super) fn slot_bytes(blocks: u32) -> u64 {
    (u64::from(blocks) * BLOCK + PADDING).next_multiple_of(GRANULE)
}

/// Bytes of a directory on the device.
pub(super) fn directory_bytes(entries: &[u32]) -> u64 {
    (4 * entries.len() as u64).next_multiple_of(UNIT)
}

/// Bytes of device memory for the ring and these directories; none without packed weights.
pub(in crate::device) fn staging_bytes<'a>(
    directories: impl IntoIterator<Item = &'a [u32]>,
) -> u64 {
    let (mut most, mut listed) = (0, 0);
    for entries in directories {
        most = most.max(most_blocks(std::iter::once(entries)));
        listed += directory_bytes(entries);
    }
    match most {
        0 => 0,
        blocks => (SLOTS as u64 * slot_bytes(blocks) + listed).next_multiple_of(GRANULE),
    }
}

/// The pieces that bring these raw bytes of a weight, in slots of so many blocks; blocks whose stored bytes are among the first `kept` need
/// none. They have about the same size: a short last one would be decoded by few threads.
pub(super) fn pieces(
    code: BlockCode<'_>,
    range: Range<u64>,
    blocks: u32,
    kept: u64,
) -> impl Iterator<Item = StoredPiece> + '_ {
    // A directory has at most 2^31 entries.
    let (begin, end) = (
        (range.start / BLOCK) as u32,
        range.end.div_ceil(BLOCK) as u32,
    );
    let all = code.directory.len().saturating_sub(1) as u32;
    let end = if range.is_empty() {
        begin
    } else {
        end.min(all)
    };
    let begin = begin.min(end);
    let border = begin + kept_blocks(&code, begin..end, kept);
    let there = cuts(begin..border, KEPT_PIECE).map(|blocks| (blocks, true));
    let copied = cuts(border..end, blocks).map(|blocks| (blocks, false));
    let pieces = there.chain(copied);
    pieces.map(move |(blocks, kept)| StoredPiece {
        kept,
        ..piece(&code, blocks, &range)
    })
}

/// These blocks in parts of at most so many, of about the same size.
fn cuts(blocks: Range<u32>, most: u32) -> impl Iterator<Item = Range<u32>> {
    let all = blocks.end - blocks.start;
    let count = all.div_ceil(most.max(1));
    let cut =
        move |at: u32| blocks.start + (u64::from(all) * u64::from(at) / u64::from(count)) as u32;
    (0..count).map(move |at| cut(at)..cut(at + 1))
}

/// How many of these blocks lie in the first `kept` stored bytes, with what their decoder may read after them.
fn kept_blocks(code: &BlockCode<'_>, blocks: Range<u32>, kept: u64) -> u32 {
    let ends = &code.directory[blocks.start as usize + 1..][..blocks.len()];
    ends.partition_point(|&end| offset(end) + PADDING <= kept) as u32
}

fn piece(code: &BlockCode<'_>, blocks: Range<u32>, range: &Range<u64>) -> StoredPiece {
    let at = |block: u32| offset(code.directory[block as usize]);
    let (begin, end) = (at(blocks.start), at(blocks.end));
    let raw = u64::from(blocks.start) * BLOCK..u64::from(blocks.end) * BLOCK;
    let inside = |at: u64| at.clamp(raw.start, raw.end) - raw.start;
    StoredPiece {
        stored: begin..end + PADDING,
        // Of more than a kernel can count, no piece has as many.
        elements: u32::try_from((code.bytes - raw.start).div_ceil(ELEMENT)).unwrap_or(u32::MAX),
        wanted: (inside(range.start) / ELEMENT) as u32
            ..(inside(range.end) / ELEMENT).next_multiple_of(8) as u32,
        blocks,
        kept: false,
        raw,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::packed;

    /// A directory of so many blocks of 5,504 bytes each.
    fn directory(blocks: u32) -> Vec<u32> {
        (0..=blocks).map(|at| at * 344).collect()
    }

    fn code(directory: &[u32], bytes: u64) -> BlockCode<'_> {
        BlockCode {
            exponents: [0; 13],
            bytes,
            directory,
        }
    }

    #[test]
    fn the_code_is_that_of_packed_files() {
        assert_eq!(BLOCK, packed::BLOCK_BYTES as u64);
        assert_eq!(UNIT, packed::UNIT as u64);
        assert_eq!((RAW, PADDING), (packed::RAW, packed::PADDING as u64));
    }

    /// Pieces follow each other, cover what is wanted and nothing else, and fit into a slot.
    #[test]
    fn pieces_cover_a_range() {
        let listed = directory(1000);
        let bytes = 1000 * BLOCK - 4000;
        for range in [
            0..bytes,
            0..16,
            4096..bytes,
            8192..8192,
            81_920..90_000,
            bytes - 16..bytes,
        ] {
            for (blocks, kept) in [
                (1, 0),
                (7, 0),
                (100, 0),
                (2048, 0),
                (7, 90_000),
                (100, 9 << 20),
            ] {
                let (mut at, mut elements) = (range.start, 0);
                for piece in pieces(code(&listed, bytes), range.clone(), blocks, kept) {
                    assert!(!piece.blocks.is_empty());
                    match piece.kept {
                        true => assert!(piece.stored.end <= kept),
                        false => {
                            assert!(piece.blocks.len() as u32 <= blocks);
                            let copied = piece.stored.end - piece.stored.start;
                            assert!(copied <= slot_bytes(blocks));
                            assert!(piece.stored.start + 5504 + PADDING > kept);
                        }
                    }
                    assert_eq!(piece.stored.start, u64::from(piece.blocks.start) * 5504);
                    let begin = piece.raw.start + 2 * u64::from(piece.wanted.start);
                    assert_eq!(begin, at);
                    at = piece.raw.start + 2 * u64::from(piece.wanted.end);
                    assert!(piece.wanted.end.is_multiple_of(8));
                    assert_eq!(u64::from(piece.elements), (bytes - piece.raw.start) / 2);
                    elements += piece.wanted.len() as u64;
                }
                let wanted = (range.end - range.start).div_ceil(16) * 8;
                assert_eq!(elements, wanted, "{range:?} in pieces of {blocks}");
            }
        }
    }

    /// 20 GB that are there: no kernel has more elements than it can count.
    #[test]
    fn pieces_of_giant_weights_are_counted_in_32_bits() {
        let blocks = 2_500_000u32;
        let listed: Vec<u32> = (0..=blocks).map(|at| at * 344).collect();
        let bytes = u64::from(blocks) * BLOCK;
        let mut at = 0;
        for piece in pieces(code(&listed, bytes), 0..bytes, 2048, u64::MAX) {
            assert!(piece.kept && piece.blocks.start == at);
            assert!(piece.wanted.len() as u64 * ELEMENT == piece.raw.end - piece.raw.start);
            at = piece.blocks.end;
        }
        assert_eq!(at, blocks);
    }

    #[test]
    fn memory_is_that_of_the_largest_pieces_and_all_directories() {
        let (small, large) = (directory(3), directory(5000));
        let all = [small.as_slice(), large.as_slice()];
        assert_eq!(staging_bytes(std::iter::empty()), 0);
        let listed = directory_bytes(&small) + directory_bytes(&large);
        let ring = SLOTS as u64 * slot_bytes(PIECE);
        assert_eq!(
            staging_bytes(all),
            (ring + listed).next_multiple_of(GRANULE)
        );
        let few = staging_bytes([small.as_slice()]);
        assert_eq!(
            few,
            (SLOTS as u64 * slot_bytes(3) + 16).next_multiple_of(GRANULE)
        );
    }
}
