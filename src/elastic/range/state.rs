//! All ranges of a device: faults, and the memory that they take from each other.
//!
//! ```text
//! order:   newest or prioritized ........................ oldest or deprioritized
//!          | a  a  a  a |        | b  b  b  - |           | c  -  -  - |
//!                ^ a fault here takes  <- 3rd, from the top    <- 2nd    <- 1st c's last unit, then what is left of c
//!                  and at last the units of a that lie above it
//! ```

use super::alloc::{next_generation, Use};
use super::answer::{Answer, Cause, Place, Refusal};
use super::lease::Leases;
use super::table::{AllocId, Table};
use crate::device::Units;
use crate::elastic::pool::DevicePool;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range as Span;
use std::sync::Arc;

/// A unit that is to be taken.
type Victim = (u64, usize);

pub(super) struct State<D: Units> {
    pub device: D,
    pub pool: Arc<DevicePool>,
    pub ranges: BTreeMap<u64, Table<D>>,
    /// Highest priority first.
    pub order: Vec<u64>,
    pub leases: Leases,
}

/// Where a unit stands.
enum Standing {
    Idle,
    Pinned,
    /// Kernels still use it.
    Pending,
}

/// What was found on the way down a range.
#[derive(Default)]
struct Found {
    bytes: u64,
    pinned: bool,
    pending: bool,
}

impl<D: Units> State<D> {
    pub fn range(&mut self, id: u64) -> Result<&mut Table<D>> {
        let found = self.ranges.get_mut(&id);
        found.ok_or_else(|| Error::Internal(format!("range {id} is gone")))
    }

    /// The range, and the device, which is used at the same time.
    pub fn split(&mut self, id: u64) -> Result<(&mut Table<D>, &mut D)> {
        let found = self.ranges.get_mut(&id);
        let range = found.ok_or_else(|| Error::Internal(format!("range {id} is gone")))?;
        Ok((range, &mut self.device))
    }

    /// Bytes that all ranges hold.
    pub fn held(&self) -> u64 {
        self.ranges.values().map(|range| range.resident).sum()
    }

