//! Memory that its owner holds until it gives it up, beside the ranges of a device: graph pools, and segments of another allocator.
//! Weights of ranges and of idle stores make room for it, those of the lowest rank first; nobody takes it.

use super::answer::{Cause, Refusal};
use super::state::{HeldMemory, RangesState};
use super::table::RangeTable;
use super::Ranges;
use crate::device::{DevicePtr, UserStreams};
use crate::error::{bytes_text, Error, Result};
use crate::memory::{Holder, Units};
use std::sync::Arc;

impl<D: UserStreams> RangesState<D> {
    /// Bytes of units that nobody has pinned.
    fn can_go(&mut self) -> u64 {
        let mut bytes = 0;
        for range in self.ranges.values_mut() {
            for unit in 0..range.backed.len() {
                if range.backed[unit] && !range.is_pinned(unit) {
                    bytes += range.size_of(unit);
                }
            }
        }
        bytes
    }

    /// Claims `need` bytes for memory that is held. Weights go for them, after the kernels that use them. Whether it is enough; if
    /// not, nothing is claimed, and weights that would go for nothing stay.
    pub fn claim(&mut self, need: u64) -> Result<bool> {
        let mut claimed = self.pool.claim(need);
        let can_go = self.can_go().saturating_add(self.pool.can_press(None));
        if claimed < need && can_go >= need - claimed {
            let taken = self.take_in_order(need - claimed);
            claimed += *taken.as_ref().unwrap_or(&0);
            if let Err(error) = taken {
                self.pool.unclaim(claimed);
                return Err(error);
            }
        }
        let enough = claimed >= need;
        self.pool
            .unclaim(if enough { claimed - need } else { claimed });
        Ok(enough)
    }

    /// Up the order, from the lowest rank: what ranges and stores give of `need` bytes, or a little more. It stays claimed.
    fn take_in_order(&mut self, need: u64) -> Result<u64> {
        let mut taken = 0;
        for id in self.order.clone().into_iter().rev() {
            let rank = self.range(id)?.rank;
            if self.pool.can_press(Some(rank)) > 0 && taken < need {
                taken += self.pool.press(need - taken, Some(rank));
            }
            if taken < need {
                let before = self.held();
                let freed = self.free(id, need - taken, true, Cause::Cap);
                taken += before - self.held();
                if let Err(error) = freed {
                    self.pool.unclaim(taken);
                    return Err(error);
                }
            }
        }
        if taken < need {
            taken += self.pool.press(need - taken, None);
        }
        Ok(taken)
    }

    fn holder(&mut self, id: DevicePtr) -> Result<(&mut Holder, &mut Units<D>)> {
        let found = self.holders.get_mut(&id);
        let one = found.ok_or_else(|| Error::Internal(format!("{:#x} is held no more", id.0)))?;
        Ok((&mut one.memory, &mut self.device))
    }

    /// Why it can hold no more.
    fn why_not(&mut self, id: DevicePtr) -> Result<String> {
        let mut pinned = self.ranges.values().flat_map(RangeTable::pinned);
        let refusal = match pinned.next() {
            Some(_) => Refusal::InUse,
            None => Refusal::NothingLower,
        };
        drop(pinned);
        let who = self.who_holds();
        let (memory, _) = self.holder(id)?;
        let held = bytes_text(memory.held());
        let name = self.holders.get(&id).map_or("", |one| one.name.as_str());
        Ok(format!(
            "{name}, which holds {held}: {}; {who}",
            refusal.text()
        ))
    }
}

impl<D: UserStreams> Ranges<D> {
    /// Addresses for `bytes` bytes of memory, which is held as it grows. It costs addresses, and no memory. `name` says whose it is.
    pub(in crate::elastic) fn hold(
        self: &Arc<Self>,
        name: &str,
        bytes: u64,
    ) -> Result<HeldUnits<D>> {
        let mut state = self.lock();
        let size = state.whole_pages(name, bytes)?;
        let memory = Holder::new(&mut state.device, size)?;
        let id = memory.start();
        let name = name.to_owned();
        state.holders.insert(id, HeldMemory { name, memory });
        drop(state);
        Ok(HeldUnits {
            ranges: self.clone(),
            id,
        })
    }

