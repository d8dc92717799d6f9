//! Looks for the cheapest plan: sets of weights × distances at which reads are merged × copies ahead.
//!
//! Room for one copy ahead is enough where copies are all that takes time: more room would only make more to copy. Where
//! kernels run for long between two reads (attention over many tokens), such a ring is full before they end, and the link
//! stands still. So more copies ahead are tried once kernels were timed.

use super::candidates;
use super::cost::{expected, Clocks};
use super::kept::keep;
use super::plan::Plan;
use super::problem::Problem;
use super::ring::{Ring, SHAPES};
use super::slots::Set;
use super::timeline::Timeline;
use super::view;
use crate::figures::DeviceModel;
use crate::schedule::{MethodTrace, WeightSpec};

/// Copies ahead that are tried.
const AHEAD: [usize; 11] = [1, 2, 3, 4, 5, 7, 9, 12, 16, 24, 32];

/// The same for plans that keep stored bytes: room for more copies is room for fewer of these.
const AHEAD_OF_KEPT: [usize; 4] = [1, 2, 3, 5];

/// So many of the sets are tried for these, in even steps.
const KEPT_SETS: usize = 12;

/// Of each number of copies ahead so many plans are played with clocks: those that copy least.
const PLAYED: usize = 8;

/// Passes are equally long if they differ by one part in so many: kernels are timed once, beside copies, and the link's speed changes
/// by more. What is copied is known.
const NEAR: u64 = 100;

/// What is as good as `pass`.
fn nearly(pass: u64) -> u64 {
    pass.saturating_add(pass / NEAR)
}

