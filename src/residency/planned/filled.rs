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
use super::tails::{ways, Wanted};
use crate::schedule::WeightIndex;
use std::iter;
use std::ops::Range;

/// Lengths of the ring between one and its double.
const STEPS: i32 = 16;

/// Lengths that are tried, times what is wanted at all moments, at most: half of that where reads share copies, which there
/// are several ways to do.
const EFFORT: usize = 80_000;

/// A set of weights, and what shares the ring at each moment.
struct Filling<'a> {
    planner: &'a Planner<'a>,
    page: u64,
    /// Reads less far apart than so many events are served by one copy.
    merged: usize,
    weights: Vec<WeightIndex>,
    order: Vec<(WeightIndex, usize)>,
    conflicts: Conflicts,
    /// The weight of each tenancy, by its place in `weights`.
    weight_of: Vec<usize>,
    wanted: Wanted,
}

/// The cheapest plan in which all weights may stream, if it costs less than `below`. `merged` is what the planner was merged by.
pub(super) fn cheapest(
    planner: &Planner<'_>,
    page: u64,
    merged: usize,
    mut below: u64,
) -> Option<Paged> {
    let read = |w: &WeightIndex| planner.sizes[*w as usize] > 0;
    let weights = (0..planner.sizes.len() as WeightIndex)
        .filter(read)
        .collect();
    let filling = Filling::new(planner, page, weights, merged)?;
    let longest = filling.wanted.together(&filling.wanted.pages);
    let effort = if merged == 0 { EFFORT } else { EFFORT / 2 };
    let most = (effort / filling.wanted.in_rows().max(1)) as i32;
    let steps = STEPS.min(most / 8);
    let mut best: Option<Paged> = None;
    let mut last = u64::MAX;
    let often_last = filling.often_last();
    for number in 0..most.min(64 * steps) {
        let ring = (longest as f64 * 2f64.powf(-f64::from(number) / f64::from(steps))) as u64;
        if ring == 0 {
            break;
        }
        if ring == last {
            continue;
        }
        last = ring;
        if filling.least(ring, &often_last) >= below {
            continue;
        }
        for way in ways() {
            if let Some(found) = filling.fit(filling.wanted.tails(ring, way), below) {
                below = found.cost;
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
        let mut rows: Vec<Vec<usize>> = moments(&streamed, planner.events)
            .into_iter()
            .map(|row| row.into_iter().map(|tenancy| weight_of[tenancy]).collect())
            .collect();
        let count = order.len();
        let neighbours = rows.split_off(rows.len() - if count > 1 { count } else { 0 });
        let pages = |&w: &WeightIndex| planner.weights[w as usize].bytes.div_ceil(page);
        let times = |&w: &WeightIndex| planner.tenancies[w as usize].len() as u64;
        let (pages, times) = (weights.iter().map(pages), weights.iter().map(times));
        Some(Filling {
            wanted: Wanted::new(pages.collect(), times.collect(), rows, neighbours),
            planner,
            page,
            merged,
            weights,
            order,
            conflicts,
            weight_of,
        })
    }

    /// The weights by how often they are copied.
    fn often_last(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.weights.len()).collect();
        all.sort_by_key(|&at| self.wanted.times(at));
        all
    }

    /// What a pass copies at least with a ring of so many pages, however it is shared: what does not fit beside it is in tails, at
    /// best in those of the weights that are copied least often. `u64::MAX` if it does not fit at all.
    fn least(&self, ring: u64, often_last: &[usize]) -> u64 {
        let beside = self.planner.pages_beside(&self.weights, self.page);
        // Tails that are wanted several times at one moment may leave a page less than that of the ring.
        let most = often_last.last().map_or(0, |&at| self.wanted.times(at));
        let heads = beside.and_then(|beside| beside.checked_sub(ring.saturating_sub(most)));
        let Some(heads) = heads else { return u64::MAX };
        let all: u64 = self.wanted.pages.iter().sum();
        let mut left = all.saturating_sub(heads);
        let (mut least, mut last_pages) = (0u64, 0u64);
        for &at in often_last {
            let (pages, times) = (self.wanted.pages[at], self.wanted.times(at));
            let tail = left.min(pages);
            left -= tail;
            least = least.saturating_add(times * tail * self.page);
            // The last page of a weight may be one in part, and any of them may be in a tail.
            last_pages +=
                times * (pages * self.page - self.planner.weights[self.weights[at] as usize].bytes);
        }
        least.saturating_sub(last_pages)
    }

    /// With these tails, or shorter ones where there is room. `None` if that is impossible, or costs `below` or more.
    fn fit(&self, mut tails: Vec<u64>, below: u64) -> Option<Paged> {
        let planner = self.planner;
        let heads: u64 = self
            .wanted
            .pages
            .iter()
            .zip(&tails)
            .map(|(a, b)| a - b)
            .sum();
        let beside = planner.pages_beside(&self.weights, self.page)?;
        let room = beside.checked_sub(heads)?;
        // Before places are looked for, which takes long: what it costs if they take no more than they must.
        let mut least = tails.clone();
        self.shorten(&mut least, room.checked_sub(self.wanted.together(&tails))?);
        if self.price(&least).in_bytes(planner.per_copy) >= below {
            return None;
        }
        let (places, ring) = self.places(&tails, room)?;
        self.shorten(&mut tails, room - ring);
        let price = self.price(&tails);
        let cost = price.in_bytes(planner.per_copy);
        (cost < below).then(|| Paged {
            ring: Ring {
                weights: self.weights.clone(),
                order: self.order.clone(),
                merged: self.merged,
                places,
                pages: ring,
            },
            page: self.page,
            tails,
            cost,
            price,
        })
    }

    fn price(&self, tails: &[u64]) -> Price {
        let mut price = Price::default();
        for (at, &tail) in tails.iter().enumerate().filter(|(_, tail)| **tail > 0) {
            let times = self.wanted.times(at);
            let bytes = self.planner.weights[self.weights[at] as usize].bytes;
            price.copies += times;
            let copied = bytes - (self.wanted.pages[at] - tail) * self.page;
            price.bytes = price.bytes.saturating_add(times * copied);
        }
        price
    }

    /// Places for tails of these lengths, and how many pages they share: in one piece each, or in several where that takes
    /// less. `None` if there is no room for that.
    fn places(&self, tails: &[u64], room: u64) -> Option<(Vec<Vec<Range<u64>>>, u64)> {
        let least = self.wanted.together(tails);
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

    /// So many pages less, of those that are copied most often first, and of them the longest. With more pages nothing
    /// is longer than with less.
    fn shorten(&self, tails: &mut [u64], mut slack: u64) {
        let mut by_times: Vec<usize> = (0..tails.len()).collect();
        by_times.sort_by_key(|&at| {
            (
                std::cmp::Reverse(self.wanted.times(at)),
                std::cmp::Reverse(tails[at]),
            )
        });
        for group in by_times.chunk_by(|&a, &b| self.wanted.times(a) == self.wanted.times(b)) {
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
