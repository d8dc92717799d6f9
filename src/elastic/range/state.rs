//! All ranges of a device: faults, and the memory that they take from each other.
//!
//! ```text
//! order:   newest or prioritized ........................ oldest or deprioritized
//!          | a  a  a  a |        | b  b  b  - |           | c  -  -  - |
//!                ^ a fault here takes  <- 3rd, from the top    <- 2nd    <- 1st c's last unit, then what is left of c
//!                  and at last the units of a that lie above it
//! ```

use super::alloc::Use;
use super::answer::{Answer, Cause, Refusal};
use super::lease::Leases;
use super::table::{AllocId, RangeTable, Victim};
use crate::device::{DevicePtr, UserStreams};
use crate::elastic::pool::DevicePool;
use crate::elastic::rank::Rank;
use crate::error::{Error, Result};
use crate::memory::{Holder, Units};
use std::collections::BTreeMap;
use std::ops::Range as Span;
use std::sync::Arc;

/// Memory that is held, and for whom.
pub(super) struct HeldMemory {
    pub name: String,
    pub memory: Holder,
}

pub(super) struct RangesState<D: UserStreams> {
    pub device: Units<D>,
    pub pool: Arc<DevicePool>,
    pub ranges: BTreeMap<u64, RangeTable<D>>,
    /// The highest rank first; among equal ones the newest.
    pub order: Vec<u64>,
    /// By first address.
    pub holders: BTreeMap<DevicePtr, HeldMemory>,
    pub leases: Leases,
}

impl<D: UserStreams> RangesState<D> {
    pub fn range(&mut self, id: u64) -> Result<&mut RangeTable<D>> {
        let found = self.ranges.get_mut(&id);
        found.ok_or_else(|| Error::Internal(format!("range {id} is gone")))
    }

    /// Gives a range its place: the first of this rank.
    pub fn place(&mut self, id: u64, rank: Rank) -> Result<()> {
        self.range(id)?.rank = rank;
        self.order.retain(|&other| other != id);
        let ranges = &self.ranges;
        let above = |other: &u64| ranges.get(other).is_some_and(|one| one.rank > rank);
        let at = self.order.partition_point(above);
        self.order.insert(at, id);
        Ok(())
    }

    /// The range, and the device, which is used at the same time.
    pub fn split(&mut self, id: u64) -> Result<(&mut RangeTable<D>, &mut Units<D>)> {
        let found = self.ranges.get_mut(&id);
        let range = found.ok_or_else(|| Error::Internal(format!("range {id} is gone")))?;
        Ok((range, &mut self.device))
    }

    /// Bytes that ranges and holders hold.
    pub fn held(&self) -> u64 {
        let holders = self.holders.values().map(|one| one.memory.held());
        let ranges = self.ranges.values().map(RangeTable::held);
        ranges.chain(holders).sum()
    }

