//! In which pieces a packed weight is brought, and what memory that takes. Needs no device.
#![deny(unsafe_code)]

use super::GRANULE;
use crate::device::BlockCode;
use std::ops::Range;

/// Slots of the ring: one is filled while another is read, and the third lets both run ahead.
pub(super) const SLOTS: usize = 3;

/// Elements of a block, and bytes of a unit in a directory. The code's own, see [`format::packed`](crate::format::packed).
const ELEMENTS: u64 = 4096;
const UNIT: u64 = 16;
const RAW: u32 = 1 << 31;
/// Bytes after a block that its decoder may read.
const PADDING: u64 = 16;

/// Raw bytes of a piece at the most: of bf16 about 11 MB in the file.
const PIECE: u64 = 16 << 20;

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
    /// Which of the elements from the first block on are wanted: as many as have whole 16 bytes.
    pub wanted: Range<u32>,
}

fn offset(entry: u32) -> u64 {
    u64::from(entry & !RAW) * UNIT
}

/// Raw bytes of a full block.
fn block_bytes(code: &BlockCode<'_>) -> u64 {
    ELEMENTS * code.form.bytes() as u64
}

/// Raw bytes whose blocks a slot has to hold for these weights.
pub(super) fn most_bytes<'a>(weights: impl Iterator<Item = BlockCode<'a>>) -> u64 {
    let bytes = |code: BlockCode<'_>| {
        (code.directory.len().saturating_sub(1) as u64 * block_bytes(&code)).min(PIECE)
    };
    weights.map(bytes).max().unwrap_or(0)
}

/// Bytes of a slot for blocks of so many raw bytes. None of them is longer.
pub(super) fn slot_bytes(raw: u64) -> u64 {
    (raw + PADDING).next_multiple_of(GRANULE)
}

/// Bytes of a directory on the device.
pub(super) fn directory_bytes(entries: &[u32]) -> u64 {
    (4 * entries.len() as u64).next_multiple_of(UNIT)
}

/// Bytes of device memory for the ring and the directories of these weights; none without packed weights.
pub(in crate::device) fn staging_bytes<'a>(
    weights: impl IntoIterator<Item = BlockCode<'a>>,
) -> u64 {
    let (mut most, mut listed) = (0, 0);
    for code in weights {
        most = most.max(most_bytes(std::iter::once(code)));
        listed += directory_bytes(code.directory);
    }
    match most {
        0 => 0,
        raw => (SLOTS as u64 * slot_bytes(raw) + listed).next_multiple_of(GRANULE),
    }
}

