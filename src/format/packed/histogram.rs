//! How often each exponent occurs: the first of two passes over an array.

use super::layout::{PackedHeader, RANKS};

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
