//! Tails for kernels whose times are known.
//!
//! A copy goes on beside what runs before its read, so a tail that takes as long to copy as that does (its *gap*) neither waits for
//! the ring nor lets a kernel wait. With tails of one length the ring has to make up for the difference: it is full before
//! a long kernel ends, or empty behind short ones. Here a tail follows its gap. Where copies take longer than kernels no
//! tail is shorter than its gap, as far as its weight has the bytes, and where kernels do none is longer; what a budget asks for
//! beyond that is spread evenly. Tails lie one behind the other around the ring, so that copies go as far ahead as it is long.
//!
//! Rings of some lengths are tried, each with tails that keep to their gaps more or less, and played (`expected`).

use super::choice::Planner;
use super::conflicts::{conflicts, Conflicts};
use super::expected::{expected, Expected};
use super::paged::{self, Paged, Ring};
use super::plan::Plan;
use super::price::Price;
use super::scatter::around;
use super::tenancies::Tenancy;
use crate::figures::Link;
use crate::schedule::{Trace, WeightIndex};

/// What is known of a pass.
#[derive(Clone, Copy)]
pub(super) struct Times<'a> {
    pub trace: &'a Trace,
    /// As for [`expected`].
    pub kernels: &'a [u64],
    pub link: Link,
}

/// How tails follow their gaps.
#[derive(Clone, Copy)]
struct Shape {
    /// No tail is shorter than its gap; otherwise none is longer.
    at_least: bool,
    /// Quarters of the gap that count.
    quarters: u64,
    /// What is left of a gap that a weight cannot fill counts for the next one.
    carried: bool,
}

/// Quarters that are tried, of either kind; in large programs only the first ones.
const AT_LEAST: [u64; 6] = [0, 4, 2, 3, 5, 6];
const AT_MOST: [u64; 5] = [4, 3, 5, 6, 8];

/// Sets of weights that are tried; in large programs fewer.
const SETS: u64 = 4;
const FEW_SETS: u64 = 1;

/// Lengths of the ring between one and its double, and how many there are in all.
const PARTS: u32 = 16;
const RINGS: usize = 88;

/// Lengths that are tried with one shape, times the tenancies, at most: then those around the best.
const EFFORT: usize = 40_000;

/// Pages of all tails at most: each may be a mapping of its own.
const MOST_PAGES: u64 = 30_000;

/// A set of weights that stream.
struct Timed<'a> {
    planner: &'a Planner<'a>,
    times: Times<'a>,
    page: u64,
    weights: Vec<WeightIndex>,
    /// Their tenancies, by time: weight and number among the weight's.
    order: Vec<(WeightIndex, usize)>,
    conflicts: Conflicts,
    /// The weight of each tenancy, by its place in `weights`.
    weight_of: Vec<usize>,
    /// Pages of each weight.
    pages: Vec<u64>,
    /// Pages that are copied in the gap before each weight's read: in the shortest, if it has several.
    gaps: Vec<u64>,
}

/// A plan on pages by which a pass takes less than `least` nanoseconds: the best that is found of those that `may` be.
pub(super) fn quickest(
    planner: &Planner<'_>,
    page: u64,
    times: Times<'_>,
    least: u64,
    may: impl Fn(&Plan) -> bool,
) -> Option<(Plan, Expected)> {
    let mut search = Search {
        // No plan takes less than its kernels.
        enough: times.kernels.iter().sum(),
        least,
        best: None,
        may,
    };
    let count = if planner.is_large() { FEW_SETS } else { SETS };
    let sets = paged::sets(planner, page, count).into_iter();
    let sets: Vec<Timed> = sets
        .filter_map(|set| Timed::new(planner, page, times, set))
        .collect();
    let mut found = None;
    let shapes = shapes(planner.is_large());
    for (set, shape) in pairs(&sets, &shapes) {
        for number in (0..RINGS).step_by(set.step()) {
            if search.try_out(set, number, shape) {
                found = Some((set, shape, number));
            }
        }
    }
    if let Some((set, shape, number)) = found {
        let near = (number + 1).saturating_sub(set.step())..number + set.step();
        near.for_each(|number| {
            search.try_out(set, number, shape);
        });
    }
    search.best
}

