//! Ranges: reserved device addresses of one model in eager code. Pages come and go under them.
//!
//! ```text
//! addresses: | w0 . w1 | . w2 . . | w3 . .  |  low addresses come first
//! memory:      there      there      -      |  a fault brings a unit, and says whether the contents are still there
//!                            ^ watermark: what was evicted; faults above it are refused until `prioritize`
//! ```
//!
//! Invariants:
//! - A unit of memory is taken only when no fault and no lease of it is open and the events of all who used it are complete.
//! - A fault never waits. It answers with the contents, with memory to fill, or with a refusal and its reason.
//! - Contents that were lost are never taken for there: each has a generation, and no generation is used twice.
//! - What all ranges of a device hold, together with its stores, stays within the device's cap.
//!
//! | file | what it does |
//! |---|---|
//! | `answer` | what a fault comes to, and why |
//! | `explain` | a refusal in words, with who holds the memory |
//! | `alloc` | the contents of one allocation, and who uses them |
//! | `table` | one range: units, allocations, watermark, limit |
//! | `state` | all ranges of a device: faults, and the memory for them |
//! | `evict` | which units go |
//! | `ring` | slots for allocations whose fault was refused |
//! | `slots` | the ring's memory, and slots for callers |
//! | `lease` | leases that end on any thread |
//! | `hold` | memory beside ranges, which its owner holds until it gives it up: graph pools and segments |
//! | `residency` | what a range holds, and why |

mod alloc;
mod answer;
mod evict;
mod explain;
mod hold;
mod lease;
mod residency;
mod ring;
mod slots;
mod state;
mod table;

pub use answer::{Answer, Cause, Freed, Place, Refusal};
pub(super) use hold::HeldUnits;
pub use lease::Lease;
pub use residency::{RangeReport, UnitState};
pub use table::{AllocId, Counts, Watermark, ALIGNMENT};

use super::pool::DevicePool;
use super::range_share::{Holding, RangeMemory};
use super::rank::{Rank, Reorder};
use crate::device::{AnyPages, DevicePtr, UserStreams};
use crate::error::Result;
use crate::figures::DeviceId;
use crate::memory::Units;
use state::RangesState;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use table::RangeTable;

/// The ranges of one device, which take memory from each other.
pub struct Ranges<D: UserStreams> {
    state: Mutex<RangesState<D>>,
}

/// The ranges of this process, by device, as long as there are some. A child has its own.
static RANGES: Mutex<BTreeMap<(u32, DeviceId), WeakRanges>> = Mutex::new(BTreeMap::new());
type WeakRanges = Weak<Ranges<AnyPages>>;

impl Ranges<AnyPages> {
    /// The ranges of a device of this process.
    pub fn of(device: DeviceId) -> Result<Arc<Ranges<AnyPages>>> {
        let mut all = RANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (std::process::id(), device);
        if let Some(ranges) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(ranges);
        }
        let ranges = Ranges::new(AnyPages::of(device)?, &DevicePool::of(device));
        all.insert(key, Arc::downgrade(&ranges));
        Ok(ranges)
    }
}

impl<D: UserStreams + 'static> Ranges<D> {
    /// The ranges of a device, which share the pool's cap with its stores. A pool has one of them.
    pub fn new(device: D, pool: &Arc<DevicePool>) -> Arc<Ranges<D>> {
        let ranges = Arc::new(Ranges {
            state: Mutex::new(RangesState {
                device: Units::new(device),
                pool: pool.clone(),
                ranges: BTreeMap::new(),
                order: Vec::new(),
                holders: BTreeMap::new(),
                leases: Default::default(),
            }),
        });
        let memory: Weak<Ranges<D>> = Arc::downgrade(&ranges);
        pool.attach_ranges(memory);
        ranges
    }

    /// A new range, the first of those of priority 0 that nobody put first. It costs addresses, and no memory. `bytes` are rounded up to whole pages; allocations
    /// begin at multiples of [`ALIGNMENT`].
    pub fn create(self: &Arc<Self>, name: &str, bytes: u64) -> Result<Range<D>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut state = self.lock();
        let size = state.whole_pages(&format!("range '{name}'"), bytes)?;
        let unit = state.device.pages.unit();
        let start = state.device.reserve(size)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let range = RangeTable::new(name.to_owned(), start, size, unit);
        state.ranges.insert(id, range);
        state.place(id, Rank::default())?;
        drop(state);
        Ok(Range {
            ranges: self.clone(),
            id,
        })
    }

    /// Bytes that all ranges hold.
    pub fn held(&self) -> u64 {
        self.lock().held()
    }

    /// Bytes of the device that nobody uses now.
    pub(super) fn free_bytes(&self) -> Result<u64> {
        self.lock().device.pages.free_bytes()
    }

    /// Something that is done with the device, for tests.
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn with_device<R>(&self, work: impl FnOnce(&mut D) -> R) -> R {
        work(&mut self.raw_lock().device.pages)
    }
}

