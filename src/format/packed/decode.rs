//! Bytes of one block into its elements. Whatever the bytes are, nothing outside of them is read.

use super::elements::join;
use super::layout::{
    field_bytes, fixed_bytes, plane_offset, rest_bytes, whole_units, PackedHeader, BLOCK_ELEMENTS,
    COUNTS, LANE, PLANE, RANKS, SECOND, THIRD,
};
use crate::figures::NumberForm;

/// What is wrong with a block, and at which of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    pub at: usize,
    pub what: String,
}

type Decoded<T> = std::result::Result<T, Damage>;

/// Exponents of four fields of two bits.
type Fours = [[u8; 4]; 256];

/// Decodes blocks of one array. Its buffers are kept from block to block.
pub(super) struct BlockDecoder {
    form: NumberForm,
    /// By two bits of the low plane for each of four elements, then two of the high plane.
    first: Fours,
    /// By four second fields.
    second: Fours,
    /// By a third field. The last one stands for a byte.
    third: [u8; 8],
    exponents: Box<[u8; BLOCK_ELEMENTS]>,
    /// Exponents of the second fields, in whole words of 16.
    after_first: Box<[u8; BLOCK_ELEMENTS]>,
    after_second: Vec<u8>,
}

impl BlockDecoder {
    pub fn new(header: &PackedHeader) -> Self {
        let exponents = &header.exponents;
        // A field of 3 is filled in later; until then any exponent will do.
        let at = |rank: u8, field: usize| exponents[usize::from(rank) + field.min(2)];
        let planes = |index: usize, i: usize| (index >> i & 1) | (index >> (4 + i) & 1) << 1;
        let pairs = |index: usize, i: usize| index >> (2 * i) & 3;
        let four = |rank, field: &dyn Fn(usize, usize) -> usize| {
            std::array::from_fn(|index| std::array::from_fn(|i| at(rank, field(index, i))))
        };
        let mut third = [0; 8];
        third[..7].copy_from_slice(&exponents[usize::from(THIRD)..RANKS]);
        BlockDecoder {
            form: header.form,
            first: four(0, &planes),
            second: four(SECOND, &pairs),
            third,
            exponents: Box::new([0; BLOCK_ELEMENTS]),
            after_first: Box::new([0; BLOCK_ELEMENTS]),
            after_second: Vec::with_capacity(BLOCK_ELEMENTS),
        }
    }

    /// Decodes a coded block into `out`, which has whole elements, no more than a block's. `block` is all of its bytes.
    pub fn decode(&mut self, block: &[u8], out: &mut [u8]) -> Decoded<()> {
        let elements = out.len() / self.form.bytes();
        let before = fixed_bytes(self.form, elements);
        let (fixed, fields) = match block.split_at_checked(before) {
            Some(parts) => parts,
            None => return Err(too_short(block, before)),
        };
        let (rest, planes) = fixed.split_at(rest_bytes(self.form, elements));
        let (planes, counts) = planes.split_at(2 * PLANE);
        let counts = u32::from_le_bytes(counts.try_into().unwrap_or_default());
        let counts = [counts as usize & 0xffff, counts as usize >> 16];
        check_first(planes, counts[0], rest.len())?;
        let (second, third, bytes) = match split_fields(fields, counts) {
            Some(parts) => parts,
            None => return Err(too_short(block, before + least_bytes(counts))),
        };
        check_second(second, counts, before)?;
        let used = self.read_third(third, counts[1], bytes);
        let least = before + least_bytes(counts) + used;
        if whole_units(least) != block.len() {
            let expected = whole_units(least);
            let found = block.len();
            let what = format!(
                "it has {used} exponent bytes: expected {expected} bytes in all, found {found}"
            );
            return Err(Damage { at: least, what });
        }
        self.read_second(second, counts[0]);
        self.read_first(planes, elements, counts[0]);
        join(self.form, rest, &self.exponents[..], out);
        Ok(())
    }

    /// Third fields into `after_second`. Returns how many bytes they ask for, which may be more
    /// than there are.
    fn read_third(&mut self, fields: &[u8], count: usize, bytes: &[u8]) -> usize {
        self.after_second.clear();
        let mut used = 0;
        for word in fields.chunks(12) {
            let left = count - self.after_second.len();
            let mut bits = u128_of(word);
            for _ in 0..left.min(32) {
                let field = bits as usize & 7;
                bits >>= 3;
                let deep = field == 7;
                let byte = bytes.get(used).copied().unwrap_or_default();
                let exponent = if deep { byte } else { self.third[field] };
                self.after_second.push(exponent);
                used += usize::from(deep);
            }
        }
        used
    }

