//! What is damaged is refused, or decodes to something. Nothing panics, and no byte outside is
//! touched.

use super::decode::BlockDecoder;
use super::tests::{decoded, encode, Random, BLOCK_BYTES};
use super::*;
use crate::figures::NumberForm;
use crate::Error;

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
    let decoder = |form| {
        BlockDecoder::new(&PackedHeader {
            form,
            bytes: 8192,
            exponents: std::array::from_fn(|i| 110 + i as u8),
        })
    };
    let mut decoders = NumberForm::ALL.map(|form| (form, decoder(form)));
    for round in 0..50_000 {
        let (form, decoder) = &mut decoders[round % 5];
        let length = random.below(300 * (1 + form.bytes())) * 16;
        let mut block = vec![[0, 0xff, random.next() as u8][random.below(3)]; length];
        for _ in 0..random.below(20) {
            let at = random.below(length.max(1));
            block
                .iter_mut()
                .skip(at)
                .take(30)
                .for_each(|byte| *byte = random.next() as u8);
        }
        let mut out = vec![0; form.bytes() * random.below(BLOCK_ELEMENTS + 1)];
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
        (|p| p.payload.truncate(9000), "entry 4: expected a payload of 9000 bytes with its padding, found an end at "),
        (|p| p.payload.push(0), "directory entry 4: expected a payload of "),
        (|p| p.directory[2] = p.directory[1], "byte 8: directory entry 2: expected an offset after "),
        (|p| p.directory[2] = 0, "byte 8: directory entry 2: expected an offset after "),
        (|p| p.directory[1] = 320, "byte 0: directory entry 0: a coded block at 0 of 8192 raw bytes: \
             expected 5136 to 8176 bytes, found 5120"),
        (|p| p.directory[1] = 513, "entry 0: a coded block at 0 of 8192 raw bytes: expected 5136 to 8176 bytes, found 8208"),
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
        (|p| p.payload[5120] ^= 1, "byte 5120: block 0 at 0: "),
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