    /// Bytes rounded up to whole pages of the device.
    pub fn whole_pages(&self, name: &str, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Err(Error::InvalidInput(format!("{name}: 0 bytes")));
        }
        let size = bytes.checked_next_multiple_of(self.device.pages.page());
        size.ok_or_else(|| Error::OutOfMemory {
            what: format!("the addresses of {name}"),
            bytes,
        })
    }

    /// The contents of an allocation, or memory for them. On a hit by the stream that wrote them nothing is asked of the device.
    pub fn fault(&mut self, id: u64, at: AllocId, stream: D::Stream) -> Result<Answer> {
        let (range, device) = self.split(id)?;
        let alloc = range.get(at)?;
        if alloc.is_valid() {
            alloc.order_after_fill(device, stream)?;
            alloc.pins += 1;
            let place = alloc.place();
            range.counts.hits += 1;
            return Ok(Answer::Hit(place));
        }
        self.miss(id, at, stream)
    }

    fn miss(&mut self, id: u64, at: AllocId, stream: D::Stream) -> Result<Answer> {
        self.sweep()?;
        if let Some(refusal) = self.memory_for(id, at)? {
            self.range(id)?.refused(refusal);
            return Ok(Answer::Refused(refusal));
        }
        let (range, device) = self.split(id)?;
        let alloc = range.get(at)?;
        alloc.order_after_uses(device, stream)?;
        alloc.begin_fill();
        let place = alloc.place();
        range.counts.fills += 1;
        Ok(Answer::Fill(place))
    }

    /// Puts memory behind an allocation whose contents are lost, or says why not.
    fn memory_for(&mut self, id: u64, at: AllocId) -> Result<Option<Refusal>> {
        let range = self.range(id)?;
        let alloc = range.get(at)?;
        if alloc.filling {
            return Ok(Some(Refusal::BeingFilled));
        }
        if alloc.pins > 0 {
            // The old contents are still in use, and a writer could not be ordered after that.
            return Ok(Some(Refusal::InUse));
        }
        let units = range.units_of(&range.allocs[at as usize]);
        if range.missing(units.clone()) == 0 {
            return Ok(None);
        }
        self.relieve()?;
        let range = self.range(id)?;
        if units.end > range.watermark {
            return Ok(Some(Refusal::AboveWatermark));
        }
        self.back(id, units)
    }

    fn back(&mut self, id: u64, units: Span<usize>) -> Result<Option<Refusal>> {
        let range = self.range(id)?;
        let missing = range.missing(units.clone());
        let over = (range.resident.saturating_add(missing)).saturating_sub(range.limit);
        let granted = self.pool.claim(missing);
        let need = missing - granted;
        let chosen = match self.victims(id, units.end, over, need) {
            Ok(chosen) => chosen,
            Err(error) => {
                self.pool.unclaim(granted);
                return Err(error);
            }
        };
        let (victims, of_stores) = match chosen {
            Ok(chosen) => chosen,
            Err(refusal) => {
                self.pool.unclaim(granted);
                return Ok(Some(refusal));
            }
        };
        let mut available = granted;
        if of_stores > 0 {
            let below = self.range(id)?.rank;
            let pressed = self.pool.press(of_stores, Some(below));
            available += pressed;
            if pressed < of_stores {
                self.pool.unclaim(available);
                return Ok(Some(Refusal::InUse));
            }
        }
        let moved = self.move_units(id, units, victims, &mut available);
        self.pool.unclaim(available);
        self.device.trim();
        match moved {
            Ok(()) => Ok(None),
            Err(error @ Error::OutOfMemory { .. }) => {
                log::warn!("a fault is refused: {error}");
                Ok(Some(Refusal::DeviceFull))
            }
            Err(error) => Err(error),
        }
    }

    /// The cap may have become smaller than what is held.
    pub fn relieve(&mut self) -> Result<()> {
        let device = &self.device;
        let over = self.pool.excess(|| device.pages.free_bytes())?;
        if over == 0 {
            return Ok(());
        }
        let before = self.held();
        let shrunk = self.shrink(before.saturating_sub(over), None, false);
        self.pool.unclaim(before - self.held());
        shrunk
    }

    /// Takes the victims' memory, from the first on, and puts memory behind the units. `available` counts what is claimed and
    /// behind no unit.
    fn move_units(
        &mut self,
        id: u64,
        units: Span<usize>,
        victims: Vec<Victim>,
        available: &mut u64,
    ) -> Result<()> {
        let mut victims = victims.into_iter();
        let name = self.range(id)?.name.clone();
        for unit in units {
            let range = self.range(id)?;
            if range.backed[unit] {
                continue;
            }
            let (at, size) = (range.address_of(unit), range.size_of(unit));
            while *available < size {
                let victim = victims.next().ok_or_else(|| {
                    Error::Internal("fewer bytes were found for a fault than it needs".into())
                })?;
                let cause = match victim.0 == id {
                    true => Cause::LowerAddress,
                    false => Cause::HigherRange,
                };
                *available += self.evict(victim, true, cause, &name)?;
            }
            self.device.back(at, size)?;
            *available -= size;
            self.range(id)?.gained(unit);
        }
        // Those that the limit asks for.
        for victim in victims {
            *available += self.evict(victim, false, Cause::Limit, &name)?;
        }
        Ok(())
    }

    /// The leases of these faults end: nothing that is issued to `stream` later uses them.
    pub fn unpin(&mut self, id: u64, allocs: &[AllocId], stream: D::Stream) -> Result<()> {
        let (range, device) = self.split(id)?;
        let name = range.name.clone();
        for (at, one) in allocs.iter().enumerate() {
            let alloc = range.get(*one)?;
            let before = allocs[..at].iter().filter(|other| *other == one).count();
            if (alloc.pins - alloc.leases) as usize <= before {
                return Err(Error::InvalidInput(format!(
                    "range '{name}': allocation {one} is unpinned more often than it was faulted"
                )));
            }
        }
        let event = Arc::new(device.pages.record(stream)?);
        for &one in allocs {
            let alloc = range.get(one)?;
            // rule: unpin-records-an-event
            alloc.used(stream, &event);
            alloc.pins -= 1;
            if std::mem::take(&mut alloc.filling) && alloc.is_valid() {
                let event = event.clone();
                alloc.filled = Some(Use { stream, event });
            }
        }
        Ok(())
    }

    /// Gives all memory of a range and its addresses back. What keeps it is an error; kernels are waited for.
    pub fn end(&mut self, id: u64, wait: bool) -> Result<()> {
        let range = self.range(id)?;
        let open = range.pinned().next();
        if let Some((what, pins)) = open {
            return Err(Error::InvalidInput(format!(
                "range '{}' cannot end: {what} has leases or faults that were not unpinned: {pins}",
                range.name
            )));
        }
        if !self.end_ring(id, wait)? {
            return Ok(());
        }
        let before = self.range(id)?.resident;
        let freed = self.free(id, u64::MAX, wait, Cause::Asked);
        let left = self.range(id)?.resident;
        self.pool.unclaim(before - left);
        freed?;
        if left > 0 {
            return Ok(());
        }
        let start = self.range(id)?.start;
        self.device.release(start)?;
        self.ranges.remove(&id);
        self.order.retain(|&other| other != id);
        Ok(())
    }

    /// Ends ranges whose handles are gone, once their leases are.
    fn sweep(&mut self) -> Result<()> {
        let abandoned = self
            .ranges
            .iter()
            .find(|(_, range)| range.abandoned && range.pinned().next().is_none());
        match abandoned.map(|(&id, _)| id) {
            Some(id) => self.end(id, false),
            None => Ok(()),
        }
    }
}
