//! What is packed comes back bit for bit; what is damaged is refused or decodes to something, and nothing panics.

use super::decode::BlockDecoder;
use super::*;
use crate::Error;

/// Xorshift, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let unit = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (first, second) = (unit(self.next()), unit(self.next()));
        (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos()
    }

    /// Weights as training leaves them, rounded to the nearest bf16.
    fn weights(&mut self, elements: usize) -> Vec<u8> {
        let weight = |_| {
            let bits = (0.0156 * self.normal() as f32).to_bits();
            let rounded = bits + 0x7fff + (bits >> 16 & 1);
            (rounded >> 16) as u16
        };
        bytes((0..elements).map(weight))
    }
}

fn bytes(elements: impl IntoIterator<Item = u16>) -> Vec<u8> {
    elements.into_iter().flat_map(u16::to_le_bytes).collect()
}

fn decoded(packed: &PackedArray, blocks: std::ops::Range<u32>) -> crate::Result<Vec<u8>> {
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
    let packed = encode(raw).unwrap();
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
    for (index, entry) in packed.directory[..packed.directory.len() - 1]
        .iter()
        .enumerate()
    {
        let begin = (entry & 0x7fff_ffff) as usize * 16;
        let left = (packed.header.bytes as usize - 8192 * index).min(8192);
        let block = &packed.payload[begin..];
        match entry >> 31 {
            1 => out.extend_from_slice(&block[..left]),
            _ => out.extend(block_by_the_picture(
                block,
                left / 2,
                &packed.header.exponents,
            )),
        }
    }
    let end = packed.directory.last().map_or(0, |&end| end as usize * 16);
    assert_eq!(packed.payload[end..], [0; 16]);
    out
}

fn block_by_the_picture(block: &[u8], n: usize, exponents: &[u8]) -> Vec<u8> {
    let bit = |from: usize, bit: usize| usize::from(block[from + bit / 8] >> (bit % 8) & 1);
    let field = |from, at, bits| (0..bits).map(|i| bit(from, at + i) << i).sum::<usize>();
    let planes = 512 * n.div_ceil(512);
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
            _ => exponents[rank],
        };
        let mantissa = u16::from(block[element]);
        let value = (mantissa & 0x80) << 8 | u16::from(exponent) << 7 | mantissa & 0x7f;
        out.extend_from_slice(&value.to_le_bytes());
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
        let mut histogram = Histogram::new();
        raw.chunks(length).for_each(|piece| histogram.add(piece));
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
        bytes: 10,
        exponents: [0; 13],
    };
    let mut full = [0u8; 20];
    let mut writer = PackedWriter::new("layers.0.q", header, &mut full[..]);
    writer.write(&[0; 10]).unwrap();
    assert!(matches!(writer.finish(), Err(Error::Io { file, .. }) if file == "layers.0.q"));
}

