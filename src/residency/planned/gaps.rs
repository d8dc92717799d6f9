//! How much of each weight stays from one read to the next: not the same for all of its reads, but gap by gap.
//!
//! Time is a circle of *moments*: those at which a weight starts to be wanted. At each of them what is wanted is there as a
//! whole, and of everything else the part that is kept over its *gap*, the moments between two of its tenancies. It is always
//! a weight's first bytes that are kept, so that what stays over all of its gaps is its head.

use super::choice::Planner;
use super::tenancies::Tenancy;
use crate::schedule::WeightIndex;

/// A tenancy on the circle of moments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Use {
    /// Number of the tenancy among the weight's.
    pub number: usize,
    /// The first moment at which it is wanted, and the first one behind those; this one may be of the next pass.
    pub from: usize,
    pub to: usize,
}

/// The moments between two uses of a weight.
#[derive(Debug)]
pub(super) struct Gap {
    pub weight: usize,
    /// The first of them, and how many they are.
    pub from: usize,
    pub long: usize,
}

/// All weights that are read, by their places in `weights`, with their uses and what lies between these.
#[derive(Debug)]
pub(super) struct Gaps {
    pub weights: Vec<WeightIndex>,
    /// Pages of each weight.
    pub pages: Vec<u64>,
    /// The uses of each weight, by their first moments.
    pub uses: Vec<Vec<Use>>,
    /// How many moments there are.
    pub moments: usize,
    pub gaps: Vec<Gap>,
    /// The gap behind each weight's first use; those of the others follow.
    first: Vec<usize>,
    /// Pages of what is wanted at each moment.
    pub wanted: Vec<u64>,
}

impl Gaps {
    pub(super) fn new(planner: &Planner<'_>, page: u64) -> Gaps {
        let weights: Vec<WeightIndex> = (0..planner.sizes.len() as WeightIndex)
            .filter(|&w| planner.sizes[w as usize] > 0)
            .collect();
        let axis = Axis::new(planner, &weights);
        let moments = axis.moments.len();
        let uses = weights
            .iter()
            .map(|&w| axis.uses(&planner.tenancies[w as usize]));
        let mut found = Gaps {
            pages: weights
                .iter()
                .map(|&w| planner.weights[w as usize].bytes.div_ceil(page))
                .collect(),
            uses: uses.collect(),
            weights,
            moments,
            gaps: Vec::new(),
            first: Vec::new(),
            wanted: vec![0; moments],
        };
        found.list();
        found
    }

    fn list(&mut self) {
        for (weight, uses) in self.uses.iter().enumerate() {
            self.first.push(self.gaps.len());
            for (number, one) in uses.iter().enumerate() {
                (one.from..one.to)
                    .for_each(|m| self.wanted[m % self.moments] += self.pages[weight]);
                let next = uses.get(number + 1);
                let next = next.map_or(uses[0].from + self.moments, |next| next.from);
                self.gaps.push(Gap {
                    weight,
                    from: one.to % self.moments,
                    long: next - one.to,
                });
            }
        }
    }

    /// Pages without which no schedule can be: the most that is wanted at one moment.
    pub(super) fn least(&self) -> u64 {
        self.wanted.iter().copied().max().unwrap_or(0)
    }

    /// The gap in front of, and the one behind, a use of a weight.
    pub(super) fn around(&self, weight: usize, number: usize) -> (usize, usize) {
        let count = self.uses[weight].len();
        let first = self.first[weight];
        (first + (number + count - 1) % count, first + number)
    }

    /// The gaps of a weight.
    pub(super) fn of(&self, weight: usize) -> std::ops::Range<usize> {
        self.first[weight]..self.first[weight] + self.uses[weight].len()
    }

    /// Pages of a gap's weight.
    pub(super) fn all_of(&self, gap: usize) -> u64 {
        self.pages[self.gaps[gap].weight]
    }

    /// Pages at one moment at most, if so many pages are kept over each gap.
    pub(super) fn together(&self, kept: &[u64]) -> u64 {
        self.there(kept).into_iter().max().unwrap_or(0)
    }

    /// Pages at each moment.
    pub(super) fn there(&self, kept: &[u64]) -> Vec<u64> {
        // What begins and ends at each moment; a gap may go on around the end of the pass.
        let (mut begin, mut end) = (vec![0; self.moments + 1], vec![0; self.moments + 1]);
        for (gap, &kept) in self.gaps.iter().zip(kept).filter(|(gap, _)| gap.long > 0) {
            let to = gap.from + gap.long;
            begin[gap.from] += kept;
            end[to.min(self.moments)] += kept;
            if to > self.moments {
                begin[0] += kept;
                end[to - self.moments] += kept;
            }
        }
        let mut now = 0;
        let at = |m: usize| {
            now = now + begin[m] - end[m];
            self.wanted[m] + now
        };
        (0..self.moments).map(at).collect()
    }

