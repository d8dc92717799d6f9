//! Tails that differ where weights do, in a ring that two share at a time.
//!
//! In a chain each copy goes on beside one kernel, so that memory is right if no two neighbours overlap: every other
//! tail begins at the ring's start, and the ones between end at its end. Two neighbours have room if they are no
//! longer together than the ring; so a long tail may stand beside short ones. Weights that are shorter than half of the
//! ring have such neighbours: of an odd number of longer ones in a row, every other one is as much longer than half as the
//! ones between, and the short ones at both sides, leave. So the ring is shorter, for the same bytes together.
//!
//! Two tails that share memory have one between them, whose copy has to last at least as long as the first one's kernel: the
//! copies would stand still if it did not. So weights of less than some pages have no part in it.

use super::choice::Planner;
use super::conflicts::Conflicts;
use super::paged::{Paged, Ring, SOME_PAGES};
use super::price::Price;
use crate::schedule::WeightIndex;
use std::ops::Range;

/// Fewer than so many tenancies all fit at a time.
const FEWEST: usize = 4;

/// A set of weights that are read in turn, each once.
struct Chain<'a> {
    planner: &'a Planner<'a>,
    page: u64,
    /// The weights, in the order of their reads.
    order: &'a [(WeightIndex, usize)],
    /// Pages of each.
    pages: Vec<u64>,
}

/// The plan with the shortest ring of this kind, for the tenancies of these weights, by time. `None` if they are no chain, or if
/// no such ring is shorter than `ring` pages.
pub(super) fn shortest(
    planner: &Planner<'_>,
    page: u64,
    order: &[(WeightIndex, usize)],
    conflicts: &Conflicts,
    ring: u64,
) -> Option<Paged> {
    let pages = |&(w, _): &(WeightIndex, usize)| planner.weights[w as usize].bytes.div_ceil(page);
    if !is_chain(order, conflicts) || order.iter().any(|one| pages(one) < SOME_PAGES) {
        return None;
    }
    let chain = Chain {
        planner,
        page,
        order,
        pages: order.iter().map(pages).collect(),
    };
    let weights: Vec<WeightIndex> = order.iter().map(|one| one.0).collect();
    let beside = planner.pages_beside(&weights, page)?;
    let needed = chain.pages.iter().sum::<u64>().checked_sub(beside)?;
    let enough = |ring: u64| chain.tails(ring).iter().sum::<u64>() >= needed + ring;
    // A longer ring holds no more than one that holds any two neighbours.
    let most = ring.min(chain.longest_pair() + 1);
    let (mut without, mut with) = (0, most);
    while with - without > 1 {
        let half = without + (with - without) / 2;
        match enough(half) {
            true => with = half,
            false => without = half,
        }
    }
    (with < most).then(|| chain.finish(weights, with, needed))
}

/// Each weight is read once, and conflicts with the ones before and behind it only; around the end of the pass they go in
/// turn too.
fn is_chain(order: &[(WeightIndex, usize)], conflicts: &Conflicts) -> bool {
    let count = order.len();
    let beside = |at: usize, other: usize| {
        let apart = at.abs_diff(other);
        apart == 1 || apart == count - 1
    };
    let mut weights: Vec<WeightIndex> = order.iter().map(|one| one.0).collect();
    weights.sort_unstable();
    count >= FEWEST
        && count.is_multiple_of(2)
        && weights.windows(2).all(|pair| pair[0] != pair[1])
        && (0..count).all(|at| conflicts.of(at).iter().all(|&other| beside(at, other)))
}

impl Chain<'_> {
    /// Pages of two neighbours at most.
    fn longest_pair(&self) -> u64 {
        let next = self.pages.iter().cycle().skip(1);
        let pairs = self.pages.iter().zip(next);
        pairs.map(|(one, next)| one + next).max().unwrap_or(0)
    }

    /// The longest tails together, in pages, with which no two neighbours are longer than the ring.
    fn tails(&self, ring: u64) -> Vec<u64> {
        let half = |at: usize| ring / 2 + if at.is_multiple_of(2) { ring % 2 } else { 0 };
        let short = |at: usize| self.pages[at] <= half(at);
        let mut tails: Vec<u64> = (0..self.pages.len())
            .map(|at| self.pages[at].min(half(at)))
            .collect();
        for run in self.runs(short) {
            if run.len().is_multiple_of(2) {
                continue;
            }
            let count = tails.len();
            let (first, last) = (run[0], run[run.len() - 1]);
            let before = ring - tails[first] - tails[(first + count - 1) % count];
            let behind = ring - tails[last] - tails[(last + 1) % count];
            let room = run
                .iter()
                .enumerate()
                .map(|(number, &at)| match number % 2 {
                    0 => self.pages[at] - tails[at],
                    _ => tails[at].saturating_sub(SOME_PAGES),
                });
            let more = room.chain([before, behind]).min().unwrap_or(0);
            for (number, &at) in run.iter().enumerate() {
                match number % 2 {
                    0 => tails[at] += more,
                    _ => tails[at] -= more,
                }
            }
        }
        tails
    }

    /// Neighbours that are not short, between two that are; around the end of the pass they go on.
    fn runs(&self, short: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
        let count = self.pages.len();
        let Some(start) = (0..count).find(|&at| short(at)) else {
            return Vec::new();
        };
        let around: Vec<usize> = (start..start + count).map(|at| at % count).collect();
        let runs = around.split(|&at| short(at));
        runs.filter(|run| !run.is_empty())
            .map(<[usize]>::to_vec)
            .collect()
    }

    /// The plan in so many pages. What its tails have beyond `needed` and the ring stays too, spread over the pass.
    fn finish(&self, mut weights: Vec<WeightIndex>, ring: u64, needed: u64) -> Paged {
        /// As in `draft`: multiples of the golden ratio's fraction are spread evenly.
        const STEP: u32 = 2_654_435_769;
        let mut tails = self.tails(ring);
        let mut more = tails.iter().sum::<u64>() - needed - ring;
        let mut spread: Vec<usize> = (0..tails.len()).collect();
        spread.sort_unstable_by_key(|&at| (at as u32).wrapping_mul(STEP));
        while more > 0 {
            // There are some: all tails together are longer than what is left.
            spread.retain(|&at| tails[at] > 0);
            for &at in spread.iter().take(more as usize) {
                tails[at] -= 1;
                more -= 1;
            }
        }
        let place = |at: usize| -> Range<u64> {
            match at % 2 {
                0 => 0..tails[at],
                _ => ring - tails[at]..ring,
            }
        };
        let places = (0..tails.len()).map(|at| vec![place(at)]).collect();
        let price = self.price(&tails);
        let mut by_weight: Vec<(WeightIndex, u64)> =
            self.order.iter().map(|one| one.0).zip(tails).collect();
        by_weight.sort_unstable();
        weights.sort_unstable();
        Paged {
            ring: Ring {
                weights,
                order: self.order.to_vec(),
                merged: 0,
                places,
                pages: ring,
            },
            page: self.page,
            tails: by_weight.into_iter().map(|one| one.1).collect(),
            cost: price.in_bytes(self.planner.per_copy),
            price,
        }
    }

    fn price(&self, tails: &[u64]) -> Price {
        let mut price = Price::default();
        for ((&(weight, _), &pages), &tail) in self.order.iter().zip(&self.pages).zip(tails) {
            let bytes = self.planner.weights[weight as usize].bytes;
            price.copies += u64::from(tail > 0);
            price.bytes += bytes.saturating_sub((pages - tail) * self.page);
        }
        price
    }
}

#[cfg(test)]
#[path = "ends_tests.rs"]
mod tests;
