//! Memory that gets another order: units that stay whole keep their memory, what stays of others is copied on the device.
//!
//! ```text
//! old memory   | unit 0 a a a a | unit 1 b b b . | unit 2 . . . . |
//! new memory   | a a a a        | b b b          | new            |
//!                unit 0 itself    a copy of b      unit 2 is freed first
//! ```
//! Memory is never more than the larger of both needs. Where there is no room for a copy while its source is there, what was to
//! stay is lost, and its owner loads it again.

use crate::device::{pages_of, Device, DevicePtr, MemoryOf, PageAccess, Pages, Purpose};
use crate::error::Result;
use crate::figures::KeptPages;
use std::ops::Range;

/// Units of a memory, by their place there.
pub(super) type PlacedUnits<M> = Vec<(Range<u64>, M)>;

/// A unit of the old memory, until nothing more is needed of it.
struct Old<M> {
    range: Range<u64>,
    memory: Option<M>,
    /// Parts of new units that are still to be had from it.
    readers: usize,
}

/// The move from one memory's units to another's.
pub(super) struct Mover<D: Device> {
    from: DevicePtr,
    old: Vec<Old<MemoryOf<D>>>,
    to: DevicePtr,
    new: PlacedUnits<MemoryOf<D>>,
    /// New units that hold nothing yet and have no memory.
    later: Vec<Range<u64>>,
    lost: Vec<Range<u64>>,
    /// Bytes of memory now, and at most.
    held: u64,
    room: u64,
}

impl<D: Device> Mover<D> {
    /// A move of units that are mapped from an address on, to memory of `whole` bytes from `to` on.
    pub(super) fn new(
        (from, units): (DevicePtr, PlacedUnits<MemoryOf<D>>),
        to: DevicePtr,
        whole: u64,
    ) -> Mover<D> {
        let held = units.iter().map(|(range, _)| range.end - range.start).sum();
        let old = |(range, memory)| Old {
            range,
            memory: Some(memory),
            readers: 0,
        };
        Mover {
            from,
            old: units.into_iter().map(old).collect(),
            to,
            new: Vec::new(),
            later: Vec::new(),
            lost: Vec::new(),
            held,
            room: whole.max(held),
        }
    }

    /// Makes the new `units`, with the `kept` pages in them. No copy is under way when this returns, unless it failed.
    pub(super) fn run(
        &mut self,
        device: &mut D,
        units: Vec<Range<u64>>,
        kept: &[KeptPages],
    ) -> Result<()> {
        let filled = self.fill(device, units, kept);
        // rule: moved-pages-are-copied-before-their-source-goes
        device.synchronize()?;
        filled?;
        self.free(device)?;
        for unit in std::mem::take(&mut self.later) {
            self.create(device, &unit)?;
        }
        Ok(())
    }

    /// The new units in order, and what was lost of them.
    pub(super) fn finish(mut self) -> (PlacedUnits<MemoryOf<D>>, Vec<Range<u64>>) {
        self.new.sort_unstable_by_key(|(range, _)| range.start);
        (self.new, self.lost)
    }

    /// Makes the new units that hold kept pages. Copies may be under way when this returns.
    fn fill(&mut self, device: &mut D, units: Vec<Range<u64>>, kept: &[KeptPages]) -> Result<()> {
        let parts: Vec<Vec<KeptPages>> = units.iter().map(|unit| within(kept, unit)).collect();
        for part in parts.iter().flatten() {
            self.read(part).for_each(|old| old.readers += 1);
        }
        // What holds nothing that stays makes room.
        self.free(device)?;
        for (unit, parts) in units.iter().zip(&parts) {
            if parts.is_empty() {
                self.later.push(unit.clone());
            } else if !self.take_whole(device, unit, parts)? {
                self.copy(device, unit, parts)?;
            }
        }
        Ok(())
    }

