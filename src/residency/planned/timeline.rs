//! The live ranges of a pass: which reads of a weight one copy serves, and when its bytes have to be there.
//!
//! ```text
//! events     P0 K R0   P1 K R1   P0' K R0'   P2 K R2
//! weight 0   |--------------------------|              one live range, if both reads are served by one copy
//! weight 1          |------|
//! ```
//!
//! Time is counted in events of the trace. Each method is a circle of its own: its passes follow each other. A live range is *wanted* from the last kernel before its first read on, so that
//! its copy runs beside that kernel, until its last lease ends.

use crate::schedule::{Event, MethodTrace, ProbeId, Trace, WeightIndex};
use std::ops::Range;

/// Distances at which close reads are merged, besides none: at most so many, and in programs of more than `SOME` reads.
const DISTANCES: usize = 5;
const FEW_DISTANCES: usize = 2;
const SOME: usize = 500;

/// Reads of one weight that one copy serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveRange {
    pub weight: WeightIndex,
    /// The method that reads.
    pub method: usize,
    /// The reads, in the order of the pass.
    pub probes: Vec<ProbeId>,
    /// Event of the first read.
    pub first: usize,
    /// Event after which the last lease has ended; the number of events if only the end of the pass ends it.
    pub last: usize,
    /// From this event on the bytes should be there or on their way. Negative: an event of the pass before.
    pub wanted: i64,
}

/// All live ranges of a pass of each method. A pass goes around.
#[derive(Debug, Clone)]
pub(super) struct Timeline {
    /// By method, and by their first reads.
    pub ranges: Vec<LiveRange>,
    /// How many of them each weight has: of several methods the sum, each times its share.
    pub times: Vec<u64>,
    pub circles: Vec<Circle>,
}

/// A pass of one method.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circle {
    /// The length of a pass.
    pub events: usize,
    /// How often it runs beside the others.
    pub share: u32,
}

impl Timeline {
    /// With one copy for each read, but for those that leave no time for another copy.
    pub(super) fn of(methods: &[MethodTrace<'_>], weights: usize) -> Timeline {
        let circle = |one: &MethodTrace<'_>| Circle {
            events: one.trace.events().len(),
            share: one.share,
        };
        let reads = { methods.iter().enumerate() }.flat_map(|(at, one)| reads(one.trace, at));
        let reads = Timeline {
            ranges: reads.collect(),
            times: vec![0; weights],
            circles: methods.iter().map(circle).collect(),
        };
        reads.joined(|before, next| next.wanted <= before.last as i64)
    }

    /// The same with one copy for reads of a weight that are less than so many events apart.
    pub(super) fn merged(&self, distance: usize) -> Timeline {
        self.joined(|before, next| next.first < before.last + distance)
    }

    fn joined(&self, close: impl Fn(&LiveRange, &LiveRange) -> bool) -> Timeline {
        let mut ranges: Vec<LiveRange> = Vec::with_capacity(self.ranges.len());
        let mut times = vec![0; self.times.len()];
        let mut last_of = vec![usize::MAX; times.len()];
        for range in &self.ranges {
            let weight = range.weight as usize;
            match ranges.get_mut(last_of[weight]) {
                Some(before) if before.method == range.method && close(before, range) => {
                    before.probes.extend(&range.probes);
                    // rule: merged-range-lasts-to-its-last-read
                    before.last = before.last.max(range.last);
                }
                _ => {
                    last_of[weight] = ranges.len();
                    times[weight] += u64::from(self.circles[range.method].share);
                    ranges.push(range.clone());
                }
            }
        }
        Timeline {
            ranges,
            times,
            circles: self.circles.clone(),
        }
    }

    /// Distances worth merging at: none, and some of those between two live ranges of a weight, the longest with them.
    pub(super) fn distances(&self) -> Vec<usize> {
        let mut last_of: Vec<Option<(usize, usize)>> = vec![None; self.times.len()];
        let mut found = Vec::new();
        for range in &self.ranges {
            let before = last_of[range.weight as usize].replace((range.method, range.last));
            let before = before.filter(|(method, _)| *method == range.method);
            found.extend(before.map(|(_, last)| (range.first + 1).saturating_sub(last)));
        }
        found.sort_unstable();
        found.dedup();
        let most = match self.ranges.len() {
            few if few <= SOME => DISTANCES,
            _ => FEW_DISTANCES,
        };
        let some = most.min(found.len());
        let part = |number: usize| found[(found.len() * number).div_ceil(some) - 1];
        std::iter::once(0).chain((1..=some).map(part)).collect()
    }

    /// Those of `ranges` that are a method's, for each method, by their places.
    pub(super) fn by_method(&self, ranges: &[usize]) -> Vec<Range<usize>> {
        let mut start = 0;
        let mut one = |method| {
            let of_method = |&&range: &&usize| self.ranges[range].method == method;
            let count = ranges[start..].iter().take_while(of_method).count();
            start += count;
            start - count..start
        };
        (0..self.circles.len()).map(&mut one).collect()
    }

    /// When each of these live ranges of one method is wanted, by start, within one pass: what begins in the pass before is
    /// there twice.
    pub(super) fn spans(&self, ranges: &[usize]) -> Vec<(i64, i64, usize)> {
        let mut spans = Vec::with_capacity(ranges.len() + 8);
        for (at, &range) in ranges.iter().enumerate() {
            let range = &self.ranges[range];
            let (wanted, last) = (range.wanted, range.last);
            let events = self.circles[range.method].events as i64;
            spans.push((wanted, last as i64, at));
            // rule: pass-goes-around
            if wanted < 0 {
                spans.push((wanted + events, events, at));
            }
        }
        spans.sort_unstable();
        spans
    }
}

/// A live range for each read, in the order of the reads.
fn reads(trace: &Trace, method: usize) -> Vec<LiveRange> {
    let ends = lease_ends(trace);
    // The last kernel that reads weights; at first one of the pass before.
    let mut wanted = None;
    let mut reads = Vec::with_capacity(trace.probes().len());
    for pass in [-(trace.events().len() as i64), 0] {
        let mut open = 0;
        reads.clear();
        for (at, event) in trace.events().iter().enumerate() {
            match *event {
                Event::Probe(id) => {
                    open += 1;
                    reads.push(LiveRange {
                        weight: trace.weight(id),
                        method,
                        probes: vec![id],
                        first: at,
                        last: ends[id as usize],
                        wanted: wanted.unwrap_or(at as i64),
                    });
                }
                Event::Release(_) => open -= 1,
                Event::Kernel(_) if open > 0 => wanted = Some(pass + at as i64),
                Event::Kernel(_) => {}
            }
        }
    }
    reads
}

/// The event that ends each probe's lease. Those after the last kernel end in no fixed order: all with the pass.
fn lease_ends(trace: &Trace) -> Vec<usize> {
    let events = trace.events();
    let mut ends = vec![events.len(); trace.probes().len()];
    for (at, event) in events[..trace.tail()].iter().enumerate() {
        if let Event::Release(id) = *event {
            ends[id as usize] = at;
        }
    }
    ends
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