fn shapes(few: bool) -> Vec<Shape> {
    let some = |all: &'static [u64]| all.iter().take(if few { 2 } else { all.len() });
    let least = some(&AT_LEAST).map(|&quarters| (true, quarters));
    let most = some(&AT_MOST).map(|&quarters| (false, quarters));
    let both = least.chain(most).flat_map(|(at_least, quarters)| {
        [true, false].map(|carried| Shape {
            at_least,
            quarters,
            carried,
        })
    });
    both.filter(|shape| !few || shape.carried).collect()
}

fn pairs<'a, 'b>(
    sets: &'a [Timed<'b>],
    shapes: &'a [Shape],
) -> impl Iterator<Item = (&'a Timed<'b>, Shape)> {
    sets.iter()
        .flat_map(|set| shapes.iter().map(move |&shape| (set, shape)))
}

/// The best plan so far.
struct Search<F> {
    /// Nanoseconds of a pass that cannot be improved.
    enough: u64,
    /// Nanoseconds of a pass by the best, or by what it has to be better than.
    least: u64,
    best: Option<(Plan, Expected)>,
    may: F,
}

impl<F: Fn(&Plan) -> bool> Search<F> {
    /// Whether such a plan is better.
    fn try_out(&mut self, set: &Timed<'_>, number: usize, shape: Shape) -> bool {
        if self.least <= self.enough {
            return false;
        }
        let found = set.try_out(set.ring(number), shape, self.least);
        let found = found.filter(|(plan, _)| (self.may)(plan));
        let better = found.is_some();
        if let Some((plan, takes)) = found {
            self.least = takes.pass;
            self.best = Some((plan, takes));
        }
        better
    }
}

impl<'a> Timed<'a> {
    fn new(
        planner: &'a Planner<'a>,
        page: u64,
        times: Times<'a>,
        mut weights: Vec<WeightIndex>,
    ) -> Option<Self> {
        weights.sort_unstable();
        let order = planner.order_of(&weights);
        let streamed = planner.in_order(&order);
        let conflicts = conflicts(&streamed, planner.events, 1)?;
        let at = |w: WeightIndex| weights.binary_search(&w).expect("it is in the set");
        let weight_of: Vec<usize> = order.iter().map(|&(w, _)| at(w)).collect();
        let pages = |&w: &WeightIndex| planner.weights[w as usize].bytes.div_ceil(page);
        let mut gaps = vec![u64::MAX; weights.len()];
        for (&weight, gap) in weight_of.iter().zip(gaps_before(&streamed, times.kernels)) {
            let bytes = u128::from(gap) * u128::from(times.link.bytes_per_second) / 1_000_000_000;
            let copied = u64::try_from(bytes / u128::from(page)).unwrap_or(u64::MAX);
            gaps[weight] = gaps[weight].min(copied);
        }
        Some(Timed {
            pages: weights.iter().map(pages).collect(),
            planner,
            times,
            page,
            weights,
            order,
            conflicts,
            weight_of,
            gaps,
        })
    }

    /// The length of a ring, in pages: the first is three quarters of what two tails take, if all were equally long.
    fn ring(&self, number: usize) -> u64 {
        let shared = self.beside(0).max(0) as f64;
        let first = 1.5 * shared / self.weights.len().max(1) as f64;
        (first * 2f64.powf(number as f64 / f64::from(PARTS))).ceil() as u64
    }

    /// Of so many lengths one is tried at first.
    fn step(&self) -> usize {
        RINGS.div_ceil((EFFORT / self.order.len().max(1)).clamp(RINGS / 8, RINGS))
    }

    /// Pages that all tails have together, so that with a ring of so many pages the capacity is used up.
    fn beside(&self, ring: u64) -> i64 {
        let planner = self.planner;
        let beside = planner.pages_beside(&self.weights, self.page);
        let all = self.pages.iter().sum::<u64>() + ring;
        // Where what stays does not fit, more than there are.
        all as i64 - beside.map_or(-1, |pages| pages as i64)
    }

