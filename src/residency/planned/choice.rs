//! Which weights stream.
//!
//! A pass copies `W - budget + ring` bytes, so the plan is best whose ring is shortest, and a ring is about as long as
//! the two largest neighbours in it. Weights of about one size stream, then, spread over the pass so that the kernels of
//! what stays hide copies; the sizes are tried one after the other. What is left of the budget keeps the end of one
//! streamed weight.

use super::conflicts::conflicts;
use super::draft::Draft;
use super::layout::place;
use super::price::Price;
use super::tenancies::{tenancies, Tenancy};
use super::Plan;
use crate::schedule::{Trace, WeightIndex, WeightSpec};

/// Sets of weights that are tried for one largest size.
const TRIES: usize = 12;

/// Plans residency in `capacity` bytes for the weights that `trace` reads. A copy costs the time of `per_copy` bytes
/// beyond its own. `None` if no plan is found that leaves a place for everything that is read at one time.
pub fn plan(
    trace: &Trace,
    weights: &[WeightSpec],
    granule: u64,
    capacity: u64,
    per_copy: u64,
) -> Option<Plan> {
    let program = Planner::new(
        trace,
        weights,
        granule,
        capacity - capacity % granule,
        per_copy,
    );
    let cost = |draft: &Draft| draft.price(&program).in_bytes(per_copy);
    let mut best: Option<Draft> = None;
    for size in program.sizes_to_try() {
        let least = program.least_cost(size);
        if best.as_ref().is_some_and(|best| cost(best) <= least) {
            continue;
        }
        if let Some(draft) = program.best_up_to(size) {
            if best.as_ref().is_none_or(|best| cost(&draft) < cost(best)) {
                best = Some(draft);
            }
        }
    }
    best.map(|draft| draft.finish(&program))
}

pub(super) struct Planner<'a> {
    pub(super) weights: &'a [WeightSpec],
    /// Occupied bytes, by index; 0 for what is not read through probes.
    pub(super) sizes: Vec<u64>,
    pub(super) tenancies: Vec<Vec<Tenancy>>,
    total: u64,
    capacity: u64,
    pub(super) granule: u64,
    per_copy: u64,
    events: usize,
}

impl<'a> Planner<'a> {
    fn new(
        trace: &Trace,
        weights: &'a [WeightSpec],
        granule: u64,
        capacity: u64,
        per_copy: u64,
    ) -> Self {
        let tenancies = tenancies(trace, weights.len());
        let read = weights.iter().zip(&tenancies);
        let sizes: Vec<u64> = read
            .map(|(weight, list)| {
                if list.is_empty() {
                    0
                } else {
                    weight.occupied(granule)
                }
            })
            .collect();
        Planner {
            weights,
            total: sizes.iter().fold(0, |sum, size| sum.saturating_add(*size)),
            sizes,
            tenancies,
            capacity,
            granule,
            per_copy,
            events: trace.events().len(),
        }
    }

    /// The largest size that may stream: from the smallest with which enough can. Sizes that differ little are one.
    fn sizes_to_try(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self
            .sizes
            .iter()
            .copied()
            .filter(|&size| size > 0)
            .collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let mut tried: Vec<u64> = Vec::new();
        for size in all {
            if tried.last().is_none_or(|last| size < last - last / 8) {
                tried.push(size);
            }
        }
        tried.reverse();
        if self.total <= self.capacity {
            tried.insert(0, 0);
        }
        tried
    }

    /// No plan whose largest streamed weight is about this large costs less: some weight of more than half this size
    /// streams, and the ring is no shorter.
    fn least_cost(&self, largest: u64) -> u64 {
        let bytes = self.total.saturating_sub(self.capacity) + largest / 2;
        let copies = bytes.checked_div(largest).unwrap_or(0);
        Price { bytes, copies }.in_bytes(self.per_copy)
    }

    /// The best set of weights of at most `largest` bytes each.
    fn best_up_to(&self, largest: u64) -> Option<Draft> {
        let groups = self.groups(largest);
        let all: u64 = groups.iter().map(|group| self.bytes_of(group)).sum();
        let mut needed = match self.total <= self.capacity {
            true => 0,
            false => (self.total - self.capacity + largest).min(all),
        };
        let mut best: Option<Draft> = None;
        let mut found = 0;
        for _ in 0..TRIES {
            let Some(weights) = self.pick(&groups, needed) else {
                break;
            };
            // Short of everything there may be one way left: everything.
            let most = |needed: u64, streamed: u64| {
                if streamed < all {
                    needed.min(all)
                } else {
                    needed
                }
            };
            let streamed = self.bytes_of(&weights);
            match self.draft(weights)? {
                Ok(draft) => {
                    let draft = self.without_what_fits(draft);
                    let cost = |draft: &Draft| draft.price(self).in_bytes(self.per_copy);
                    if best.as_ref().is_none_or(|best| cost(&draft) < cost(best)) {
                        best = Some(draft);
                    }
                    found += 1;
                    // One or two more may share slots better: an odd number of them needs three.
                    if found == 3 || streamed == 0 {
                        break;
                    }
                    needed = most(streamed + 1, streamed);
                }
                // The ring may be shorter for a few more: not all of it at once.
                Err(short) => needed = most(streamed.saturating_add(short.div_ceil(2)), streamed),
            }
        }
        best
    }

