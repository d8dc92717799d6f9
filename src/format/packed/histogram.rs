//! How often each exponent occurs: the first of two passes over an array.

use super::layout::{
    fixed_bytes, whole_units, PackedHeader, BLOCK_BYTES, PADDING, RANKS, SECOND, THIRD, UNIT,
};

/// Counts of exponents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; 256],
    bytes: u64,
    /// The first byte of an element whose second byte has not come yet.
    half: Option<u8>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// Of an array without bytes.
    pub fn new() -> Self {
        Histogram {
            counts: [0; 256],
            bytes: 0,
            half: None,
        }
    }

    /// Counts the next raw bytes of the array. They may end within an element.
    pub fn add(&mut self, mut raw: &[u8]) {
        self.bytes += raw.len() as u64;
        if let (Some(low), Some((&high, rest))) = (self.half, raw.split_first()) {
            self.counts[exponent([low, high])] += 1;
            self.half = None;
            raw = rest;
        }
        // Equal exponents often follow each other. Four counters each do not wait for one another.
        let mut counts = [[0u64; 256]; 4];
        let (fours, rest) = raw.as_chunks::<8>();
        for four in fours {
            for (count, element) in counts.iter_mut().zip(four.as_chunks::<2>().0) {
                count[exponent(*element)] += 1;
            }
        }
        let (rest, half) = rest.as_chunks::<2>();
        for element in rest {
            counts[0][exponent(*element)] += 1;
        }
        for count in &counts {
            self.counts
                .iter_mut()
                .zip(count)
                .for_each(|(sum, one)| *sum += one);
        }
        if let Some(&half) = half.first() {
            self.half = Some(half);
        }
    }

    /// Adds the histogram of the bytes that follow. Those before them must be whole elements.
    pub fn merge(&mut self, next: &Histogram) {
        let counts = self.counts.iter_mut().zip(&next.counts);
        counts.for_each(|(sum, one)| *sum += one);
        self.bytes += next.bytes;
        self.half = next.half.or(self.half);
    }

    /// Most bytes that directory and payload of an array with this histogram take. It counts what all
    /// fields take, and the most that each block is rounded up by. It does not know of blocks that are
    /// stored raw because that is shorter: an array of very different blocks may take less.
    pub fn most_bytes(&self) -> u64 {
        let (whole, rest) = (
            self.bytes / BLOCK_BYTES as u64,
            (self.bytes % BLOCK_BYTES as u64) as usize,
        );
        let last = match (rest, self.half) {
            (0, _) => 0,
            (_, None) => fixed_bytes(rest / 2),
            // A block with half an element is stored raw.
            (_, Some(_)) => fixed_bytes(rest / 2).max(whole_units(rest)),
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
        let fixed = whole * fixed_bytes(BLOCK_BYTES / 2) as u64 + last as u64;
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
            bytes: self.bytes,
            exponents,
        }
    }
}

fn exponent(element: [u8; 2]) -> usize {
    usize::from(u16::from_le_bytes(element) >> 7 & 0xff)
}
