//! How often each exponent occurs: the first of two passes over an array.

use super::elements::count;
use super::layout::{
    fixed_bytes, whole_units, PackedHeader, BLOCK_ELEMENTS, PADDING, RANKS, SECOND, THIRD, UNIT,
};
use crate::figures::NumberForm;

/// Counts of exponents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    form: NumberForm,
    counts: [u64; 256],
    bytes: u64,
}

impl Histogram {
    /// Of an array without bytes.
    pub fn new(form: NumberForm) -> Self {
        Histogram {
            form,
            counts: [0; 256],
            bytes: 0,
        }
    }

    /// Counts the next raw bytes of the array. Those before them must be whole elements.
    pub fn add(&mut self, raw: &[u8]) {
        self.bytes += raw.len() as u64;
        count(self.form, raw, &mut self.counts);
    }

    /// Adds the histogram of the bytes that follow. Those before them must be whole elements.
    pub fn merge(&mut self, next: &Histogram) {
        let counts = self.counts.iter_mut().zip(&next.counts);
        counts.for_each(|(sum, one)| *sum += one);
        self.bytes += next.bytes;
    }

    /// Most bytes that directory and payload of an array with this histogram take. It counts what all
    /// fields take, and the most that each block is rounded up by. It does not know of blocks that are
    /// stored raw because that is shorter: an array of very different blocks may take less.
    pub fn most_bytes(&self) -> u64 {
        let (form, element) = (self.form, self.form.bytes());
        let full = (BLOCK_ELEMENTS * element) as u64;
        let (whole, rest) = (self.bytes / full, (self.bytes % full) as usize);
        let last = match (rest, rest % element) {
            (0, _) => 0,
            (_, 0) => fixed_bytes(form, rest / element),
            // A block with a part of an element is stored raw.
            _ => fixed_bytes(form, rest / element).max(whole_units(rest)),
        };
        let blocks = whole + u64::from(rest > 0);
        let mut counts = self.counts;
        counts.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
        let after = |rank: usize| counts[rank..].iter().sum::<u64>();
        let fields = after(usize::from(SECOND)).div_ceil(4)
            + (3 * after(usize::from(THIRD))).div_ceil(8)
            + after(RANKS);
        // Second and third fields are rounded up to a u32 each, and the block to a unit.
        let rounding = blocks * (4 + 4 + UNIT as u64);
        let directory = 4 * (blocks + 1);
        let fixed = whole * fixed_bytes(form, BLOCK_ELEMENTS) as u64 + last as u64;
        fixed + fields + rounding + PADDING as u64 + directory
    }

    /// Whether it is worth it to pack the array: a twentieth has to be gained. A weight of very
    /// different blocks may gain more than [`Histogram::most_bytes`] says, and stays raw.
    pub fn gains(&self) -> bool {
        u128::from(self.most_bytes()) * 20 <= u128::from(self.bytes) * 19
    }

    /// The header of an array with this histogram. Of equally frequent exponents the lowest comes
    /// first.
    pub fn header(&self) -> PackedHeader {
        let mut order: Vec<u8> = (0..=255).collect();
        order.sort_by_key(|&exponent| std::cmp::Reverse(self.counts[usize::from(exponent)]));
        let mut exponents = [0; RANKS];
        exponents.copy_from_slice(&order[..RANKS]);
        PackedHeader {
            form: self.form,
            bytes: self.bytes,
            exponents,
        }
    }
}
