//! Places for bytes that stay together from one read of a weight to another one.
//!
//! What is kept over some gaps of a weight and not over others is cut into *arcs*: bytes that are copied for one use, and are
//! there, at one place, until another one is over. Arcs are placed along the pass, from a moment on at which it is cut
//! open. The places of those that go on around the cut are theirs at both ends; in between others may have them that are over
//! in time. Everyone takes the pages that have to be back soonest, but not before its own end.

use super::gaps::Gaps;
use super::takings::{Memory, Pages, Which};
use std::cmp::Reverse;
use std::ops::Range;

/// Pages of a weight that have one place over some of its uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arc {
    /// Place in the list of weights.
    pub weight: usize,
    /// Which of the weight's pages.
    pub pages: Range<u64>,
    /// The first use, and how many.
    pub first: usize,
    pub uses: usize,
    /// From this moment on, and up to this one, maybe of the next pass.
    from: usize,
    to: usize,
}

/// A place for each arc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub pieces: Vec<Vec<Range<u64>>>,
    /// Pages in all.
    pub pages: u64,
}

/// Pages of all heads, and the arcs of what is kept over some gaps only, or over none.
pub(super) fn arcs(gaps: &Gaps, kept: &[u64]) -> (u64, Vec<Arc>) {
    let (mut heads, mut all) = (0, Vec::new());
    for weight in 0..gaps.weights.len() {
        let mut levels: Vec<u64> = kept[gaps.of(weight)].to_vec();
        levels.push(gaps.pages[weight]);
        levels.sort_unstable();
        levels.dedup();
        heads += levels[0];
        for level in levels.windows(2) {
            arcs_between(gaps, kept, weight, level[0]..level[1], &mut all);
        }
    }
    (heads, all)
}

/// The arcs of pages between two neighbouring levels: each gap keeps all of them or none.
fn arcs_between(gaps: &Gaps, kept: &[u64], weight: usize, pages: Range<u64>, all: &mut Vec<Arc>) {
    let uses = &gaps.uses[weight];
    let stays = |gap: usize| kept[gap] >= pages.end;
    for first in 0..uses.len() {
        if stays(gaps.around(weight, first).0) {
            continue;
        }
        let mut count = 1;
        while stays(gaps.around(weight, (first + count - 1) % uses.len()).1) {
            count += 1;
        }
        let last = first + count - 1;
        let around = last / uses.len() * gaps.moments;
        all.push(Arc {
            weight,
            pages: pages.clone(),
            first,
            uses: count,
            from: uses[first].from,
            to: uses[last % uses.len()].to + around,
        });
    }
}

/// The moments at which the fewest pages go on around a cut, so many of them.
pub(super) fn cuts(arcs: &[Arc], moments: usize, count: usize) -> Vec<usize> {
    let mut steps = vec![0i64; 2 * moments + 1];
    for arc in arcs {
        let size = arc.size() as i64;
        // A cut in front of its first moment does not cut it.
        steps[arc.from + 1] += size;
        steps[arc.to] -= size;
    }
    let mut crossing = vec![0; moments];
    let mut now = 0;
    for (moment, step) in steps.into_iter().enumerate() {
        now += step;
        crossing[moment % moments] += now;
    }
    let mut best: Vec<usize> = (0..moments).collect();
    best.sort_by_key(|&moment| crossing[moment]);
    best.truncate(count);
    best
}

/// How many pages arcs take in a pass that is cut open at a moment. `None` if more than `most`.
pub(super) fn pages(arcs: &[Arc], moments: usize, cut: usize, most: u64) -> Option<u64> {
    take::<u64>(arcs, moments, cut, most).map(|(_, pages)| pages)
}

/// A place for each arc in as many pages.
pub(super) fn place(arcs: &[Arc], moments: usize, cut: usize, most: u64) -> Option<Placed> {
    let (taken, pages) = take::<Which>(arcs, moments, cut, most)?;
    Some(Placed {
        pieces: taken.iter().map(|which| which.pieces()).collect(),
        pages,
    })
}

/// What each arc takes, and pages in all.
fn take<P: Pages>(arcs: &[Arc], moments: usize, cut: usize, most: u64) -> Option<(Vec<P>, u64)> {
    let span = |at: usize| {
        let from = (arcs[at].from + moments - cut) % moments;
        (from, from + arcs[at].to - arcs[at].from)
    };
    let mut memory = Memory::new(most);
    let mut taken: Vec<P> = vec![P::default(); arcs.len()];
    let mut order: Vec<usize> = (0..arcs.len()).collect();
    // Those that go on around the cut own their pages, and others may have them in between.
    for &at in order.iter().filter(|&&at| span(at).1 > moments) {
        let (until, to) = span(at);
        taken[at] = memory.grow(arcs[at].size())?;
        memory.lend(to - moments, until, taken[at].clone());
    }
    order.sort_by_key(|&at| (span(at).0, Reverse(span(at).1)));
    for at in order {
        let (from, to) = span(at);
        memory.give_back(from);
        match to > moments {
            true => memory.back_with_owners(from),
            false => taken[at] = memory.take(arcs[at].size(), to)?,
        }
    }
    Some((taken, memory.pages()))
}

impl Arc {
    fn size(&self) -> u64 {
        self.pages.end - self.pages.start
    }
}
