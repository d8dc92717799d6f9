//! Plans on pages in which how much of a weight stays is decided for each gap between two of its reads.
//!
//! Where weights are read again in a pass, and the memory is short, the best schedules keep a part of a weight from one of its
//! reads to the next and not to the one after. Where each is read once it has one gap, and what it keeps is its head. Rooms
//! to share are tried, the same for every budget; what a budget leaves makes heads longer. So each of them costs less with more memory, and the cheapest too.

use super::arcs::{arcs, cuts, pages, place, Arc, Placed};
use super::choice::Planner;
use super::gaps::Gaps;
use super::plan::{Plan, Resident, Streamed};
use super::price::Price;
use super::shown::Builder;
use super::steady::steady;
use crate::schedule::WeightIndex;
use std::cmp::Reverse;
use std::ops::Range;

/// Rooms that are tried at most, and at least: with fewer the others are as good.
const ROOMS: usize = 64;
const FEW_ROOMS: usize = 4;
/// Passes of which the mean is kept, at most and at least.
const PASSES: usize = 16;
const FEW_PASSES: usize = 8;
/// Moments at which the pass is cut open.
const CUTS: usize = 4;

/// FreeList of a view at most, by what is placed, whatever the budget: each is two mappings, and a process may have some 65,000
/// (`vm.max_map_count`).
const PIECES: usize = if cfg!(test) { 500 } else { 16_000 };

/// Gaps that are looked at in all: programs with more reads are planned in fewer rooms, and passes; and again for plans in which one
/// gap is given up, in the smallest rooms.
const EFFORT: usize = 120_000;
const EFFORT_WITHOUT: usize = 60_000;

/// How much is kept, and where it lies.
pub(super) struct ByGap {
    gaps: Gaps,
    page: u64,
    /// Pages that are kept over each gap.
    kept: Vec<u64>,
    arcs: Vec<Arc>,
    placed: Placed,
    price: Price,
    pub cost: u64,
}

/// The cheapest plan of this kind, if it costs less than `below`. None where tails that differ do not pay either.
pub(super) fn cheapest(planner: &Planner<'_>, page: u64, below: u64) -> Option<ByGap> {
    if !planner.copies_may_differ() {
        return None;
    }
    let mut search = Search {
        room: planner.capacity / page,
        planner,
        page,
        below,
        gaps: Gaps::new(planner, page),
        best: None,
    };
    search.run();
    let (kept, arcs, placed) = search.best?;
    let price = price(planner, page, &search.gaps, &kept);
    Some(ByGap {
        cost: price.in_bytes(planner.per_copy),
        gaps: search.gaps,
        page,
        kept,
        arcs,
        placed,
        price,
    })
}

struct Search<'a> {
    planner: &'a Planner<'a>,
    page: u64,
    room: u64,
    below: u64,
    gaps: Gaps,
    best: Option<(Vec<u64>, Vec<Arc>, Placed)>,
}

impl Search<'_> {
    fn run(&mut self) {
        // Where nothing is read again other plans are mostly as good.
        let again = self.gaps.gaps.len() > self.gaps.weights.len();
        let effort = if again { EFFORT } else { EFFORT / 8 };
        let tries = effort / self.gaps.gaps.len().max(1);
        let rooms = (tries / FEW_PASSES).clamp(FEW_ROOMS, ROOMS);
        let passes = (tries / rooms).clamp(FEW_PASSES, PASSES);
        let (least, all) = (self.gaps.least(), self.gaps.pages.iter().sum::<u64>());
        // The more room is shared the more is kept, so that most of the others need not be placed.
        let room = |number: u64| {
            // Close to the least room a little more of it changes most.
            let part = u128::from(all.saturating_sub(least)) * u128::from(number * number);
            least + (part / (rooms * rooms) as u128) as u64
        };
        for room in (0..rooms as u64).rev().map(room) {
            if room <= self.room {
                self.try_places(steady(&self.gaps, room, passes, None));
            }
        }
        if again {
            (0..FEW_ROOMS as u64).for_each(|number| self.give_up_one(room(number)));
        }
    }

    /// What is kept over one gap can be in the way of places for all the others: where memory is short everything else fits
    /// without it. The longest gaps are tried.
    fn give_up_one(&mut self, room: u64) {
        if room > self.room {
            return;
        }
        let count = self.gaps.gaps.len().max(1);
        // Over a gap of no moment everything is kept: the next use begins while the one before may still be read.
        let mut longest: Vec<usize> = (0..self.gaps.gaps.len())
            .filter(|&at| self.gaps.gaps[at].long > 0)
            .collect();
        longest.sort_by_key(|&at| Reverse(self.gaps.gaps[at].long));
        longest.truncate(EFFORT_WITHOUT / FEW_ROOMS / FEW_PASSES / count);
        for at in longest {
            self.try_places(steady(&self.gaps, room, FEW_PASSES, Some(at)));
        }
    }

    fn try_places(&mut self, kept: Vec<u64>) {
        // If it took no more than it must.
        let slack = self.room.saturating_sub(self.gaps.together(&kept));
        if self.longer(&kept, slack).1 >= self.below {
            return;
        }
        let (heads, arcs) = arcs(&self.gaps, &kept);
        let Some(most) = self.room.checked_sub(heads) else {
            return;
        };
        for cut in cuts(&arcs, self.gaps.moments, CUTS) {
            let Some(pages) = pages(&arcs, self.gaps.moments, cut, most) else {
                continue;
            };
            let (longer, cost) = self.longer(&kept, most - pages);
            if cost >= self.below {
                continue;
            }
            let Some(placed) = place(&arcs, self.gaps.moments, cut, most) else {
                continue;
            };
            if pieces(&self.gaps, &arcs, &placed) <= PIECES {
                self.below = cost;
                self.best = Some((longer, arcs.clone(), placed));
            }
        }
    }

    /// With so many pages more for heads, and what it costs then.
    fn longer(&self, kept: &[u64], slack: u64) -> (Vec<u64>, u64) {
        let mut longer = kept.to_vec();
        self.gaps.lengthen(&mut longer, slack);
        let price = price(self.planner, self.page, &self.gaps, &longer);
        (longer, price.in_bytes(self.planner.per_copy))
    }
}

