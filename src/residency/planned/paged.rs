//! Plans on pages: what streams keeps a part of itself.
//!
//! Where a page of memory can show at several addresses, a weight's bytes need not lie together: its first pages, the
//! *head*, stay, and only the rest, its *tail*, is copied in each pass, to a slot that the tails of others share. Many
//! weights stream a little instead of a few as a whole, so a slot is as long as the longest tail in it and not as a
//! weight: the ring gets short. All tails of a plan are equally long, but for weights that are shorter, and in `ends`.
//!
//! `W - budget + ring` bytes are copied, and the ring is the shorter the more weights stream; but each copy costs
//! time. Sets of weights are tried, the same for every budget; a set's tails are as short as the budget allows. So with
//! more budget each tail is no longer than before, and no plan costs more.

use super::choice::Planner;
use super::conflicts::{conflicts, Conflicts};
use super::ends;
use super::filled;
use super::price::Price;
use crate::schedule::WeightIndex;
use std::iter;
use std::ops::Range;

/// Sets of weights that are tried at most, and in large programs.
const SETS: u64 = 64;
const FEW_SETS: u64 = 3;

/// Sets that are tried, times the tenancies, at most.
const EFFORT: usize = 24_000;

/// Weights of fewer pages stream only where everything does: a copy costs the more the shorter it is.
pub(super) const SOME_PAGES: u64 = 2;

/// Up to so many tenancies all distances are tried at which one copy may serve several reads.
const SOME_READS: usize = 500;

/// More tenancies are not laid out: each is two mappings, and a process may have some 65,000 (`vm.max_map_count`).
const MOST: usize = 8000;

/// Weights that stream, and which tenancies share a slot.
struct Split {
    weights: Vec<WeightIndex>,
    /// Their tenancies, by time: weight and number among the weight's.
    order: Vec<(WeightIndex, usize)>,
    /// The slot of each tenancy.
    slot_of: Vec<usize>,
    /// For each slot the pages of the largest weight that uses it.
    slots: Vec<u64>,
}

/// Where tails lie in the memory that they share.
pub(super) struct Ring {
    /// Weights that stream, by index.
    pub weights: Vec<WeightIndex>,
    /// Their tenancies, by time: weight and number among the weight's.
    pub order: Vec<(WeightIndex, usize)>,
    /// Reads less far apart than so many events are served by one copy.
    pub merged: usize,
    /// The pages for each tenancy's tail, in its order: as many as it has, or more.
    pub places: Vec<Vec<Range<u64>>>,
    /// Pages in all.
    pub pages: u64,
}

/// A set with its tails.
pub(super) struct Paged {
    pub ring: Ring,
    pub page: u64,
    /// Pages of each weight's tail, in the order of the set.
    pub tails: Vec<u64>,
    pub price: Price,
    pub cost: u64,
}

/// The cheapest plan on pages of so many bytes.
pub(super) fn cheapest(planner: &Planner<'_>, page: u64) -> Option<Paged> {
    let of_sets = cheapest_of_sets(planner, page);
    let below = of_sets.as_ref().map_or(u64::MAX, |found| found.cost);
    cheapest_filled(planner, page, below).or(of_sets)
}

/// The cheapest one in which some weights stream, with tails of one length or of two.
pub(super) fn cheapest_of_sets(planner: &Planner<'_>, page: u64) -> Option<Paged> {
    let mut best: Option<Paged> = None;
    let parts = match planner.is_large() {
        true => FEW_SETS,
        false => SETS.min((EFFORT / planner.reads().max(1)) as u64),
    };
    for merged in merges(planner) {
        let other = planner.merged(merged);
        for set in sets(&other, page, parts) {
            for mut found in of_set(&other, page, &set) {
                if best.as_ref().is_none_or(|best| found.cost < best.cost) {
                    found.ring.merged = merged;
                    best = Some(found);
                }
            }
        }
    }
    best
}

/// The cheapest one with tails that differ, if it costs less than `below`.
pub(super) fn cheapest_filled(planner: &Planner<'_>, page: u64, mut below: u64) -> Option<Paged> {
    let mut best = None;
    if planner.copies_may_differ() {
        for merged in merges(planner) {
            let other = planner.merged(merged);
            if let Some(found) = filled::cheapest(&other, page, merged, below) {
                below = found.cost;
                best = Some(found);
            }
        }
    }
    best
}

/// How far apart reads of a weight may be that one copy serves, in events: none, and parts of the pass.
fn merges(planner: &Planner<'_>) -> Vec<usize> {
    let again = planner.tenancies.iter().any(|list| list.len() > 1);
    let parts: &[usize] = match (again, planner.reads() <= SOME_READS) {
        (false, _) => &[0],
        (true, true) => &[0, 16, 8, 5, 3, 2],
        (true, false) => &[0, 8, 3],
    };
    let part = |&part| planner.events.checked_div(part).unwrap_or(0);
    parts.iter().map(part).collect()
}