    /// What is issued to `to` from now on comes after everything that was issued to `from`.
    pub(in crate::elastic) fn order(&self, from: D::Stream, to: D::Stream) -> Result<()> {
        let mut state = self.lock();
        let event = state.device.pages.record(from)?;
        state.device.pages.stream_wait(to, &event)
    }

    /// Blocks until everything that was issued to `stream` is done.
    pub(in crate::elastic) fn finish(&self, stream: D::Stream) -> Result<()> {
        let mut state = self.lock();
        let event = state.device.pages.record(stream)?;
        state.device.pages.wait(&event)
    }
}

/// Memory that is held. [`HeldUnits::end`] gives it back; without that it stays.
pub(in crate::elastic) struct HeldUnits<D: UserStreams> {
    pub ranges: Arc<Ranges<D>>,
    /// Its first address.
    id: DevicePtr,
}

impl<D: UserStreams> HeldUnits<D> {
    fn with<R>(&self, work: impl FnOnce(&mut Holder, &mut Units<D>) -> R) -> Result<R> {
        let mut state = self.ranges.lock();
        let (memory, device) = state.holder(self.id)?;
        Ok(work(memory, device))
    }

    /// The first address.
    pub fn start(&self) -> DevicePtr {
        self.id
    }

    /// The units that hold the first `bytes` bytes.
    pub fn units_for(&self, bytes: u64) -> Result<usize> {
        self.with(|memory, _| memory.units_for(bytes))
    }

    /// Bytes that are held.
    pub fn held(&self) -> Result<u64> {
        self.with(|memory, _| memory.held())
    }

    /// The first `count` units are held. Weights of ranges go for them.
    pub fn grow(&self, count: usize) -> Result<()> {
        let mut state = self.ranges.lock();
        let (memory, _) = state.holder(self.id)?;
        let (before, after) = (memory.held(), memory.bytes_of(count));
        if after <= before {
            return Ok(());
        }
        let bytes = after - before;
        state.relieve()?;
        if !state.claim(bytes)? {
            let what = state.why_not(self.id)?;
            return Err(Error::OutOfMemory { what, bytes });
        }
        let (memory, device) = state.holder(self.id)?;
        let grown = memory.grow(device, count);
        let now = memory.held();
        state.pool.unclaim(after - now);
        grown
    }

    /// Gives up all but the first `count` units, which nobody uses.
    pub fn shrink(&self, count: usize) -> Result<()> {
        let mut state = self.ranges.lock();
        let (memory, device) = state.holder(self.id)?;
        let before = memory.held();
        let shrunk = memory.shrink(device, count);
        let freed = before - memory.held();
        state.pool.unclaim(freed);
        shrunk
    }

    /// Further addresses, as many as it has.
    pub fn reserve_mirror(&self) -> Result<DevicePtr> {
        self.with(|memory, device| device.reserve(memory.bytes()))?
    }

    /// Shows a unit that is held in further addresses as well.
    pub fn mirror(&self, unit: usize, start: DevicePtr) -> Result<()> {
        self.with(|memory, device| memory.mirror(device, unit, start))?
    }

    /// Takes the first `count` units away from further addresses, and gives these back. Nobody uses them any more.
    pub fn end_mirror(&self, start: DevicePtr, count: usize) -> Result<()> {
        self.with(|memory, device| memory.end_mirror(device, start, count))?
    }

    /// Gives memory and addresses back, which nobody uses.
    pub fn end(&self) -> Result<()> {
        self.shrink(0)?;
        let mut state = self.ranges.lock();
        state.device.release(self.id)?;
        state.holders.remove(&self.id);
        Ok(())
    }
}
