//! One range: its units, its allocations, and how far it may grow.

use super::alloc::Alloc;
pub use super::alloc::{AllocId, ALIGNMENT};
use super::answer::{Cause, Refusal};
use super::ring::{SlotRing, SLOTS};
use crate::device::{DevicePtr, UserStreams};
use crate::elastic::rank::Rank;
use crate::error::{counted, Error, Result};
use std::ops::Range as Span;

/// A unit that is to be taken: its range, and its number there.
pub(super) type Victim = (u64, usize);

/// Up to where faults take memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watermark {
    /// Bytes from the start of the range.
    pub bytes: u64,
    /// What set it, and for whom; `None` while nothing was evicted.
    pub why: Option<String>,
}

/// How often something happened to a range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults that found the contents.
    pub hits: u64,
    /// Faults that had the caller write the contents.
    pub fills: u64,
    /// Slots of the ring that were given.
    pub slots: u64,
    /// Faults that were refused, by [`Refusal`].
    pub refused: [u64; Refusal::ALL.len()],
    /// Bytes that were evicted, by [`Cause`].
    pub evicted_bytes: [u64; Cause::ALL.len()],
}

pub(super) struct RangeTable<D: UserStreams> {
    pub name: String,
    pub rank: Rank,
    pub start: DevicePtr,
    /// Reserved: whole pages.
    pub bytes: u64,
    unit: u64,
    /// Which units have memory.
    pub backed: Vec<bool>,
    pub resident: u64,
    /// Units from here up take no memory.
    pub watermark: usize,
    pub why: Option<String>,
    pub limit: u64,
    pub allocs: Vec<Alloc<D>>,
    pub ring: Option<SlotRing<D>>,
    pub counts: Counts,
    /// Its handle is gone while leases were open.
    pub abandoned: bool,
}

impl<D: UserStreams> RangeTable<D> {
    /// Bytes of memory, those of its ring too.
    pub fn held(&self) -> u64 {
        self.resident + self.ring.as_ref().map_or(0, |ring| ring.memory.held())
    }

    pub fn new(name: String, start: DevicePtr, bytes: u64, unit: u64) -> Self {
        let units = bytes.div_ceil(unit) as usize;
        RangeTable {
            name,
            rank: Rank::default(),
            start,
            bytes,
            unit,
            backed: vec![false; units],
            resident: 0,
            watermark: units,
            why: None,
            limit: u64::MAX,
            allocs: Vec::new(),
            ring: None,
            counts: Counts::default(),
            abandoned: false,
        }
    }

    /// The next bytes, from low addresses up.
    pub fn alloc(&mut self, bytes: u64) -> Result<AllocId> {
        let last = self.allocs.last();
        let end = last.map_or(0, |last| last.offset + last.bytes);
        let offset = end.next_multiple_of(ALIGNMENT);
        let left = self.bytes.saturating_sub(offset);
        if bytes == 0 {
            return Err(Error::InvalidInput(format!(
                "range '{}': an allocation of 0 bytes",
                self.name
            )));
        }
        if bytes > left {
            return Err(Error::OutOfMemory {
                what: format!(
                    "an allocation in range '{}', of whose {} bytes {left} are left",
                    self.name, self.bytes
                ),
                bytes,
            });
        }
        self.allocs.push(Alloc::new(self.start, offset, bytes));
        Ok((self.allocs.len() - 1) as AllocId)
    }

    /// An allocation, or a slot that is leased.
    pub fn get(&mut self, id: AllocId) -> Result<&mut Alloc<D>> {
        if id >= SLOTS {
            let slot = self.ring.as_mut().and_then(|ring| ring.leased(id));
            return slot.ok_or_else(|| {
                Error::InvalidInput(format!(
                    "range '{}' has no slot of number {id} that is leased",
                    self.name
                ))
            });
        }
        let (name, count) = (&self.name, self.allocs.len());
        let found = self.allocs.get_mut(id as usize);
        found.ok_or_else(|| {
            Error::InvalidInput(format!(
                "range '{name}' has {}, and there is none of number {id}",
                counted(count as u64, "allocation")
            ))
        })
    }

    /// What has open faults or leases, and how many.
    pub fn pinned(&self) -> impl Iterator<Item = (String, u32)> + '_ {
        let allocs = self.allocs.iter().enumerate();
        let allocs = allocs.filter(|(_, alloc)| alloc.pins > 0);
        let allocs = allocs.map(|(at, alloc)| (format!("allocation {at}"), alloc.pins));
        let slots = self.ring.iter().flat_map(SlotRing::leases);
        allocs.chain(slots.map(|(of, slot)| (format!("the slot of allocation {of}"), slot.pins)))
    }

    /// The units in which an allocation lies.
    pub fn units_of(&self, alloc: &Alloc<D>) -> Span<usize> {
        let first = alloc.offset / self.unit;
        let end = (alloc.offset + alloc.bytes).div_ceil(self.unit);
        first as usize..end as usize
    }

    /// Where a unit begins in the range.
    pub fn offset_of(&self, unit: usize) -> u64 {
        (unit as u64 * self.unit).min(self.bytes)
    }

    /// Bytes of a unit: the last one may be short.
    pub fn size_of(&self, unit: usize) -> u64 {
        self.offset_of(unit + 1) - self.offset_of(unit)
    }

    pub fn address_of(&self, unit: usize) -> DevicePtr {
        self.start.offset(self.offset_of(unit))
    }

    /// Bytes of these units that have no memory.
    pub fn missing(&self, units: Span<usize>) -> u64 {
        let without = units.filter(|&unit| !self.backed[unit]);
        without.map(|unit| self.size_of(unit)).sum()
    }

    /// The allocations that lie in a unit, if only in part.
    pub fn allocs_of(&mut self, unit: usize) -> &mut [Alloc<D>] {
        let (start, end) = (self.offset_of(unit), self.offset_of(unit + 1));
        let first = self
            .allocs
            .partition_point(|alloc| alloc.offset + alloc.bytes <= start);
        let last = self.allocs.partition_point(|alloc| alloc.offset < end);
        &mut self.allocs[first..last]
    }

    pub fn is_pinned(&mut self, unit: usize) -> bool {
        self.allocs_of(unit).iter().any(|alloc| alloc.pins > 0)
    }

    pub fn gained(&mut self, unit: usize) {
        self.backed[unit] = true;
        self.resident += self.size_of(unit);
    }

    /// A unit was taken. What was in it is lost, and it takes no memory before the range is prioritized.
    pub fn lost(&mut self, unit: usize, cause: Cause, by: &str) {
        let size = self.size_of(unit);
        self.backed[unit] = false;
        self.resident -= size;
        self.counts.evicted_bytes[cause as usize] += size;
        self.allocs_of(unit).iter_mut().for_each(Alloc::lose);
        // The limit refuses by itself, and may rise again.
        if cause != Cause::Limit && unit < self.watermark {
            self.watermark = unit;
            self.why = Some(cause.text(by));
        }
    }

    pub fn reset_watermark(&mut self) {
        self.watermark = self.backed.len();
        self.why = None;
    }

    pub fn refused(&mut self, refusal: Refusal) {
        self.counts.refused[refusal as usize] += 1;
    }
}