    /// Keeps more, as far as no more than `room` pages are there at any moment, and no more than `most` over each gap: over the
    /// shortest gaps first.
    pub(super) fn fill(&self, kept: &mut [u64], most: &[u64], room: u64) {
        let there = self.there(kept).into_iter();
        let mut left: Vec<u64> = there.map(|there| room.saturating_sub(there)).collect();
        let mut shortest: Vec<usize> = (0..self.gaps.len()).collect();
        shortest.sort_by_key(|&at| self.gaps[at].long);
        for at in shortest {
            let Gap { from, long, .. } = self.gaps[at];
            let moments = (from..from + long).map(|m| m % self.moments);
            let mut more = most[at] - kept[at];
            for moment in moments.clone() {
                more = more.min(left[moment]);
                if more == 0 {
                    break;
                }
            }
            if more > 0 {
                moments.for_each(|moment| left[moment] -= more);
                kept[at] += more;
            }
        }
    }

    /// Keeps more of some weights over all of their gaps: so many pages in all, where they save most of what is copied. More
    /// pages go on where fewer ended, so that they never save less.
    pub(super) fn lengthen(&self, kept: &mut [u64], mut pages: u64) {
        let mut steps: Vec<Step> = (0..self.weights.len())
            .flat_map(|weight| self.steps(kept, weight))
            .collect();
        // A weight's own steps save less and less.
        steps.sort_by(|a, b| b.saved_per_page.total_cmp(&a.saved_per_page));
        for step in steps {
            let more = pages.min(step.to - step.from);
            pages -= more;
            for gap in self.of(step.weight).filter(|_| more > 0) {
                kept[gap] = kept[gap].max(step.from + more);
            }
        }
    }

    /// The steps in which a weight's head gets longer, each as far as it saves most per page.
    fn steps(&self, kept: &[u64], weight: usize) -> Vec<Step> {
        let mut levels: Vec<u64> = kept[self.of(weight)].to_vec();
        levels.push(self.pages[weight]);
        levels.sort_unstable();
        levels.dedup();
        let saved = |from: u64, to: u64| -> u64 {
            let gaps = kept[self.of(weight)].iter();
            gaps.map(|&kept| to.saturating_sub(kept.max(from))).sum()
        };
        let (mut at, mut steps) = (0, Vec::new());
        while at + 1 < levels.len() {
            let per_page = |to: &usize| {
                saved(levels[at], levels[*to]) as f64 / (levels[*to] - levels[at]) as f64
            };
            let further = (at + 1..levels.len()).rev();
            let Some(to) = further.max_by(|a, b| per_page(a).total_cmp(&per_page(b))) else {
                break;
            };
            steps.push(Step {
                weight,
                saved_per_page: per_page(&to),
                from: levels[at],
                to: levels[to],
            });
            at = to;
        }
        steps
    }
}

struct Step {
    weight: usize,
    saved_per_page: f64,
    from: u64,
    to: u64,
}

/// Moments, as events of a pass.
struct Axis {
    events: i64,
    moments: Vec<i64>,
}

impl Axis {
    fn new(planner: &Planner<'_>, weights: &[WeightIndex]) -> Axis {
        let events = planner.events as i64;
        let all = weights.iter().flat_map(|&w| &planner.tenancies[w as usize]);
        let mut moments: Vec<i64> = all.map(|one| one.wanted.rem_euclid(events)).collect();
        moments.sort_unstable();
        moments.dedup();
        Axis { events, moments }
    }

    /// Moments up to this event, those of the passes before included.
    fn until(&self, event: i64) -> i64 {
        let inside = event.rem_euclid(self.events);
        let here = self.moments.partition_point(|&moment| moment <= inside);
        event.div_euclid(self.events) * self.moments.len() as i64 + here as i64
    }

    /// A weight's uses in their order, none of which begins in the pass before; none goes on when the next one begins.
    fn uses(&self, tenancies: &[Tenancy]) -> Vec<Use> {
        let count = self.moments.len() as i64;
        let one = |(number, tenancy): (usize, &Tenancy)| {
            let (from, to) = (
                self.until(tenancy.wanted) - 1,
                self.until(tenancy.last as i64),
            );
            let shift = from.rem_euclid(count) - from;
            Use {
                number,
                from: (from + shift) as usize,
                to: (to + shift) as usize,
            }
        };
        let mut uses: Vec<Use> = tenancies.iter().enumerate().map(one).collect();
        let before = tenancies.iter().take_while(|one| one.wanted < 0).count();
        uses.rotate_left(before);
        // What is wanted in the pass before is so from its last kernel on that reads weights, and nothing is from later on.
        debug_assert!(uses.is_sorted_by_key(|one| one.from), "{uses:?}");
        for number in 0..uses.len() {
            let next = uses.get(number + 1);
            let next = next.map_or(uses[0].from + self.moments.len(), |next| next.from);
            uses[number].to = uses[number].to.min(next);
        }
        uses
    }
}
