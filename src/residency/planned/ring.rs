//! How long tails are, and how they share the ring.
//!
//! ```text
//! a weight        [ head, pages that stay | tail ]
//! device memory   heads | slot 0 | slot 1 | ... | weights that stay as a whole
//!                       |----- the ring --|
//! ```
//!
//! All tails are equally long, but for weights that are shorter, and as short as the room allows: then so is the ring, and
//! a pass copies `W - budget + ring`. Tails grow and shrink by pages. A weight without a head lies in its slot as it is, at
//! any multiple of the granule; a tail after a head begins with a page.
//!
//! With more room no tail is longer than with less: that is why more budget never costs more.

use super::cost::Price;
use super::problem::Problem;
use super::slots::Set;
use super::timeline::Circle;
use crate::schedule::WeightIndex;
use std::cmp::Reverse;
use std::ops::Range;

/// A way in which tails share the ring. A new one has to make a known model cheaper by 1 % (`tests/policies/planned_models.rs`).
pub(super) trait RingShape {
    /// The ring of this set, as cheap as the room allows. `None` if it does not fit.
    fn ring(&self, problem: &Problem<'_>, set: &Set<'_>) -> Option<Ring>;
}

/// All shapes.
pub(super) const SHAPES: [&dyn RingShape; 2] = [
    &EqualTails {
        first: First::Largest,
    },
    &EqualTails {
        first: First::Middle,
    },
];

/// What streams, and through which slots.
#[derive(Debug, Clone)]
pub(super) struct Ring {
    /// The weights of the set, by index.
    pub streams: Vec<Streaming>,
    /// Those of their live ranges that are copied, by time.
    pub copies: Vec<InSlot>,
    /// Bytes of each slot, from the ring's start.
    pub slots: Vec<Range<u64>>,
    pub price: Price,
}

/// A live range in its slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct InSlot {
    /// Its number in the timeline.
    pub range: usize,
    /// Its weight, by its place in `streams`.
    pub stream: usize,
    pub slot: usize,
}

/// A weight of the set.
#[derive(Debug, Clone)]
pub(super) struct Streaming {
    pub weight: WeightIndex,
    pub bytes: u64,
    /// Its bytes in granules, and in pages.
    occupied: u64,
    pages: u64,
    /// Copies in a pass; of several methods by their shares.
    times: u64,
    /// The first slot that one of its live ranges is in.
    home: usize,
    /// Pages of its tail; 0 if it stays as a whole.
    pub tail: u64,
    /// Pages that its tail has at least: all of what never stays.
    least: u64,
}

impl Streaming {
    fn stays(&self, tail: u64, page: u64) -> u64 {
        match tail {
            0 => self.occupied,
            _ => (self.pages - tail) * page,
        }
    }

    /// Bytes of its head, or of all of it.
    pub(super) fn head(&self, page: u64) -> u64 {
        self.stays(self.tail, page).min(self.bytes)
    }
}

/// Which live range gets its slot first.
enum First {
    /// The largest, so that the large ones share a slot.
    Largest,
    /// The one in the middle of the pass. Of an odd number in turn the last one shares no slot, and stays: better there than
    /// at an end of the pass, where it would add to the host's pause.
    Middle,
}

/// Tails of one length, in slots of this length.
struct EqualTails {
    first: First,
}

impl RingShape for EqualTails {
    fn ring(&self, problem: &Problem<'_>, set: &Set<'_>) -> Option<Ring> {
        let mut order: Vec<usize> = (0..set.ranges.len()).collect();
        match self.first {
            First::Largest => order.sort_by_key(|&at| Reverse(problem.size(set.weight(at)))),
            First::Middle => order.rotate_left(set.ranges.len() / 2),
        }
        Fit::new(problem, set, set.slots(&order)).shortest()
    }
}

/// What the largest weight of a slot needs.
#[derive(Debug, Clone, Copy, Default)]
struct SlotSize {
    pages: u64,
    occupied: u64,
    /// The longest tail that cannot be shorter.
    least: u64,
}

impl SlotSize {
    /// Bytes that it takes if no tail is longer than so many pages.
    fn length(&self, tail: u64, page: u64) -> u64 {
        match (tail.max(self.least), self.has_heads(tail)) {
            (0, _) => 0,
            (tail, true) => tail * page,
            (_, false) => self.occupied,
        }
    }

    /// Whether weights in it then have heads.
    fn has_heads(&self, tail: u64) -> bool {
        self.pages > tail.max(self.least)
    }
}

