//! Which weights stream.
//!
//! A pass copies `W - budget + ring` bytes, so the plan is best whose ring is shortest, and a ring is about as long as
//! the two largest neighbours in it. Weights of about one size stream, then, spread over the pass so that the kernels of
//! what stays hide copies. Some sets of each size are laid out, whatever the budget; from each set that fits, as many
//! weights as the budget has room for are taken out again (`draft`). The cheapest is the plan: with more budget no set
//! fits worse, so that it never costs more.

use super::by_gap::{self, ByGap};
use super::conflicts::conflicts;
use super::draft::{Draft, Fitted};
use super::expected::Expected;
use super::layout::place;
use super::paged::{self, Paged};
use super::price::Price;
use super::tenancies::{tenancies, Tenancy};
use super::timed::{self, Times};
use super::Plan;
use crate::figures::DeviceModel;
use crate::schedule::{Trace, WeightIndex, WeightSpec};

/// Sets of weights that are tried for one largest size.
const SETS: u64 = 6;

/// Bytes of weights of which no sum here can overflow. Sizes come from files.
const LARGEST: u64 = 1 << 60;

/// Up to so many tenancies all sizes are tried.
const THOROUGH: usize = 2000;

/// Plans residency in `capacity` bytes for the weights that `trace` reads, on a device of these figures. `None` if no
/// plan is found that leaves a place for everything that is read at one time.
pub fn plan(
    trace: &Trace,
    weights: &[WeightSpec],
    figures: &DeviceModel,
    capacity: u64,
) -> Option<Plan> {
    let planner = Planner::new(trace, weights, figures, capacity);
    if planner.total > LARGEST {
        return None;
    }
    let page = figures.page.filter(|_| planner.total > planner.capacity);
    let (paged, by_gap) = page.map_or((None, None), |page| on_pages(&planner, page));
    let cost = by_gap.as_ref().map(|found| found.cost);
    let cost = cost.or(paged.as_ref().map(|paged| paged.cost));
    let flat = cheapest_flat(&planner, cost);
    let flat_is_cheapest = |flat: &Fitted| cost.is_none_or(|cost| flat.cost <= cost);
    match (flat.filter(flat_is_cheapest), by_gap, paged) {
        (Some(flat), _, _) => Some(flat.finish(&planner)),
        (None, Some(by_gap), _) => Some(by_gap.finish(&planner)),
        (None, None, paged) => paged.map(|paged| paged.finish(&planner)),
    }
}

/// The cheapest plan on pages of each kind; where parts stay from one read to the next only if that is cheaper than the other.
fn on_pages(planner: &Planner<'_>, page: u64) -> (Option<Paged>, Option<ByGap>) {
    let mut paged = paged::cheapest_of_sets(planner, page);
    let mut below = paged.as_ref().map_or(u64::MAX, |paged| paged.cost);
    // Where weights are read again such a plan is mostly the cheapest, and what is known to cost more need not be laid out.
    let again = planner.tenancies.iter().any(|list| list.len() > 1);
    let mut by_gap = None;
    if again {
        by_gap = by_gap::cheapest(planner, page, below);
        below = by_gap.as_ref().map_or(below, |found| found.cost);
    }
    if let Some(filled) = paged::cheapest_filled(planner, page, below) {
        below = filled.cost;
        (paged, by_gap) = (Some(filled), None);
    }
    if !again {
        by_gap = by_gap::cheapest(planner, page, below);
    }
    (paged, by_gap)
}

/// The cheapest plan of one kind, on pages or not, with places for the copies of the next `ahead` tenancies beside each one
/// that is read. More of them take bytes from what stays, and go on through kernels that read no weight for long.
pub(super) fn plan_ahead(
    trace: &Trace,
    weights: &[WeightSpec],
    figures: &DeviceModel,
    capacity: u64,
    (on_pages, ahead): (bool, usize),
) -> Option<Plan> {
    let mut planner = Planner::new(trace, weights, figures, capacity);
    planner.ahead = ahead;
    if planner.total > LARGEST {
        return None;
    }
    match figures.page.filter(|_| on_pages) {
        Some(page) => paged::cheapest(&planner, page).map(|paged| paged.finish(&planner)),
        None => cheapest_flat(&planner, None).map(|flat| flat.finish(&planner)),
    }
}

