//! Memory that its owner holds until it gives it up: the units of a graph pool, which show at further addresses, and segments of
//! another allocator. It is faulted once and stays pinned, so nobody takes it.

use super::answer::Cause;
use super::state::RangesState;
use super::table::AllocId;
use super::{Answer, Range, Refusal};
use crate::device::{DevicePtr, UserStreams};
use crate::error::{Error, Result};

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

    /// Weights go for `need` bytes that are held, after the kernels that use them. Whether it is enough.
    pub fn make_room(&mut self, need: u64) -> Result<bool> {
        let room = self.pool.claim(need);
        self.pool.unclaim(room);
        let missing = need - room;
        // Weights that would go for nothing stay.
        if self.can_go() < missing {
            return Ok(false);
        }
        let before = self.held();
        let shrunk = self.shrink(before.saturating_sub(missing), true);
        let after = self.held();
        self.pool.unclaim(before - after);
        shrunk.map(|()| true)
    }
}

impl<D: UserStreams> Range<D> {
    /// A fault that waits for kernels of lower ranges rather than being refused because of them.
    pub(in crate::elastic) fn hold(&self, at: AllocId, stream: D::Stream) -> Result<Answer> {
        let mut state = self.ranges.lock();
        let answer = state.fault(self.id, at, stream)?;
        if answer != Answer::Refused(Refusal::InUse) {
            return Ok(answer);
        }
        let range = state.range(self.id)?;
        let need = range.missing(range.units_of(&range.allocs[at as usize]));
        match state.make_room(need)? {
            true => state.fault(self.id, at, stream),
            false => Ok(answer),
        }
    }

    /// The same for a unit: the range's allocations are its units.
    pub(in crate::elastic) fn hold_unit(&self, unit: usize, stream: D::Stream) -> Result<Answer> {
        let mut state = self.ranges.lock();
        let range = state.range(self.id)?;
        while range.allocs.len() <= unit {
            let bytes = range.size_of(range.allocs.len());
            range.alloc(bytes)?;
        }
        drop(state);
        self.hold(unit as AllocId, stream)
    }

    /// Bytes of a unit: all but the last one have as many.
    pub(in crate::elastic) fn unit(&self) -> u64 {
        self.ranges.lock().device.pages.unit()
    }

    /// Further addresses, as many as the range has.
    pub(in crate::elastic) fn reserve_mirror(&self) -> Result<DevicePtr> {
        let mut state = self.ranges.lock();
        let bytes = state.range(self.id)?.bytes;
        state.device.reserve(bytes)
    }

    /// Shows a unit that is held at its place from `start` on as well.
    pub(in crate::elastic) fn mirror(&self, unit: usize, start: DevicePtr) -> Result<()> {
        let mut state = self.ranges.lock();
        let (range, device) = state.split(self.id)?;
        // rule: units-that-show-elsewhere-are-held
        if !range.backed[unit] || !range.is_pinned(unit) {
            return Err(Error::Internal(format!(
                "unit {unit} of range '{}' is to show elsewhere, and can be taken any time",
                range.name
            )));
        }
        device.mirror(start.offset(range.offset_of(unit)), range.address_of(unit))
    }

    /// Takes the first `units` units away from further addresses, and gives these back. Nobody uses them any more.
    pub(in crate::elastic) fn end_mirror(&self, start: DevicePtr, units: usize) -> Result<()> {
        let mut state = self.ranges.lock();
        let (range, device) = state.split(self.id)?;
        for unit in 0..units {
            device.take(start.offset(range.offset_of(unit)), false)?;
        }
        device.release(start)
    }

    /// Gives up the units from `first` on, which show nowhere else and which nobody uses.
    pub(in crate::elastic) fn give_up(&self, first: usize) -> Result<()> {
        let mut state = self.ranges.lock();
        let range = state.range(self.id)?;
        let mut bytes = 0;
        for unit in first..range.allocs.len() {
            if range.backed[unit] {
                bytes += range.size_of(unit);
            }
            let alloc = &mut range.allocs[unit];
            (alloc.pins, alloc.filling) = (0, false);
            alloc.lose();
        }
        let before = state.held();
        let freed = state.free(self.id, bytes, false, Cause::Asked);
        let after = state.held();
        state.pool.unclaim(before - after);
        state.range(self.id)?.reset_watermark();
        freed.map(drop)
    }

    /// What is issued to `to` from now on comes after everything that was issued to `from`.
    pub(in crate::elastic) fn order(&self, from: D::Stream, to: D::Stream) -> Result<()> {
        let mut state = self.ranges.lock();
        let event = state.device.pages.record(from)?;
        state.device.pages.stream_wait(to, &event)
    }

    /// Blocks until everything that was issued to `stream` is done.
    pub(in crate::elastic) fn finish(&self, stream: D::Stream) -> Result<()> {
        let mut state = self.ranges.lock();
        let event = state.device.pages.record(stream)?;
        state.device.pages.wait(&event)
    }
}

#[cfg(test)]
mod tests {
    use crate::device::sim::{Actor, Order};
    use crate::device::{Pages, Sim};
    use crate::elastic::{DevicePool, Ranges};
    use std::sync::Arc;

    #[test]
    fn only_what_is_held_shows_elsewhere() {
        let pool = Arc::new(DevicePool::new("sim"));
        let sim = Sim::new(Order::KernelsFirst);
        let unit = sim.unit();
        pool.set_cap(Some(unit)).unwrap();
        let range = Ranges::new(sim, &pool).create("r", 2 * unit).unwrap();
        let start = range.reserve_mirror().unwrap();
        assert!(range.mirror(0, start).is_err(), "no memory");
        range.hold_unit(0, Actor::Compute).unwrap();
        range.mirror(0, start).unwrap();
        range.end_mirror(start, 1).unwrap();
        range.unpin(&[0], Actor::Compute).unwrap();
        let start = range.reserve_mirror().unwrap();
        assert!(range.mirror(0, start).is_err(), "nobody holds it");
        range.end_mirror(start, 0).unwrap();
    }
}