/// Looks for the shortest tails of a set.
struct Fit<'a> {
    problem: &'a Problem<'a>,
    streams: Vec<Streaming>,
    copies: Vec<InSlot>,
    circles: &'a [Circle],
    /// The method of each copy.
    methods: Vec<usize>,
    slots: Vec<SlotSize>,
    /// Bytes of what is not of the set.
    packed: u64,
    /// Pages of the weights of the set that may have heads, ascending, and the sums of these from each on.
    pages: Vec<u64>,
    sums: Vec<u64>,
}

impl<'a> Fit<'a> {
    /// Without the weights that share no slot: they stay.
    fn new(
        problem: &'a Problem<'a>,
        set: &'a Set<'_>,
        (slot_of, count): (Vec<usize>, usize),
    ) -> Self {
        let shares = shares_slot(set, &slot_of, count);
        let streams = |at: &usize| shares[*at] || problem.is_streamed(set.weight(*at));
        let kept: Vec<usize> = (0..slot_of.len()).filter(streams).collect();
        let mut streams: Vec<Streaming> = Vec::with_capacity(set.weights.len());
        let mut stream_of = vec![usize::MAX; problem.sizes.len()];
        let mut copies = Vec::with_capacity(kept.len());
        let mut methods = Vec::with_capacity(kept.len());
        let mut slots = vec![SlotSize::default(); count];
        for at in kept {
            let (weight, slot) = (set.weight(at), slot_of[at]);
            let stream = &mut stream_of[weight as usize];
            if *stream == usize::MAX {
                *stream = streams.len();
                let bytes = problem.bytes(weight);
                let pages = bytes.div_ceil(problem.page);
                let least = pages * u64::from(problem.is_whole(weight));
                streams.push(Streaming {
                    weight,
                    bytes,
                    occupied: problem.size(weight),
                    pages,
                    times: set.timeline.times[weight as usize],
                    home: slot,
                    tail: 0,
                    least,
                });
            }
            methods.push(set.timeline.ranges[set.ranges[at]].method);
            copies.push(InSlot {
                range: set.ranges[at],
                stream: *stream,
                slot,
            });
            let stream = &mut streams[*stream];
            stream.home = stream.home.min(slot);
            slots[slot].pages = slots[slot].pages.max(stream.pages);
            slots[slot].occupied = slots[slot].occupied.max(stream.occupied);
            slots[slot].least = slots[slot].least.max(stream.least);
        }
        let streaming: u64 = streams.iter().map(|one| one.occupied).sum();
        let may_stay = streams.iter().filter(|one| one.least == 0);
        let mut pages: Vec<u64> = may_stay.map(|one| one.pages).collect();
        pages.sort_unstable();
        let mut sums = vec![0; pages.len() + 1];
        for at in (0..pages.len()).rev() {
            sums[at] = sums[at + 1] + pages[at];
        }
        Fit {
            packed: problem.total - streaming,
            problem,
            streams,
            copies,
            circles: &set.timeline.circles,
            methods,
            slots,
            pages,
            sums,
        }
    }

    fn shortest(mut self) -> Option<Ring> {
        let short = match self.copies.is_empty() {
            true => (self.packed <= self.problem.room).then_some((0, 0))?,
            false => {
                let longest = self.shortest_tails()?;
                (longest, self.shorten(longest))
            }
        };
        Some(self.finish(short))
    }

    /// What a pass copies; of several methods the mean, by their shares.
    fn price(&self) -> Price {
        let (mut bytes, mut copies) = (0u128, 0u128);
        for (copy, &method) in self.copies.iter().zip(&self.methods) {
            let stream = &self.streams[copy.stream];
            if stream.tail > 0 {
                let share = u128::from(self.circles[method].share);
                let tail = stream.head(self.problem.page)..stream.bytes;
                bytes += share * u128::from(self.problem.stored_of(stream.weight, &tail));
                copies += share;
            }
        }
        let shares: u128 = self.circles.iter().map(|one| u128::from(one.share)).sum();
        let mean = |sum: u128| u64::try_from(sum / shares.max(1)).unwrap_or(u64::MAX);
        Price {
            bytes: mean(bytes),
            copies: mean(copies),
        }
    }

    /// Bytes in all if no tail is longer than so many pages.
    fn memory(&self, tail: u64) -> u64 {
        let page = self.problem.page;
        let long = self.pages.partition_point(|&pages| pages <= tail);
        let heads = self.sums[long] - tail * (self.pages.len() - long) as u64;
        let slots = self.slots.iter().map(|slot| slot.length(tail, page));
        self.packed + heads * page + slots.sum::<u64>()
    }