    /// Weights in the order in which they are taken to stream: those that one copy in a pass serves first, and of them
    /// the large ones, by halves; each group by time.
    fn groups(&self, largest: u64) -> Vec<Vec<WeightIndex>> {
        let mut all: Vec<(usize, u32, usize, WeightIndex)> = Vec::new();
        for (index, list) in (0..).zip(&self.tenancies) {
            let size = self.sizes[index as usize];
            if size > 0 && size <= largest {
                all.push((list.len(), (largest / size).ilog2(), list[0].first, index));
            }
        }
        all.sort_unstable();
        let groups = all.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
        groups
            .map(|group| group.iter().map(|one| one.3).collect())
            .collect()
    }

    /// Weights of at least `needed` bytes together, or `None`. Of the last group those that are spread best.
    fn pick(&self, groups: &[Vec<WeightIndex>], needed: u64) -> Option<Vec<WeightIndex>> {
        let mut picked = Vec::new();
        let mut rest = needed;
        for group in groups {
            if rest == 0 {
                break;
            }
            let bytes = self.bytes_of(group);
            match bytes <= rest {
                true => picked.extend(group),
                false => picked.extend(self.spread(group, bytes, rest)),
            }
            rest = rest.saturating_sub(bytes);
        }
        picked.sort_unstable();
        (rest == 0).then_some(picked)
    }

    /// Of `group`, which has `bytes` bytes, weights of at least `needed` bytes at about equal distances.
    fn spread(&self, group: &[WeightIndex], bytes: u64, needed: u64) -> Vec<WeightIndex> {
        let (mut passed, mut chosen) = (0u64, 0u64);
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for &weight in group {
            let size = self.sizes[weight as usize];
            passed += size;
            let due = (u128::from(passed) * u128::from(needed) / u128::from(bytes)) as u64;
            match chosen + size / 2 < due.max(1) && chosen < needed {
                true => {
                    chosen += size;
                    taken.push(weight);
                }
                false => left.push(weight),
            }
        }
        while chosen < needed {
            let Some(weight) = left.pop() else { break };
            chosen += self.sizes[weight as usize];
            taken.push(weight);
        }
        taken
    }

    fn bytes_of(&self, weights: &[WeightIndex]) -> u64 {
        weights.iter().map(|&w| self.sizes[w as usize]).sum()
    }

    /// The layout if these stream; an inner error is how many bytes it needs beyond the capacity, `None` that there
    /// is no layout at all.
    fn draft(&self, weights: Vec<WeightIndex>) -> Option<Result<Draft, u64>> {
        let numbered =
            |&w: &WeightIndex| (0..self.tenancies[w as usize].len()).map(move |n| (w, n));
        let mut order: Vec<_> = weights.iter().flat_map(numbered).collect();
        order.sort_unstable_by_key(|&(w, n)| self.tenancies[w as usize][n].first);
        let streamed: Vec<&Tenancy> = order
            .iter()
            .map(|&(w, n)| &self.tenancies[w as usize][n])
            .collect();
        let sizes: Vec<u64> = order.iter().map(|&(w, _)| self.sizes[w as usize]).collect();
        let layout = place(&sizes, &conflicts(&streamed, self.events)?);
        let stays = self.total - self.bytes_of(&weights);
        let block = stays.saturating_add(layout.bytes);
        Some(match self.capacity.checked_sub(block) {
            Some(slack) => Ok(Draft {
                weights,
                order,
                layout,
                slack,
            }),
            None => Err(block - self.capacity),
        })
    }

    /// Weights were taken whole: what fits into the bytes that are left over stays after all.
    fn without_what_fits(&self, mut draft: Draft) -> Draft {
        for _ in 0..TRIES {
            let size = |w: &WeightIndex| self.sizes[*w as usize];
            let fitting = draft.weights.iter().filter(|w| size(w) <= draft.slack);
            let Some(&stays) = fitting.max_by_key(|w| size(w)) else {
                break;
            };
            let fewer = draft.weights.iter().copied().filter(|&w| w != stays);
            match self.draft(fewer.collect()) {
                Some(Ok(better)) => draft = better,
                _ => break,
            }
        }
        draft
    }
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
