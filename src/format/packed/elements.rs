//! Elements taken apart, into exponents and what stays as it is, and put together again. Each form has loops of its own, with numbers of its
//! size: compilers make vector code of them.

use super::layout::{rest_of, GROUP, LANE};
use crate::figures::NumberForm;

/// Signs and mantissas to `to`, and exponents. What stands after the last element in `to` stays.
pub(super) fn split(form: NumberForm, raw: &[u8], to: &mut [u8], exponents: &mut [u8]) {
    match form {
        NumberForm::Bf16 => bf16::split(raw, to, exponents),
        NumberForm::F16 => f16::split(raw, to, exponents),
        NumberForm::F32 => f32::split(raw, to, exponents),
        NumberForm::F8E4M3 => f8e4m3::split(raw, to, exponents),
        NumberForm::F8E5M2 => f8e5m2::split(raw, to, exponents),
    }
}

/// Elements of these, as many as `out` has. There are exponents for whole lanes.
pub(super) fn join(form: NumberForm, from: &[u8], exponents: &[u8], out: &mut [u8]) {
    match form {
        NumberForm::Bf16 => bf16::join(from, exponents, out),
        NumberForm::F16 => f16::join(from, exponents, out),
        NumberForm::F32 => f32::join(from, exponents, out),
        NumberForm::F8E4M3 => f8e4m3::join(from, exponents, out),
        NumberForm::F8E5M2 => f8e5m2::join(from, exponents, out),
    }
}

/// Adds how often each exponent occurs among whole elements.
pub(super) fn count(form: NumberForm, raw: &[u8], counts: &mut [u64; 256]) {
    match form {
        NumberForm::Bf16 => bf16::count(raw, counts),
        NumberForm::F16 => f16::count(raw, counts),
        NumberForm::F32 => f32::count(raw, counts),
        NumberForm::F8E4M3 => f8e4m3::count(raw, counts),
        NumberForm::F8E5M2 => f8e5m2::count(raw, counts),
    }
}

macro_rules! loops {
    ($form:ident, $Word:ty, $of:expr) => {
        mod $form {
            use super::*;

            const E: usize = size_of::<$Word>();
            const M: u32 = $of.mantissa_bits();
            const X: u32 = $of.exponent_bits();
            /// Whole bytes of sign and mantissa, and bits above them.
            const BYTES: usize = rest_of(M).0;
            const BITS: usize = rest_of(M).1;
            /// Bytes of the bits above of a lane.
            const ABOVE: usize = LANE / 8 * BITS;
            const MANTISSA: $Word = (1 << M) - 1;
            const EXPONENT: u8 = ((1u32 << X) - 1) as u8;

            fn word(element: &[u8; E]) -> $Word {
                <$Word>::from_le_bytes(*element)
            }

            fn exponent_of(word: $Word) -> u8 {
                (word >> M) as u8 & EXPONENT
            }

            /// Sign and mantissa.
            fn rest(word: $Word) -> $Word {
                word >> (M + X) << M | word & MANTISSA
            }

            pub fn split(raw: &[u8], to: &mut [u8], exponents: &mut [u8]) {
                let elements = raw.as_chunks::<E>().0;
                for (element, exponent) in elements.iter().zip(exponents) {
                    *exponent = exponent_of(word(element));
                }
                let whole = elements.len().next_multiple_of(GROUP);
                let (planes, above) = to.split_at_mut(BYTES * whole);
                for (index, plane) in planes.chunks_mut(whole.max(1)).enumerate() {
                    for (element, byte) in elements.iter().zip(plane) {
                        *byte = (rest(word(element)) >> (8 * index)) as u8;
                    }
                }
                for (elements, place) in elements.chunks(LANE).zip(above.chunks_mut(ABOVE.max(1))) {
                    let mut all = 0u64;
                    for (index, element) in elements.iter().enumerate() {
                        let above = u64::from(rest(word(element))) >> (8 * BYTES);
                        all |= above << (BITS * index);
                    }
                    place.copy_from_slice(&all.to_le_bytes()[..ABOVE]);
                }
            }

            pub fn join(from: &[u8], exponents: &[u8], out: &mut [u8]) {
                let elements = out.as_chunks_mut::<E>().0;
                let whole = elements.len().next_multiple_of(GROUP);
                let (planes, above) = from.split_at(BYTES * whole);
                let (lanes, last) = elements.as_chunks_mut::<LANE>();
                let exponents = exponents.as_chunks::<LANE>().0;
                let lane = |index: usize, exponents: &[u8; LANE]| {
                    let mut rests = [0 as $Word; LANE];
                    if BITS > 0 {
                        let mut all = [0; 8];
                        all[..ABOVE].copy_from_slice(&above[ABOVE * index..][..ABOVE]);
                        let all = u64::from_le_bytes(all);
                        for (index, rest) in rests.iter_mut().enumerate() {
                            let bits = all >> (BITS * index) & ((1 << BITS) - 1);
                            *rest = (bits << (8 * BYTES)) as $Word;
                        }
                    }
                    for (byte, plane) in planes.chunks_exact(whole.max(1)).enumerate() {
                        let plane = &plane[LANE * index..][..LANE];
                        for (rest, &part) in rests.iter_mut().zip(plane) {
                            *rest |= <$Word>::from(part) << (8 * byte);
                        }
                    }
                    let mut lane = [[0; E]; LANE];
                    for ((element, rest), &exponent) in lane.iter_mut().zip(rests).zip(exponents) {
                        // A damaged block may have larger ones, which would be seen in the sign.
                        let exponent = <$Word>::from(exponent & EXPONENT);
                        let word = rest >> M << (M + X) | exponent << M | rest & MANTISSA;
                        *element = word.to_le_bytes();
                    }
                    lane
                };
                let full = lanes.len();
                for (index, (place, exponents)) in lanes.iter_mut().zip(exponents).enumerate() {
                    *place = lane(index, exponents);
                }
                if let (false, Some(exponents)) = (last.is_empty(), exponents.get(full)) {
                    last.copy_from_slice(&lane(full, exponents)[..last.len()]);
                }
            }

            pub fn count(raw: &[u8], sums: &mut [u64; 256]) {
                // Equal exponents often follow each other. Four counters each do not wait for one another.
                let mut counts = [[0u64; 256]; 4];
                let (fours, rest) = raw.as_chunks::<E>().0.as_chunks::<4>();
                for four in fours {
                    for (count, element) in counts.iter_mut().zip(four) {
                        count[usize::from(exponent_of(word(element)))] += 1;
                    }
                }
                for element in rest {
                    counts[0][usize::from(exponent_of(word(element)))] += 1;
                }
                for count in &counts {
                    sums.iter_mut()
                        .zip(count)
                        .for_each(|(sum, one)| *sum += one);
                }
            }
        }
    };
}

loops!(bf16, u16, NumberForm::Bf16);
loops!(f16, u16, NumberForm::F16);
loops!(f32, u32, NumberForm::F32);
loops!(f8e4m3, u8, NumberForm::F8E4M3);
loops!(f8e5m2, u8, NumberForm::F8E5M2);