    /// The plan with such tails in a ring of so many pages, if a pass takes less than `least` by it.
    fn try_out(&self, ring: u64, shape: Shape, least: u64) -> Option<(Plan, Expected)> {
        let shared = u64::try_from(self.beside(ring)).ok()?;
        let tails = self.tails(shape, shared)?;
        let mut price = self.price(&tails);
        let copies = self.times.link.seconds(price.bytes, price.copies) * 1e9;
        if copies as u64 >= least {
            return None;
        }
        let lengths: Vec<u64> = self.weight_of.iter().map(|&at| tails[at]).collect();
        let places = around(&lengths, &self.conflicts, ring)?;
        price.copies = places.iter().map(|pieces| pieces.len() as u64).sum();
        let paged = Paged {
            ring: Ring {
                weights: self.weights.clone(),
                order: self.order.clone(),
                merged: 0,
                places,
                pages: ring,
            },
            page: self.page,
            tails,
            cost: price.in_bytes(self.planner.per_copy),
            price,
        };
        let plan = paged.finish(self.planner);
        let takes = expected(&plan, self.times.trace, self.times.kernels, self.times.link);
        (takes.pass < least).then_some((plan, takes))
    }

    /// Tails of this shape that have so many pages together.
    fn tails(&self, shape: Shape, together: u64) -> Option<Vec<u64>> {
        if together > MOST_PAGES {
            return None;
        }
        let parts = self.parts(shape);
        let tail = |at: usize, level: u64| match shape.at_least {
            true => level.max(parts[at]).min(self.pages[at]),
            false => level.min(parts[at]).min(self.pages[at]),
        };
        let all = |level: u64| (0..self.pages.len()).map(|at| tail(at, level)).sum::<u64>();
        let longest = self.pages.iter().copied().max()?;
        if all(0) > together || all(longest) < together {
            return None;
        }
        let (mut low, mut high) = (0, longest);
        while low < high {
            let middle = (low + high) / 2;
            match all(middle) >= together {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        let mut tails: Vec<u64> = (0..self.pages.len()).map(|at| tail(at, high)).collect();
        self.shorten(&mut tails, all(high) - together, |at| {
            high > 0 && tail(at, high - 1) < tail(at, high)
        });
        Some(tails)
    }

    /// A page less for so many of those that may be shorter, spread over the pass.
    fn shorten(&self, tails: &mut [u64], less: u64, may: impl Fn(usize) -> bool) {
        let long: Vec<usize> = (0..tails.len()).filter(|&at| may(at)).collect();
        let (less, count) = (less as usize, long.len());
        for (number, &at) in long.iter().enumerate() {
            if (number + 1) * less / count > number * less / count {
                tails[at] -= 1;
            }
        }
    }

    /// Pages that each weight's gap asks for.
    fn parts(&self, shape: Shape) -> Vec<u64> {
        let part = |gap: u64| (u128::from(gap) * u128::from(shape.quarters) / 4) as u64;
        let mut parts: Vec<u64> = self.gaps.iter().map(|&gap| part(gap)).collect();
        if shape.carried {
            let mut left = 0u64;
            // Twice around, for what is left at the end of a pass.
            for &at in self.weight_of.iter().chain(&self.weight_of) {
                let asked = part(self.gaps[at]).saturating_add(left);
                parts[at] = asked.min(self.pages[at]);
                left = asked - parts[at];
            }
        }
        parts
    }

    fn price(&self, tails: &[u64]) -> Price {
        let mut price = Price::default();
        for (at, &tail) in tails.iter().enumerate().filter(|(_, tail)| **tail > 0) {
            let weight = self.weights[at] as usize;
            let times = self.planner.tenancies[weight].len() as u64;
            let head = (self.pages[at] - tail) * self.page;
            price.copies += times;
            let bytes = times * (self.planner.weights[weight].bytes - head);
            price.bytes = price.bytes.saturating_add(bytes);
        }
        price
    }
}

/// Nanoseconds of kernels from the read of the tenancy before each one's to its own, around the end of the pass.
fn gaps_before(streamed: &[&Tenancy], kernels: &[u64]) -> Vec<u64> {
    let mut begun = 0;
    let begins: Vec<u64> = (kernels.iter())
        .map(|takes| {
            begun += takes;
            begun - takes
        })
        .collect();
    let at = |number: usize| begins[streamed[number].first];
    let before = |number: usize| match number {
        0 => begun - at(streamed.len() - 1) + at(0),
        _ => at(number) - at(number - 1),
    };
    (0..streamed.len()).map(before).collect()
}

#[cfg(test)]
#[path = "timed_tests.rs"]
mod tests;
