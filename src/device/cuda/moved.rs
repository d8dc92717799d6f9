//! Another view of memory: units that stay whole keep their memory, what stays of others is copied on the device.
//!
//! ```text
//! old memory   | unit 0 a a a a | unit 1 b b b . | unit 2 . . . . |
//! new memory   | a a a a        | b b b          | new            |
//!                unit 0 itself    a copy of b      unit 2 is freed first
//! ```
//! Memory is never more than the larger of both needs. Where there is no room for a copy while its source is there, what was to
//! stay is lost, and its owner loads it again.

use super::context::Entered;
use super::physical::{Addresses, Physical, PAGES};
use super::stream::Stream;
use crate::device::DevicePtr;
use crate::error::Result;
use crate::figures::KeptPages;
use cudarc::driver::sys::CUmemAccess_flags as Access;
use std::ops::Range;

/// A unit of the old memory, until nothing more is needed of it.
struct Old {
    range: Range<u64>,
    physical: Option<Physical>,
    /// Parts of new units that are still to be had from it.
    readers: usize,
}

/// The move from one view's units to another's.
pub(super) struct Mover {
    from: Addresses,
    old: Vec<Old>,
    to: Addresses,
    new: Vec<(Range<u64>, Physical)>,
    /// New units that hold nothing yet and have no memory.
    later: Vec<Range<u64>>,
    lost: Vec<Range<u64>>,
    /// Bytes of physical memory now, and at most.
    held: u64,
    room: u64,
}

impl Mover {
    /// From units that are mapped in `from`, to memory of `whole` bytes.
    pub(super) fn new(
        from: Addresses,
        units: Vec<(Range<u64>, Physical)>,
        whole: u64,
    ) -> Result<Mover> {
        let to = Addresses::reserve(from.context(), whole, PAGES)?;
        let held = units.iter().map(|(range, _)| range.end - range.start).sum();
        let old = |(range, physical)| Old {
            range,
            physical: Some(physical),
            readers: 0,
        };
        Ok(Mover {
            from,
            old: units.into_iter().map(old).collect(),
            to,
            new: Vec::new(),
            later: Vec::new(),
            lost: Vec::new(),
            held,
            room: whole.max(held),
        })
    }

    /// Makes the new `units` that hold `kept` pages. Copies may be under way when this returns.
    pub(super) fn fill(
        &mut self,
        units: &[Range<u64>],
        kept: &[KeptPages],
        stream: &Stream,
        entered: &Entered<'_>,
    ) -> Result<()> {
        let parts: Vec<Vec<KeptPages>> = units.iter().map(|unit| within(kept, unit)).collect();
        for part in parts.iter().flatten() {
            self.read(part).for_each(|old| old.readers += 1);
        }
        // What holds nothing that stays makes room.
        self.free()?;
        for (unit, parts) in units.iter().zip(&parts) {
            if parts.is_empty() {
                self.later.push(unit.clone());
            } else if !self.take_whole(unit, parts)? {
                self.copy(unit, parts, stream, entered)?;
            }
        }
        Ok(())
    }

    /// The old units that a part comes from.
    fn read(&mut self, part: &KeptPages) -> impl Iterator<Item = &mut Old> {
        let range = part.from..part.from + part.bytes;
        let first = self.old.partition_point(|old| old.range.end <= range.start);
        let reached = self.old[first..].iter_mut();
        reached.take_while(move |old| old.range.start < range.end)
    }

    /// Frees the old units that nothing is to be had from any more. Copies from them have ended.
    fn free(&mut self) -> Result<()> {
        for old in self.old.iter_mut().filter(|old| old.readers == 0) {
            if let Some(physical) = old.physical.take() {
                self.from.unmap(old.range.start)?;
                drop(physical);
                self.held -= old.range.end - old.range.start;
            }
        }
        Ok(())
    }

    /// Where the new unit is an old one, and nothing else needs that: it moves as it is.
    fn take_whole(&mut self, unit: &Range<u64>, parts: &[KeptPages]) -> Result<bool> {
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
        if old.range != wanted || old.readers != 1 {
            return Ok(false);
        }
        old.readers = 0;
        let taken = old.physical.take();
        drop(found);
        // It stays at its old addresses too, until these go: a copy may still read there.
        match taken {
            Some(physical) => self.place(unit, physical).map(|()| true),
            None => Ok(false),
        }
    }

    /// Makes a new unit, and copies to it what stays. Without room it is made later, and what was to stay is lost.
    fn copy(
        &mut self,
        unit: &Range<u64>,
        parts: &[KeptPages],
        stream: &Stream,
        entered: &Entered<'_>,
    ) -> Result<()> {
        let bytes = unit.end - unit.start;
        if self.held + bytes > self.room {
            stream.synchronize(entered)?;
            self.free()?;
        }
        // The cap holds during the move too.
        let fits = self.held + bytes <= self.room;
        match fits {
            true => {
                self.create(unit)?;
                for part in parts {
                    let to = DevicePtr(self.to.start + part.to);
                    let from = DevicePtr(self.from.start + part.from);
                    // SAFETY: both are mapped: the new unit since now, the old ones as long as they have readers.
                    unsafe { stream.copy_across(to, from, part.bytes, entered) }?;
                }
            }
            false => {
                self.later.push(unit.clone());
                let lost = parts.iter().map(|part| part.to..part.to + part.bytes);
                self.lost.extend(lost);
            }
        }
        for part in parts {
            self.read(part).for_each(|old| old.readers -= 1);
        }
        Ok(())
    }

    fn create(&mut self, unit: &Range<u64>) -> Result<()> {
        let bytes = unit.end - unit.start;
        let physical = Physical::new(self.to.context(), bytes, || PAGES.to_owned())?;
        self.held += bytes;
        self.place(unit, physical)
    }

    fn place(&mut self, unit: &Range<u64>, physical: Physical) -> Result<()> {
        self.to.map(unit.start, &physical)?;
        let access = Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        self.to.allow(unit.clone(), access)?;
        self.new.push((unit.clone(), physical));
        Ok(())
    }

    /// After the copies: frees what is left of the old memory, and makes the units that hold nothing. The new memory, its units in
    /// order, and what was lost of it.
    #[allow(clippy::type_complexity, reason = "three things, once")]
    pub(super) fn finish(
        mut self,
    ) -> Result<(Addresses, Vec<(Range<u64>, Physical)>, Vec<Range<u64>>)> {
        self.free()?;
        for unit in std::mem::take(&mut self.later) {
            self.create(&unit)?;
        }
        self.new.sort_unstable_by_key(|(range, _)| range.start);
        Ok((self.to, self.new, self.lost))
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
