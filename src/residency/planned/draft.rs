//! A set of weights that streams, and the places that follow from it.

use super::choice::Planner;
use super::layout::Layout;
use super::plan::{Plan, Resident, Streamed};
use super::price::Price;
use crate::schedule::WeightIndex;
use std::iter;
use std::ops::Range;

/// A set of weights, laid out.
pub(super) struct Draft {
    /// Its tenancies, by time: weight and number among the weight's.
    pub order: Vec<(WeightIndex, usize)>,
    pub layout: Layout,
    /// Bytes of the ring and of what stays.
    pub block: u64,
}

/// What keeps a part of itself beside the ring, in bytes that are nobody else's: a weight at its end keeps its last bytes,
/// so that it lies further up, and one at its beginning its first ones. Tenancy and bytes.
#[derive(Clone, Copy, Default)]
struct Kept {
    start: Option<(usize, u64)>,
    end: Option<(usize, u64)>,
}

/// A draft, with all that stays if the capacity is used up.
pub(super) struct Fitted {
    draft: Draft,
    /// Whether each weight streams after all, by index.
    streams: Vec<bool>,
    kept: Kept,
    price: Price,
    pub cost: u64,
}

/// The ways to use what a draft leaves of the capacity.
struct Fitting<'a> {
    planner: &'a Planner<'a>,
    draft: &'a Draft,
    /// Whether each weight streams, by index.
    streams: Vec<bool>,
    /// Tenancies at the ring's end, and at its beginning, of weights that have one: the largest first.
    ends: Vec<usize>,
    starts: Vec<usize>,
}

impl Draft {
    fn size(&self, planner: &Planner<'_>, at: usize) -> u64 {
        planner.sizes[self.order[at].0 as usize]
    }

    fn bytes(&self, planner: &Planner<'_>, at: usize) -> u64 {
        planner.weights[self.order[at].0 as usize].bytes
    }

    /// Takes weights out, one after the other and spread over the pass, as long as there is room, and goes back to where
    /// that costs the least. `None` if the draft does not fit.
    pub(super) fn fit(self, planner: &Planner<'_>) -> Option<Fitted> {
        let mut slack = planner.capacity.checked_sub(self.block)?;
        let mut fitting = Fitting::new(planner, &self);
        let all = fitting.streams.clone();
        let mut price = fitting.price();
        let stay = fitting.order_of_stays();
        let mut best = fitting.keep(price, slack);
        let mut count = 0;
        for (number, &weight) in stay.iter().enumerate() {
            let size = planner.sizes[weight as usize];
            if size > slack {
                break;
            }
            slack -= size;
            fitting.streams[weight as usize] = false;
            let copies = planner.tenancies[weight as usize].len() as u64;
            price.copies -= copies;
            price.bytes -= copies * planner.weights[weight as usize].bytes;
            let found = fitting.keep(price, slack);
            if found.2 < best.2 {
                (best, count) = (found, number + 1);
            }
        }
        let mut streams = all;
        for &weight in &stay[..count] {
            streams[weight as usize] = false;
        }
        let (kept, price, cost) = best;
        Some(Fitted {
            draft: self,
            streams,
            kept,
            price,
            cost,
        })
    }

    /// The tenancies that share no byte with another one, of weights that have no other: once there, they stay.
    fn alone(&self, planner: &Planner<'_>) -> Vec<usize> {
        let end = |at: usize| self.layout.offsets[at] + self.size(planner, at);
        let mut by_start: Vec<usize> = (0..self.order.len()).collect();
        by_start.sort_unstable_by_key(|&at| self.layout.offsets[at]);
        let mut alone = Vec::new();
        let mut before = 0;
        for (number, &at) in by_start.iter().enumerate() {
            let next = by_start
                .get(number + 1)
                .map(|&next| self.layout.offsets[next]);
            let apart =
                before <= self.layout.offsets[at] && next.is_none_or(|next| end(at) <= next);
            if apart && planner.tenancies[self.order[at].0 as usize].len() == 1 {
                alone.push(at);
            }
            before = before.max(end(at));
        }
        alone
    }
}

impl<'a> Fitting<'a> {
    fn new(planner: &'a Planner<'a>, draft: &'a Draft) -> Self {
        let mut streams = vec![false; planner.sizes.len()];
        for (weight, _) in &draft.order {
            streams[*weight as usize] = true;
        }
        for at in draft.alone(planner) {
            streams[draft.order[at].0 as usize] = false;
        }
        let size = |at: usize| draft.size(planner, at);
        let largest = |fits: &dyn Fn(usize) -> bool| {
            let once = |at: usize| {
                let weight = draft.order[at].0 as usize;
                streams[weight] && planner.tenancies[weight].len() == 1
            };
            let mut found: Vec<usize> = (0..draft.order.len())
                .filter(|&at| fits(at) && once(at))
                .collect();
            found.sort_by_key(|&at| std::cmp::Reverse(size(at)));
            found
        };
        let offsets = &draft.layout.offsets;
        Fitting {
            ends: largest(&|at| offsets[at] + size(at) == draft.layout.bytes),
            starts: largest(&|at| offsets[at] == 0),
            planner,
            draft,
            streams,
        }
    }

