//! When weights have to be there.

use std::collections::BTreeSet;
use std::ops::Range;
use weightstream::schedule::{Event, Trace, WeightSpec};

/// A weight, and for each of its uses the kernels at which it has to be there: from the one before its read to the last of its
/// lease. The last ones of a use may be kernels of the next pass.
pub struct Used {
    pub bytes: f64,
    pub uses: Vec<Range<usize>>,
}

/// What has to be there when, by the kernels that read weights, of which each needs what it and the next one read.
pub struct Cycle {
    pub kernels: usize,
    /// The weights that may be away at some kernel.
    pub weights: Vec<Used>,
    /// Bytes of the others.
    pub always: f64,
}

impl Cycle {
    pub fn of(trace: &Trace, weights: &[WeightSpec]) -> Cycle {
        let open = open_at_kernels(trace);
        let kernels = open.len();
        let needs = |k: usize, weight: u32| {
            [k, k + 1]
                .iter()
                .any(|k| open[k % kernels].contains(&weight))
        };
        let mut cycle = Cycle {
            kernels,
            weights: Vec::new(),
            always: 0.0,
        };
        for weight in open.iter().flatten().copied().collect::<BTreeSet<u32>>() {
            let bytes = weights[weight as usize].bytes as f64;
            let begins = |k: &usize| needs(*k, weight) && !needs(k + kernels - 1, weight);
            let until = |from: usize| (from..).find(|&k| !needs(k, weight)).expect("it is away");
            let uses: Vec<_> = (0..kernels)
                .filter(begins)
                .map(|from| from..until(from))
                .collect();
            match uses.is_empty() {
                true => cycle.always += bytes,
                false => cycle.weights.push(Used { bytes, uses }),
            }
        }
        cycle
    }
}

/// The weights whose leases are open at each kernel at which there are any.
fn open_at_kernels(trace: &Trace) -> Vec<BTreeSet<u32>> {
    let mut open = BTreeSet::new();
    let mut found = Vec::new();
    for event in trace.events() {
        match *event {
            Event::Probe(id) => {
                open.insert(id);
            }
            Event::Release(id) => {
                open.remove(&id);
            }
            Event::Kernel(_) if open.is_empty() => {}
            Event::Kernel(_) => found.push(open.iter().map(|&id| trace.weight(id)).collect()),
        }
    }
    found
}
