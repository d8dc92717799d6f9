//! Packed arrays: header, directory and payload in one input. Arrays as an encoder writes them, and
//! damage to the parts that a decoder believes.
//!
//! ```text
//! u8 form | u64 raw bytes | 13 exponents | u32 entries | entries, u32 each | payload
//! ```
//!
//! And the table of a data file that says which entries are packed.

use super::bytes::Rng;
use weightstream::figures::NumberForm;
use weightstream::format::packed::{
    decode, encode, read_table, write_table, Directory, PackedArray, PackedEntry, PackedHeader,
    BLOCK_ELEMENTS, PADDING, RAW, UNIT,
};
use weightstream::format::{EntryLayout, ScalarType};
use weightstream::weights::{PackedWeight, SharedBytes};

/// Where the directory begins.
const ENTRIES: usize = 26;
/// Bytes around the output that a decoder must leave alone.
const GUARD: usize = 64;

/// One input.
pub fn join(packed: &PackedArray) -> Vec<u8> {
    let entries = packed
        .directory
        .iter()
        .flat_map(|entry| entry.to_le_bytes());
    let mut bytes = vec![packed.header.form as u8];
    bytes.extend(packed.header.bytes.to_le_bytes());
    bytes.extend(packed.header.exponents);
    bytes.extend((packed.directory.len() as u32).to_le_bytes());
    bytes.extend(entries);
    bytes.extend(&packed.payload);
    bytes
}

/// The parts of an input, however wrong they are.
pub fn split(bytes: &[u8]) -> Option<PackedArray> {
    let (form, rest) = bytes.split_first()?;
    let (raw, rest) = rest.split_first_chunk::<8>()?;
    let (exponents, rest) = rest.split_first_chunk::<13>()?;
    let (entries, rest) = rest.split_first_chunk::<4>()?;
    let length = (u32::from_le_bytes(*entries) as usize).checked_mul(4)?;
    let (directory, payload) = rest.split_at_checked(length)?;
    let directory = directory.as_chunks::<4>().0.iter();
    Some(PackedArray {
        header: PackedHeader {
            form: *NumberForm::ALL.get(usize::from(*form))?,
            bytes: u64::from_le_bytes(*raw),
            exponents: *exponents,
        },
        directory: directory.map(|entry| u32::from_le_bytes(*entry)).collect(),
        payload: payload.to_vec(),
    })
}

/// Decodes the whole and its tails. Whether the whole was accepted.
pub fn exercise(bytes: &[u8]) -> bool {
    let Some(packed) = split(bytes) else {
        return false;
    };
    let (header, payload) = (&packed.header, &packed.payload);
    let Ok(directory) = Directory::new("packed", header, &packed.directory, payload.len() as u64)
    else {
        return false;
    };
    let blocks = directory.blocks();
    // What a directory accepts is bounded by the payload.
    assert!(header.bytes <= 2 * payload.len() as u64);
    let whole = guarded(header.bytes as usize, |out| {
        decode("packed", header, &packed.directory, payload, 0..blocks, out).is_ok()
    });
    for begin in 1..blocks {
        let span = directory.span(begin..blocks).unwrap();
        let raw = directory.raw_span(begin..blocks).unwrap();
        let piece = payload[span.start as usize..].to_vec();
        let tail = guarded((raw.end - raw.start) as usize, |out| {
            directory.decode(begin..blocks, &piece, out).is_ok()
        });
        if let Some(whole) = &whole {
            assert!(tail.unwrap() == whole[raw.start as usize..]);
        }
    }
    any_part(&packed, whole.as_deref());
    whole.is_some()
}

/// A weight of these stored bytes decodes any part as it does the whole.
fn any_part(packed: &PackedArray, whole: Option<&[u8]>) {
    let mut stored = packed.payload.clone();
    stored.extend(
        packed
            .directory
            .iter()
            .flat_map(|entry| entry.to_le_bytes()),
    );
    let bytes = SharedBytes::from_vec(stored.clone());
    let weight = PackedWeight::new("w".to_owned(), packed.header, 0, &bytes).unwrap();
    let mut rng = Rng::new(0, u64::from(crc32fast::hash(&stored)));
    let all = packed.header.bytes as usize;
    for _ in 0..3 {
        let begin = rng.below(all + 1);
        let length = rng.below(all - begin + 1);
        let part = guarded(length, |out| {
            weight.decode(&stored, begin as u64, out).is_ok()
        });
        if let Some(whole) = whole {
            assert!(part.unwrap() == whole[begin..begin + length]);
        }
    }
}

/// Reads a table of packed entries. What it accepts is what would be written for these entries.
pub fn exercise_table(bytes: &[u8]) -> bool {
    let Ok(entries) = read_table("w.ptd", 40, bytes) else {
        return false;
    };
    for entry in entries.values() {
        let takes = entry
            .layout
            .dtype
            .dense_bytes(entry.layout.sizes.iter().copied());
        assert_eq!(takes, Some(entry.header.bytes));
        let bits = entry.header.form.exponent_bits();
        let mut exponents = entry.header.exponents.iter();
        assert!(exponents.all(|&one| u32::from(one) >> bits == 0));
        for stored in [0, bytes.len(), 16 << 20] {
            let parts = entry.header.parts(stored);
            assert!(parts.is_none_or(|parts| parts.directory.end == stored));
        }
    }
    assert!(write_table(&entries) == bytes);
    true
}

