//! The ring of a range: its memory comes and goes, and its slots are given to callers.

use super::alloc::{Alloc, AllocId};
use super::answer::Place;
use super::ring::SlotRing;
use super::state::RangesState;
use super::Range;
use crate::device::UserStreams;
use crate::error::{bytes_text, Error, Result};
use crate::memory::Holder;

impl<D: UserStreams> RangesState<D> {
    fn slot(&mut self, id: u64, of: AllocId, stream: D::Stream) -> Result<(AllocId, Place)> {
        let (range, device) = self.split(id)?;
        let bytes = range.get(of)?.bytes;
        let name = &range.name;
        let Some(ring) = &mut range.ring else {
            return Err(Error::InvalidInput(format!("range '{name}' has no ring")));
        };
        if bytes > ring.memory.bytes() {
            return Err(Error::InvalidInput(format!(
                "allocation {of} of range '{name}' has {}, and the range's ring {}",
                bytes_text(bytes),
                bytes_text(ring.memory.bytes())
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
                    bytes_text(ring.memory.bytes()),
                    leases.join(", ")
                ),
                bytes,
            });
        };
        let number = ring.lease(of, start, bytes, device, stream)?;
        range.counts.slots += 1;
        Ok((number, range.get(number)?.place()))
    }

    /// Memory of ranges goes for a new ring, after its kernels.
    fn make_ring(&mut self, id: u64, bytes: u64) -> Result<()> {
        let unit = self.device.pages.unit();
        let name = self.range(id)?.name.clone();
        let none = || Error::OutOfMemory {
            what: format!("the ring of range '{name}'"),
            bytes,
        };
        let size = bytes.checked_next_multiple_of(unit).ok_or_else(none)?;
        if !self.claim(size)? {
            return Err(none());
        }
        let made = Holder::new(&mut self.device, size).and_then(|mut memory| {
            let grown = memory.grow(&mut self.device, memory.units_for(size));
            self.pool.unclaim(size - memory.held());
            self.range(id)?.ring = Some(SlotRing::new(memory));
            grown
        });
        match (&made, &self.range(id)?.ring) {
            (Ok(()), _) => {}
            (Err(_), None) => self.pool.unclaim(size),
            (Err(_), Some(_)) => drop(self.end_ring(id, false)?),
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
        let before = ring.memory.held();
        let ended = ring.memory.end(device);
        pool.unclaim(before - ring.memory.held());
        ended?;
        range.ring = None;
        Ok(true)
    }
}

impl<D: UserStreams> Range<D> {
    /// A ring of `bytes` bytes, rounded up to whole units, in the place of the range's last one; 0 for none. Its memory is taken now,
    /// from pages of ranges if need be, and waits for their kernels. It counts under the device's cap, and not under the range's
    /// limit.
    ///
    /// Errors: a slot is leased; no room under the cap ([`Error::OutOfMemory`]). After the latter the range has no ring.
    pub fn set_ring(&self, bytes: u64) -> Result<()> {
        let mut state = self.ranges.lock();
        let range = state.range(self.id)?;
        let of = range.ring.iter().flat_map(SlotRing::leases).next();
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
