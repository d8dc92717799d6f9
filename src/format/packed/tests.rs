//! What is packed comes back bit for bit.

use super::*;
use crate::figures::NumberForm;
use crate::Error;

/// Raw bytes of a full block of bf16.
pub(super) const BLOCK_BYTES: usize = 2 * BLOCK_ELEMENTS;

/// Packs bf16 numbers.
pub(super) fn encode(raw: &[u8]) -> crate::Result<PackedArray> {
    super::encode(NumberForm::Bf16, raw)
}

/// Xorshift, the same on every machine.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let unit = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (first, second) = (unit(self.next()), unit(self.next()));
        (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos()
    }

    /// Weights as training leaves them, rounded to the nearest bf16.
    pub fn weights(&mut self, elements: usize) -> Vec<u8> {
        self.weights_of(NumberForm::Bf16, elements)
    }

    /// The same of any form; of fp8 as large as those that have a scale.
    pub fn weights_of(&mut self, form: NumberForm, elements: usize) -> Vec<u8> {
        let scale = if form.bytes() == 1 { 64.0 } else { 0.0156 };
        let (mantissa, exponent) = (form.mantissa_bits(), form.exponent_bits());
        let weight = |_| {
            let bits = (scale * self.normal() as f32).to_bits();
            let cut = 23 - mantissa;
            // To the nearest, then to the exponent's own range: what is too small for it is 0.
            let half =
                (1u64 << cut >> 1).saturating_sub(1) + u64::from(cut > 0 && bits >> cut & 1 != 0);
            let rounded = (u64::from(bits & 0x7fff_ffff) + half) >> cut;
            let lowered = (127 - ((1u64 << (exponent - 1)) - 1)) << mantissa;
            (bits >> 31) << (mantissa + exponent) | rounded.saturating_sub(lowered) as u32
        };
        let word = |word: u32| word.to_le_bytes().into_iter().take(form.bytes());
        (0..elements).map(weight).flat_map(word).collect()
    }
}

fn bytes(elements: impl IntoIterator<Item = u16>) -> Vec<u8> {
    elements.into_iter().flat_map(u16::to_le_bytes).collect()
}

/// Decodes these blocks of a whole array.
pub(super) fn decoded(
    packed: &PackedArray,
    blocks: std::ops::Range<u32>,
) -> crate::Result<Vec<u8>> {
    let bytes = |block| packed.header.block_bytes(u64::from(block));
    let mut out = vec![0xee; blocks.clone().map(bytes).sum()];
    let PackedArray {
        header,
        directory,
        payload,
    } = packed;
    decode("w", header, directory, payload, blocks, &mut out)?;
    Ok(out)
}

/// Packs and unpacks; says how many bytes the packed form takes for one of the raw form.
fn round_trip(raw: &[u8]) -> f64 {
    round_trip_of(NumberForm::Bf16, raw)
}

pub(super) fn round_trip_of(form: NumberForm, raw: &[u8]) -> f64 {
    let packed = super::encode(form, raw).unwrap();
    let blocks = packed.header.blocks() as u32;
    assert_eq!(packed.header.bytes, raw.len() as u64);
    assert_eq!(packed.directory.len(), blocks as usize + 1);
    assert!(
        decoded(&packed, 0..blocks).unwrap() == raw,
        "{} bytes",
        raw.len()
    );
    assert!(
        by_the_picture(&packed) == raw,
        "{} bytes by the picture",
        raw.len()
    );
    packed.bytes() as f64 / raw.len().max(1) as f64
}

/// A decoder that does element by element what the picture in `mod.rs` says.
fn by_the_picture(packed: &PackedArray) -> Vec<u8> {
    let mut out = Vec::new();
    let element = packed.header.form.bytes();
    for (index, entry) in packed.directory[..packed.directory.len() - 1]
        .iter()
        .enumerate()
    {
        let begin = (entry & 0x7fff_ffff) as usize * 16;
        let full = 4096 * element;
        let left = (packed.header.bytes as usize - full * index).min(full);
        let block = &packed.payload[begin..];
        match entry >> 31 {
            1 => out.extend_from_slice(&block[..left]),
            _ => out.extend(block_by_the_picture(block, left / element, &packed.header)),
        }
    }
    let end = packed.directory.last().map_or(0, |&end| end as usize * 16);
    assert_eq!(packed.payload[end..], [0; 16]);
    out
}