impl<D: UserStreams> Ranges<D> {
    /// For a call: leases that have ended are seen first.
    fn lock(&self) -> MutexGuard<'_, RangesState<D>> {
        let mut state = self.raw_lock();
        state.see_ended_leases();
        state
    }

    fn raw_lock(&self) -> MutexGuard<'_, RangesState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: UserStreams> RangeMemory for Ranges<D> {
    fn shrink_to(&self, bytes: u64, up_to: Option<Rank>, wait: bool) -> Option<u64> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        state.see_ended_leases();
        if let Err(error) = state.shrink(bytes, up_to, wait) {
            log::warn!("ranges did not give memory to stores: {error}");
        }
        Some(state.held())
    }

    fn holders(&self) -> Vec<Holding> {
        self.raw_lock().holders()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.raw_lock().device.pages.free_bytes().ok()
    }
}

impl<D: UserStreams> Drop for Ranges<D> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.pool.unclaim(state.held());
    }
}

/// One range. Dropped, it gives its memory back: at once, or when its last lease has ended.
pub struct Range<D: UserStreams> {
    ranges: Arc<Ranges<D>>,
    id: u64,
}

impl<D: UserStreams> Range<D> {
    /// The next `bytes` bytes, from low addresses up. Costs no memory. Allocate what matters most first.
    pub fn alloc(&self, bytes: u64) -> Result<AllocId> {
        self.ranges.lock().range(self.id)?.alloc(bytes)
    }

    /// The contents of an allocation, or memory for them. What is issued to `stream` afterwards may use them. Never waits.
    pub fn fault(&self, alloc: AllocId, stream: D::Stream) -> Result<Answer> {
        self.ranges.lock().fault(self.id, alloc, stream)
    }

    /// The same for several allocations, one after the other. `answer` gets each answer; after an error, those before it.
    pub fn fault_many(
        &self,
        allocs: &[AllocId],
        stream: D::Stream,
        mut answer: impl FnMut(Answer),
    ) -> Result<()> {
        let mut state = self.ranges.lock();
        for alloc in allocs {
            answer(state.fault(self.id, *alloc, stream)?);
        }
        Ok(())
    }

    /// What was issued to `stream` so far uses these allocations, and nothing later: the end of as many faults. Contents that were to
    /// be written have been.
    pub fn unpin(&self, allocs: &[AllocId], stream: D::Stream) -> Result<()> {
        match allocs.is_empty() {
            true => Ok(()),
            false => self.ranges.lock().unpin(self.id, allocs, stream),
        }
    }

    /// A refusal of this range in a sentence: with who holds the memory now, where that is why.
    pub fn explain(&self, refusal: Refusal) -> Result<String> {
        self.ranges.lock().explain(self.id, refusal)
    }

    /// A lease beside that of the fault: it ends when the value is dropped, on any thread. [`Range::used_on`] names further streams.
    pub fn lease(&self, alloc: AllocId, stream: D::Stream) -> Result<(Place, Lease)> {
        let mut state = self.ranges.lock();
        let lease = state.lease(self.id, alloc, stream)?;
        let place = state.range(self.id)?.get(alloc)?.place();
        Ok((place, lease))
    }

