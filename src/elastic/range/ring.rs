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

use super::alloc::Alloc;
use super::answer::Place;
use super::state::State;
use super::table::{AllocId, ALIGNMENT};
use super::Range;
use crate::device::{DevicePtr, Units};
use crate::error::{bytes_text, Error, Result};

/// Numbers from here up are those of slots.
pub(super) const SLOTS: AllocId = 1 << 31;

pub(super) struct Ring<D: Units> {
    start: DevicePtr,
    pub bytes: u64,
    unit: u64,
    /// Bytes from the start that have memory: whole units, all of them once it is made.
    pub held: u64,
    /// Where the next slot begins, if it fits there.
    next: u64,
    last_number: AllocId,
    /// Those that are leased, and those that kernels may still use.
    slots: Vec<Slot<D>>,
}

struct Slot<D: Units> {
    number: AllocId,
    /// The allocation that it stands for.
    of: AllocId,
    memory: Alloc<D>,
}

impl<D: Units> Slot<D> {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.memory.offset < end && start < self.memory.offset + self.memory.bytes
    }
}

impl<D: Units> Ring<D> {
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
    fn place(&self, bytes: u64) -> Option<u64> {
        let leased = || self.slots.iter().filter(|slot| slot.memory.pins > 0);
        let ends = leased().map(|slot| slot.memory.offset + slot.memory.bytes);
        let ends = ends.map(|end| end.next_multiple_of(ALIGNMENT));
        let mut starts: Vec<u64> = ends.chain([self.next, 0]).collect();
        starts.sort_by_key(|&start| (start < self.next, start));
        starts.into_iter().find(|&start| {
            let end = start.saturating_add(bytes);
            // rule: leased-slot-is-given-to-nobody
            end <= self.bytes && leased().all(|slot| !slot.overlaps(start, end))
        })
    }

    /// Forgets slots that nobody uses any more.
    fn forget(&mut self, device: &D) -> Result<()> {
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
    fn lease(
        &mut self,
        of: AllocId,
        start: u64,
        bytes: u64,
        device: &mut D,
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
        let mut slot = Alloc::new(self.start, start, bytes);
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

impl<D: Units> State<D> {
    fn slot(&mut self, id: u64, of: AllocId, stream: D::Stream) -> Result<(AllocId, Place)> {
        let (range, device) = self.split(id)?;
        let bytes = range.get(of)?.bytes;
        let name = &range.name;
        let Some(ring) = &mut range.ring else {
            return Err(Error::InvalidInput(format!("range '{name}' has no ring")));
        };
        if bytes > ring.bytes {
            return Err(Error::InvalidInput(format!(
                "allocation {of} of range '{name}' has {}, and the range's ring {}",
                bytes_text(bytes),
                bytes_text(ring.bytes)
            )));
        }
        ring.forget(device)?;
        let Some(start) = ring.place(bytes) else {
            let one = |(of, slot): (AllocId, &Alloc<D>)| {
                format!("allocation {of}: {}", bytes_text(slot.bytes))
            };
            let leases: Vec<String> = ring.leases().map(one).collect();
            return Err(Error::OutOfMemory {
                what: format!(
                    "a slot for allocation {of} in the ring of range '{name}', which has {}; leased are {}",
                    bytes_text(ring.bytes),
                    leases.join(", ")
                ),
                bytes,
            });
        };
        let number = ring.lease(of, start, bytes, device, stream)?;
        range.counts.slots += 1;
        Ok((number, range.get(number)?.place()))
    }

    /// Memory of lower priority goes for a new ring, after its kernels.
    fn make_ring(&mut self, id: u64, bytes: u64) -> Result<()> {
        let unit = self.device.unit();
        let name = self.range(id)?.name.clone();
        let none = || Error::OutOfMemory {
            what: format!("the ring of range '{name}'"),
            bytes,
        };
        let size = bytes.checked_next_multiple_of(unit).ok_or_else(none)?;
        let granted = match self.make_room(size)? {
            true => self.pool.claim(size),
            false => 0,
        };
        if granted < size {
            self.pool.unclaim(granted);
            return Err(none());
        }
        let start = self
            .device
            .reserve(size)
            .inspect_err(|_| self.pool.unclaim(size))?;
        let mut ring = Ring {
            start,
            bytes: size,
            unit,
            held: 0,
            next: 0,
            last_number: SLOTS,
            slots: Vec::new(),
        };
        let mut made = Ok(());
        while ring.held < size && made.is_ok() {
            made = self.device.back(start.offset(ring.held), unit);
            ring.held += if made.is_ok() { unit } else { 0 };
        }
        self.pool.unclaim(size - ring.held);
        self.range(id)?.ring = Some(ring);
        if made.is_err() {
            self.end_ring(id, false)?;
        }
        made
    }

    /// Gives the memory of a ring back, in which no slot is leased. Whether it could: without `wait`, kernels may still use it.
    pub fn end_ring(&mut self, id: u64, wait: bool) -> Result<bool> {
        let pool = self.pool.clone();
        let (range, device) = self.split(id)?;
        let Some(ring) = &mut range.ring else {
            return Ok(true);
        };
        for slot in &mut ring.slots {
            if wait {
                slot.memory.finish(device)?;
            }
            if !slot.memory.is_idle(device)? {
                return Ok(false);
            }
        }
        while ring.held > 0 {
            device.take(ring.start.offset(ring.held - ring.unit), false)?;
            ring.held -= ring.unit;
            pool.unclaim(ring.unit);
        }
        device.release(ring.start)?;
        range.ring = None;
        Ok(true)
    }
}

impl<D: Units> Range<D> {
    /// A ring of `bytes` bytes, rounded up to whole units, in the place of the range's last one; 0 for none. Its memory is taken now,
    /// from pages of ranges if need be, and waits for their kernels. It counts under the device's cap, and not under the range's
    /// limit.
    ///
    /// Errors: a slot is leased; no room under the cap ([`Error::OutOfMemory`]). After the latter the range has no ring.
    pub fn set_ring(&self, bytes: u64) -> Result<()> {
        let mut state = self.ranges.lock();
        let range = state.range(self.id)?;
        let of = range.ring.iter().flat_map(Ring::leases).next();
        if let Some((of, _)) = of {
            return Err(Error::InvalidInput(format!(
                "the ring of range '{}' cannot change: a slot of allocation {of} is leased",
                range.name
            )));
        }
        state.end_ring(self.id, true)?;
        match bytes {
            0 => Ok(()),
            bytes => state.make_ring(self.id, bytes),
        }
    }

    /// Memory of the ring for an allocation whose fault was refused. The caller fills it on `stream`, as after [`super::Answer::Fill`].
    /// The number is good for [`Range::unpin`], [`Range::lease`] and [`Range::used_on`]; the slot ends with the unpin and the last
    /// lease. Never waits.
    ///
    /// Errors: no ring; an allocation that is larger than the ring; too much of it is leased ([`Error::OutOfMemory`]).
    pub fn slot(&self, alloc: AllocId, stream: D::Stream) -> Result<(AllocId, Place)> {
        self.ranges.lock().slot(self.id, alloc, stream)
    }
}
