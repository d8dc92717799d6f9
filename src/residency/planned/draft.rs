//! A set of weights that streams, and the places that follow from it.

use super::choice::Planner;
use super::layout::Layout;
use super::plan::{Plan, Resident, Streamed};
use super::price::Price;
use crate::schedule::WeightIndex;
use std::ops::Range;

/// A set of weights that fits.
pub(super) struct Draft {
    /// Those that stream, in order of their index.
    pub weights: Vec<WeightIndex>,
    /// Their tenancies, by time: weight and number among the weight's.
    pub order: Vec<(WeightIndex, usize)>,
    pub layout: Layout,
    /// Bytes of the capacity that neither the ring nor what stays needs.
    pub slack: u64,
}

/// Where a tenancy is in the block.
struct Spot {
    /// Where the weight's first byte lies.
    offset: u64,
    /// Bytes of the weight that are copied in each pass; none if nobody else uses them.
    copied: Range<u64>,
}

/// Tenancies that keep a part of their weight, and how many bytes.
struct Kept {
    start: Option<(usize, u64)>,
    end: Option<(usize, u64)>,
}

impl Kept {
    /// Bytes that tenancy `at` keeps of this part.
    fn of(part: Option<(usize, u64)>, at: usize) -> u64 {
        part.filter(|(keeper, _)| *keeper == at)
            .map_or(0, |(_, bytes)| bytes)
    }
}

impl Draft {
    /// What keeps a part of itself in the bytes that are left over: the weight at the end of the ring its last bytes, so
    /// that it lies further up, and the one at its beginning its first ones. These bytes are nobody else's.
    fn kept(&self, planner: &Planner<'_>) -> Kept {
        let size = |at: usize| planner.sizes[self.order[at].0 as usize];
        let once = |&at: &usize| planner.tenancies[self.order[at].0 as usize].len() == 1;
        let largest = |fits: &dyn Fn(&usize) -> bool| {
            let candidates = (0..self.order.len()).filter(|at| once(at) && fits(at));
            candidates.max_by_key(|&at| size(at))
        };
        let part = |at: usize, slack: u64| (at, slack.min(size(at) - planner.granule));
        let ends = |at: &usize| self.layout.offsets[*at] + size(*at) == self.layout.bytes;
        let end = largest(&ends).map(|at| part(at, self.slack));
        let left = self.slack - end.map_or(0, |(_, bytes)| bytes);
        let begins =
            |at: &usize| self.layout.offsets[*at] == 0 && end.is_none_or(|end| end.0 != *at);
        let start = largest(&begins).map(|at| part(at, left));
        Kept { start, end }
    }

    /// All tenancies' spots, and where the ring ends.
    fn spots(&self, planner: &Planner<'_>) -> (Vec<Spot>, u64) {
        let kept = self.kept(planner);
        let bytes = |part: Option<(usize, u64)>| part.map_or(0, |(_, bytes)| bytes);
        let below = bytes(kept.start);
        let spot = |(at, &(weight, _)): (usize, &(WeightIndex, usize))| {
            let weight = weight as usize;
            let (first, last) = (Kept::of(kept.start, at), Kept::of(kept.end, at));
            let end = planner.sizes[weight] - last;
            Spot {
                offset: self.layout.offsets[at] + below + last - first,
                copied: first..end.min(planner.weights[weight].bytes),
            }
        };
        let mut spots: Vec<Spot> = self.order.iter().enumerate().map(spot).collect();
        for at in self.alone(planner, &spots) {
            // Bytes that nobody else uses need not be copied again.
            spots[at].copied = 0..0;
        }
        (spots, self.layout.bytes + below + bytes(kept.end))
    }

    /// The tenancies of weights that are copied once in a pass, to bytes that no other tenancy uses.
    fn alone(&self, planner: &Planner<'_>, spots: &[Spot]) -> Vec<usize> {
        let bytes = |at: usize| {
            let Spot { offset, copied } = &spots[at];
            offset + copied.start..offset + copied.end.next_multiple_of(planner.granule)
        };
        let mut by_start: Vec<usize> = (0..spots.len()).collect();
        by_start.sort_unstable_by_key(|&at| bytes(at).start);
        let mut alone = Vec::new();
        let mut end = 0;
        for (number, &at) in by_start.iter().enumerate() {
            let Range { start, end: last } = bytes(at);
            let next = by_start.get(number + 1).map(|&next| bytes(next).start);
            let once = planner.tenancies[self.order[at].0 as usize].len() == 1;
            if once && end <= start && next.is_none_or(|next| last <= next) {
                alone.push(at);
            }
            end = end.max(last);
        }
        alone
    }

    pub(super) fn price(&self, planner: &Planner<'_>) -> Price {
        let (spots, _) = self.spots(planner);
        let copied = spots.iter().map(|spot| spot.copied.end - spot.copied.start);
        Price {
            bytes: copied.clone().sum(),
            copies: copied.filter(|&bytes| bytes > 0).count() as u64,
        }
    }

    pub(super) fn finish(&self, planner: &Planner<'_>) -> Plan {
        let (spots, mut end) = self.spots(planner);
        let mut resident = Vec::new();
        let mut streamed = Vec::with_capacity(self.order.len());
        let bytes = |weight: WeightIndex| planner.weights[weight as usize].bytes;
        for (Spot { offset, copied }, &(weight, number)) in spots.into_iter().zip(&self.order) {
            for range in [0..copied.start, copied.end..bytes(weight)] {
                if !range.is_empty() {
                    resident.push(Resident {
                        weight,
                        range,
                        offset,
                    });
                }
            }
            if !copied.is_empty() {
                streamed.push(Streamed {
                    weight,
                    range: copied,
                    offset,
                    probes: planner.tenancies[weight as usize][number].probes.clone(),
                });
            }
        }
        for (weight, &size) in (0..).zip(&planner.sizes) {
            if size > 0 && self.weights.binary_search(&weight).is_err() {
                resident.push(Resident {
                    weight,
                    range: 0..bytes(weight),
                    offset: end,
                });
                end += size;
            }
        }
        Plan {
            block: end,
            ring: self.layout.bytes,
            resident,
            streamed,
            price: self.price(planner),
        }
    }
}