    fn price(&self) -> Price {
        let streaming = (0..self.draft.order.len()).filter(|&at| self.streams_at(at));
        Price {
            bytes: streaming
                .clone()
                .map(|at| self.draft.bytes(self.planner, at))
                .sum(),
            copies: streaming.count() as u64,
        }
    }

    /// The order in which weights stay after all: those that are copied most often first, neighbours far apart.
    fn order_of_stays(&self) -> Vec<WeightIndex> {
        /// The golden ratio's fraction of 2^32: its multiples are spread evenly, however many there are.
        const STEP: u32 = 2_654_435_769;
        let mut order: Vec<_> = (0u32..).zip(&self.draft.order).collect();
        order.retain(|(at, _)| self.streams_at(*at as usize));
        let often = |weight: WeightIndex| self.planner.tenancies[weight as usize].len();
        order.sort_by_key(|(at, (weight, _))| {
            (std::cmp::Reverse(often(*weight)), at.wrapping_mul(STEP))
        });
        let first = order.iter().filter(|(_, (_, number))| *number == 0);
        first.map(|(_, (weight, _))| *weight).collect()
    }

    /// Whether the weight of this tenancy streams.
    fn streams_at(&self, at: usize) -> bool {
        self.streams[self.draft.order[at].0 as usize]
    }

    /// What is kept in `slack` bytes, and what a pass costs then.
    fn keep(&self, mut price: Price, slack: u64) -> (Kept, Price, u64) {
        let part = |list: &[usize], not: Option<usize>, slack: u64| {
            let at = list
                .iter()
                .copied()
                .find(|&at| self.streams_at(at) && Some(at) != not)?;
            let most = self.draft.size(self.planner, at) - self.planner.granule;
            Some((at, slack.min(most)))
        };
        let end = part(&self.ends, None, slack);
        let left = slack - end.map_or(0, |(_, bytes)| bytes);
        let start = part(&self.starts, end.map(|(at, _)| at), left);
        if let Some((at, bytes)) = end {
            let (size, all) = (
                self.draft.size(self.planner, at),
                self.draft.bytes(self.planner, at),
            );
            price.bytes -= all.saturating_sub(size - bytes);
        }
        price.bytes -= start.map_or(0, |(_, bytes)| bytes);
        let cost = price.in_bytes(self.planner.per_copy);
        (Kept { start, end }, price, cost)
    }
}

impl Fitted {
    /// The tenancy's offset in the block, and which of its bytes are copied.
    fn spot(&self, planner: &Planner<'_>, at: usize) -> (u64, Range<u64>) {
        let of = |part: Option<(usize, u64)>| {
            part.filter(|(keeper, _)| *keeper == at)
                .map_or(0, |(_, bytes)| bytes)
        };
        let (first, last) = (of(self.kept.start), of(self.kept.end));
        let below = self.kept.start.map_or(0, |(_, bytes)| bytes);
        let end = self.draft.size(planner, at) - last;
        let copied = match self.streams[self.draft.order[at].0 as usize] {
            true => first..end.min(self.draft.bytes(planner, at)),
            false => 0..0,
        };
        (self.draft.layout.offsets[at] + below + last - first, copied)
    }

    pub(super) fn finish(&self, planner: &Planner<'_>) -> Plan {
        let mut resident = Vec::new();
        let mut streamed = Vec::new();
        let mut placed = vec![false; planner.sizes.len()];
        let mut there = self.streams.clone();
        for at in self.draft.alone(planner) {
            there[self.draft.order[at].0 as usize] = true;
        }
        for (at, &(weight, number)) in self.draft.order.iter().enumerate() {
            let (offset, copied) = self.spot(planner, at);
            if !there[weight as usize] {
                continue;
            }
            placed[weight as usize] = true;
            for range in [0..copied.start, copied.end..self.draft.bytes(planner, at)] {
                if !range.is_empty() {
                    resident.push(Resident {
                        weight,
                        range,
                        offset,
                    });
                }
            }
            if !copied.is_empty() {
                let end = copied.end.next_multiple_of(planner.granule);
                streamed.push(Streamed {
                    weight,
                    memory: iter::once(offset + copied.start..offset + end).collect(),
                    kept: copied.start,
                    range: copied,
                    offset,
                    probes: planner.tenancies[weight as usize][number].probes.clone(),
                });
            }
        }
        let bytes = |part: Option<(usize, u64)>| part.map_or(0, |(_, bytes)| bytes);
        let mut end = self.draft.layout.bytes + bytes(self.kept.start) + bytes(self.kept.end);
        for (weight, &size) in (0..).zip(&planner.sizes) {
            if size > 0 && !placed[weight as usize] {
                resident.push(Resident {
                    weight,
                    range: 0..planner.weights[weight as usize].bytes,
                    offset: end,
                });
                end += size;
            }
        }
        Plan {
            block: end,
            view: None,
            ring: self.draft.layout.bytes,
            resident,
            streamed,
            price: self.price,
        }
    }
}