/// A table as it is written for some weights.
pub fn table(rng: &mut Rng) -> Vec<u8> {
    let count = rng.below(4);
    let entry = |at| {
        let sizes: Vec<i64> = (0..rng.below(4))
            .map(|_| rng.pick(&[0, 1, 7, 4096]))
            .collect();
        let layout = EntryLayout {
            dtype: rng.pick(&[ScalarType::BF16, ScalarType::F32, ScalarType::F8E4M3FN]),
            dim_order: (0..sizes.len() as u8).collect(),
            sizes,
        };
        let header = PackedHeader {
            form: layout.dtype.form().unwrap(),
            bytes: layout
                .dtype
                .dense_bytes(layout.sizes.iter().copied())
                .unwrap(),
            exponents: std::array::from_fn(|_| rng.next() as u8 & 15),
        };
        let entry = PackedEntry {
            layout,
            header,
            crc32: rng.next() as u32,
        };
        (format!("layers.{at}.weight"), entry)
    };
    write_table(&(0..count).map(entry).collect())
}

/// What `fill` writes, if it says that it succeeded.
fn guarded(length: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> Option<Vec<u8>> {
    let mut all = vec![0xee; GUARD + length + GUARD];
    let filled = fill(&mut all[GUARD..GUARD + length]);
    let guards = all[..GUARD].iter().chain(&all[GUARD + length..]);
    assert!(guards.copied().all(|byte| byte == 0xee));
    filled.then(|| all[GUARD..GUARD + length].to_vec())
}

/// An array of up to two blocks and a part of one. Its exponents are like those of weights, or
/// spread more evenly.
pub fn file(rng: &mut Rng) -> Vec<u8> {
    let form = rng.pick(&NumberForm::ALL);
    let elements = rng.pick(&[0, 1, 1, 2]) * BLOCK_ELEMENTS + rng.pick(&[0, 0, 1, 600, 1499]);
    let spread = rng.pick(&[1, 3, 8, 30]);
    let (mantissa, exponents) = (form.mantissa_bits(), (1u64 << form.exponent_bits()) - 1);
    let element = |_| {
        let bits = rng.next();
        // Some exponents are equally frequent. Below them each is half as frequent as the one
        // above.
        let below = (bits >> 56) % spread + u64::from((bits >> 32 | 1 << 20).trailing_zeros());
        let rare = bits >> 20 & 0xfff == 0;
        let exponent = if rare {
            bits >> 12
        } else {
            (exponents / 2).wrapping_sub(2 + below)
        };
        let number = bits & !(exponents << mantissa) | (exponent & exponents) << mantissa;
        number.to_le_bytes().into_iter().take(form.bytes())
    };
    let mut raw: Vec<u8> = (0..elements).flat_map(element).collect();
    if rng.one_in(8) {
        raw.push(7);
    }
    join(&encode(form, &raw).expect("any array can be packed"))
}

/// Damages what is not sign or mantissa: entries of the directory, planes, counts, fields.
pub fn damage(bytes: &mut [u8], rng: &mut Rng) {
    let Some(packed) = split(bytes) else {
        return;
    };
    let block = rng.below(packed.directory.len());
    let base = ENTRIES + 4 * packed.directory.len();
    let begin = base + UNIT * (packed.directory.get(block).unwrap_or(&0) & !RAW) as usize;
    let at = match rng.below(8) {
        0 => ENTRIES + 4 * block + rng.below(4),
        1 => rng.below(ENTRIES),
        2 => begin + fixed(&packed, block) - 4 + rng.below(4),
        3 | 4 => begin + fixed(&packed, block) - 4 - rng.below(1024),
        _ => begin + fixed(&packed, block) + rng.below(400),
    };
    if let Some(byte) = bytes.get_mut(at) {
        let (flipped, random) = (*byte ^ 1 << rng.below(8), rng.next() as u8);
        *byte = rng.pick(&[flipped, flipped, 0, 0xff, random]);
    }
}

/// Bytes of a block before its second fields.
fn fixed(packed: &PackedArray, block: usize) -> usize {
    let form = packed.header.form;
    let elements = packed.header.block_bytes(block as u64) / form.bytes();
    elements.next_multiple_of(512) / 8 * (1 + form.mantissa_bits() as usize) + 1028
}

/// Puts right what the first checks would refuse: the directory's length and ends, the counts of
/// blocks.
pub fn repair(bytes: &mut Vec<u8>) {
    let Some(mut packed) = split(bytes) else {
        return;
    };
    let units = packed.payload.len().saturating_sub(PADDING) / UNIT;
    packed.payload.resize(units * UNIT + PADDING, 0);
    let blocks = packed.header.blocks();
    if packed.directory.is_empty() || blocks + 1 != packed.directory.len() as u64 {
        let blocks = packed.directory.len().saturating_sub(1);
        packed.header.bytes = (blocks * packed.header.full_block()) as u64;
        packed.directory.resize(blocks + 1, 0);
    }
    packed.directory[0] &= RAW;
    *packed.directory.last_mut().unwrap() = units as u32;
    for block in 0..packed.directory.len() - 1 {
        repair_counts(&mut packed, block);
    }
    *bytes = join(&packed);
}

/// The counts that the planes and the second fields ask for.
fn repair_counts(packed: &mut PackedArray, block: usize) {
    let entry = packed.directory[block];
    let fields = fixed(packed, block);
    let begin = (entry & !RAW) as usize * UNIT;
    let Some(block) = packed.payload.get_mut(begin..) else {
        return;
    };
    if entry & RAW != 0 || block.len() < fields {
        return;
    }
    let planes = &block[fields - 1028..fields - 4];
    let count2: u32 = (0..512)
        .map(|i| (planes[i] & planes[512 + i]).count_ones())
        .sum();
    let field = |i: u32| {
        block
            .get(fields + i as usize / 4)
            .map(|byte| byte >> (2 * (i % 4)) & 3)
    };
    let count3 = (0..count2).filter(|&i| field(i) == Some(3)).count() as u32;
    block[fields - 4..fields].copy_from_slice(&(count2 | count3 << 16).to_le_bytes());
}
