//! The speed of packing and unpacking on one core, in MB of raw bytes a second, the best of five;
//! and the ratio. On random normal weights, or on the raw bf16 bytes of a file.
//!
//! `cargo bench --bench packed [-- FILE]`

use std::time::{Duration, Instant};
use weightstream::format::packed::{decode, encode, Histogram, PackedWriter};

/// Of as many weights as a large matrix has.
const ELEMENTS: usize = 16 << 20;

fn main() {
    let file = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let raw = match file {
        Some(path) => std::fs::read(&path).expect("a file of bf16 elements"),
        None => weights(ELEMENTS),
    };
    let say = |what: &str, best: Duration| {
        let rate = raw.len() as f64 / best.as_secs_f64() / 1e6;
        println!("{what:28} {rate:6.0} MB/s");
    };
    let mut histogram = Histogram::new();
    let count = best(|| {
        histogram = Histogram::new();
        histogram.add(&raw);
    });
    say("count exponents", count);
    let header = histogram.header();
    let mut payload = Vec::with_capacity(raw.len() + raw.len() / 100 + 64);
    let mut directory = Vec::new();
    let write = best(|| {
        payload.clear();
        let mut writer = PackedWriter::new("bench", header, &mut payload);
        writer.write(&raw).expect("memory takes all");
        directory = writer.finish().expect("memory takes all");
    });
    say("write and compare", write);
    let mut out = vec![0; raw.len()];
    let blocks = 0..header.blocks() as u32;
    let read = best(|| {
        let blocks = blocks.clone();
        decode("bench", &header, &directory, &payload, blocks, &mut out).expect("what was written");
    });
    assert!(out == raw);
    say("decode", read);
    say("encode: all of it", best(|| drop(encode(&raw))));
    let packed = (payload.len() + 4 * directory.len()) as f64;
    println!("{:28} {:6.4}", "ratio", packed / raw.len() as f64);
}

fn best(mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let started = Instant::now();
        run();
        started.elapsed()
    };
    (0..5).map(time).min().expect("five runs")
}

/// Normal weights of sigma 0.0156: sums of twelve uniform numbers, rounded to bf16.
fn weights(elements: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let weight = |_| {
        let normal: f32 = (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
        let bits = (0.0156 * normal).to_bits();
        ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
    };
    (0..elements)
        .map(weight)
        .flat_map(u16::to_le_bytes)
        .collect()
}