/// FreeList of the view: for each use one of its head, and those of all arcs that are there.
fn pieces(gaps: &Gaps, arcs: &[Arc], placed: &Placed) -> usize {
    let heads: usize = gaps.uses.iter().map(Vec::len).sum();
    let shown = arcs.iter().zip(&placed.pieces);
    heads
        + shown
            .map(|(arc, pieces)| arc.uses * pieces.len())
            .sum::<usize>()
}

fn price(planner: &Planner<'_>, page: u64, gaps: &Gaps, kept: &[u64]) -> Price {
    let mut price = Price::default();
    for (at, &weight) in gaps.weights.iter().enumerate() {
        let bytes = planner.weights[weight as usize].bytes;
        let copied = kept[gaps.of(at)]
            .iter()
            .map(|&kept| bytes.saturating_sub(kept * page));
        for copied in copied.filter(|&copied| copied > 0) {
            price.copies += 1;
            price.bytes = price.bytes.saturating_add(copied);
        }
    }
    price
}

impl ByGap {
    pub(super) fn finish(&self, planner: &Planner<'_>) -> Plan {
        let mut view = Builder::default();
        let mut heads = Vec::with_capacity(self.gaps.weights.len());
        for weight in 0..self.gaps.weights.len() {
            heads.push(view.memory);
            view.memory += self.head(weight) * self.page;
        }
        let ring_at = view.memory;
        view.memory += self.placed.pages * self.page;
        let mut resident = Vec::new();
        let mut streamed = Vec::new();
        for (at, &weight) in self.gaps.weights.iter().enumerate() {
            let bytes = planner.weights[weight as usize].bytes;
            let head = self.head(at) * self.page;
            for number in 0..self.gaps.uses[at].len() {
                let offset = view.show(heads[at], head);
                if number == 0 && head > 0 {
                    let range = 0..head.min(bytes);
                    resident.push(Resident {
                        weight,
                        range,
                        offset,
                    });
                }
                if head >= bytes {
                    break;
                }
                let memory = self.memory(at, number, ring_at);
                for piece in &memory {
                    view.show(piece.start, piece.end - piece.start);
                }
                streamed.push(self.streamed(planner, (at, number), offset, memory));
            }
        }
        streamed.sort_by_key(|(first, _): &(usize, Streamed)| *first);
        let view = view.finish();
        Plan {
            block: view.memory,
            ring: view.memory - ring_at,
            view: Some(view),
            resident,
            streamed: streamed.into_iter().map(|(_, one)| one).collect(),
            price: self.price,
        }
    }

    /// Pages of a weight that are kept over all of its gaps.
    fn head(&self, weight: usize) -> u64 {
        self.kept[self.gaps.of(weight)]
            .iter()
            .copied()
            .min()
            .unwrap_or(0)
    }

    /// What serves a use, and the event of its first probe.
    fn streamed(
        &self,
        planner: &Planner<'_>,
        (at, number): (usize, usize),
        offset: u64,
        memory: Vec<Range<u64>>,
    ) -> (usize, Streamed) {
        let weight: WeightIndex = self.gaps.weights[at];
        let bytes = planner.weights[weight as usize].bytes;
        let tenancy = &planner.tenancies[weight as usize][self.gaps.uses[at][number].number];
        let kept = self.kept[self.gaps.around(at, number).0];
        let streamed = Streamed {
            weight,
            range: self.head(at) * self.page..bytes,
            kept: (kept * self.page).min(bytes),
            offset,
            memory,
            probes: tenancy.probes.clone(),
        };
        (tenancy.first, streamed)
    }

    /// The device memory of what of a weight does not stay for good, for one use; neighbours are one piece.
    fn memory(&self, weight: usize, number: usize, ring_at: u64) -> Vec<Range<u64>> {
        let count = self.gaps.uses[weight].len();
        let serves =
            |arc: &Arc| arc.weight == weight && (number + count - arc.first) % count < arc.uses;
        let mut mine: Vec<usize> = (0..self.arcs.len())
            .filter(|&at| serves(&self.arcs[at]))
            .collect();
        mine.sort_by_key(|&at| self.arcs[at].pages.start);
        let mut memory: Vec<Range<u64>> = Vec::new();
        for at in mine {
            // Heads got longer since.
            let mut without = self.head(weight).saturating_sub(self.arcs[at].pages.start);
            for piece in &self.placed.pieces[at] {
                let start = (piece.start + without).min(piece.end);
                without -= start - piece.start;
                let (start, end) = (ring_at + start * self.page, ring_at + piece.end * self.page);
                match memory.last_mut() {
                    _ if start == end => {}
                    Some(last) if last.end == start => last.end = end,
                    _ => memory.push(start..end),
                }
            }
        }
        memory
    }
}

#[cfg(test)]
#[path = "by_gap_tests.rs"]
mod tests;