    /// Open leases of the allocation were given to this stream too.
    pub fn used_on(&self, alloc: AllocId, stream: D::Stream) -> Result<()> {
        self.ranges.lock().used_on(self.id, alloc, stream)
    }

    /// From now on the range comes first of its priority, before stores too, and faults take memory up to its end again.
    pub fn prioritize(&self) -> Result<()> {
        self.reorder(Reorder::First)
    }

    /// From now on the range comes last of its priority.
    pub fn deprioritize(&self) -> Result<()> {
        self.reorder(Reorder::Last)
    }

    /// Its place in the order of the device.
    pub fn rank(&self) -> Result<Rank> {
        Ok(self.ranges.lock().range(self.id)?.rank)
    }

    /// Another place in the order of the device. What is not put last may take memory up to its end again.
    pub fn reorder(&self, to: Reorder) -> Result<()> {
        let mut state = self.ranges.lock();
        let range = state.range(self.id)?;
        let rank = range.rank.reordered(to);
        if to != Reorder::Last {
            range.reset_watermark();
        }
        state.place(self.id, rank)
    }

    /// Frees `bytes` bytes of the range, high addresses first. With `wait` it waits for kernels that still use them.
    pub fn free_bytes(&self, bytes: u64, wait: bool) -> Result<Freed> {
        let mut state = self.ranges.lock();
        let before = state.held();
        let freed = state.free(self.id, bytes, wait, Cause::Asked);
        state.pool.unclaim(before - state.held());
        freed
    }

    /// The range holds at most so many bytes. What it holds above is freed; kernels are waited for. It does not move the watermark.
    pub fn set_limit(&self, bytes: Option<u64>) -> Result<Freed> {
        let mut state = self.ranges.lock();
        let limit = bytes.unwrap_or(u64::MAX);
        let range = state.range(self.id)?;
        range.limit = limit;
        let over = range.resident.saturating_sub(limit);
        let before = state.held();
        let freed = state.free(self.id, over, true, Cause::Limit);
        state.pool.unclaim(before - state.held());
        freed
    }

    /// Up to where faults take memory, and why.
    pub fn watermark(&self) -> Result<Watermark> {
        let mut state = self.ranges.lock();
        let range = state.range(self.id)?;
        Ok(Watermark {
            bytes: range.offset_of(range.watermark),
            why: range.why.clone(),
        })
    }

    /// The contents of an allocation, or of all of them, are worth nothing: the next fault has them written. Memory stays.
    pub fn invalidate(&self, alloc: Option<AllocId>) -> Result<()> {
        let mut state = self.ranges.lock();
        let range = state.range(self.id)?;
        match alloc {
            Some(alloc) => range.get(alloc)?.lose(),
            None => range.allocs.iter_mut().for_each(|alloc| alloc.lose()),
        }
        Ok(())
    }

    /// What the range holds, unit by unit, and what happened to it.
    pub fn residency(&self) -> Result<RangeReport> {
        self.ranges.lock().residency(self.id)
    }

    /// The device, as `cuda:0`.
    pub fn device(&self) -> String {
        self.ranges.lock().device.pages.name().to_owned()
    }

    /// The first address, and the bytes that are reserved.
    pub fn addresses(&self) -> Result<(DevicePtr, u64)> {
        let mut state = self.ranges.lock();
        let range = state.range(self.id)?;
        Ok((range.start, range.bytes))
    }

    /// Gives memory and addresses back; waits for kernels. An open fault or lease is an error, and the range stays.
    pub fn destroy(&self) -> Result<()> {
        self.ranges.lock().end(self.id, true)
    }
}

impl<D: UserStreams> Drop for Range<D> {
    fn drop(&mut self) {
        let mut state = self.ranges.lock();
        if !state.ranges.contains_key(&self.id) {
            return;
        }
        let ended = state.end(self.id, true);
        let id = self.id;
        if let (Err(_), Some(range)) = (ended, state.ranges.get_mut(&id)) {
            // The next call of another range ends it, once its leases are gone.
            range.abandoned = true;
            let _ = state.place(id, Rank::LAST);
            // The leases' memory is that of the device, which must not end before them.
            std::mem::forget(self.ranges.clone());
        }
    }
}
