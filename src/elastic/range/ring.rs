//! Slots for allocations whose fault was refused: a bounded ring that the range holds, and that its caller fills.
//!
//! ```text
//! ring:   | slot of w7, leased | slot of w8, ended | . . . . . . . . |
//!                                                  ^ next: slots are given in this order; at the end from the start again
//! ```
//!
//! Invariants:
//! - The bytes of a slot are nobody else's until its fault was unpinned and its leases have ended.
//! - What fills a slot comes after all who used these bytes before.
//! - The ring's memory counts as the range's, and never goes while the ring is there.

use super::alloc::{Alloc, AllocId, ALIGNMENT};
use crate::device::UserStreams;
use crate::error::Result;
use crate::memory::{Holder, Units};

/// Numbers from here up are those of slots.
pub(super) const SLOTS: AllocId = 1 << 31;

pub(super) struct SlotRing<D: UserStreams> {
    /// All of it has memory, once it is made.
    pub memory: Holder,
    /// Where the next slot begins, if it fits there.
    next: u64,
    last_number: AllocId,
    /// Those that are leased, and those that kernels may still use.
    pub slots: Vec<Slot<D>>,
}

pub(super) struct Slot<D: UserStreams> {
    number: AllocId,
    /// The allocation that it stands for.
    of: AllocId,
    pub memory: Alloc<D>,
}

impl<D: UserStreams> Slot<D> {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.memory.offset < end && start < self.memory.offset + self.memory.bytes
    }
}

impl<D: UserStreams> SlotRing<D> {
    /// Without slots.
    pub fn new(memory: Holder) -> Self {
        SlotRing {
            memory,
            next: 0,
            last_number: SLOTS,
            slots: Vec::new(),
        }
    }

    /// The allocations that have slots, and the slots.
    pub fn leases(&self) -> impl Iterator<Item = (AllocId, &Alloc<D>)> {
        let leased = self.slots.iter().filter(|slot| slot.memory.pins > 0);
        leased.map(|slot| (slot.of, &slot.memory))
    }

    pub fn leased_bytes(&self) -> u64 {
        self.leases().map(|(_, slot)| slot.bytes).sum()
    }

    pub fn leased(&mut self, number: AllocId) -> Option<&mut Alloc<D>> {
        let mut slots = self
            .slots
            .iter_mut()
            .map(|slot| (slot.number, &mut slot.memory));
        let found = slots.find(|(other, memory)| *other == number && memory.pins > 0);
        found.map(|(_, memory)| memory)
    }

    /// Where `bytes` bytes are free: from `next` on, then from the start.
    pub fn place(&self, bytes: u64) -> Option<u64> {
        let leased = || self.slots.iter().filter(|slot| slot.memory.pins > 0);
        let ends = leased().map(|slot| slot.memory.offset + slot.memory.bytes);
        let ends = ends.map(|end| end.next_multiple_of(ALIGNMENT));
        let mut starts: Vec<u64> = ends.chain([self.next, 0]).collect();
        starts.sort_by_key(|&start| (start < self.next, start));
        starts.into_iter().find(|&start| {
            let end = start.saturating_add(bytes);
            // rule: leased-slot-is-given-to-nobody
            end <= self.memory.bytes() && leased().all(|slot| !slot.overlaps(start, end))
        })
    }

    /// Forgets slots that nobody uses any more.
    pub fn forget(&mut self, device: &Units<D>) -> Result<()> {
        let mut at = 0;
        while let Some(slot) = self.slots.get_mut(at) {
            match slot.memory.pins == 0 && slot.memory.is_idle(device)? {
                true => drop(self.slots.swap_remove(at)),
                false => at += 1,
            }
        }
        Ok(())
    }

    /// A slot at `start`, which `stream` fills.
    pub fn lease(
        &mut self,
        of: AllocId,
        start: u64,
        bytes: u64,
        device: &mut Units<D>,
        stream: D::Stream,
    ) -> Result<AllocId> {
        let end = start + bytes;
        for slot in self
            .slots
            .iter_mut()
            .filter(|slot| slot.overlaps(start, end))
        {
            // rule: slot-is-filled-after-its-readers
            slot.memory.order_after_uses(device, stream)?;
        }
        let mut slot = Alloc::new(self.memory.start(), start, bytes);
        slot.begin_fill();
        self.next = end.next_multiple_of(ALIGNMENT);
        self.last_number = self.last_number.wrapping_add(1) | SLOTS;
        self.slots.push(Slot {
            number: self.last_number,
            of,
            memory: slot,
        });
        Ok(self.last_number)
    }
}
