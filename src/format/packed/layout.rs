//! Sizes and offsets of the code, and its header.

use crate::figures::NumberForm;

/// Elements of a block; the last block of an array may have fewer.
pub const BLOCK_ELEMENTS: usize = 4096;
/// Raw bytes of the largest full block. Those of each form divide it.
pub(super) const MOST_BLOCK_BYTES: usize = 4 * BLOCK_ELEMENTS;
/// Blocks begin at multiples of this many bytes. The directory counts in it.
pub const UNIT: usize = 16;
/// Bytes of zeros after the last block, for decoders that read windows of three u32.
pub const PADDING: usize = 16;
/// The bit of a directory entry that says that its block is stored raw.
pub const RAW: u32 = 1 << 31;

/// Exponents that have a short code.
pub(super) const RANKS: usize = 13;
/// Ranks before this one are in the first field.
pub(super) const SECOND: u8 = 3;
/// Ranks from `SECOND` on and before this one are in the second field.
pub(super) const THIRD: u8 = 6;

/// Elements of a group: 16 for each lane of a warp.
pub(super) const GROUP: usize = 512;
/// Elements of one lane in one group.
pub(super) const LANE: usize = 16;
/// Lanes of a warp.
pub(super) const LANES: usize = 32;
/// Groups of a full block.
pub(super) const GROUPS: usize = BLOCK_ELEMENTS / GROUP;
/// Bytes of one plane.
pub(super) const PLANE: usize = BLOCK_ELEMENTS / 8;
/// Bytes of the two counts.
pub(super) const COUNTS: usize = 4;

/// What a decoder has to know of an array besides its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedHeader {
    /// How its elements are made of bits.
    pub form: NumberForm,
    /// Raw bytes of the array.
    pub bytes: u64,
    /// The exponents with short codes, most frequent first.
    pub exponents: [u8; RANKS],
}

impl PackedHeader {
    /// One that is too large for the form; decoders put exponents between sign and mantissa.
    pub fn impossible_exponent(&self) -> Option<u8> {
        let too_large = |one: &u8| u32::from(*one) >> self.form.exponent_bits() != 0;
        self.exponents.iter().copied().find(too_large)
    }

    /// Raw bytes of a full block.
    pub fn full_block(&self) -> usize {
        BLOCK_ELEMENTS * self.form.bytes()
    }

    /// Blocks of the array.
    pub fn blocks(&self) -> u64 {
        self.bytes.div_ceil(self.full_block() as u64)
    }

    /// Raw bytes of block `block`; 0 after the last one.
    pub fn block_bytes(&self, block: u64) -> usize {
        let full = self.full_block() as u64;
        let left = self.bytes.saturating_sub(block.saturating_mul(full));
        left.min(full) as usize
    }
}

/// `bytes` up to a whole unit.
pub(super) fn whole_units(bytes: usize) -> usize {
    bytes.next_multiple_of(UNIT)
}

/// Sign and mantissa of an element, whose bits stay as they are: whole bytes, and bits above these.
pub(super) const fn rest_of(mantissa_bits: u32) -> (usize, usize) {
    let bits = 1 + mantissa_bits as usize;
    (bits / 8, bits % 8)
}

/// Bytes of signs and mantissas in a coded block of so many elements.
pub(super) fn rest_bytes(form: NumberForm, elements: usize) -> usize {
    let (bytes, bits) = rest_of(form.mantissa_bits());
    let whole = elements.next_multiple_of(GROUP);
    whole * bytes + whole / 8 * bits
}

/// Bytes of a coded block up to its second fields.
pub(super) fn fixed_bytes(form: NumberForm, elements: usize) -> usize {
    rest_bytes(form, elements) + 2 * PLANE + COUNTS
}

/// Bytes that `count` fields of `bits` bits take: whole u32.
pub(super) fn field_bytes(count: usize, bits: usize) -> usize {
    (count * bits).div_ceil(32) * 4
}

/// Where the u16 of elements `16 * chunk ..` stands in a plane.
pub(super) fn plane_offset(chunk: usize) -> usize {
    let (group, lane) = (chunk / LANES, chunk % LANES);
    2 * (lane * GROUPS + group)
}