    /// Second fields into `after_first`.
    fn read_second(&mut self, fields: &[u8], count: usize) {
        let mut deep = self.after_second.iter();
        let words = fields.as_chunks::<4>().0.iter();
        let places = self.after_first.as_chunks_mut::<16>().0;
        for (index, (word, exponents)) in words.zip(places).enumerate() {
            for (four, field) in exponents.as_chunks_mut::<4>().0.iter_mut().zip(word) {
                *four = self.second[usize::from(*field)];
            }
            let word = u32::from_le_bytes(*word);
            let mut threes = threes(word, count - 16 * index);
            while threes != 0 {
                let place = threes.trailing_zeros() as usize / 2;
                exponents[place & 15] = deep.next().copied().unwrap_or_default();
                threes &= threes - 1;
            }
        }
    }

    /// Both planes into `exponents`.
    fn read_first(&mut self, planes: &[u8], elements: usize, count: usize) {
        let (low, high) = planes.split_at(PLANE);
        let mut deep = self.after_first[..count].iter();
        let chunks = self.exponents.as_chunks_mut::<LANE>().0;
        for (chunk, exponents) in chunks.iter_mut().enumerate().take(elements.div_ceil(LANE)) {
            let at = plane_offset(chunk);
            let plane = |plane: &[u8]| u16::from_le_bytes([plane[at], plane[at + 1]]);
            let (low, high) = (plane(low), plane(high));
            for (index, four) in exponents.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let nibble = |plane: u16| usize::from(plane >> (4 * index) & 15);
                *four = self.first[nibble(low) | nibble(high) << 4];
            }
            let mut threes = low & high;
            while threes != 0 {
                let place = threes.trailing_zeros() as usize;
                exponents[place & 15] = deep.next().copied().unwrap_or_default();
                threes &= threes - 1;
            }
        }
    }
}

fn too_short(block: &[u8], expected: usize) -> Damage {
    let found = block.len();
    let what = format!("it is too short: expected at least {expected} bytes, found {found}");
    Damage { at: found, what }
}

/// Bytes of the second and the third fields.
fn least_bytes(counts: [usize; 2]) -> usize {
    field_bytes(counts[0], 2) + field_bytes(counts[1], 3)
}

type Fields<'a> = (&'a [u8], &'a [u8], &'a [u8]);

fn split_fields(fields: &[u8], counts: [usize; 2]) -> Option<Fields<'_>> {
    let (second, rest) = fields.split_at_checked(field_bytes(counts[0], 2))?;
    let (third, bytes) = rest.split_at_checked(field_bytes(counts[1], 3))?;
    Some((second, third, bytes))
}

/// The planes say how many second fields there are.
fn check_first(planes: &[u8], count: usize, planes_at: usize) -> Decoded<()> {
    let (low, high) = planes.split_at(PLANE);
    let words = low.as_chunks::<8>().0.iter().zip(high.as_chunks::<8>().0);
    let ones = |(low, high): (&[u8; 8], &[u8; 8])| {
        (u64::from_le_bytes(*low) & u64::from_le_bytes(*high)).count_ones() as usize
    };
    let expected: usize = words.map(ones).sum();
    match expected == count {
        true => Ok(()),
        false => Err(Damage {
            at: planes_at + 2 * PLANE,
            what: format!(
                "{expected} elements have second fields: expected this count, found {count}"
            ),
        }),
    }
}

/// The second fields say how many third fields there are.
fn check_second(fields: &[u8], counts: [usize; 2], fields_at: usize) -> Decoded<()> {
    let words = fields.as_chunks::<4>().0.iter().enumerate();
    let ones = |(index, word): (usize, &[u8; 4])| {
        threes(u32::from_le_bytes(*word), counts[0] - 16 * index).count_ones() as usize
    };
    let (expected, found) = (words.map(ones).sum::<usize>(), counts[1]);
    match expected == found {
        true => Ok(()),
        false => Err(Damage {
            at: fields_at - COUNTS / 2,
            what: format!(
                "{expected} elements have third fields: expected this count, found {found}"
            ),
        }),
    }
}

/// Bit `2 i` for each field `i` of 3 among the first `count`.
fn threes(word: u32, count: usize) -> u32 {
    let kept = if count >= 16 {
        u32::MAX
    } else {
        (1 << (2 * count)) - 1
    };
    word & word >> 1 & 0x5555_5555 & kept
}

fn u128_of(bytes: &[u8]) -> u128 {
    let mut all = [0; 16];
    let length = bytes.len().min(16);
    all[..length].copy_from_slice(&bytes[..length]);
    u128::from_le_bytes(all)
}
