//! Tails as long as a ring allows: what is read beside much else has a short one, what is read beside little a long one.
//!
//! For each of some lengths of the ring, the same for every budget, the tails are filled in: at each moment those that are
//! wanted share the ring. What a budget leaves makes tails shorter again. So of all that are tried each costs less with
//! more memory, and the cheapest too.

use super::choice::Planner;
use super::conflicts::{conflicts, moments, Conflicts};
use super::layout::place;
use super::paged::{Paged, Ring};
use super::price::Price;
use super::scatter::scatter;
use crate::schedule::WeightIndex;
use std::iter;
use std::ops::Range;

/// Lengths of the ring between one and its double.
const STEPS: i32 = 16;

/// Lengths that are tried, times the tenancies, at most.
const EFFORT: usize = 40_000;

/// Rounds in which what is left of the ring is shared.
const ROUNDS: usize = 4;

/// How a ring is shared.
#[derive(Clone, Copy)]
struct Way {
    /// Evenly; otherwise a part of it, and the rest to one after the other.
    evenly: bool,
    /// First those that are copied least often.
    rare_first: bool,
}

/// Those that are tried. None is always best: what is read again, and how much is wanted at one time, decide.
const WAYS: [Way; 4] = [
    Way {
        evenly: true,
        rare_first: true,
    },
    Way {
        evenly: true,
        rare_first: false,
    },
    Way {
        evenly: false,
        rare_first: true,
    },
    Way {
        evenly: false,
        rare_first: false,
    },
];

/// A set of weights, and what shares the ring at each moment.
struct Filling<'a> {
    planner: &'a Planner<'a>,
    page: u64,
    /// Reads less far apart than so many events are served by one copy.
    merged: usize,
    weights: Vec<WeightIndex>,
    order: Vec<(WeightIndex, usize)>,
    conflicts: Conflicts,
    /// Pages of each weight.
    pages: Vec<u64>,
    /// The weight of each tenancy, by its place in `weights`.
    weight_of: Vec<usize>,
    /// The weights that are wanted at each moment, once for each tenancy.
    rows: Vec<Vec<usize>>,
    /// The moments of each weight.
    rows_of: Vec<Vec<usize>>,
}

/// The cheapest plan in which all weights may stream. `merged` is what the planner was merged by.
pub(super) fn cheapest(planner: &Planner<'_>, page: u64, merged: usize) -> Option<Paged> {
    let read = |w: &WeightIndex| planner.sizes[*w as usize] > 0;
    let weights = (0..planner.sizes.len() as WeightIndex)
        .filter(read)
        .collect();
    let filling = Filling::new(planner, page, weights, merged)?;
    let all = |row: &Vec<usize>| row.iter().map(|&at| filling.pages[at]).sum::<u64>();
    let longest = filling.rows.iter().map(all).max()?;
    let most = (EFFORT / filling.order.len().max(1)) as i32;
    let steps = STEPS.min(most / 8);
    let mut best: Option<Paged> = None;
    let mut last = u64::MAX;
    for number in 0..most.min(64 * steps) {
        let ring = (longest as f64 * 2f64.powf(-f64::from(number) / f64::from(steps))) as u64;
        if ring == 0 {
            break;
        }
        if ring == last {
            continue;
        }
        last = ring;
        for way in WAYS {
            let found = filling.fit(filling.tails(ring, way));
            let cheaper = |found: &Paged| best.as_ref().is_none_or(|best| found.cost < best.cost);
            if let Some(found) = found.filter(cheaper) {
                best = Some(found);
            }
        }
    }
    best
}

impl<'a> Filling<'a> {
    fn new(
        planner: &'a Planner<'a>,
        page: u64,
        weights: Vec<WeightIndex>,
        merged: usize,
    ) -> Option<Self> {
        let order = planner.order_of(&weights);
        let streamed = planner.in_order(&order);
        let conflicts = conflicts(&streamed, planner.events, 1)?;
        let at = |w: WeightIndex| weights.binary_search(&w).expect("it is in the set");
        let weight_of: Vec<usize> = order.iter().map(|&(w, _)| at(w)).collect();
        let rows: Vec<Vec<usize>> = moments(&streamed, planner.events)
            .into_iter()
            .map(|row| row.into_iter().map(|tenancy| weight_of[tenancy]).collect())
            .collect();
        let mut rows_of = vec![Vec::new(); weights.len()];
        for (number, row) in rows.iter().enumerate() {
            row.iter().for_each(|&at| rows_of[at].push(number));
        }
        let pages = |&w: &WeightIndex| planner.weights[w as usize].bytes.div_ceil(page);
        Some(Filling {
            pages: weights.iter().map(pages).collect(),
            planner,
            page,
            merged,
            weights,
            order,
            conflicts,
            weight_of,
            rows,
            rows_of,
        })
    }

    /// Pages of tails that share so many at each moment: some rounds in which each gets its part of what is left, and one
    /// in which each, one after the other, gets as much as there is.
    fn tails(&self, ring: u64, way: Way) -> Vec<u64> {
        let mut tails = vec![0; self.weights.len()];
        let mut left = vec![ring; self.rows.len()];
        let mut all: Vec<usize> = (0..tails.len()).collect();
        if !way.rare_first {
            self.share(&all, way, &mut tails, &mut left);
            return tails;
        }
        all.sort_by_key(|&at| self.times(at));
        for group in all.chunk_by(|&a, &b| self.times(a) == self.times(b)) {
            self.share(group, way, &mut tails, &mut left);
        }
        tails
    }