/// The plan on pages of the shortest pass, if that takes less than `least` nanoseconds: the best that is found of those that
/// `may` be.
pub(super) fn plan_timed(
    weights: &[WeightSpec],
    figures: &DeviceModel,
    capacity: u64,
    times: Times<'_>,
    least: u64,
    may: impl Fn(&Plan) -> bool,
) -> Option<(Plan, Expected)> {
    let planner = Planner::new(times.trace, weights, figures, capacity);
    let page = figures.page.filter(|_| planner.total <= LARGEST)?;
    timed::quickest(&planner, page, times, least, may)
}

/// The cheapest plan in which no byte shows at two addresses. `cost` is that of another plan: a search for more is short.
fn cheapest_flat(program: &Planner<'_>, cost: Option<u64>) -> Option<Fitted> {
    let mut best: Option<Fitted> = None;
    for size in program.sizes_to_try() {
        let found = best.as_ref().map(|best| best.cost);
        let least = found.into_iter().chain(cost).min();
        if least.is_some_and(|cost| !program.worth_while(size, cost)) {
            continue;
        }
        for draft in program.drafts(size) {
            let fitted = draft.fit(program);
            let cheaper = |cost: u64| best.as_ref().is_none_or(|best| cost < best.cost);
            if let Some(fitted) = fitted.filter(|fitted| cheaper(fitted.cost)) {
                best = Some(fitted);
            }
        }
    }
    best
}