fn block_by_the_picture(block: &[u8], n: usize, header: &PackedHeader) -> Vec<u8> {
    let (whole_bytes, bits_above, mantissa, all) = match header.form {
        NumberForm::Bf16 => (1, 0, 7, 16),
        NumberForm::F16 => (1, 3, 10, 16),
        NumberForm::F32 => (3, 0, 23, 32),
        NumberForm::F8E4M3 => (0, 4, 3, 8),
        NumberForm::F8E5M2 => (0, 3, 2, 8),
    };
    let bit = |from: usize, bit: usize| usize::from(block[from + bit / 8] >> (bit % 8) & 1);
    let field = |from, at, bits| (0..bits).map(|i| bit(from, at + i) << i).sum::<usize>();
    let groups = n.div_ceil(512);
    let above = 512 * groups * whole_bytes;
    let planes = above + 64 * groups * bits_above;
    let [count2, count3] = [0, 2].map(|at| field(planes + 1024 + at, 0, 16));
    let second = planes + 1028;
    let third = second + 4 * (2 * count2).div_ceil(32);
    let bytes = third + 4 * (3 * count3).div_ceil(32);
    let mut used = [0; 3];
    let mut out = Vec::new();
    for element in 0..n {
        let (g, l, i) = (element / 512, element % 512 / 16, element % 16);
        let at = 8 * (16 * l + 2 * g) + i;
        let mut rank = bit(planes, at) | bit(planes + 512, at) << 1;
        if rank == 3 {
            rank += field(second, 2 * used[0], 2);
            used[0] += 1;
        }
        if rank == 6 {
            rank += field(third, 3 * used[1], 3);
            used[1] += 1;
        }
        let exponent = match rank {
            13 => {
                used[2] += 1;
                block[bytes + used[2] - 1]
            }
            _ => header.exponents[rank],
        };
        let byte = |byte| usize::from(block[512 * groups * byte + element]) << (8 * byte);
        let own = (0..whole_bytes).map(byte).sum::<usize>()
            | field(above, bits_above * element, bits_above) << (8 * whole_bytes);
        let sign = own >> mantissa << (all - 1);
        let value = sign | usize::from(exponent) << mantissa | own & ((1 << mantissa) - 1);
        out.extend_from_slice(&value.to_le_bytes()[..all / 8]);
    }
    assert_eq!(used[..2], [count2, count3]);
    out
}

#[test]
fn normal_weights_take_two_thirds_of_their_bytes() {
    let raw = Random(1).weights(64 * BLOCK_ELEMENTS);
    let ratio = round_trip(&raw);
    assert!((0.655..=0.672).contains(&ratio), "{ratio}");
}

/// Alone, where most blocks are raw; then as an eighth of blocks of weights, which are coded.
#[test]
fn every_value_comes_back() {
    let mut values: Vec<u16> = (0..=u16::MAX).collect();
    round_trip(&bytes(values.clone()));
    let mut random = Random(2);
    for i in (1..values.len()).rev() {
        values.swap(i, random.below(i + 1));
    }
    let mut raw = random.weights(8 * values.len());
    for (place, value) in raw.chunks_exact_mut(16).zip(values) {
        place[..2].copy_from_slice(&value.to_le_bytes());
    }
    round_trip(&raw);
    let packed = encode(&raw).unwrap();
    assert!(packed.directory.iter().all(|entry| entry & RAW == 0));
}