    /// The old units that a part comes from.
    fn read(&mut self, part: &KeptPages) -> impl Iterator<Item = &mut Old<MemoryOf<D>>> {
        let range = part.from..part.from + part.bytes;
        let first = self.old.partition_point(|old| old.range.end <= range.start);
        let reached = self.old[first..].iter_mut();
        reached.take_while(move |old| old.range.start < range.end)
    }

    /// Frees the old units that nothing is to be had from any more. Copies from them have ended.
    fn free(&mut self, device: &mut D) -> Result<()> {
        let pages = pages_of(device)?;
        for old in self.old.iter_mut().filter(|old| old.readers == 0) {
            if let Some(memory) = old.memory.take() {
                pages.unmap(self.from.offset(old.range.start))?;
                drop(memory);
                self.held -= old.range.end - old.range.start;
            }
        }
        Ok(())
    }

    /// Where the new unit is an old one, and nothing else needs that: it moves as it is.
    fn take_whole(
        &mut self,
        device: &mut D,
        unit: &Range<u64>,
        parts: &[KeptPages],
    ) -> Result<bool> {
        let [part] = parts else {
            return Ok(false);
        };
        let wanted = part.from..part.from + part.bytes;
        if part.bytes != unit.end - unit.start {
            return Ok(false);
        }
        let mut found = self.read(part);
        let Some(old) = found.next() else {
            return Ok(false);
        };
        // rule: a-unit-moves-only-as-a-whole
        if old.range != wanted || old.readers != 1 {
            return Ok(false);
        }
        old.readers = 0;
        let taken = old.memory.take();
        drop(found);
        // It stays at its old addresses too, until these go: a copy may still read there.
        match taken {
            Some(memory) => self.place(device, unit, memory).map(|()| true),
            None => Ok(false),
        }
    }

    /// Makes a new unit, and copies to it what stays. Without room it is made later, and what was to stay is lost.
    fn copy(&mut self, device: &mut D, unit: &Range<u64>, parts: &[KeptPages]) -> Result<()> {
        let bytes = unit.end - unit.start;
        if self.held + bytes > self.room {
            // rule: a-unit-goes-after-the-copies-from-it
            device.synchronize()?;
            self.free(device)?;
        }
        // The cap holds during the move too.
        // rule: a-move-keeps-the-cap
        if self.held + bytes <= self.room {
            self.create(device, unit)?;
            for part in parts {
                let (to, from) = (self.to.offset(part.to), self.from.offset(part.from));
                device.copy_across(to, from, part.bytes)?;
            }
        } else {
            self.later.push(unit.clone());
            let lost = parts.iter().map(|part| part.to..part.to + part.bytes);
            // rule: pages-without-room-are-lost
            self.lost.extend(lost);
        }
        for part in parts {
            self.read(part).for_each(|old| old.readers -= 1);
        }
        Ok(())
    }

    fn create(&mut self, device: &mut D, unit: &Range<u64>) -> Result<()> {
        let bytes = unit.end - unit.start;
        let memory = pages_of(device)?.create_one(bytes, Purpose::Weights)?;
        self.held += bytes;
        self.place(device, unit, memory)
    }

    fn place(&mut self, device: &mut D, unit: &Range<u64>, memory: MemoryOf<D>) -> Result<()> {
        let pages = pages_of(device)?;
        let at = self.to.offset(unit.start);
        pages.map(at, &memory)?;
        pages.allow(at, unit.end - unit.start, PageAccess::ReadWrite)?;
        self.new.push((unit.clone(), memory));
        Ok(())
    }
}

/// The parts of kept pages that go into a unit.
fn within(kept: &[KeptPages], unit: &Range<u64>) -> Vec<KeptPages> {
    let first = kept.partition_point(|one| one.to + one.bytes <= unit.start);
    let reached = kept[first..].iter().take_while(|one| one.to < unit.end);
    let cut = |one: &KeptPages| {
        let to = one.to.max(unit.start);
        let end = (one.to + one.bytes).min(unit.end);
        KeptPages {
            from: one.from + (to - one.to),
            to,
            bytes: end - to,
        }
    };
    reached.map(cut).collect()
}
