//! Programs that plans are measured on: sizes and reads of known models.

use weightstream::figures::DeviceModel;
use weightstream::schedule::{Event, Trace, WeightKind, WeightSpec};

const MIB: u64 = 1 << 20;

/// An NVIDIA GPU on a link of 55 GB/s.
pub const CUDA: DeviceModel = DeviceModel {
    granule: 512,
    bytes_per_copy: 192 << 10,
    page: Some(2 * MIB),
    apart: 0,
    whole_pages: false,
    packed: weightstream::figures::PackedResidents::Off,
};

/// The CPU.
pub const HOST: DeviceModel = DeviceModel {
    granule: 64,
    bytes_per_copy: 0,
    page: Some(4096),
    apart: 0,
    whole_pages: false,
    packed: weightstream::figures::PackedResidents::Off,
};

/// A program in which each kernel reads one weight.
pub struct Model {
    pub name: &'static str,
    pub weights: Vec<WeightSpec>,
    pub trace: Trace,
}

impl Model {
    /// Weights of these sizes, read in this order.
    fn of(name: &'static str, sizes: &[u64], reads: Vec<u32>) -> Model {
        let weight = |(at, &bytes): (usize, &u64)| WeightSpec {
            fqn: format!("w{at}"),
            bytes,
            stored: bytes,
            kind: WeightKind::Weight,
        };
        let read = |id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)];
        let events = (0..reads.len() as u32).flat_map(read).collect();
        Model {
            name,
            weights: sizes.iter().enumerate().map(weight).collect(),
            trace: Trace::new(events, reads, sizes.len()).unwrap(),
        }
    }

    fn in_turn(name: &'static str, sizes: &[u64]) -> Model {
        Model::of(name, sizes, (0..sizes.len() as u32).collect())
    }

    pub fn total(&self) -> u64 {
        self.weights.iter().map(|weight| weight.bytes).sum()
    }
}

/// Weights of one layer of the model that `benches/gpu` measures.
const BENCH_LAYER: [u64; 9] = [
    8 << 10,
    32 * MIB,
    32 * MIB,
    32 * MIB,
    32 * MIB,
    8 << 10,
    86 * MIB,
    86 * MIB,
    86 * MIB,
];

/// Weights of one layer of Llama-3-8B.
const LLAMA_LAYER: [u64; 9] = [
    8 << 10,
    32 * MIB,
    8 * MIB,
    8 * MIB,
    32 * MIB,
    8 << 10,
    112 * MIB,
    112 * MIB,
    112 * MIB,
];

/// A table, `layers` times `layer`, a norm and the head.
fn decoder(table: u64, layer: &[u64], layers: usize) -> Vec<u64> {
    [&[table][..], &layer.repeat(layers), &[8 << 10, table]].concat()
}

/// The model of `benches/gpu`: 16 layers as in a Llama, 7.0 GB.
pub fn bench() -> Model {
    Model::in_turn("7 GB bench", &decoder(250 * MIB, &BENCH_LAYER, 16))
}

/// Llama-3-8B in bf16.
pub fn llama_8b() -> Model {
    Model::in_turn("Llama-3-8B", &decoder(1002 * MIB, &LLAMA_LAYER, 32))
}

/// The bench with each layer run twice.
pub fn layers_twice() -> Model {
    let runs = (0..16).flat_map(|layer| [layer, layer]);
    bench_of("each layer twice", runs)
}

/// The bench with its layers run in turn, and then back to the first one.
pub fn there_and_back() -> Model {
    bench_of("there and back", (0..16).chain((0..16).rev()))
}

fn bench_of(name: &'static str, runs: impl Iterator<Item = u32>) -> Model {
    let layer = |number: u32| (0..9).map(move |at| 1 + 9 * number + at);
    let reads = std::iter::once(0)
        .chain(runs.flat_map(layer))
        .chain([145, 146]);
    Model::of(name, &decoder(250 * MIB, &BENCH_LAYER, 16), reads.collect())
}

/// The bench with its table read before, in the middle of and after its layers.
pub fn table_three_times() -> Model {
    let layers = |from: u32, to: u32| 1 + 9 * from..1 + 9 * to;
    let reads = std::iter::once(0)
        .chain(layers(0, 8))
        .chain([0])
        .chain(layers(8, 16));
    let reads = reads.chain([145, 0, 146]).collect();
    Model::of(
        "a table three times",
        &decoder(250 * MIB, &BENCH_LAYER, 16),
        reads,
    )
}

/// The U-Net of Stable Diffusion 1.5 in fp16: 860 million parameters.
pub fn unet() -> Model {
    let mut sizes = vec![320 * 4 * 9, 320 * 1280, 1280 * 1280];
    let levels = [320, 640, 1280, 1280];
    let mut skips = vec![320];
    let mut width = 320;
    for (level, &out) in levels.iter().enumerate() {
        for _ in 0..2 {
            resnet(width, out, &mut sizes);
            width = out;
            if level < 3 {
                transformer(out, &mut sizes);
            }
            skips.push(out);
        }
        if level < 3 {
            sizes.push(out * out * 9);
            skips.push(out);
        }
    }
    resnet(1280, 1280, &mut sizes);
    transformer(1280, &mut sizes);
    resnet(1280, 1280, &mut sizes);
    for (level, &out) in levels.iter().enumerate().rev() {
        for _ in 0..3 {
            resnet(width + skips.pop().unwrap(), out, &mut sizes);
            width = out;
            if level < 3 {
                transformer(out, &mut sizes);
            }
        }
        if level > 0 {
            sizes.push(out * out * 9);
        }
    }
    sizes.extend([320, 320 * 4 * 9]);
    let bytes: Vec<u64> = sizes.iter().map(|elements| 2 * elements).collect();
    Model::in_turn("U-Net", &bytes)
}

fn resnet(from: u64, to: u64, sizes: &mut Vec<u64>) {
    sizes.extend([from, from * to * 9, 1280 * to, to, to * to * 9]);
    if from != to {
        sizes.push(from * to);
    }
}

fn transformer(width: u64, sizes: &mut Vec<u64>) {
    let square = width * width;
    sizes.extend([width, square, width, square, square, square, square]);
    sizes.extend([width, square, 768 * width, 768 * width, square]);
    sizes.extend([width, 8 * square, 4 * square, square]);
}

/// 10,000 weights, each read once.
pub fn large() -> Model {
    Model::in_turn("1,111 layers", &decoder(250 * MIB, &LLAMA_LAYER, 1111))
}

/// 5,000 weights, each read in two runs of its layer.
pub fn large_twice() -> Model {
    let sizes = decoder(250 * MIB, &LLAMA_LAYER, 555);
    let layer = |number: u32| (0..9).map(move |at| 1 + 9 * number + at);
    let runs = (0..555).flat_map(|layer| [layer, layer]);
    let reads = std::iter::once(0)
        .chain(runs.flat_map(layer))
        .chain([4996, 4997]);
    Model::of("555 layers twice", &sizes, reads.collect())
}
