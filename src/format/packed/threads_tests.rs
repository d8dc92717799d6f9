//! Whatever the number of threads, the stored bytes are those of one writer.

use super::tests::{encode, Random, BLOCK_BYTES};
use super::threads::{CHUNK_BYTES, LEAST_CHUNK_BYTES};
use super::*;
use crate::figures::NumberForm;
use crate::Error;

/// What `store` hands out.
fn stored(raw: &[u8], threads: usize) -> Vec<u8> {
    let counted = count("w", NumberForm::Bf16, raw, threads).unwrap();
    assert_eq!(counted.crc32, crc32fast::hash(raw));
    let (mut out, mut raw_bytes) = (Vec::new(), 0);
    let header = counted.histogram.header();
    let found = store("w", raw, &header, threads, |piece, of| {
        out.extend_from_slice(piece);
        raw_bytes += of;
        Ok(())
    });
    let expected = Stored {
        bytes: out.len() as u64,
        crc32: crc32fast::hash(&out),
    };
    assert_eq!(found, Ok(expected));
    assert_eq!(raw_bytes, raw.len());
    out
}

fn stored_by_one_writer(raw: &[u8]) -> Vec<u8> {
    let packed = encode(raw).unwrap();
    let directory = packed
        .directory
        .iter()
        .flat_map(|entry| entry.to_le_bytes());
    packed.payload.iter().copied().chain(directory).collect()
}

#[test]
fn any_number_of_threads_stores_the_same_bytes() {
    let (least, most) = (LEAST_CHUNK_BYTES, CHUNK_BYTES);
    let mut raw = Random(31).weights(most + 3 * BLOCK_ELEMENTS);
    let mut noise = Random(32);
    // Raw blocks at the border of two chunks.
    raw[most - BLOCK_BYTES..most + BLOCK_BYTES].fill_with(|| noise.next() as u8);
    let lengths = [
        0,
        2,
        BLOCK_BYTES,
        least - 2,
        least,
        least + 2,
        3 * least + 1,
        most,
        most + 2,
        raw.len() - 10,
        raw.len(),
    ];
    for length in lengths {
        let raw = &raw[..length];
        let expected = stored_by_one_writer(raw);
        for threads in [1, 2, 3, 7] {
            assert!(
                stored(raw, threads) == expected,
                "{length} bytes, {threads} threads"
            );
        }
    }
}

#[test]
fn what_is_handed_out_and_refused_ends_it() {
    let raw = Random(33).weights(BLOCK_ELEMENTS * 200);
    let header = count("w", NumberForm::Bf16, &raw, 2)
        .unwrap()
        .histogram
        .header();
    let mut pieces = 0;
    let ended = store("w", &raw, &header, 2, |_, _| {
        pieces += 1;
        Err(Error::Unsupported("no".to_owned()))
    });
    assert_eq!((ended.is_err(), pieces), (true, 1));
}

#[test]
fn parts_of_a_histogram_are_the_whole() {
    let raw = Random(34).weights(3000);
    let of = |raw: &[u8]| {
        let mut histogram = Histogram::new(NumberForm::Bf16);
        histogram.add(raw);
        histogram
    };
    for (cut, end) in [(0, 6000), (2000, 6000), (2000, 5999), (6000, 6000)] {
        let mut both = of(&raw[..cut]);
        both.merge(&of(&raw[cut..end]));
        assert_eq!(both, of(&raw[..end]), "{cut} of {end}");
    }
}

#[test]
fn a_histogram_bounds_the_packed_form_closely() {
    let mut noise = Random(35);
    let weights = Random(36).weights(20 * BLOCK_ELEMENTS);
    let random: Vec<u8> = (0..50_000).map(|_| noise.next() as u8).collect();
    for raw in [&weights[..], &random, &vec![0x3f; 100_000]] {
        for length in (0..raw.len())
            .step_by(797)
            .chain([0, 1, 2, 8191, 8192, 8193])
        {
            let packed = encode(&raw[..length]).unwrap();
            let mut histogram = Histogram::new(NumberForm::Bf16);
            histogram.add(&raw[..length]);
            let most = histogram.most_bytes();
            assert!(
                packed.bytes() <= most,
                "{length} bytes: {} {most}",
                packed.bytes()
            );
        }
    }
    let packed = encode(&weights).unwrap();
    let mut histogram = Histogram::new(NumberForm::Bf16);
    histogram.add(&weights);
    let over = histogram.most_bytes() as f64 / packed.bytes() as f64;
    assert!(over < 1.005, "{over}");
}
