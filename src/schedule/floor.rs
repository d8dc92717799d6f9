//! The floor: the least budget with which the next kernel's weights and one more copy can proceed while
//! a kernel runs. One pure function, used at load, by `required_budget` and by the export's test.

use super::{Event, Trace, WeightIndex, WeightKind, WeightSpec};
use crate::error::bytes_text;
use std::fmt;

/// Most names that a message lists.
const NAMES: usize = 8;

/// One weight in a message: its name and the bytes it occupies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Fully qualified name.
    pub fqn: String,
    /// Occupied bytes (rounded up to the granule).
    pub bytes: u64,
}

/// Two consecutive kernels that read weights, and what both read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPair {
    /// Number of the first kernel.
    pub first: u32,
    /// Number of the next kernel that reads weights; after the last one, of the first in the next pass.
    pub second: u32,
    /// The weights leased by the one or the other, each once, by index.
    pub weights: Vec<Part>,
    /// The sum of their occupied bytes.
    pub bytes: u64,
}

/// The floor and its parts. `Display` is a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    /// Occupied bytes of all direct constants, and of the pinned weights.
    pub direct: u64,
    /// Those of the pinned weights.
    pub pinned: u64,
    /// What decoding packed weights takes on the device, which counts as direct.
    pub staging: u64,
    /// The pair of kernels that needs the most; `None` if no kernel reads a weight.
    pub pair: Option<KernelPair>,
    /// The largest weight that is copied; `None` if none is.
    pub copy: Option<Part>,
    /// See [`hard_minimum`].
    pub hard_minimum: u64,
    /// Occupied bytes of all weights that are read through probes and copied.
    pub everything: u64,
}

impl Floor {
    /// The same beside so many bytes for decoding.
    pub fn with_staging(self, bytes: u64) -> Floor {
        Floor {
            direct: self.direct.saturating_add(bytes),
            hard_minimum: self.hard_minimum.saturating_add(bytes),
            staging: bytes,
            ..self
        }
    }

    /// The least budget, bytes.
    ///
    /// Never below the hard minimum: leases that no kernel reads under (a model that returns its weights)
    /// are in no pair, but must be served all the same. Never more than everything: with that much all
    /// weights are loaded up front, and nothing is in flight.
    pub fn bytes(&self) -> u64 {
        self.direct
            .saturating_add(self.by_kernels().min(self.everything))
    }

    fn by_kernels(&self) -> u64 {
        let pair = self.pair.as_ref().map_or(0, |p| p.bytes);
        let copy = self.copy.as_ref().map_or(0, |c| c.bytes);
        pair.max(self.leases()).saturating_add(copy)
    }

    /// The largest sum of open leases.
    fn leases(&self) -> u64 {
        self.hard_minimum.saturating_sub(self.direct)
    }
}

/// Computes the floor of `trace`. `weights` are all constants, `granule` the device's allocation granule. A read that takes
/// nothing of the budget is one of a weight without bytes. It is the same for every policy: one that needs more at some
/// budget offers the LRU there.
pub fn floor(trace: &Trace, weights: &[WeightSpec], granule: u64) -> Floor {
    let sizes: Vec<u64> = weights.iter().map(|w| w.occupied(granule)).collect();
    let part = |w: WeightIndex| Part {
        fqn: weights[w as usize].fqn.clone(),
        bytes: sizes[w as usize],
    };
    Floor {
        direct: direct_bytes(weights, granule),
        pinned: bytes_of(weights, granule, |kind| kind == WeightKind::Pinned),
        staging: 0,
        pair: largest_pair(trace, &sizes).map(|(first, second, set)| KernelPair {
            first,
            second,
            bytes: sum(&set, &sizes),
            weights: set
                .into_iter()
                .map(part)
                .filter(|part| part.bytes > 0)
                .collect(),
        }),
        copy: largest_copy(trace, &sizes).map(part),
        hard_minimum: hard_minimum(trace, weights, granule),
        everything: everything(trace, &sizes),
    }
}

/// Below this some probe cannot be served at all: the largest sum of open leases, plus direct constants.
pub fn hard_minimum(trace: &Trace, weights: &[WeightSpec], granule: u64) -> u64 {
    let sizes: Vec<u64> = weights.iter().map(|w| w.occupied(granule)).collect();
    let mut open = OpenLeases::default();
    let mut most = 0;
    for event in trace.events() {
        open.apply(trace, *event);
        if matches!(event, Event::Probe(_)) {
            most = most.max(sum(&open.weights(), &sizes));
        }
    }
    direct_bytes(weights, granule).saturating_add(most)
}

/// What all weights of the trace occupy together, each once.
fn everything(trace: &Trace, sizes: &[u64]) -> u64 {
    let mut weights = trace.probes().to_vec();
    weights.sort_unstable();
    weights.dedup();
    sum(&weights, sizes)
}