    /// The contents of an allocation, or memory for them. On a hit by the stream that wrote them nothing is asked of the device.
    pub fn fault(&mut self, id: u64, at: AllocId, stream: D::Stream) -> Result<Answer> {
        let (range, device) = self.split(id)?;
        let start = range.start;
        let alloc = range.get(at)?;
        if alloc.is_valid() {
            alloc.order_after_fill(device, stream)?;
            alloc.pins += 1;
            let place = Place {
                at: start.offset(alloc.offset),
                bytes: alloc.bytes,
                generation: alloc.generation,
            };
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
        let start = range.start;
        let alloc = range.get(at)?;
        alloc.order_after_uses(device, stream)?;
        alloc.generation = next_generation();
        alloc.filling = true;
        alloc.pins = 1;
        alloc.filled = None;
        let place = Place {
            at: start.offset(alloc.offset),
            bytes: alloc.bytes,
            generation: alloc.generation,
        };
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
        // rule: fault-above-the-watermark-is-refused
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
        let victims = match chosen {
            Ok(victims) => victims,
            Err(refusal) => {
                self.pool.unclaim(granted);
                return Ok(Some(refusal));
            }
        };
        let mut available = granted;
        let moved = self.move_units(id, units, victims, &mut available);
        self.pool.unclaim(available);
        let trimmed = self.device.trim();
        match moved {
            Ok(()) => trimmed.map(|()| None),
            Err(error @ Error::OutOfMemory { .. }) => {
                log::warn!("a fault is refused: {error}");
                Ok(Some(Refusal::DeviceFull))
            }
            Err(error) => Err(error),
        }
    }

    /// The cap may have become smaller than what is held.
    fn relieve(&mut self) -> Result<()> {
        let device = &self.device;
        let over = self.pool.excess(|| device.free_bytes())?;
        if over == 0 {
            return Ok(());
        }
        let before = self.held();
        let shrunk = self.shrink(before.saturating_sub(over), false);
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

    /// Takes a unit that is idle. Its bytes.
    fn evict(&mut self, victim: Victim, keep: bool, cause: Cause, by: &str) -> Result<u64> {
        let (range, device) = self.split(victim.0)?;
        device.take(range.address_of(victim.1), keep)?;
        range.lost(victim.1, cause, by);
        Ok(range.size_of(victim.1))
    }

    /// Units to take for `need` bytes, `over` of them from the range itself: lower ranges first, and of each the high addresses.
    fn victims(
        &mut self,
        id: u64,
        above: usize,
        over: u64,
        need: u64,
    ) -> Result<std::result::Result<Vec<Victim>, Refusal>> {
        let mut victims = Vec::new();
        let mut found = Found::default();
        let mut top = usize::MAX;
        if over > 0 {
            self.walk(id, above..top, over, &mut found, &mut victims)?;
            if found.bytes < over {
                return Ok(Err(match found.pending || found.pinned {
                    true => Refusal::InUse,
                    false => Refusal::OverLimit,
                }));
            }
            top = victims.last().map_or(top, |last| last.1);
        }
        // rule: lower-ranges-give-first
        let lower = self.order.iter().rev().take_while(|&&other| other != id);
        for other in lower.copied().collect::<Vec<_>>() {
            self.walk(other, 0..usize::MAX, need, &mut found, &mut victims)?;
            if found.bytes >= need {
                return Ok(Ok(victims));
            }
            if found.pending {
                // What lies further down is worth more than what will be free soon.
                return Ok(Err(Refusal::InUse));
            }
        }
        self.walk(id, above..top, need, &mut found, &mut victims)?;
        Ok(match found.bytes >= need {
            true => Ok(victims),
            false if found.pinned || found.pending => Err(Refusal::InUse),
            false => Err(Refusal::NothingLower),
        })
    }

    /// Down the units of a range, until `need` bytes are found in all. A pinned unit is passed over. One that kernels still use
    /// ends the walk.
    fn walk(
        &mut self,
        id: u64,
        units: Span<usize>,
        need: u64,
        found: &mut Found,
        victims: &mut Vec<Victim>,
    ) -> Result<()> {
        let count = self.range(id)?.backed.len();
        for unit in (units.start..units.end.min(count)).rev() {
            if found.bytes >= need {
                return Ok(());
            }
            if !self.range(id)?.backed[unit] {
                continue;
            }
            match self.standing(id, unit)? {
                Standing::Idle => {
                    victims.push((id, unit));
                    found.bytes += self.range(id)?.size_of(unit);
                }
                Standing::Pinned => found.pinned = true,
                Standing::Pending => {
                    found.pending = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn standing(&mut self, id: u64, unit: usize) -> Result<Standing> {
        let (range, device) = self.split(id)?;
        if range.is_pinned(unit) {
            return Ok(Standing::Pinned);
        }
        for alloc in range.allocs_of(unit) {
            // rule: unit-goes-when-its-events-are-complete
            if !alloc.is_idle(device)? {
                return Ok(Standing::Pending);
            }
        }
        Ok(Standing::Idle)
    }

    /// Ranges hold at most so many bytes together, if they can: the lowest ones give first. With `wait` for kernels that still use
    /// them. The pool is not told.
    pub fn shrink(&mut self, bytes: u64, wait: bool) -> Result<()> {
        for id in self.order.clone().into_iter().rev() {
            let more = self.held().saturating_sub(bytes);
            if more == 0 {
                break;
            }
            let freed = self.free(id, more, wait, Cause::Cap)?;
            if freed.bytes < more && freed.pending > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes `bytes` bytes of a range, from high addresses down. The pool is not told.
    pub fn free(
        &mut self,
        id: u64,
        bytes: u64,
        wait: bool,
        cause: Cause,
    ) -> Result<super::answer::Freed> {
        let mut freed = super::answer::Freed::default();
        for unit in (0..self.range(id)?.backed.len()).rev() {
            if freed.bytes >= bytes {
                break;
            }
            let range = self.range(id)?;
            if !range.backed[unit] {
                continue;
            }
            let size = range.size_of(unit);
            if wait && !range.is_pinned(unit) {
                let (range, device) = self.split(id)?;
                let mut allocs = range.allocs_of(unit).iter_mut();
                allocs.try_for_each(|alloc| alloc.finish(device))?;
            }
            match self.standing(id, unit)? {
                Standing::Idle => freed.bytes += self.evict((id, unit), false, cause, "")?,
                Standing::Pinned => freed.pinned += size,
                Standing::Pending => {
                    freed.pending += size;
                    break;
                }
            }
        }
        Ok(freed)
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
        let event = Arc::new(device.record(stream)?);
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
        if let Some(at) = range.allocs.iter().position(|alloc| alloc.pins > 0) {
            return Err(Error::InvalidInput(format!(
                "range '{}' cannot end: allocation {at} has {} leases or faults that were not unpinned",
                range.name, range.allocs[at].pins
            )));
        }
        let before = range.resident;
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
            .find(|(_, range)| range.abandoned && range.allocs.iter().all(|alloc| alloc.pins == 0));
        match abandoned.map(|(&id, _)| id) {
            Some(id) => self.end(id, false),
            None => Ok(()),
        }
    }
}
