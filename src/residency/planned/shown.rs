//! A plan from a set with its tails: where everything lies in memory, and the view that shows it.

use super::choice::Planner;
use super::paged::Paged;
use super::plan::{Plan, Resident, Streamed};
use crate::figures::{Piece, View};
use crate::schedule::WeightIndex;
use std::ops::Range;

impl Paged {
    fn tail_of(&self, weight: WeightIndex) -> Option<u64> {
        let at = self.ring.weights.binary_search(&weight).ok()?;
        Some(self.tails[at])
    }

    pub(super) fn finish(&self, planner: &Planner<'_>) -> Plan {
        let merged = (self.ring.merged > 0).then(|| planner.merged(self.ring.merged));
        let planner = merged.as_ref().unwrap_or(planner);
        let mut view = Builder::default();
        let head_of = self.heads(planner, &mut view);
        let ring_at = view.memory;
        view.memory += self.ring.pages * self.page;
        let mut resident = self.packed(planner, &mut view);
        let mut streamed = Vec::new();
        for (&(weight, number), place) in self.ring.order.iter().zip(&self.ring.places) {
            let tail = self.tail_of(weight).unwrap_or(0) * self.page;
            if number > 0 && tail == 0 {
                continue;
            }
            let bytes = planner.weights[weight as usize].bytes;
            let at = self.ring.weights.binary_search(&weight).unwrap_or(0);
            let head = bytes.next_multiple_of(self.page) - tail;
            let offset = view.show(head_of[at], head);
            let memory = self.first(tail, place, ring_at);
            for piece in &memory {
                view.show(piece.start, piece.end - piece.start);
            }
            if number == 0 && head > 0 {
                let range = 0..head.min(bytes);
                resident.push(Resident {
                    weight,
                    range,
                    offset,
                });
            }
            if tail > 0 {
                streamed.push(Streamed {
                    weight,
                    range: head..bytes,
                    kept: head,
                    offset,
                    memory,
                    probes: planner.tenancies[weight as usize][number].probes.clone(),
                });
            }
        }
        let view = view.finish();
        Plan {
            block: view.memory,
            ring: self.ring.pages * self.page,
            view: Some(view),
            resident,
            streamed,
            price: self.price,
        }
    }

    /// The memory of the first `bytes` of a place in the ring, which begins at `ring_at`.
    fn first(&self, bytes: u64, place: &[Range<u64>], ring_at: u64) -> Vec<Range<u64>> {
        let mut left = bytes;
        let mut memory = Vec::with_capacity(place.len());
        for pages in place {
            let start = ring_at + pages.start * self.page;
            let some = left.min((pages.end - pages.start) * self.page);
            if some > 0 {
                memory.push(start..start + some);
            }
            left -= some;
        }
        memory
    }

    /// Memory for what stays as a whole, without gaps. It comes last: what its last page has beyond it is nobody's.
    fn packed(&self, planner: &Planner<'_>, view: &mut Builder) -> Vec<Resident> {
        let mut resident = Vec::new();
        let (at, mut end) = (view.bytes, 0);
        for (weight, &size) in (0..).zip(&planner.sizes) {
            if size > 0 && self.tail_of(weight).is_none() {
                let range = 0..planner.weights[weight as usize].bytes;
                resident.push(Resident {
                    weight,
                    range,
                    offset: at + end,
                });
                end += size;
            }
        }
        view.show(view.memory, end.next_multiple_of(self.page));
        view.memory += end;
        resident
    }

    /// Memory for the head of each weight of the set.
    fn heads(&self, planner: &Planner<'_>, view: &mut Builder) -> Vec<u64> {
        let mut starts = Vec::with_capacity(self.tails.len());
        for (&weight, &tail) in self.ring.weights.iter().zip(&self.tails) {
            starts.push(view.memory);
            view.memory += planner.weights[weight as usize]
                .bytes
                .next_multiple_of(self.page)
                - tail * self.page;
        }
        starts
    }
}

/// A view that grows.
#[derive(Default)]
pub(super) struct Builder {
    bytes: u64,
    /// Bytes of memory that there are.
    pub memory: u64,
    pieces: Vec<Piece>,
}

impl Builder {
    /// Shows so many bytes of the memory at the next address, which it returns.
    pub(super) fn show(&mut self, memory: u64, bytes: u64) -> u64 {
        let at = self.bytes;
        if bytes > 0 {
            self.pieces.push(Piece { at, memory, bytes });
            self.bytes += bytes;
        }
        at
    }

    pub(super) fn finish(self) -> View {
        View {
            bytes: self.bytes,
            memory: self.memory,
            pieces: self.pieces,
        }
    }
}
