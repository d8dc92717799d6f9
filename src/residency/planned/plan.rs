//! What a plan says.

use super::cost::Price;
use crate::figures::{View, DECODED_PER_LINKED};
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

impl Streamed {
    /// The bytes that the link carries in the time of this copy: its own, or as many as take as long as decoding.
    pub(super) fn takes(&self) -> u64 {
        let decoded = (self.range.end - self.range.start) / DECODED_PER_LINKED;
        self.stored.max(decoded)
    }
}

/// Stored bytes of a packed weight that stay on the device: a copy of the weight decodes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptPacked {
    /// The weight.
    pub weight: WeightIndex,
    /// How many of its first stored bytes.
    pub bytes: u64,
    /// Where they are, in bytes from the view's first address.
    pub at: u64,
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
    /// What stays packed, of weights that stream.
    pub kept: Vec<KeptPacked>,
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

    /// Stored bytes that stay packed.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.iter().map(|one| one.bytes).sum()
    }

    /// Bytes of the longest tail.
    pub fn tail(&self) -> u64 {
        let tails = self.streamed.iter().map(|copy| &copy.range);
        tails.map(|tail| tail.end - tail.start).max().unwrap_or(0)
    }

    /// What passes cost in bytes, where a copy costs so many beyond its own: of all methods together, as often as their shares say.
    pub(super) fn cost(&self, methods: &[MethodTrace<'_>], per_copy: u64) -> u128 {
        let one = |(method, one): (usize, &MethodTrace<'_>)| {
            let takes = self.in_each_pass(method).map(Streamed::takes);
            let price = Price {
                bytes: takes.sum(),
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

    /// What a pass copies at most; of several methods the mean, by their shares.
    pub(super) fn mean_copied(&self, methods: &[MethodTrace<'_>]) -> u64 {
        let all = self.streamed.iter().map(|one| {
            let share = methods.get(one.method).map_or(0, |method| method.share);
            u128::from(share) * u128::from(one.stored)
        });
        let shares: u128 = methods.iter().map(|one| u128::from(one.share)).sum();
        u64::try_from(all.sum::<u128>() / shares.max(1)).unwrap_or(u64::MAX)
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