/// Sets of weights that may stream: so many parts of those of some pages, and everything.
pub(super) fn sets(planner: &Planner<'_>, page: u64, count: u64) -> Vec<Vec<WeightIndex>> {
    let Some(largest) = planner.sizes.iter().copied().max() else {
        return Vec::new();
    };
    let everything = planner.groups(largest);
    let mut groups = everything.clone();
    for group in &mut groups {
        group.retain(|&weight| planner.sizes[weight as usize] >= SOME_PAGES * page);
    }
    let all: u64 = groups.iter().map(|group| planner.bytes_of(group)).sum();
    let needed = |part| (u128::from(all) * u128::from(part)).div_ceil(u128::from(count)) as u64;
    let mut sets: Vec<_> = (1..=count)
        .map(|part| planner.pick(&groups, needed(part)))
        .collect();
    sets.push(everything.concat());
    sets.retain(|set| !set.is_empty());
    sets.dedup();
    sets
}

/// The ways in which these weights may stream.
fn of_set(planner: &Planner<'_>, page: u64, weights: &[WeightIndex]) -> Vec<Paged> {
    let order = planner.order_of(weights);
    if order.len() > MOST {
        return Vec::new();
    }
    let streamed = planner.in_order(&order);
    let Some(conflicts) = conflicts(&streamed, planner.events, planner.ahead) else {
        return Vec::new();
    };
    let mut found: Vec<Paged> = splits(planner, &order, &conflicts)
        .into_iter()
        .filter_map(|split| split.fit(planner, page))
        .collect();
    let ring = found.iter().map(|one| one.ring.pages).min();
    found.extend(ring.and_then(|ring| ends::shortest(planner, page, &order, &conflicts, ring)));
    found
}

/// The ways in which tenancies may share slots.
fn splits(
    planner: &Planner<'_>,
    order: &[(WeightIndex, usize)],
    conflicts: &Conflicts,
) -> Vec<Split> {
    let mut by_time: Vec<usize> = (0..order.len()).collect();
    let mut by_size = by_time.clone();
    // Of an odd number in turn the last one finds no slot that it could share, and stays. The host's pause between two passes is
    // the longest time without a read, and longer by its kernel if that is the last or the first read of a pass.
    by_time.rotate_left(order.len() / 2);
    by_size.sort_by_key(|&at| std::cmp::Reverse(planner.sizes[order[at].0 as usize]));
    // Several copies ahead are placed best in their own order, one slot after the other.
    let ways = match (planner.ahead, planner.is_large()) {
        (1, true) => vec![by_size],
        (_, true) => vec![by_time],
        (_, false) => vec![by_size, by_time],
    };
    let share = |way: Vec<usize>| {
        let mut slot_of = vec![usize::MAX; order.len()];
        for at in way {
            let mut taken: Vec<usize> = conflicts.of(at).iter().map(|&o| slot_of[o]).collect();
            taken.sort_unstable();
            taken.dedup();
            let free = taken.iter().enumerate().find(|&(slot, &used)| slot != used);
            slot_of[at] = free.map_or(
                taken.iter().filter(|&&s| s != usize::MAX).count(),
                |(slot, _)| slot,
            );
        }
        Split::new(planner, order.to_vec(), slot_of)
    };
    ways.into_iter().map(share).collect()
}

impl Split {
    /// Without the weights that share no slot with others: they stay.
    fn new(planner: &Planner<'_>, order: Vec<(WeightIndex, usize)>, slot_of: Vec<usize>) -> Split {
        let slots = slot_of.iter().max().map_or(0, |&slot| slot + 1);
        let mut users = vec![0usize; slots];
        slot_of.iter().for_each(|&slot| users[slot] += 1);
        let once = |weight: WeightIndex| planner.tenancies[weight as usize].len() == 1;
        let stays = |at: usize| users[slot_of[at]] == 1 && once(order[at].0);
        let kept: Vec<usize> = (0..order.len()).filter(|&at| !stays(at)).collect();
        let mut weights: Vec<_> = kept.iter().map(|&at| order[at].0).collect();
        weights.sort_unstable();
        weights.dedup();
        Split {
            weights,
            order: kept.iter().map(|&at| order[at]).collect(),
            slot_of: kept.iter().map(|&at| slot_of[at]).collect(),
            slots: vec![0; slots],
        }
    }

