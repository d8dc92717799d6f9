//! Which live ranges share a slot of the ring.
//!
//! Two live ranges conflict if both are wanted at some time, or if one is among the next `ahead` copies after the other:
//! these run while the other is read. What conflicts gets different slots, first fit in some order. Those of different methods
//! never conflict: their passes run one at a time.

use super::timeline::Timeline;
use crate::schedule::WeightIndex;
use std::ops::Range;

/// More live ranges are not laid out: each may be two mappings, and a process has about 65,000 (`vm.max_map_count`).
pub(super) const MOST_RANGES: usize = 8000;

/// Weights that may stream, and the conflicts of their live ranges.
pub(super) struct Set<'a> {
    pub timeline: &'a Timeline,
    /// By index.
    pub weights: Vec<WeightIndex>,
    /// Their live ranges in the timeline, by time.
    pub ranges: Vec<usize>,
    conflicts: Vec<Vec<usize>>,
}

impl<'a> Set<'a> {
    /// With room for copies of the next `ahead` live ranges. `None` if there are too many of them, or so many are wanted at
    /// one time that streaming saves nothing.
    pub(super) fn new(
        timeline: &'a Timeline,
        weights: Vec<WeightIndex>,
        ahead: usize,
    ) -> Option<Set<'a>> {
        let mut streams = vec![false; timeline.times.len()];
        weights
            .iter()
            .for_each(|&weight| streams[weight as usize] = true);
        let ranges: Vec<usize> = (0..timeline.ranges.len())
            .filter(|&range| streams[timeline.ranges[range].weight as usize])
            .collect();
        if ranges.len() > MOST_RANGES {
            return None;
        }
        Some(Set {
            conflicts: conflicts(timeline, &ranges, ahead)?,
            timeline,
            weights,
            ranges,
        })
    }

    /// The weight of a live range, by its place in `ranges`.
    pub(super) fn weight(&self, at: usize) -> WeightIndex {
        self.timeline.ranges[self.ranges[at]].weight
    }

    /// A slot for each live range, given in this order, and how many there are.
    pub(super) fn slots(&self, order: &[usize]) -> (Vec<usize>, usize) {
        const NONE: usize = usize::MAX;
        let mut slot_of = vec![NONE; self.ranges.len()];
        // Who found each slot taken last.
        let mut taken = vec![NONE];
        for &at in order {
            for &other in &self.conflicts[at] {
                if slot_of[other] != NONE {
                    taken[slot_of[other]] = at;
                }
            }
            let free = taken.iter().position(|&by| by != at);
            slot_of[at] = free.unwrap_or(taken.len());
            if slot_of[at] + 1 >= taken.len() {
                taken.push(NONE);
            }
        }
        let count = slot_of.iter().max().map_or(0, |&slot| slot + 1);
        (slot_of, count)
    }
}

/// For each live range those that conflict with it, by their places in `ranges`.
fn conflicts(timeline: &Timeline, ranges: &[usize], ahead: usize) -> Option<Vec<Vec<usize>>> {
    let mut left = 1000 + 64 * ranges.len();
    let mut found: Vec<Vec<usize>> = vec![Vec::new(); ranges.len()];
    let mut both = |one: usize, other: usize| {
        if one != other {
            found[one].push(other);
            found[other].push(one);
        }
    };
    for Range { start, end } in timeline.by_method(ranges) {
        let mut wanted: Vec<(i64, usize)> = Vec::new();
        for (from, to, at) in timeline.spans(&ranges[start..end]) {
            wanted.retain(|(until, _)| *until >= from);
            left = left.checked_sub(wanted.len())?;
            // rule: wanted-together-is-apart
            wanted
                .iter()
                .for_each(|&(_, other)| both(start + at, start + other));
            wanted.push((to, at));
        }
        let count = end - start;
        for at in 0..count {
            // rule: next-copies-are-apart
            (1..=ahead.min(count)).for_each(|step| both(start + at, start + (at + step) % count));
        }
    }
    Some(found)
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
