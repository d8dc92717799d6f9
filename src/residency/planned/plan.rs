//! What a plan says.

use super::cost::Price;
use crate::figures::View;
use crate::schedule::{MethodTrace, ProbeId, WeightIndex};
use std::ops::Range;

/// Bytes that are loaded once and stay: a weight or a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    /// The weight.
    pub weight: WeightIndex,
    /// Which of its bytes.
    pub range: Range<u64>,
    /// The window of the weight through which they are loaded.
    pub window: u32,
}

/// The copy of a tail in each pass, and the reads that it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streamed {
    /// The weight.
    pub weight: WeightIndex,
    /// The method whose passes it is copied in.
    pub method: usize,
    /// Which of its bytes: the tail. Those before it stay.
    pub range: Range<u64>,
    /// Bytes that its copy brings over the link.
    pub stored: u64,
    /// The slot that the copy goes to.
    pub slot: u32,
    /// The window through which the weight is seen with its tail in this slot.
    pub window: u32,
    /// The reads, in the order of the pass.
    pub probes: Vec<ProbeId>,
    /// Each pass copies it, also where its bytes are still there.
    pub always: bool,
}

/// Who is where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// How the memory is seen. It is `view.memory` bytes.
    pub view: View,
    /// Where each window begins: the address of its weight's first byte, in the view.
    pub windows: Vec<u64>,
    /// The slots of the ring, as ranges of the memory.
    pub slots: Vec<Range<u64>>,
    /// What is loaded once.
    pub resident: Vec<Resident>,
    /// What each pass copies: one method after the other, in the order of the first reads.
    pub streamed: Vec<Streamed>,
    /// For how many copies ahead the ring has room.
    pub ahead: usize,
    /// What a pass copies at most; of several methods the mean, by their shares.
    pub price: Price,
}

impl Plan {
    /// Bytes of the ring.
    pub fn ring(&self) -> u64 {
        self.slots.iter().map(|slot| slot.end - slot.start).sum()
    }

    /// Bytes of the longest tail.
    pub fn tail(&self) -> u64 {
        let tails = self.streamed.iter().map(|copy| &copy.range);
        tails.map(|tail| tail.end - tail.start).max().unwrap_or(0)
    }

    /// What passes cost in bytes, where a copy costs so many beyond its own: of all methods together, as often as their shares say.
    pub(super) fn cost(&self, methods: &[MethodTrace<'_>], per_copy: u64) -> u128 {
        let one = |(method, one): (usize, &MethodTrace<'_>)| {
            let price = Price {
                bytes: self.copied(method),
                copies: self.copies(method),
            };
            u128::from(one.share) * u128::from(price.in_bytes(per_copy))
        };
        methods.iter().enumerate().map(one).sum()
    }

    /// What each pass of a method copies where no other method runs, once the first is over: a tail whose slot no other tail
    /// of it takes is still there from the pass before.
    pub fn copied(&self, method: usize) -> u64 {
        let copied = self.in_each_pass(method);
        copied.map(|one| one.stored).sum()
    }

    /// The number of these copies.
    pub fn copies(&self, method: usize) -> u64 {
        self.in_each_pass(method).count() as u64
    }

    fn in_each_pass(&self, method: usize) -> impl Iterator<Item = &Streamed> {
        let copies = move || self.streamed.iter().filter(move |one| one.method == method);
        let stays = move |one: &Streamed| {
            let with = |other: &&Streamed| other.slot == one.slot || other.weight == one.weight;
            !one.always && copies().filter(with).count() == 1
        };
        copies().filter(move |one| !stays(one))
    }

    /// The weights that stream, each once.
    pub fn streams(&self) -> Vec<WeightIndex> {
        let mut weights: Vec<_> = self.streamed.iter().map(|copy| copy.weight).collect();
        weights.sort_unstable();
        weights.dedup();
        weights
    }
}
