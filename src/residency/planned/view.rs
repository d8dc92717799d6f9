//! From a ring to a plan: where everything lies in memory, and the view that shows it.
//!
//! ```text
//! memory     whole pages | head a | head b | slot 0 | slot 1 | other weights that stay as a whole
//! addresses  whole pages | head a  slot 0 | head b  slot 1 | head b  slot 0 | other weights that stay as a whole
//! ```
//!
//! A *window* is a run of addresses through which one weight is seen with its tail in one slot. What stays as a whole has no
//! holes: weights of whole pages come first, where they lie alike in their pages under every budget, so that these can be kept
//! when it changes; the others come last, so that only the last page of the memory is used in part.

use super::plan::{Plan, Resident, Streamed};
use super::problem::Problem;
use super::ring::{InSlot, Ring};
use super::timeline::Timeline;
use crate::figures::{Piece, View};
use crate::schedule::WeightIndex;
use std::collections::HashMap;
use std::ops::Range;

/// The plan of a ring with room for so many copies ahead.
pub(super) fn plan(problem: &Problem<'_>, timeline: &Timeline, ring: Ring, ahead: usize) -> Plan {
    let mut builder = Builder::new(problem, &ring, ahead);
    builder.place(&ring);
    for copy in &ring.copies {
        let window = builder.window(&ring, copy);
        let stream = &ring.streams[copy.stream];
        let range = stream.head(problem.page)..stream.bytes;
        builder.plan.streamed.push(Streamed {
            weight: stream.weight,
            stored: problem.stored_of(stream.weight, &range),
            method: timeline.ranges[copy.range].method,
            range,
            slot: copy.slot as u32,
            window,
            probes: timeline.ranges[copy.range].probes.clone(),
            always: problem.is_streamed(stream.weight),
        });
    }
    builder.load_heads(&ring);
    builder.pack_rest();
    builder.finish()
}

struct Builder<'a> {
    problem: &'a Problem<'a>,
    /// What stays as a whole: weights of whole pages, and others.
    whole: (Vec<WeightIndex>, Vec<WeightIndex>),
    /// Memory of the head of each weight of the set.
    heads: Vec<Range<u64>>,
    /// The first window of each weight of the set, and all of them by slot.
    first: Vec<Option<u32>>,
    windows: HashMap<(usize, usize), u32>,
    plan: Plan,
}

impl<'a> Builder<'a> {
    fn new(problem: &'a Problem<'a>, ring: &Ring, ahead: usize) -> Self {
        let mut stays: Vec<bool> = problem.sizes.iter().map(|&size| size > 0).collect();
        for stream in ring.streams.iter().filter(|stream| stream.tail > 0) {
            stays[stream.weight as usize] = false;
        }
        let all = 0..stays.len() as WeightIndex;
        let all = all.filter(|&weight| stays[weight as usize]);
        let (pages, rest) =
            all.partition(|&weight| problem.size(weight).is_multiple_of(problem.page));
        Builder {
            problem,
            whole: (pages, rest),
            first: vec![None; ring.streams.len()],
            heads: Vec::with_capacity(ring.streams.len()),
            windows: HashMap::new(),
            plan: Plan {
                view: View::default(),
                windows: Vec::new(),
                slots: Vec::new(),
                resident: Vec::new(),
                kept: Vec::new(),
                streamed: Vec::with_capacity(ring.copies.len()),
                ahead,
                price: ring.price,
            },
        }
    }

    /// Weights of whole pages, and memory for heads and slots.
    fn place(&mut self, ring: &Ring) {
        let pages = std::mem::take(&mut self.whole.0);
        self.pack(&pages);
        let mut end = self.plan.view.memory;
        for stream in &ring.streams {
            let start = end;
            if stream.tail > 0 {
                end += stream.head(self.problem.page);
            }
            self.heads.push(start..end);
        }
        let slots = ring.slots.iter();
        let slots: Vec<Range<u64>> = slots.map(|slot| end + slot.start..end + slot.end).collect();
        self.plan.view.memory = slots.iter().fold(end, |end, slot| end.max(slot.end));
        self.plan.slots = slots;
    }

    /// The window of a live range; a new one if its weight has none with its tail in that slot.
    fn window(&mut self, ring: &Ring, copy: &InSlot) -> u32 {
        if let Some(&window) = self.windows.get(&(copy.stream, copy.slot)) {
            return window;
        }
        let (stream, page) = (&ring.streams[copy.stream], self.problem.page);
        let head = self.heads[copy.stream].clone();
        let slot = &self.plan.slots[copy.slot];
        let start = match head.is_empty() {
            true => slot.start,
            false => slot.start.next_multiple_of(page),
        };
        let end = start + stream.bytes - (head.end - head.start);
        debug_assert!(end <= slot.end, "{stream:?} from {start} in {slot:?}");
        let number = self.plan.windows.len() as u32;
        let at = self.show(head.clone());
        let tail_at = self.show(start..end);
        let window = if head.is_empty() { tail_at } else { at };
        self.plan.windows.push(window);
        self.first[copy.stream].get_or_insert(number);
        self.windows.insert((copy.stream, copy.slot), number);
        number
    }

    fn load_heads(&mut self, ring: &Ring) {
        for ((stream, head), first) in ring.streams.iter().zip(&self.heads).zip(&self.first) {
            if let Some(window) = first.filter(|_| !head.is_empty()) {
                self.plan.resident.push(Resident {
                    weight: stream.weight,
                    range: 0..head.end - head.start,
                    window,
                });
            }
        }
    }

    fn pack_rest(&mut self) {
        let rest = std::mem::take(&mut self.whole.1);
        self.pack(&rest);
    }

    /// Weights that stay as a whole, at the end of the memory so far.
    fn pack(&mut self, weights: &[WeightIndex]) {
        let start = self.plan.view.memory;
        let end = start + self.problem.size_of(weights);
        let mut at = self.show(start..end);
        for &weight in weights {
            self.plan.resident.push(Resident {
                weight,
                range: 0..self.problem.bytes(weight),
                window: self.plan.windows.len() as u32,
            });
            self.plan.windows.push(at);
            at += self.problem.size(weight);
        }
        self.plan.view.memory = end;
    }

    /// Shows the pages of some memory at the next addresses, and returns the address of its first byte.
    fn show(&mut self, memory: Range<u64>) -> u64 {
        let page = self.problem.page;
        let view = &mut self.plan.view;
        let (at, into) = (view.bytes, memory.start % page);
        if !memory.is_empty() {
            let bytes = (into + memory.end - memory.start).next_multiple_of(page);
            let memory = memory.start - into;
            view.pieces.push(Piece { at, memory, bytes });
            view.bytes += bytes;
        }
        at + into
    }

    fn finish(mut self) -> Plan {
        let view = &self.plan.view;
        let last = view.memory - view.memory % self.problem.page;
        if view.whole() == view.memory && last < view.memory {
            // A page that is used in part has to show somewhere.
            self.show(last..last + 1);
        }
        self.plan
    }
}
