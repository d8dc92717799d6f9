//! Random traces that read weights in a cycle.

use crate::policy_support::draw::{Draw, Seeded};
use weightstream::schedule::{Event, Trace, WeightKind, WeightSpec};

/// What a trace is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// Each kernel reads a weight; all are of one size.
    Equal,
    /// The same, of any sizes.
    Chain,
    /// A kernel reads up to four weights.
    Several,
    /// Leases last up to four kernels.
    Long,
    /// Some weights are read several times.
    Again,
    /// All of that.
    Mixed,
}

const SHAPES: [Shape; 6] = [
    Shape::Equal,
    Shape::Chain,
    Shape::Several,
    Shape::Long,
    Shape::Again,
    Shape::Mixed,
];

/// A trace, its weights, and a budget for them.
pub struct Case {
    pub shape: Shape,
    pub weights: Vec<WeightSpec>,
    pub trace: Trace,
    pub share: u64,
}

impl Case {
    /// The case of this number.
    pub fn of(number: u64) -> Case {
        let mut draw = Seeded(number);
        let shape = SHAPES[draw.below(SHAPES.len() as u64) as usize];
        let count = draw.between(4, 60);
        let sizes = sizes(shape, count, &mut draw);
        let reads = reads(shape, count, &mut draw);
        let share = match draw.below(8) {
            0 => 0,
            1 => draw.below(50),
            _ => draw.below(1000),
        };
        Case {
            shape,
            trace: trace(&reads, count as usize),
            weights: weights(&sizes),
            share,
        }
    }
}

pub fn weights(sizes: &[u64]) -> Vec<WeightSpec> {
    let spec = |(at, &bytes): (usize, &u64)| WeightSpec {
        fqn: format!("w{at}"),
        bytes,
        stored: bytes,
        kind: WeightKind::Weight,
    };
    sizes.iter().enumerate().map(spec).collect()
}

/// Each kernel's reads: the weight, and how many further kernels its lease lasts.
pub fn trace(reads: &[Vec<(u64, usize)>], weights: usize) -> Trace {
    let (mut events, mut probes) = (Vec::new(), Vec::new());
    let mut open: Vec<(u32, usize)> = Vec::new();
    for (number, list) in reads.iter().enumerate() {
        for &(weight, lasts) in list {
            let id = probes.len() as u32;
            probes.push(weight as u32);
            events.push(Event::Probe(id));
            open.push((id, number + lasts));
        }
        events.push(Event::Kernel(number as u32));
        open.retain(|&(id, last)| {
            if last <= number {
                events.push(Event::Release(id));
            }
            last > number
        });
    }
    Trace::new(events, probes, weights).unwrap()
}

/// Of one size; of about one; or over several magnitudes.
fn sizes(shape: Shape, count: u64, draw: &mut impl Draw) -> Vec<u64> {
    let largest = 1 << draw.between(8, 20);
    let way = match shape {
        Shape::Equal => 0,
        _ => draw.below(4),
    };
    let kinds: Vec<u64> = (0..3).map(|_| draw.between(64, largest)).collect();
    let size = |_| match way {
        0 => largest,
        1 => draw.between(largest / 2, largest),
        2 => kinds[draw.below(3) as usize],
        _ => {
            let most = largest >> draw.below(8);
            draw.between(1, most)
        }
    };
    (0..count).map(size).collect()
}

fn reads(shape: Shape, count: u64, draw: &mut impl Draw) -> Vec<Vec<(u64, usize)>> {
    let all = shape == Shape::Mixed;
    let mut kernels: Vec<Vec<(u64, usize)>> = Vec::new();
    let mut next = 0;
    while next < count {
        let more = match shape {
            Shape::Several | Shape::Mixed => draw.between(1, 4).min(draw.between(1, 4)),
            _ => 1,
        };
        let mut list = Vec::new();
        for weight in next..(next + more).min(count) {
            let lasts = match shape {
                Shape::Long => draw.below(5).min(draw.below(5)),
                Shape::Mixed if draw.one_in(4) => draw.below(5),
                _ => 0,
            };
            list.push((weight, lasts as usize));
        }
        next += more;
        kernels.push(list);
        if next > 1 && (shape == Shape::Again || all) && draw.one_in(3) {
            kernels.push(vec![(draw.below(next.min(count)), 0)]);
        }
    }
    kernels
}