/// Blocks of weights in which now and then there is something else, so that they are still coded.
#[test]
fn rare_values_come_back_from_coded_blocks() {
    // 0, -0, least and greatest subnormal, infinities, NaNs with payloads, exponents 1 and 254.
    let rare = [
        0, 0x8000, 1, 0x807f, 0x7f80, 0xff80, 0x7fc1, 0xffff, 0x7f81, 0x0080, 0xff7f,
    ];
    let mut random = Random(3);
    for _ in 0..20 {
        let mut raw = random.weights(2 * BLOCK_ELEMENTS);
        for _ in 0..300 {
            let at = 2 * random.below(2 * BLOCK_ELEMENTS);
            let value: u16 = rare[random.below(rare.len())];
            raw[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        let ratio = round_trip(&raw);
        assert!(ratio < 0.75, "{ratio}");
    }
}

#[test]
fn arrays_of_few_values_come_back() {
    for value in [0, 0x8000, 0x3f80, 0xbf80, 0x7fc0, 0xffff, 0x0001] {
        let ratio = round_trip(&bytes(vec![value; 3 * BLOCK_ELEMENTS]));
        assert!(ratio < 0.63, "{value:#06x}: {ratio}");
    }
    // Exponents 0 to 15, equally often: every kind of field is used.
    let sixteen = (0..BLOCK_ELEMENTS as u16).map(|i| (i % 16) << 7 | i >> 5);
    round_trip(&bytes(sixteen));
}

#[test]
fn any_number_of_bytes_comes_back() {
    let raw = Random(4).weights(2 * BLOCK_ELEMENTS);
    for length in 0..200 {
        round_trip(&raw[..length]);
    }
    for length in (4000..raw.len())
        .step_by(61)
        .chain(BLOCK_BYTES - 3..BLOCK_BYTES + 4)
    {
        round_trip(&raw[..length]);
    }
}

#[test]
fn what_does_not_gain_is_stored_raw() {
    let mut random = Random(5);
    let mut raw = random.weights(4 * BLOCK_ELEMENTS);
    raw[BLOCK_BYTES..2 * BLOCK_BYTES].fill_with(|| random.next() as u8);
    raw.push(7);
    let packed = encode(&raw).unwrap();
    let flags: Vec<u32> = packed.directory.iter().map(|entry| entry >> 31).collect();
    // The last block is one byte.
    assert_eq!(flags, [0, 1, 0, 0, 1, 0]);
    round_trip(&raw);
    let noise: Vec<u8> = (0..50_001).map(|_| random.next() as u8).collect();
    let packed = encode(&noise).unwrap();
    let blocks = noise.len().div_ceil(BLOCK_BYTES);
    let expected = noise.len().next_multiple_of(UNIT) + PADDING;
    assert_eq!(
        (packed.payload.len(), packed.directory.len()),
        (expected, blocks + 1)
    );
}

#[test]
fn a_tail_alone_is_the_tail_of_the_whole() {
    let raw = Random(6).weights(9 * BLOCK_ELEMENTS + 3001);
    let packed = encode(&raw).unwrap();
    let directory = Directory::new(
        "w",
        &packed.header,
        &packed.directory,
        packed.payload.len() as u64,
    );
    let directory = directory.unwrap();
    for begin in 0..=directory.blocks() {
        let blocks = begin..directory.blocks();
        let span = directory.span(blocks.clone()).unwrap();
        assert_eq!(span.start % UNIT as u64, 0);
        // What one copy brings, and nothing before it.
        let piece = packed.payload[span.start as usize..].to_vec();
        let tail = &raw[(begin as usize * BLOCK_BYTES).min(raw.len())..];
        let mut out = vec![0; tail.len()];
        directory.decode(blocks.clone(), &piece, &mut out).unwrap();
        assert!(out == tail, "from block {begin} on");
        let expected = (raw.len() - tail.len()) as u64..raw.len() as u64;
        assert_eq!(directory.raw_span(blocks).unwrap(), expected);
    }
    assert!(decoded(&packed, 3..5).unwrap() == raw[3 * BLOCK_BYTES..5 * BLOCK_BYTES]);
}

#[test]
fn pieces_of_any_length_make_the_same_array() {
    let raw = Random(7).weights(3 * BLOCK_ELEMENTS + 77);
    let whole = encode(&raw).unwrap();
    for length in [1, 3, 1000, 8191, 8192, 8193, 20_000] {
        let mut histogram = Histogram::new(NumberForm::Bf16);
        raw.chunks(2 * length)
            .for_each(|piece| histogram.add(piece));
        assert_eq!(histogram.header(), whole.header, "pieces of {length}");
        let mut payload = Vec::new();
        let mut writer = PackedWriter::new("w", whole.header, &mut payload);
        raw.chunks(length)
            .for_each(|piece| writer.write(piece).unwrap());
        assert_eq!(
            writer.finish().unwrap(),
            whole.directory,
            "pieces of {length}"
        );
        assert!(payload == whole.payload, "pieces of {length}");
    }
}

#[test]
fn a_header_of_another_array_costs_bytes_and_nothing_else() {
    let mut random = Random(8);
    let raw = random.weights(2 * BLOCK_ELEMENTS);
    for exponents in [[0; 13], [121; 13], std::array::from_fn(|i| 115 + i as u8)] {
        let header = PackedHeader {
            form: NumberForm::Bf16,
            bytes: raw.len() as u64,
            exponents,
        };
        let mut payload = Vec::new();
        let mut writer = PackedWriter::new("w", header, &mut payload);
        writer.write(&raw).unwrap();
        let directory = writer.finish().unwrap();
        let packed = PackedArray {
            header,
            directory,
            payload,
        };
        assert!(decoded(&packed, 0..2).unwrap() == raw, "{exponents:?}");
    }
}

#[test]
fn a_writer_wants_the_bytes_of_its_header() {
    let header = PackedHeader {
        form: NumberForm::Bf16,
        bytes: 10,
        exponents: [0; 13],
    };
    let mut writer = PackedWriter::new("layers.0.q", header, Vec::new());
    writer.write(&[0; 9]).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(
        error.contains("layers.0.q") && error.contains("10") && error.contains('9'),
        "{error}"
    );
}

#[test]
fn a_device_that_is_full_is_named() {
    let header = PackedHeader {
        form: NumberForm::Bf16,
        bytes: 10,
        exponents: [0; 13],
    };
    let mut full = [0u8; 20];
    let mut writer = PackedWriter::new("layers.0.q", header, &mut full[..]);
    writer.write(&[0; 10]).unwrap();
    assert!(matches!(writer.finish(), Err(Error::Io { file, .. }) if file == "layers.0.q"));
}
