//! A model of compiled code: random programs that do with weights what compiled code was seen to do.
//!
//! Kernels in a row; in front of each the probes of what it reads first; leases over one kernel, over several, or until
//! the function returns; weights that are read many times, that have the same bytes as another one, that have none, and
//! that are much larger than the rest; probe ids in another order than the probes are called in.

use super::draw::{Choices, Draw};
use super::Model;
use proptest::prelude::*;
use std::sync::OnceLock;
use weightstream::schedule::Event::{self, Kernel, Probe, Release};
use weightstream::schedule::{Trace, WeightKind, WeightSpec};
use weightstream::store::{Method, WeightLayout};

/// What a program is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Each kernel reads one weight, all of the same size.
    Chain,
    /// The same with any sizes: none, tiny, huge.
    Uneven,
    /// A kernel reads up to four weights, and the leases end behind it.
    Several,
    /// Leases over many kernels, which overlap.
    Long,
    /// Few weights, each read many times; some have the same bytes.
    Repeated,
    /// The last and the first kernel together read the most: the pass wraps around.
    Wrap,
    /// Leases that end only when the function returns, some of them under no kernel: the code returns the weights.
    Returned,
    /// Steps without any plan: leases under no kernel in the middle too.
    Anything,
}

impl Shape {
    pub const ALL: [Shape; 8] = [
        Shape::Chain,
        Shape::Uneven,
        Shape::Several,
        Shape::Long,
        Shape::Repeated,
        Shape::Wrap,
        Shape::Returned,
        Shape::Anything,
    ];
}

/// A program of this shape.
pub fn program(shape: Shape, draw: &mut impl Draw) -> Model {
    let sizes = sizes(shape, draw);
    let mut code = match shape {
        Shape::Anything => any_steps(sizes.len() as u64, draw),
        _ => kernels(shape, &sizes, draw),
    };
    if draw.one_in(2) {
        code.rename(draw);
    }
    let direct: Vec<u64> = (0..draw.below(3)).map(|_| draw.below(500)).collect();
    let tied = matches!(shape, Shape::Repeated | Shape::Anything);
    let mut model = build(&sizes, tied, &direct, code);
    if draw.one_in(2) {
        model.file = Some(model.bytes.concat());
    }
    model
}

/// Another method over the same constants: kernels that read up to three weights, in an order of their own.
pub fn other(model: &Model, draw: &mut impl Draw) -> Model {
    let constants = &model.constants;
    let mut weights: Vec<u32> = (0..constants.specs.len() as u32)
        .filter(|&weight| constants.is_probed(weight))
        .collect();
    draw.shuffle(&mut weights);
    weights.truncate(draw.below(weights.len() as u64 + 1) as usize);
    let again: Vec<u32> = weights.iter().copied().filter(|_| draw.one_in(4)).collect();
    weights.extend(again);
    let (mut events, mut next) = (Vec::new(), 0);
    let mut left = &weights[..];
    while !left.is_empty() {
        let (now, rest) = left.split_at((draw.between(1, 3) as usize).min(left.len()));
        left = rest;
        let ids = next..next + now.len() as u32;
        next = ids.end;
        events.extend(ids.clone().map(Event::Probe));
        events.push(Event::Kernel(next));
        events.extend(ids.map(Event::Release));
    }
    let mut other = model.clone();
    other.method = Method {
        trace: Trace::new(events, weights, constants.specs.len()).unwrap(),
        ..model.method.clone()
    };
    other
}

/// Programs of all shapes, for property tests. They shrink.
pub fn programs() -> impl Strategy<Value = Model> {
    let choices = prop::collection::vec(any::<u32>(), 0..200);
    (prop::sample::select(&Shape::ALL[..]), choices)
        .prop_map(|(shape, choices)| program(shape, &mut Choices::new(choices)))
}

fn sizes(shape: Shape, draw: &mut impl Draw) -> Vec<u64> {
    let most = match shape {
        Shape::Several => 24,
        Shape::Long | Shape::Returned => 16,
        _ => 12,
    };
    // Rather many than few: where two kernels read everything, nothing has to go.
    let count = 1 + draw.below(most).max(draw.below(most)) as usize;
    let equal = 64 * draw.between(1, 8);
    let all_equal = shape == Shape::Chain || draw.one_in(5);
    let mut sizes: Vec<u64> = (0..count)
        .map(|_| match all_equal {
            true => equal,
            false => any_size(draw),
        })
        .collect();
    if !matches!(shape, Shape::Chain | Shape::Wrap) && draw.one_in(5) {
        sizes[draw.below(count as u64) as usize] = draw.between(3000, 12_000);
    }
    if draw.one_in(2) {
        // Neighbours without a gap, on the device and in the file: their copies are joined.
        sizes
            .iter_mut()
            .for_each(|size| *size = size.next_multiple_of(64));
    }
    if shape == Shape::Wrap {
        let large = 500 + 64 * draw.below(16);
        sizes[0] = large;
        sizes[count - 1] = large;
    }
    sizes
}

fn any_size(draw: &mut impl Draw) -> u64 {
    match draw.below(16) {
        0..4 => draw.between(1, 64),
        4..13 => draw.between(65, 700),
        13 | 14 => draw.between(700, 1500),
        _ => 0,
    }
}

/// The events, and the weight behind each probe.
#[derive(Default)]
struct Code {
    events: Vec<Event>,
    probes: Vec<u32>,
}

impl Code {
    fn probe(&mut self, weight: u64) -> u32 {
        let id = self.probes.len() as u32;
        self.events.push(Probe(id));
        self.probes.push(weight as u32);
        id
    }