/// A damaged block is an error or other elements. Either way `out` alone is written.
#[test]
fn damaged_payloads_never_panic() {
    let mut random = Random(9);
    let raw = random.weights(2 * BLOCK_ELEMENTS + 3333);
    let packed = encode(&raw).unwrap();
    let (mut refused, mut other) = (0, 0);
    for number in 0..6000 {
        let mut damaged = packed.clone();
        let length = damaged.payload.len();
        match number % 3 {
            0 => damaged.payload[random.below(length)] ^= 1 << random.below(8),
            1 => {
                // Planes and counts, and what follows them.
                let at = 4096 + random.below(1400);
                damaged.payload[at] = random.next() as u8;
            }
            _ => {
                let at = random.below(length);
                let end = (at + random.below(2000)).min(length);
                damaged.payload[at..end].fill_with(|| random.next() as u8);
            }
        }
        match decoded(&damaged, 0..3) {
            Ok(out) => other += usize::from(out != raw),
            Err(Error::Malformed { what, .. }) => {
                assert!(what.starts_with("block "), "{what}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(
        refused > 1000 && other > 1000,
        "{refused} refused, {other} other elements"
    );
}

/// What stands after the last second field means nothing, as for a decoder that masks it.
#[test]
fn bits_after_the_fields_are_not_looked_at() {
    let raw = Random(13).weights(BLOCK_ELEMENTS);
    let mut packed = encode(&raw).unwrap();
    let count2 = usize::from(u16::from_le_bytes([
        packed.payload[5120],
        packed.payload[5121],
    ]));
    assert_ne!(count2 % 16, 0, "choose another seed");
    for bit in 2 * count2..(2 * count2).next_multiple_of(32) {
        packed.payload[5124 + bit / 8] |= 1 << (bit % 8);
    }
    assert!(decoded(&packed, 0..1).unwrap() == raw);
}

/// Counts of every size, in blocks of every length.
#[test]
fn random_blocks_never_panic() {
    let mut random = Random(10);
    let header = PackedHeader {
        bytes: BLOCK_BYTES as u64,
        exponents: std::array::from_fn(|i| 110 + i as u8),
    };
    let mut decoder = BlockDecoder::new(&header);
    for _ in 0..20_000 {
        let length = random.below(600) * 16;
        let mut block = vec![[0, 0xff, random.next() as u8][random.below(3)]; length];
        for _ in 0..random.below(20) {
            let at = random.below(length.max(1));
            block
                .iter_mut()
                .skip(at)
                .take(30)
                .for_each(|byte| *byte = random.next() as u8);
        }
        let mut out = vec![0; 2 * random.below(BLOCK_ELEMENTS + 1)];
        let _ = decoder.decode(&block, &mut out);
    }
}

/// The text of the refusal after `change` to the array of four blocks.
fn refusal(change: impl Fn(&mut PackedArray)) -> String {
    let raw = Random(11).weights(3 * BLOCK_ELEMENTS + 2800);
    let mut packed = encode(&raw).unwrap();
    change(&mut packed);
    let PackedArray {
        header,
        directory,
        payload,
    } = &packed;
    let mut out = vec![0; raw.len()];
    let result = decode("w.ptd: q", header, directory, payload, 0..4, &mut out);
    result.unwrap_err().to_string()
}

#[test]
fn malformed_directories_are_refused_by_name() {
    type Change = fn(&mut PackedArray);
    let cases: [(Change, &str); 15] = [
        (|p| p.directory.truncate(4), "byte 16: expected 5 directory entries, found 4"),
        (|p| p.directory.push(9999), "byte 24: expected 5 directory entries, found 6"),
        (|p| p.directory.clear(), "byte 0: expected 5 directory entries, found 0"),
        (|p| p.header.bytes = u64::MAX, "expected 2251799813685249 directory entries, found 5"),
        (|p| p.directory[0] = 1, "byte 0: directory entry 0: expected offset 0, found 16"),
        (|p| p.directory[4] |= RAW, "byte 16: directory entry 4: expected an end, found a raw block"),
        (|p| p.directory[4] += 1, "byte 16: directory entry 4: expected a payload of "),
        (|p| p.payload.truncate(9000), "directory entry 4: expected a payload of 9000 bytes with its padding, found an end at "),
        (|p| p.payload.push(0), "directory entry 4: expected a payload of "),
        (|p| p.directory[2] = p.directory[1], "byte 8: directory entry 2: expected an offset after "),
        (|p| p.directory[2] = 0, "byte 8: directory entry 2: expected an offset after "),
        (|p| p.directory[1] = 320, "byte 0: directory entry 0: a coded block at 0 of 8192 raw bytes: expected 5136 to 8176 bytes, found 5120"),
        (|p| p.directory[1] = 513, "byte 0: directory entry 0: a coded block at 0 of 8192 raw bytes: expected 5136 to 8176 bytes, found 8208"),
        (|p| p.directory[1] |= RAW, "byte 4: directory entry 1: a raw block at "),
        (|p| p.header.bytes += 1, "byte 12: directory entry 3: a coded block at "),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let found = refusal(change);
        assert!(
            found.starts_with("w.ptd: q: malformed at byte") && found.contains(expected),
            "case {number}: {found}"
        );
    }
}

#[test]
fn malformed_blocks_are_refused_by_name() {
    type Change = fn(&mut PackedArray);
    let cases: [(Change, &str); 5] = [
        (
            |p| p.payload[5120] ^= 1,
            "byte 5120: block 0 at 0: the planes have ",
        ),
        (|p| p.payload[5122] ^= 1, "byte 5122: block 0 at 0: "),
        // One unit of the second block becomes one of the first, and the other way round.
        (|p| p.directory[1] += 1, "block 0 at 0: it has "),
        (
            |p| p.directory[1] -= 1,
            "block 0 at 0: it is too short: expected at least ",
        ),
        (
            |p| p.directory[1] = 325,
            "block 0 at 0: it is too short: expected at least ",
        ),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let found = refusal(change);
        assert!(found.contains(expected), "case {number}: {found}");
    }
}

#[test]
fn a_piece_that_ends_early_and_a_buffer_of_another_size_are_refused() {
    let packed = encode(&Random(12).weights(2 * BLOCK_ELEMENTS)).unwrap();
    let directory = Directory::new(
        "w",
        &packed.header,
        &packed.directory,
        packed.payload.len() as u64,
    );
    let directory = directory.unwrap();
    let mut out = vec![0; 2 * BLOCK_BYTES + 2];
    let end = directory.span(0..2).unwrap().end as usize;
    directory
        .decode(0..2, &packed.payload[..end], &mut out[..2 * BLOCK_BYTES])
        .unwrap();
    let error = directory
        .decode(
            0..2,
            &packed.payload[..end - 1],
            &mut out[..2 * BLOCK_BYTES],
        )
        .unwrap_err();
    let expected = format!(
        "block 1: expected its end at {end}, found the payload's at {}",
        end - 1
    );
    assert!(error.to_string().contains(&expected), "{error}");
    for length in [
        0,
        2 * BLOCK_BYTES - 2,
        2 * BLOCK_BYTES - 1,
        2 * BLOCK_BYTES + 2,
    ] {
        let error = directory
            .decode(0..2, &packed.payload, &mut out[..length])
            .unwrap_err();
        assert!(
            error.to_string().contains("expected 16384 (blocks 0..2)"),
            "{error}"
        );
    }
    #[allow(clippy::reversed_empty_ranges)]
    for blocks in [0..3, 2..1, 3..3] {
        let error = directory
            .decode(blocks.clone(), &packed.payload, &mut out)
            .unwrap_err();
        assert!(
            error.to_string().contains(&format!("found {blocks:?}")),
            "{error}"
        );
    }
}