fn direct_bytes(weights: &[WeightSpec], granule: u64) -> u64 {
    bytes_of(weights, granule, |kind| !kind.comes_and_goes())
}

fn bytes_of(weights: &[WeightSpec], granule: u64, which: impl Fn(WeightKind) -> bool) -> u64 {
    let those = weights.iter().filter(|w| which(w.kind));
    those.fold(0, |total, w| total.saturating_add(w.occupied(granule)))
}

fn sum(set: &[WeightIndex], sizes: &[u64]) -> u64 {
    set.iter()
        .fold(0, |total, &w| total.saturating_add(sizes[w as usize]))
}

fn largest_copy(trace: &Trace, sizes: &[u64]) -> Option<WeightIndex> {
    let size = |w: &WeightIndex| sizes[*w as usize];
    trace
        .probes()
        .iter()
        .copied()
        .filter(|w| size(w) > 0)
        .max_by_key(size)
}

/// The first of the largest pairs: numbers of both kernels and the weights of both, sorted.
fn largest_pair(trace: &Trace, sizes: &[u64]) -> Option<(u32, u32, Vec<WeightIndex>)> {
    let kernels = reading_kernels(trace);
    let mut best: Option<(u64, u32, u32, Vec<WeightIndex>)> = None;
    for (at, (first, here)) in kernels.iter().enumerate() {
        let (second, next) = &kernels[(at + 1) % kernels.len()];
        let both = union(here, next);
        let bytes = sum(&both, sizes);
        if best.as_ref().is_none_or(|b| bytes > b.0) {
            best = Some((bytes, *first, *second, both));
        }
    }
    best.map(|(_, first, second, both)| (first, second, both))
}

/// The kernels under open leases, with the leased weights, each once and sorted.
fn reading_kernels(trace: &Trace) -> Vec<(u32, Vec<WeightIndex>)> {
    let mut open = OpenLeases::default();
    let mut kernels = Vec::new();
    for event in trace.events() {
        open.apply(trace, *event);
        if let Event::Kernel(number) = *event {
            if !open.0.is_empty() {
                kernels.push((number, open.weights()));
            }
        }
    }
    kernels
}

fn union(a: &[WeightIndex], b: &[WeightIndex]) -> Vec<WeightIndex> {
    let mut both = [a, b].concat();
    both.sort_unstable();
    both.dedup();
    both
}

/// The weights of the open leases, one entry per lease. Few are open at a time, so a list is enough.
#[derive(Default)]
struct OpenLeases(Vec<WeightIndex>);

impl OpenLeases {
    fn apply(&mut self, trace: &Trace, event: Event) {
        match event {
            Event::Probe(id) => self.0.push(trace.weight(id)),
            Event::Release(id) => {
                let weight = trace.weight(id);
                if let Some(at) = self.0.iter().position(|&w| w == weight) {
                    self.0.swap_remove(at);
                }
            }
            Event::Kernel(_) => {}
        }
    }

    /// Each leased weight once, sorted.
    fn weights(&self) -> Vec<WeightIndex> {
        union(&self.0, &[])
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direct = self.direct.saturating_sub(self.pinned);
        let direct = direct.saturating_sub(self.staging);
        write!(f, "direct constants {}", bytes_text(direct))?;
        if self.pinned > 0 {
            write!(f, " + pinned weights {}", bytes_text(self.pinned))?;
        }
        if self.staging > 0 {
            write!(f, " + decoding packed weights {}", bytes_text(self.staging))?;
        }
        if let Some(pair) = &self.pair {
            write!(
                f,
                " + weights read by {} {}",
                pair.kernels(),
                bytes_text(pair.bytes)
            )?;
            f.write_str(" [")?;
            pair.list(f)?;
            f.write_str("]")?;
        }
        if let Some(copy) = &self.copy {
            write!(
                f,
                " + largest copy in flight {} [{}]",
                bytes_text(copy.bytes),
                copy.fqn
            )?;
        }
        if self.leases() > self.pair.as_ref().map_or(0, |pair| pair.bytes) {
            write!(
                f,
                "; leases open at one time need {}",
                bytes_text(self.leases())
            )?;
        }
        if self.everything < self.by_kernels() {
            write!(
                f,
                "; all weights together need no more than {}",
                bytes_text(self.everything)
            )?;
        }
        Ok(())
    }
}

impl KernelPair {
    fn kernels(&self) -> String {
        match self.first == self.second {
            true => format!("kernel {}", self.first),
            false => format!("kernels {} and {}", self.first, self.second),
        }
    }

    fn list(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.weights.iter().take(NAMES).enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{}: {}", part.fqn, part.bytes)?;
        }
        match self.weights.len().checked_sub(NAMES) {
            Some(more) if more > 0 => write!(f, " and {more} more"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "floor_tests.rs"]
mod tests;