    /// Pages of the shortest tails that fit.
    fn shortest_tails(&self) -> Option<u64> {
        let fits = |tail: u64| self.memory(tail) <= self.problem.room;
        let mut from = 0;
        let mut sizes: Vec<u64> = self.streams.iter().map(|one| one.pages).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for to in sizes {
            // Between two sizes memory grows or falls by the same with each page.
            if from + 1 < to {
                if fits(from + 1) {
                    return Some(from + 1);
                }
                if fits(to - 1) {
                    let over = self.memory(from + 1) - self.problem.room;
                    let step = self.memory(from + 1) - self.memory(from + 2);
                    return Some(from + 1 + over.div_ceil(step));
                }
            }
            if fits(to) {
                return Some(to);
            }
            from = to;
        }
        None
    }

    /// Tails of at most `longest` pages; and, one after the other, a page less as long as that fits: slot by slot, those
    /// that are copied most often first, spread over the pass. Returns how many slots are a page shorter, too.
    fn shorten(&mut self, longest: u64) -> usize {
        /// Multiples of the golden ratio's fraction are spread evenly.
        const STEP: u32 = 2_654_435_769;
        let (page, room) = (self.problem.page, self.problem.room);
        let mut order: Vec<usize> = (0..self.streams.len())
            .filter(|&at| self.streams[at].pages >= longest && self.streams[at].least == 0)
            .collect();
        order.sort_by_key(|&at| {
            let Streaming { home, times, .. } = self.streams[at];
            (home, Reverse(times), (at as u32).wrapping_mul(STEP))
        });
        let mut memory = self.memory(longest);
        let (mut shorter, mut count, mut short) = (0, 0, 0);
        let mut next = order.iter().peekable();
        for (number, slot) in self.slots.iter().enumerate() {
            while let Some(&at) = next.next_if(|&&at| self.streams[at].home == number) {
                let one = &self.streams[at];
                memory += one.stays(longest - 1, page) - one.stays(longest, page);
                count += 1;
                if memory <= room {
                    (shorter, short) = (count, number);
                }
            }
            memory -= slot.length(longest, page) - slot.length(longest - 1, page);
            if memory <= room {
                (shorter, short) = (count, number + 1);
            }
        }
        for one in &mut self.streams {
            one.tail = one.pages.min(longest.max(one.least));
        }
        for &at in &order[..shorter] {
            self.streams[at].tail -= 1;
        }
        short
    }

    /// With tails of at most `longest` pages, and a page less in the first `short` slots.
    fn finish(self, (longest, short): (u64, usize)) -> Ring {
        let page = self.problem.page;
        let most = |slot: usize| longest - u64::from(slot < short);
        let mut slots = vec![0..0; self.slots.len()];
        let mut end = 0;
        // What comes after heads begins with a page.
        for with_heads in [true, false] {
            for (at, slot) in self.slots.iter().enumerate() {
                if slot.has_heads(most(at)) == with_heads {
                    let start = end;
                    end += slot.length(most(at), page);
                    slots[at] = start..end;
                }
            }
        }
        let price = self.price();
        let mut copies = self.copies;
        copies.retain(|copy| self.streams[copy.stream].tail > 0);
        Ring {
            streams: self.streams,
            copies,
            slots,
            price,
        }
    }
}

/// Of each live range whether its weight streams: not if it has a slot for itself in all methods, one copy in each.
fn shares_slot(set: &Set<'_>, slot_of: &[usize], count: usize) -> Vec<bool> {
    let weight = |at: usize| set.weight(at) as usize;
    let mut first_in = vec![usize::MAX; count];
    let mut shared = vec![false; count];
    for (at, &slot) in slot_of.iter().enumerate() {
        match first_in[slot] {
            usize::MAX => first_in[slot] = weight(at),
            first => shared[slot] |= first != weight(at),
        }
    }
    let mut slots = vec![usize::MAX; set.timeline.times.len()];
    let mut moves = vec![false; slots.len()];
    let mut last_in = vec![usize::MAX; slots.len()];
    for (at, &slot) in slot_of.iter().enumerate() {
        let method = set.timeline.ranges[set.ranges[at]].method;
        let before = std::mem::replace(&mut slots[weight(at)], slot);
        let again = std::mem::replace(&mut last_in[weight(at)], method) == method;
        moves[weight(at)] |= again || (before != usize::MAX && before != slot) || shared[slot];
    }
    (0..slot_of.len()).map(|at| moves[weight(at)]).collect()
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