/// The pieces that bring these raw bytes of a weight, in slots for so many raw bytes; blocks whose stored bytes are among the first `kept`
/// need none. They have about the same size: a short last one would be decoded by few threads.
pub(super) fn pieces(
    code: BlockCode<'_>,
    range: Range<u64>,
    slot: u64,
    kept: u64,
) -> impl Iterator<Item = StoredPiece> + '_ {
    // A directory has at most 2^31 entries.
    let block = block_bytes(&code);
    let (begin, end) = (
        (range.start / block) as u32,
        range.end.div_ceil(block) as u32,
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
    let copied = cuts(border..end, (slot / block) as u32).map(|blocks| (blocks, false));
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
    let (block, element) = (block_bytes(code), code.form.bytes() as u64);
    let raw = u64::from(blocks.start) * block..u64::from(blocks.end) * block;
    let inside = |at: u64| at.clamp(raw.start, raw.end) - raw.start;
    StoredPiece {
        stored: begin..end + PADDING,
        // Of more than a kernel can count, no piece has as many.
        elements: u32::try_from((code.bytes - raw.start).div_ceil(element)).unwrap_or(u32::MAX),
        wanted: (inside(range.start) / element) as u32
            ..(inside(range.end).next_multiple_of(16) / element) as u32,
        blocks,
        kept: false,
        raw,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::NumberForm;
    use crate::format::packed;

    /// A directory of so many blocks of 3,072 bytes each.
    fn directory(blocks: u32) -> Vec<u32> {
        (0..=blocks).map(|at| at * 192).collect()
    }

    fn code(form: NumberForm, directory: &[u32], bytes: u64) -> BlockCode<'_> {
        BlockCode {
            form,
            exponents: [0; 13],
            bytes,
            directory,
        }
    }

    #[test]
    fn the_code_is_that_of_packed_files() {
        assert_eq!(ELEMENTS, packed::BLOCK_ELEMENTS as u64);
        assert_eq!(UNIT, packed::UNIT as u64);
        assert_eq!((RAW, PADDING), (packed::RAW, packed::PADDING as u64));
    }

    /// Pieces follow each other, cover what is wanted and nothing else, and fit into a slot.
    #[test]
    fn pieces_cover_a_range() {
        for form in NumberForm::ALL {
            let (element, listed) = (form.bytes() as u64, directory(1000));
            let bytes = (1000 * ELEMENTS - 2000) * element;
            let code = code(form, &listed, bytes);
            let block = block_bytes(&code);
            for range in [
                0..bytes,
                0..16,
                block / 2..bytes,
                block..block,
                10 * block..11 * block - 32,
                bytes - 16..bytes,
            ] {
                for (slot, kept) in [
                    (block, 0),
                    (7 * block, 0),
                    (100 * block, 0),
                    (16 << 20, 0),
                    (7 * block, 90_000),
                    (100 * block, 2 << 20),
                ] {
                    covered(code, range.clone(), slot, kept);
                }
            }
        }
    }

    fn covered(code: BlockCode<'_>, range: Range<u64>, slot: u64, kept: u64) {
        let element = code.form.bytes() as u64;
        let (mut at, mut wanted) = (range.start, 0);
        for piece in pieces(code, range.clone(), slot, kept) {
            assert!(!piece.blocks.is_empty());
            match piece.kept {
                true => assert!(piece.stored.end <= kept),
                false => {
                    assert!(piece.blocks.len() as u64 * block_bytes(&code) <= slot);
                    let copied = piece.stored.end - piece.stored.start;
                    assert!(copied <= slot_bytes(slot));
                    assert!(piece.stored.start + 3072 + PADDING > kept);
                }
            }
            assert_eq!(piece.stored.start, u64::from(piece.blocks.start) * 3072);
            let begin = piece.raw.start + element * u64::from(piece.wanted.start);
            assert_eq!(begin, at);
            at = piece.raw.start + element * u64::from(piece.wanted.end);
            assert!(at.is_multiple_of(16));
            let left = code.bytes - piece.raw.start;
            assert_eq!(u64::from(piece.elements), left.div_ceil(element));
            wanted += piece.wanted.len() as u64 * element;
        }
        let expected = (range.end - range.start).next_multiple_of(16);
        assert_eq!(wanted, expected, "{range:?} in pieces of {slot} bytes");
    }

    /// 20 GB of bf16 that are there, and 40 GB of fp32: no kernel has more elements than it can count.
    #[test]
    fn pieces_of_giant_weights_are_counted_in_32_bits() {
        let blocks = 2_500_000u32;
        let listed = directory(blocks);
        for form in [NumberForm::Bf16, NumberForm::F32] {
            let element = form.bytes() as u64;
            let bytes = u64::from(blocks) * ELEMENTS * element;
            let mut at = 0;
            for piece in pieces(code(form, &listed, bytes), 0..bytes, 16 << 20, u64::MAX) {
                assert!(piece.kept && piece.blocks.start == at);
                let wanted = piece.wanted.len() as u64 * element;
                assert_eq!(wanted, piece.raw.end - piece.raw.start);
                at = piece.blocks.end;
            }
            assert_eq!(at, blocks);
        }
    }

    #[test]
    fn memory_is_that_of_the_largest_pieces_and_all_directories() {
        let (small, large) = (directory(3), directory(5000));
        let small = code(NumberForm::F32, &small, 0);
        let large = code(NumberForm::F8E4M3, &large, 0);
        let listed = directory_bytes(small.directory) + directory_bytes(large.directory);
        assert_eq!(staging_bytes([]), 0);
        let ring = SLOTS as u64 * slot_bytes(PIECE);
        assert_eq!(
            staging_bytes([small, large]),
            (ring + listed).next_multiple_of(GRANULE)
        );
        let ring = SLOTS as u64 * slot_bytes(3 * 16384);
        assert_eq!(
            staging_bytes([small]),
            (ring + 16).next_multiple_of(GRANULE)
        );
    }
}