    fn share(&self, group: &[usize], way: Way, tails: &mut [u64], left: &mut [u64]) {
        // Unevenly, everyone gets a quarter of an equal part.
        let (rounds, of_part) = if way.evenly { (ROUNDS, 1) } else { (1, 4) };
        for round in 0..=rounds {
            let mut open = vec![0u64; left.len()];
            for &at in group.iter().filter(|&&at| tails[at] < self.pages[at]) {
                self.rows_of[at].iter().for_each(|&row| open[row] += 1);
            }
            let parts: Vec<u64> = left.iter().zip(&open).map(|(l, o)| l / o.max(&1)).collect();
            for &at in group {
                let rows = &self.rows_of[at];
                // It may be there twice at one moment.
                let twice = rows.chunk_by(|a, b| a == b);
                let room = twice.map(|same| left[same[0]] / same.len() as u64).min();
                let mut more = room.unwrap_or(0).min(self.pages[at] - tails[at]);
                if round < rounds {
                    let part = rows.iter().map(|&row| parts[row]).min().unwrap_or(0);
                    more = more.min(part.div_ceil(of_part));
                }
                tails[at] += more;
                rows.iter().for_each(|&row| left[row] -= more);
            }
        }
    }

    /// With these tails, or shorter ones where there is room.
    fn fit(&self, mut tails: Vec<u64>) -> Option<Paged> {
        let planner = self.planner;
        let packed = (planner.total - planner.bytes_of(&self.weights)).div_ceil(self.page);
        let heads: u64 = self.pages.iter().zip(&tails).map(|(a, b)| a - b).sum();
        let room = (planner.capacity / self.page).checked_sub(packed + heads)?;
        let (places, ring) = self.places(&tails, room)?;
        let slack = room - ring;
        self.shorten(&mut tails, slack);
        let mut price = Price::default();
        for (at, &tail) in tails.iter().enumerate().filter(|(_, tail)| **tail > 0) {
            let times = self.times(at);
            let bytes = planner.weights[self.weights[at] as usize].bytes;
            price.copies += times;
            let copied = bytes - (self.pages[at] - tail) * self.page;
            price.bytes = price.bytes.saturating_add(times * copied);
        }
        Some(Paged {
            ring: Ring {
                weights: self.weights.clone(),
                order: self.order.clone(),
                merged: self.merged,
                places,
                pages: ring,
            },
            page: self.page,
            tails,
            cost: price.in_bytes(planner.per_copy),
            price,
        })
    }

    /// Places for tails of these lengths, and how many pages they share: in one piece each, or in several where that takes
    /// less. `None` if there is no room for that.
    fn places(&self, tails: &[u64], room: u64) -> Option<(Vec<Vec<Range<u64>>>, u64)> {
        let together = |row: &Vec<usize>| row.iter().map(|&at| tails[at]).sum::<u64>();
        let least = self.rows.iter().map(together).max().unwrap_or(0);
        if least > room {
            return None;
        }
        let lengths: Vec<u64> = self.weight_of.iter().map(|&at| tails[at]).collect();
        let layout = place(&lengths, &self.conflicts);
        if let Some(found) = scatter(&lengths, &self.conflicts, least, layout.bytes) {
            return (found.bytes <= room).then_some((found.pieces, found.bytes));
        }
        let whole = layout.offsets.iter().zip(&lengths);
        let places = whole
            .map(|(&at, &length)| iter::once(at..at + length).collect())
            .collect();
        (layout.bytes <= room).then_some((places, layout.bytes))
    }

    fn times(&self, at: usize) -> u64 {
        self.planner.tenancies[self.weights[at] as usize].len() as u64
    }

    /// So many pages less, of those that are copied most often first, and of them the longest. With more pages nothing
    /// is longer than with less.
    fn shorten(&self, tails: &mut [u64], mut slack: u64) {
        let mut by_times: Vec<usize> = (0..tails.len()).collect();
        by_times.sort_by_key(|&at| {
            (
                std::cmp::Reverse(self.times(at)),
                std::cmp::Reverse(tails[at]),
            )
        });
        for group in by_times.chunk_by(|&a, &b| self.times(a) == self.times(b)) {
            // The longest is first: a step down for more and more of them.
            let mut level = tails[group[0]];
            let mut count = 0;
            while level > 0 && slack > 0 {
                while count < group.len() && tails[group[count]] >= level {
                    count += 1;
                }
                let next = group.get(count).map_or(0, |&at| tails[at]);
                let step = (level - next).min(slack / count as u64);
                level -= step;
                slack -= step * count as u64;
                if step == 0 || level > next {
                    break;
                }
            }
            for (number, &at) in group.iter().enumerate() {
                if number < count {
                    tails[at] = level;
                    if level > 0 && (number as u64) < slack {
                        tails[at] -= 1;
                    }
                }
            }
            if level > 0 {
                return;
            }
        }
    }
}