pub(super) struct Planner<'a> {
    pub(super) weights: &'a [WeightSpec],
    /// Occupied bytes, by index; 0 for what is not read through probes.
    pub(super) sizes: Vec<u64>,
    pub(super) tenancies: Vec<Vec<Tenancy>>,
    /// All of them, by time: weight and number among the weight's.
    by_time: Vec<(WeightIndex, usize)>,
    pub(super) total: u64,
    pub(super) capacity: u64,
    pub(super) granule: u64,
    pub(super) per_copy: u64,
    /// See [`DeviceModel::apart`].
    apart: u64,
    pub(super) events: usize,
    /// Copies that may go on beside the kernel that reads the one before them.
    pub(super) ahead: usize,
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        trace: &Trace,
        weights: &'a [WeightSpec],
        figures: &DeviceModel,
        capacity: u64,
    ) -> Self {
        let granule = figures.granule;
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
            by_time: by_time(&tenancies),
            tenancies,
            capacity: capacity - capacity % granule,
            granule,
            per_copy: figures.bytes_per_copy,
            apart: figures.apart,
            events: trace.events().len(),
            ahead: 1,
        }
    }

    /// The same with one copy for reads of a weight that are less than so many events apart.
    pub(super) fn merged(&self, distance: usize) -> Planner<'a> {
        let mut tenancies = self.tenancies.clone();
        for list in &mut tenancies {
            list.dedup_by(|next, before| {
                let close = next.first < before.last + distance;
                if close {
                    before.probes.append(&mut next.probes);
                    before.last = before.last.max(next.last);
                }
                close
            });
        }
        Planner {
            sizes: self.sizes.clone(),
            by_time: by_time(&tenancies),
            tenancies,
            ..*self
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

    /// Whether it is worth while to lay out sets of weights of at most `largest` bytes, if a plan of this cost was found.
    /// In large programs only if their copies and a ring of this size would cost less: mostly right, and much faster.
    fn worth_while(&self, largest: u64, cost: u64) -> bool {
        let bytes = self.total.saturating_sub(self.capacity) + largest / 2;
        let copies = bytes.checked_div(largest).unwrap_or(0);
        !self.is_large() || Price { bytes, copies }.in_bytes(self.per_copy) < cost
    }

    /// Tenancies of all weights.
    pub(super) fn reads(&self) -> usize {
        self.by_time.len()
    }

    /// So much is read that not everything can be tried.
    pub(super) fn is_large(&self) -> bool {
        self.reads() > THOROUGH
    }

    /// Whether copies may be many and of all lengths: where one costs time of its own, on a GPU, it also waits for the kernels
    /// before it, and long tails beside short ones were seen to wait longer than their fewer bytes are worth (H200: 11
    /// microseconds a copy instead of 5).
    pub(super) fn copies_may_differ(&self) -> bool {
        self.per_copy == 0 && self.ahead == 1 && !self.is_large()
    }

    /// Sets of weights of at most `largest` bytes each, laid out: by the bytes that stream. They are the same for every
    /// capacity, but for those that cannot fit.
    fn drafts(&self, largest: u64) -> Vec<Draft> {
        let groups = self.groups(largest);
        let all: u64 = groups.iter().map(|group| self.bytes_of(group)).sum();
        let mut drafts = Vec::new();
        for part in 1..=SETS {
            let bytes = (u128::from(all) * u128::from(part)).div_ceil(u128::from(SETS)) as u64;
            let weights = self.pick(&groups, bytes);
            if self.tenancies_of(&weights) % 2 == 1 {
                // One more may share the slots better: an odd number of them needs three.
                let more = self.pick(&groups, (self.bytes_of(&weights) + 1).min(all));
                if more.len() > weights.len() {
                    drafts.extend(self.draft(more));
                }
            }
            drafts.extend(self.draft(weights));
        }
        drafts
    }

    fn tenancies_of(&self, weights: &[WeightIndex]) -> usize {
        weights
            .iter()
            .map(|&w| self.tenancies[w as usize].len())
            .sum()
    }

    /// Weights in the order in which they are taken to stream: those that one copy in a pass serves first, and of them
    /// the large ones, by halves; each group by time.
    pub(super) fn groups(&self, largest: u64) -> Vec<Vec<WeightIndex>> {
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

    /// Weights of at least `needed` bytes together, or all. Of the last group those that are spread best.
    pub(super) fn pick(&self, groups: &[Vec<WeightIndex>], needed: u64) -> Vec<WeightIndex> {
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
        picked
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

    pub(super) fn bytes_of(&self, weights: &[WeightIndex]) -> u64 {
        weights.iter().map(|&w| self.sizes[w as usize]).sum()
    }

    /// Pages beside what stays as a whole if these weights do not: that lies in as many bytes as it has, so that the last
    /// page counts in part. With what lies apart it takes no more pages than the budget has, the last one of which may be
    /// one in part too. `None` if it does not fit.
    pub(super) fn pages_beside(&self, weights: &[WeightIndex], page: u64) -> Option<u64> {
        let packed = self.total - self.bytes_of(weights);
        let pages = self.capacity.checked_sub(packed)? / page;
        let budget = self.capacity.saturating_add(self.apart).div_ceil(page);
        let taken = self.apart.div_ceil(page) + packed.div_ceil(page);
        Some(pages.min(budget.checked_sub(taken)?))
    }

    /// The tenancies of these weights, by time: weight and number among the weight's.
    pub(super) fn order_of(&self, weights: &[WeightIndex]) -> Vec<(WeightIndex, usize)> {
        let mut taken = vec![false; self.sizes.len()];
        weights.iter().for_each(|&w| taken[w as usize] = true);
        let all = self.by_time.iter().copied();
        all.filter(|&(w, _)| taken[w as usize]).collect()
    }

    /// The tenancies that [`Planner::order_of`] names.
    pub(super) fn in_order(&self, order: &[(WeightIndex, usize)]) -> Vec<&Tenancy> {
        let tenancy = |&(w, n): &(WeightIndex, usize)| &self.tenancies[w as usize][n];
        order.iter().map(tenancy).collect()
    }

    /// The layout if these stream; `None` if there is none, or if it cannot fit, since the ring is no shorter than the
    /// largest of them.
    fn draft(&self, weights: Vec<WeightIndex>) -> Option<Draft> {
        let largest = weights.iter().map(|&w| self.sizes[w as usize]).max();
        if self.total - self.bytes_of(&weights) + largest.unwrap_or(0) > self.capacity {
            return None;
        }
        let order = self.order_of(&weights);
        let streamed = self.in_order(&order);
        let sizes: Vec<u64> = order.iter().map(|&(w, _)| self.sizes[w as usize]).collect();
        let layout = place(&sizes, &conflicts(&streamed, self.events, self.ahead)?);
        Some(Draft {
            block: (self.total - self.bytes_of(&weights)).saturating_add(layout.bytes),
            order,
            layout,
        })
    }
}

/// All tenancies by their first probes.
fn by_time(tenancies: &[Vec<Tenancy>]) -> Vec<(WeightIndex, usize)> {
    let of =
        |(weight, list): (WeightIndex, &Vec<Tenancy>)| (0..list.len()).map(move |n| (weight, n));
    let mut all: Vec<_> = (0..).zip(tenancies).flat_map(of).collect();
    all.sort_unstable_by_key(|&(w, n)| tenancies[w as usize][n].first);
    all
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