/// Plans residency in `capacity` bytes for the weights that `methods` read, on a device of this model: the plan that copies
/// least. `None` if memory cannot be mapped, or no plan has a place for all that is read at one time.
pub fn plan(
    methods: &[MethodTrace<'_>],
    weights: &[WeightSpec],
    model: &DeviceModel,
    capacity: u64,
) -> Option<Plan> {
    let search = Search::new(methods, weights, model, capacity)?;
    let cheapest = search.rings(1, 1).pop();
    cheapest.map(|found| search.finish(found))
}

/// The plan of the shortest pass, of those that copy at most `most` bytes; with the clocks of each method, and of several methods
/// of the shortest pass in the mean. Of passes that are nearly as short, the one that copies least.
pub fn quickest(
    methods: &[MethodTrace<'_>],
    weights: &[WeightSpec],
    model: &DeviceModel,
    capacity: u64,
    (clocks, most): (&[Clocks<'_>], u64),
) -> Option<Plan> {
    let search = Search::new(methods, weights, model, capacity)?;
    search.quickest(methods, clocks, most)
}

/// The cheapest plan that keeps stored bytes of packed weights on the device, by `cost`.
pub(super) fn keeping(
    methods: &[MethodTrace<'_>],
    weights: &[WeightSpec],
    model: &DeviceModel,
    capacity: u64,
    cost: impl Fn(&Plan) -> u128,
) -> Option<Plan> {
    let mut search = Search::new(methods, weights, model, capacity)?;
    search.problem.packed_whole = true;
    let room = search.problem.room;
    let mut best: Option<(u128, Plan)> = None;
    for found in search.whole_rings() {
        let plan = keep(
            search.finish(found),
            methods,
            weights,
            search.problem.page,
            room,
        );
        let priced = plan.map(|plan| (cost(&plan), plan));
        best = match (best, priced) {
            (Some(best), Some(next)) => Some(if next.0 < best.0 { next } else { best }),
            (best, priced) => best.or(priced),
        };
    }
    best.map(|(_, plan)| plan)
}

/// A ring, and what led to it.
struct Found {
    cost: u64,
    timeline: usize,
    ahead: usize,
    ring: Ring,
}

struct Search<'a> {
    problem: Problem<'a>,
    /// For each distance at which reads are merged.
    timelines: Vec<Timeline>,
}

impl<'a> Search<'a> {
    fn new(
        methods: &[MethodTrace<'_>],
        weights: &'a [WeightSpec],
        model: &DeviceModel,
        capacity: u64,
    ) -> Option<Self> {
        let reads = Timeline::of(methods, weights.len());
        let distances = reads.distances().into_iter();
        Some(Search {
            problem: Problem::new(methods, weights, model, capacity)?,
            timelines: distances.map(|distance| reads.merged(distance)).collect(),
        })
    }

    /// The cheapest rings with room for so many copies ahead, `count` at most, cheapest first.
    fn rings(&self, ahead: usize, count: usize) -> Vec<Found> {
        let mut best: Vec<Found> = Vec::new();
        for (number, timeline) in self.timelines.iter().enumerate() {
            for weights in candidates::sets(&self.problem, timeline) {
                let Some(set) = Set::new(timeline, weights, ahead) else {
                    continue;
                };
                let shapes = SHAPES.iter();
                let rings = shapes.filter_map(|shape| shape.ring(&self.problem, &set));
                for ring in rings {
                    let cost = ring.price.in_bytes(self.problem.per_copy);
                    let place = best.partition_point(|other| other.cost <= cost);
                    if place < count {
                        best.truncate(count - 1);
                        best.insert(
                            place,
                            Found {
                                cost,
                                timeline: number,
                                ahead,
                                ring,
                            },
                        );
                    }
                }
            }
        }
        best
    }

    /// Rings of whole weights, of some sets.
    fn whole_rings(&self) -> Vec<Found> {
        let Some((number, timeline)) = self.timelines.iter().enumerate().next() else {
            return Vec::new();
        };
        let sets = candidates::sets(&self.problem, timeline);
        let step = sets.len().div_ceil(KEPT_SETS).max(1);
        // The largest set is one of them.
        let some: Vec<_> = sets.into_iter().rev().step_by(step).collect();
        let mut all = Vec::new();
        for ahead in AHEAD_OF_KEPT {
            for weights in &some {
                let Some(set) = Set::new(timeline, weights.clone(), ahead) else {
                    continue;
                };
                let rings = SHAPES
                    .iter()
                    .filter_map(|shape| shape.ring(&self.problem, &set));
                all.extend(rings.map(|ring| Found {
                    cost: ring.price.in_bytes(self.problem.per_copy),
                    timeline: number,
                    ahead,
                    ring,
                }));
            }
        }
        all
    }

    /// Of the plans whose passes are shortest, or nearly so, the one that copies least.
    fn quickest(
        &self,
        methods: &[MethodTrace<'_>],
        clocks: &[Clocks<'_>],
        most: u64,
    ) -> Option<Plan> {
        let link = clocks.first()?.link;
        let kernels = expected(&Plan::default(), methods, clocks).kernels;
        let (mut least, mut played) = (u64::MAX, Vec::new());
        for ahead in AHEAD {
            for found in self.rings(ahead, PLAYED) {
                let (price, cost) = (found.ring.price, found.cost);
                let copies = (link.seconds(price.bytes, price.copies) * 1e9) as u64;
                // Of several methods no mean is less than that of their kernels, or of their copies.
                if price.bytes > most || copies.max(kernels) > nearly(least) {
                    continue;
                }
                let plan = self.finish(found);
                let pass = expected(&plan, methods, clocks).pass;
                least = least.min(pass);
                played.push((pass, cost, plan));
            }
        }
        let near = played
            .into_iter()
            .filter(|(pass, ..)| *pass <= nearly(least));
        let (.., plan) = near.min_by_key(|(pass, cost, _)| (*cost, *pass))?;
        Some(plan)
    }

    fn finish(&self, found: Found) -> Plan {
        let timeline = &self.timelines[found.timeline];
        view::plan(&self.problem, timeline, found.ring, found.ahead)
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