    /// With the shortest tails with which it fits.
    fn fit(mut self, planner: &Planner<'_>, page: u64) -> Option<Paged> {
        let pages = |weight: WeightIndex| planner.weights[weight as usize].bytes.div_ceil(page);
        for (&(weight, _), &slot) in self.order.iter().zip(&self.slot_of) {
            self.slots[slot] = self.slots[slot].max(pages(weight));
        }
        let capacity = planner.pages_beside(&self.weights, page)?;
        let (longest, needed) = self.shortest_tails(capacity, pages)?;
        let whole = self.tails(longest, 0, pages);
        // One slot after the other with a page less, as far as there is room for what stays then.
        let fitting = (0..self.slots.len()).rev().find_map(|short| {
            let tails = self.tails(longest, short, pages);
            let heads: u64 = whole.iter().zip(&tails).map(|(a, b)| a - b).sum();
            let slots = self.slots[..short]
                .iter()
                .filter(|&&slot| slot >= longest)
                .count() as u64;
            let slack = (capacity + slots).checked_sub(needed + heads)?;
            Some((short, tails, slack))
        });
        let (short, mut tails, slack) = fitting?;
        self.shorten(&mut tails, longest, slack);
        let mut price = Price::default();
        for (&weight, &tail) in self
            .weights
            .iter()
            .zip(&tails)
            .filter(|(_, tail)| **tail > 0)
        {
            let times = planner.tenancies[weight as usize].len() as u64;
            let head = (pages(weight) - tail) * page;
            price.copies += times;
            price.bytes = price
                .bytes
                .saturating_add(times * (planner.weights[weight as usize].bytes - head));
        }
        let mut starts = Vec::with_capacity(self.slots.len());
        let mut ring = 0;
        for (slot, &pages) in self.slots.iter().enumerate() {
            starts.push(ring);
            ring += pages.min(longest - u64::from(slot < short));
        }
        Some(Paged {
            ring: Ring {
                merged: 0,
                places: self
                    .slot_of
                    .iter()
                    .map(|&slot| iter::once(starts[slot]..ring).collect())
                    .collect(),
                weights: self.weights,
                order: self.order,
                pages: ring,
            },
            page,
            tails,
            cost: price.in_bytes(planner.per_copy),
            price,
        })
    }

    /// How many pages the longest tail has, and how many pages are needed in all, with the shortest tails that fit into
    /// so many. Between two sizes of weights each page less of all tails needs a page more per weight, and one less per slot.
    fn shortest_tails(
        &self,
        capacity: u64,
        pages: impl Fn(WeightIndex) -> u64,
    ) -> Option<(u64, u64)> {
        let mut sizes: Vec<u64> = self.weights.iter().map(|&w| pages(w)).collect();
        sizes.sort_unstable();
        let mut slots = self.slots.clone();
        slots.sort_unstable();
        let (mut from, mut needed) = (0, sizes.iter().sum::<u64>());
        let mut steps = sizes.clone();
        steps.dedup();
        for to in steps {
            let heads = (sizes.len() - sizes.partition_point(|&size| size < to)) as u64;
            let rings = (slots.len() - slots.partition_point(|&slot| slot < to)) as u64;
            let longer = match heads > rings {
                true => needed
                    .saturating_sub(capacity)
                    .div_ceil(heads - rings)
                    .max(1),
                false => 1,
            };
            let there = (needed + longer * rings).checked_sub(longer * heads);
            if let Some(there) = there.filter(|&there| from + longer <= to && there <= capacity) {
                return Some((from + longer, there));
            }
            needed = needed + (to - from) * rings - (to - from) * heads;
            from = to;
        }
        None
    }

    /// Pages of each weight's tail: at most `longest`, and a page less in the first `short` slots.
    fn tails(&self, longest: u64, short: usize, pages: impl Fn(WeightIndex) -> u64) -> Vec<u64> {
        let mut most = vec![longest; self.weights.len()];
        for (&(weight, _), &slot) in self.order.iter().zip(&self.slot_of) {
            let at = self.weights.binary_search(&weight);
            if slot < short {
                most[at.expect("each tenancy's weight is in the set")] = longest - 1;
            }
        }
        (self.weights.iter().zip(most))
            .map(|(&weight, most)| pages(weight).min(most))
            .collect()
    }

    /// Uses what is left: a page less for some of the longest tails, spread over the pass, but those of the slot that is
    /// the next to get shorter first. So what more memory makes shorter was short with less memory too.
    fn shorten(&self, tails: &mut [u64], longest: u64, slack: u64) {
        /// As in `draft`: multiples of the golden ratio's fraction are spread evenly.
        const STEP: u32 = 2_654_435_769;
        let mut first_slot = vec![usize::MAX; tails.len()];
        for (&(weight, _), &slot) in self.order.iter().zip(&self.slot_of) {
            let at = self.weights.binary_search(&weight);
            let first = &mut first_slot[at.expect("each tenancy's weight is in the set")];
            *first = slot.min(*first);
        }
        let mut long: Vec<usize> = (0..tails.len())
            .filter(|&at| tails[at] == longest)
            .collect();
        long.sort_by_key(|&at| (first_slot[at], (at as u32).wrapping_mul(STEP)));
        for at in long
            .into_iter()
            .take(usize::try_from(slack).unwrap_or(usize::MAX))
        {
            tails[at] -= 1;
        }
    }
}

#[cfg(test)]
#[path = "paged_tests.rs"]
mod tests;