    /// Compiled code calls its probes in another order than they are numbered in.
    fn rename(&mut self, draw: &mut impl Draw) {
        let n = self.probes.len();
        let mut names: Vec<u32> = (0..n as u32).collect();
        draw.shuffle(&mut names);
        for event in &mut self.events {
            match event {
                Probe(id) | Release(id) => *id = names[*id as usize],
                Kernel(_) => {}
            }
        }
        let mut probes = vec![0; n];
        for (id, weight) in self.probes.iter().enumerate() {
            probes[names[id] as usize] = *weight;
        }
        self.probes = probes;
    }
}

/// Each weight is read at least once, in order, so that a pass is a cycle over all of them; then, or in between, again.
fn kernels(shape: Shape, sizes: &[u64], draw: &mut impl Draw) -> Code {
    let weights = sizes.len() as u64;
    let count = match shape {
        Shape::Repeated => draw.between(weights, 3 * weights),
        _ => weights,
    };
    let mut code = Code::default();
    // Open leases and the kernel behind which each ends.
    let mut open: Vec<(u32, u64)> = Vec::new();
    let mut read = 0;
    for number in 0..count {
        if shape == Shape::Several && read == weights {
            break;
        }
        let reads = match shape {
            Shape::Several => draw.between(1, 4).min(weights - read),
            // A kernel may read only what it has already.
            Shape::Long if number > 0 => draw.below(3),
            Shape::Returned => draw.between(1, 2),
            _ => 1,
        };
        for _ in 0..reads {
            let weight = match shape {
                Shape::Repeated if number >= weights => draw.below(weights),
                _ => read % weights,
            };
            read += 1;
            let lasts = lasts(shape, count, draw);
            open.push((code.probe(weight), number + lasts));
        }
        code.events.push(Kernel(number as u32));
        end_leases(&mut code, &mut open, number, draw);
    }
    if shape == Shape::Returned {
        for _ in 0..draw.below(3) {
            let weight = draw.below(weights);
            open.push((code.probe(weight), u64::MAX));
        }
    }
    // What is left ends with the function: some of it in the record, the rest without a release there.
    end_leases(&mut code, &mut open, count + draw.below(2) * count, draw);
    code
}

/// Kernels that run under a lease beside its first one.
fn lasts(shape: Shape, count: u64, draw: &mut impl Draw) -> u64 {
    match shape {
        Shape::Long => draw.below(4).min(draw.below(count + 1)),
        Shape::Repeated if draw.one_in(4) => draw.below(3),
        Shape::Returned if draw.one_in(8) => u64::MAX / 2,
        _ => 0,
    }
}

/// Ends what lasts no longer than this kernel, in any order.
fn end_leases(code: &mut Code, open: &mut Vec<(u32, u64)>, number: u64, draw: &mut impl Draw) {
    let (mut over, rest): (Vec<_>, Vec<_>) =
        open.drain(..).partition(|(_, until)| *until <= number);
    *open = rest;
    while !over.is_empty() {
        let (id, _) = over.swap_remove(draw.below(over.len() as u64) as usize);
        code.events.push(Release(id));
    }
}

/// Steps open a lease of some weight, end some open lease, or run a kernel.
fn any_steps(weights: u64, draw: &mut impl Draw) -> Code {
    let mut code = Code::default();
    let mut open = Vec::new();
    for number in 0..draw.below(50) as u32 {
        match draw.below(5) {
            0 => code.events.push(Kernel(number)),
            1 | 2 => open.push(code.probe(draw.below(weights))),
            _ if open.is_empty() => code.events.push(Kernel(number)),
            _ => {
                let at = draw.below(open.len() as u64) as usize;
                code.events.push(Release(open.swap_remove(at)));
            }
        }
    }
    code
}

fn build(sizes: &[u64], tied: bool, direct: &[u64], code: Code) -> Model {
    let spec = |kind: WeightKind| {
        move |(i, &bytes): (usize, &u64)| WeightSpec {
            fqn: format!("{kind:?}.{i}"),
            bytes,
            stored: bytes,
            kind,
        }
    };
    let mut sizes = sizes.to_vec();
    if tied && sizes.len() > 1 {
        sizes[1] = sizes[0];
    }
    let weights = sizes.iter().enumerate().map(spec(WeightKind::Weight));
    let (mutable, fixed) = direct.split_at(direct.len() / 2);
    let fixed = fixed.iter().enumerate().map(spec(WeightKind::Direct));
    let mutable = mutable.iter().enumerate().map(spec(WeightKind::Mutable));
    let weights: Vec<_> = weights.chain(fixed).chain(mutable).collect();
    let source = |at: usize| if tied && at == 1 { 0 } else { at };
    let bytes = weights.iter().enumerate();
    let bytes = bytes.map(|(at, w)| noise(source(at), w.bytes)).collect();
    let layout = |w: &WeightSpec| WeightLayout {
        dtype: 0,
        sizes: vec![w.bytes as i64],
        strides: vec![1],
    };
    let layouts = weights.iter().map(layout).collect();
    let trace = Trace::new(code.events, code.probes, weights.len()).unwrap();
    let (constants, method) = Method::with_constants(weights, layouts, trace);
    Model {
        constants,
        method,
        bytes,
        file: None,
    }
}

/// Bytes of the constant of this number: of one long noise, each from another place.
fn noise(number: usize, len: u64) -> Vec<u8> {
    const LEN: usize = 1 << 15;
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    let noise = NOISE.get_or_init(|| {
        let mut draw = super::draw::Seeded(1);
        (0..LEN).map(|_| draw.next() as u8).collect()
    });
    let start = number * 1021 % (LEN / 2);
    noise[start..start + len as usize].to_vec()
}
