//! One block into bytes.

use super::elements::split;
use super::layout::{
    field_bytes, fixed_bytes, plane_offset, rest_bytes, whole_units, PackedHeader, BLOCK_ELEMENTS,
    LANE, PLANE, SECOND, THIRD,
};
use crate::figures::NumberForm;

/// Codes blocks of one array. Its buffers are kept from block to block.
pub(super) struct BlockEncoder {
    form: NumberForm,
    /// Of each exponent: its rank, `RANKS` if it has none.
    ranks: [u8; 256],
    /// Of each exponent: its first field.
    first: [u8; 256],
    most_frequent: u8,
    exponents: Box<[u8; BLOCK_ELEMENTS]>,
    /// Exponents that are not in the first field. One place more, which is written but never kept.
    after_first: Box<[u8; BLOCK_ELEMENTS + 1]>,
    /// Of those the ones that are not in the second field.
    after_second: Box<[u8; BLOCK_ELEMENTS + 1]>,
}

impl BlockEncoder {
    pub fn new(header: &PackedHeader) -> Self {
        let mut ranks = [header.exponents.len() as u8; 256];
        // In reverse: where a header names an exponent twice, the shorter code wins.
        for (rank, &exponent) in header.exponents.iter().enumerate().rev() {
            ranks[usize::from(exponent)] = rank as u8;
        }
        BlockEncoder {
            form: header.form,
            ranks,
            first: ranks.map(|rank| rank.min(SECOND)),
            most_frequent: header.exponents[0],
            exponents: Box::new([0; BLOCK_ELEMENTS]),
            after_first: Box::new([0; BLOCK_ELEMENTS + 1]),
            after_second: Box::new([0; BLOCK_ELEMENTS + 1]),
        }
    }

    /// Appends the block of these raw bytes, at most a full block's, to `to`. Says whether it was
    /// coded; if not, it is stored raw.
    pub fn append(&mut self, raw: &[u8], to: &mut Vec<u8>) -> bool {
        let begin = to.len();
        let stored = whole_units(raw.len());
        let (elements, part) = (raw.len() / self.form.bytes(), raw.len() % self.form.bytes());
        let may_gain = part == 0 && fixed_bytes(self.form, elements) < stored;
        if may_gain {
            self.append_coded(raw, elements, to);
        }
        let coded = may_gain && to.len() - begin < stored;
        if !coded {
            to.truncate(begin);
            to.extend_from_slice(raw);
            to.resize(begin + stored, 0);
        }
        coded
    }

    fn append_coded(&mut self, raw: &[u8], elements: usize, to: &mut Vec<u8>) {
        let begin = to.len();
        to.resize(begin + fixed_bytes(self.form, elements), 0);
        let (rest, planes) = to[begin..].split_at_mut(rest_bytes(self.form, elements));
        let (planes, counts) = planes.split_at_mut(2 * PLANE);
        split(self.form, raw, rest, &mut self.exponents[..]);
        let whole = elements.next_multiple_of(LANE);
        // After the last element comes the exponent whose field is 0.
        self.exponents[elements..whole].fill(self.most_frequent);
        self.set_planes(&self.exponents[..whole], planes);
        let exponents = &self.exponents[..elements];
        let count2 = compact(exponents, &self.ranks, SECOND, &mut self.after_first);
        let after_first = &self.after_first[..count2];
        let count3 = compact(after_first, &self.ranks, THIRD, &mut self.after_second);
        let after_second = &self.after_second[..count3];
        let both = count2 as u32 | (count3 as u32) << 16;
        counts.copy_from_slice(&both.to_le_bytes());
        append_fields(after_first, 2, |e| (self.rank(e) - SECOND).min(3), to);
        append_fields(after_second, 3, |e| (self.rank(e) - THIRD).min(7), to);
        let bytes = after_second.iter().filter(|&&e| self.rank(e) - THIRD >= 7);
        to.extend(bytes);
        let stored = whole_units(to.len() - begin);
        to.resize(begin + stored, 0);
    }

    fn rank(&self, exponent: u8) -> u8 {
        self.ranks[usize::from(exponent)]
    }

    fn set_planes(&self, exponents: &[u8], planes: &mut [u8]) {
        let (low, high) = planes.split_at_mut(PLANE);
        for (chunk, exponents) in exponents.as_chunks::<LANE>().0.iter().enumerate() {
            let at = plane_offset(chunk);
            let fields = exponents.map(|exponent| self.first[usize::from(exponent)]);
            let fields = u128::from_le_bytes(fields);
            low[at..at + 2].copy_from_slice(&gather(fields));
            high[at..at + 2].copy_from_slice(&gather(fields >> 1));
        }
    }
}

/// Bit 0 of each of 16 bytes.
fn gather(bytes: u128) -> [u8; 2] {
    // The product moves bit 0 of byte j to bit 56 + j; no two bits meet on the way.
    let eight = |bytes: u64| {
        let ones = bytes & 0x0101_0101_0101_0101;
        (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
    };
    [eight(bytes as u64), eight((bytes >> 64) as u64)]
}

/// Copies the exponents whose rank is at least `least`, in order. Returns how many.
fn compact(from: &[u8], ranks: &[u8; 256], least: u8, to: &mut [u8; BLOCK_ELEMENTS + 1]) -> usize {
    let mut count = 0;
    for &exponent in from {
        // Written always, kept sometimes: a branch here would be mispredicted every few elements.
        to[count] = exponent;
        count += usize::from(ranks[usize::from(exponent)] >= least);
    }
    count
}

fn append_fields(exponents: &[u8], bits: usize, field: impl Fn(u8) -> u8, to: &mut Vec<u8>) {
    let end = to.len() + field_bytes(exponents.len(), bits);
    // 32 fields fill `bits` whole u32.
    for exponents in exponents.chunks(32) {
        let mut word = 0u128;
        for (index, &exponent) in exponents.iter().enumerate() {
            word |= u128::from(field(exponent)) << (bits * index);
        }
        to.extend_from_slice(&word.to_le_bytes()[..4 * bits]);
    }
    to.truncate(end);
}
