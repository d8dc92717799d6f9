//! The speed of packing and unpacking on one core, in MB of raw bytes a second, the best of five;
//! and the ratio. On random normal weights of each form, or on the raw bf16 bytes of a file.
//!
//! `cargo bench --bench packed [-- FILE]`

use std::time::{Duration, Instant};
use weightstream::figures::NumberForm;
use weightstream::format::packed::{decode, encode, Histogram, PackedWriter};

/// Of as many weights as a large matrix has.
const ELEMENTS: usize = 16 << 20;

fn main() {
    let file = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    if let Some(path) = file {
        let raw = std::fs::read(&path).expect("a file of bf16 elements");
        return measure(NumberForm::Bf16, &raw);
    }
    for form in NumberForm::ALL {
        measure(form, &weights(form, ELEMENTS));
    }
}

fn measure(form: NumberForm, raw: &[u8]) {
    println!("{form:?}");
    let say = |what: &str, best: Duration| {
        let rate = raw.len() as f64 / best.as_secs_f64() / 1e6;
        println!("  {what:28} {rate:6.0} MB/s");
    };
    let mut histogram = Histogram::new(form);
    let count = best(|| {
        histogram = Histogram::new(form);
        histogram.add(raw);
    });
    say("count exponents", count);
    let header = histogram.header();
    let mut payload = Vec::with_capacity(raw.len() + raw.len() / 100 + 64);
    let mut directory = Vec::new();
    let write = best(|| {
        payload.clear();
        let mut writer = PackedWriter::new("bench", header, &mut payload);
        writer.write(raw).expect("memory takes all");
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
    say("encode: all of it", best(|| drop(encode(form, raw))));
    let packed = (payload.len() + 4 * directory.len()) as f64;
    println!("  {:28} {:6.4}", "ratio", packed / raw.len() as f64);
}

fn best(mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let started = Instant::now();
        run();
        started.elapsed()
    };
    (0..5).map(time).min().expect("five runs")
}

/// Normal weights of sigma 0.0156, of fp8 64: sums of twelve uniform numbers, cut to the form's bits.
fn weights(form: NumberForm, elements: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let (mantissa, exponent) = (form.mantissa_bits(), form.exponent_bits());
    let scale = if form.bytes() == 1 { 64.0 } else { 0.0156 };
    let weight = |_| {
        let normal: f32 = (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
        let bits = (scale * normal).to_bits();
        let lowered = (128 - (1 << (exponent - 1))) << mantissa;
        let magnitude = ((bits & 0x7fff_ffff) >> (23 - mantissa)).saturating_sub(lowered);
        let word = (bits >> 31) << (mantissa + exponent) | magnitude;
        word.to_le_bytes().into_iter().take(form.bytes())
    };
    (0..elements).flat_map(weight).collect()
}
