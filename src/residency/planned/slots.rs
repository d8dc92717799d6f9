//! What the policy knows of each copy of a plan.

use super::plan::Streamed;
use crate::schedule::WeightIndex;
use std::ops::Range;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// One copy of the plan, how much of it is there, and how far its reads are.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) weight: WeightIndex,
    /// Bytes of the weight that do not stay for good.
    pub(super) range: Range<u64>,
    /// The bytes of `range` below this one are taken over, not copied, where slot `before` has them.
    pub(super) kept: u64,
    /// The slot of the same weight before this one in the pass, around its end: this one if there is no other.
    pub(super) before: u32,
    /// The bytes of `range` below this one are those that the next slot of the weight takes over from this one. The memory
    /// of the others may be given away once this one is idle.
    pub(super) stays: u64,
    /// Where the weight's first byte lies.
    pub(super) offset: u64,
    /// Device memory of `range`.
    pub(super) pieces: Vec<Range<u64>>,
    /// Reads that the copy serves.
    pub(super) reads: u32,
    /// The bytes of `range` below this one are there, or on their way.
    pub(super) there: u64,
    /// Reads that it is still wanted for. 0: its bytes may be given to others once no lease is open.
    pub(super) unread: u32,
    pub(super) leases: u32,
}

impl Slot {
    /// The memory of its weight is that of this slot, or a part of it is.
    pub(super) fn has_some(&self) -> bool {
        self.there > self.range.start
    }

    /// It can be read.
    pub(super) fn is_whole(&self) -> bool {
        self.there == self.range.end
    }

    pub(super) fn idle(&self) -> bool {
        self.has_some() && self.unread == 0 && self.leases == 0
    }

    /// The memory of its bytes below `end`. Behind the last one it reaches to the end of a granule or a page.
    pub(super) fn memory(&self, end: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut left = match end == self.range.end {
            true => u64::MAX,
            false => end - self.range.start,
        };
        self.pieces.iter().map_while(move |piece| {
            let bytes = left.min(piece.end - piece.start);
            left -= bytes;
            (bytes > 0).then(|| piece.start..piece.start + bytes)
        })
    }

    /// What is left of it where `other` needs some of its memory: the bytes below the result.
    pub(super) fn left_by(&self, other: &Slot) -> u64 {
        let needed = |own: &Range<u64>| {
            let mut pieces = other.pieces.iter();
            pieces.any(|piece| piece.start < own.end && own.start < piece.end)
        };
        match self.memory(self.stays).any(|own| needed(&own)) {
            true => self.range.start,
            false => self.stays,
        }
    }

    /// What does not add up.
    pub(super) fn check(&self) -> Result<(), String> {
        let somewhere = [self.range.start, self.stays, self.range.end].contains(&self.there);
        let readable = self.is_whole() || self.unread + self.leases == 0;
        match somewhere && readable {
            true => Ok(()),
            false => Err(format!("a slot is wanted but absent: {self:?}")),
        }
    }
}

/// The copies of a plan for so many constants; nothing is there.
pub(super) fn slots_of(streamed: Vec<Streamed>, constants: usize) -> Vec<Slot> {
    let slot = |one: Streamed| Slot {
        weight: one.weight,
        kept: one.kept,
        before: NONE,
        stays: one.range.start,
        offset: one.offset,
        pieces: one.memory,
        reads: one.probes.len() as u32,
        there: one.range.start,
        range: one.range,
        unread: 0,
        leases: 0,
    };
    let mut slots: Vec<Slot> = streamed.into_iter().map(slot).collect();
    let mut last = vec![NONE; constants];
    // Twice around: the first one of a weight comes behind its last one.
    for at in (0..slots.len()).chain(0..slots.len()) {
        let before = std::mem::replace(&mut last[slots[at].weight as usize], at as u32);
        if before != NONE {
            slots[at].before = before;
            slots[before as usize].stays = slots[at].kept;
        }
    }
    debug_assert!(
        slots
            .iter()
            .all(|slot| same_memory(slot, &slots[slot.before as usize])),
        "bytes are taken over from other memory: {slots:?}"
    );
    slots
}

/// Whether what `slot` takes over from `before` lies in the memory of `slot`.
fn same_memory(slot: &Slot, before: &Slot) -> bool {
    let joined = |slot: &Slot, kept: u64| {
        slot.memory(kept)
            .fold(Vec::<Range<u64>>::new(), |mut all, piece| {
                match all.last_mut().filter(|last| last.end == piece.start) {
                    Some(last) => last.end = piece.end,
                    None => all.push(piece),
                }
                all
            })
    };
    joined(slot, slot.kept) == joined(before, slot.kept)
}
