//! The memory of a store: what is taken at load, what is loaded for good, and the move to another plan.

use super::Store;
use crate::counters::Stats;
use crate::device::{Device, DevicePtr, HostBytes};
use crate::error::{bytes_text, Error, Result};
use crate::memory::{Arena, StreamOrdered};
use crate::residency::{moves, Action, Backing, Layout, Residency};
use crate::schedule::WeightIndex;
use std::ops::Range;

fn all_direct(doing: &'static str) -> impl FnOnce(Error) -> Error {
    move |error| error.during(|| format!("{doing} the memory of all direct constants"))
}

impl<D: Device> Store<D> {
    /// Memory for the direct constants.
    pub(crate) fn reserve_direct(&mut self) -> Result<()> {
        let mapped = matches!(self.layout().memory, Backing::Mapped(_));
        let (pool, bytes) = (&mut self.pool, self.floor.direct);
        // Beside pages nothing is ever freed: the memory of the direct constants needs no pool of the device's.
        let taken = match mapped {
            true => pool.take_lasting(&mut self.device, bytes),
            false => pool.take(&mut self.device, bytes),
        };
        self.direct = taken.map_err(all_direct("taking"))?;
        Ok(())
    }

    /// All weights share one block of the budget's size, which is divided here; with it the direct constants' memory.
    pub(crate) fn open_block(&mut self) -> Result<()> {
        let whole = self.budget - self.budget % self.device.granule();
        let block = Arena::open(&mut self.device, whole);
        self.pool = Box::new(block.map_err(|error| {
            error.during(|| format!("one block for all weights, the budget of {whole} bytes"))
        })?);
        self.reserve_direct()
    }

    /// Gives that block back: each weight gets memory of its own.
    pub(crate) fn close_block(&mut self) -> Result<()> {
        let (direct, bytes) = (self.direct, self.floor.direct);
        let given = self.pool.give(&mut self.device, direct, bytes);
        given.map_err(all_direct("giving back"))?;
        self.direct = DevicePtr::EMPTY;
        let closed = self.pool.close(&mut self.device);
        closed.map_err(|error| error.during(|| "the block of all weights".into()))?;
        self.pool = Box::new(StreamOrdered::new(self.budget, self.access));
        Ok(())
    }

    /// After passes that were played without copies: counters and policy are as before.
    pub(crate) fn end_rehearsal(&mut self, counted: Stats) {
        self.rehearsing = false;
        self.policy = self.residency.policy();
        self.stats = counted;
        self.fragmentation_misses = 0;
        self.pool.forget_peak();
    }

    /// Everything that happens once the pool is there: direct constants, the layout's memory, the policy's first loads.
    pub(crate) fn load(&mut self) -> Result<()> {
        self.load_direct()?;
        let layout = self.residency.layout.clone();
        self.take_fixed(&layout)?;
        // Before anything is planned: where it fails, nothing is left to be carried out.
        self.load_kept()?;
        self.policy.start(&mut self.actions);
        let loaded = self.load_resident();
        self.wait_for_loads().and(loaded)?;
        self.is_loaded = true;
        self.stats.prefetches = 0;
        self.tell_rows()
    }

    /// The memory of a layout with windows.
    fn take_fixed(&mut self, layout: &Layout) -> Result<()> {
        let block = match &layout.memory {
            Backing::PerWeight => return Ok(()),
            Backing::Block(bytes) => self.pool.take(&mut self.device, *bytes),
            Backing::Mapped(view) => self.pool.map(&mut self.device, view),
        };
        self.block =
            block.map_err(|error| error.during(|| "taking memory for all weights".into()))?;
        Ok(())
    }

    /// Issues the copies of what stays packed. It comes anew with each plan, and where it was holds nothing of value any more.
    fn load_kept(&mut self) -> Result<()> {
        // rule: kept-bytes-are-forgotten-by-a-new-plan
        self.forget_kept();
        let kept = self.residency.plan().map(|plan| plan.kept.clone());
        for one in kept.unwrap_or_default() {
            let at = self.block.offset(one.at);
            let stored = self.bytes[one.weight as usize].stored();
            let copied = self.device.bring(at, stored.slice(0..one.bytes));
            copied.map_err(|error| self.about(one.weight, "copying, packed,", error))?;
            self.weights[one.weight as usize].kept = Some((at, one.bytes));
            self.stats.bytes_copied += one.bytes;
        }
        Ok(())
    }

    fn forget_kept(&mut self) {
        for weight in &mut self.weights {
            weight.kept = None;
        }
    }

    /// Issues the first loads: of what stays. What streams is copied by the passes.
    fn load_resident(&mut self) -> Result<()> {
        let started = self.carry_out();
        if self.layout().is_per_weight() {
            self.warm_up()?;
        }
        for weight in &mut self.weights {
            // What stays is never given up.
            weight.copied = 0..0;
        }
        started
    }

    /// Direct constants are read without a wait, and so is everything where all of it stays.
    fn wait_for_loads(&mut self) -> Result<()> {
        // rule: load-waits-for-its-copies
        let done = self.device.synchronize();
        done.map_err(|error| error.during(|| "waiting for the first loads".into()))?;
        for weight in &mut self.weights {
            weight.ready = None;
        }
        Ok(())
    }

    fn warm_up(&mut self) -> Result<()> {
        let granule = self.device.granule();
        let read = (0..).zip(&self.constants.specs);
        let mut sizes: Vec<_> = read
            .filter(|(weight, _)| self.constants.is_probed(*weight))
            .map(|(_, spec)| spec.occupied(granule))
            .collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.dedup();
        sizes.retain(|&size| size > 0);
        let warm = self.pool.warm_up(&mut self.device, &sizes);
        warm.map_err(|error| error.during(|| "the first use of the memory for all weights".into()))
    }

    /// One block for all of them, and for the pinned weights: they come and go together.
    fn load_direct(&mut self) -> Result<()> {
        let granule = self.device.granule();
        let (mut at, staging) = (self.direct, self.floor.staging);
        if staging > 0 {
            let ring = self.direct.offset(self.floor.direct - staging);
            let told = self.device.decode_in(ring, staging, &self.bytes);
            told.map_err(|error| error.during(|| "preparing to decode packed weights".into()))?;
        }
        for index in 0..self.constants.specs.len() as WeightIndex {
            if self.constants.is_probed(index) {
                continue;
            }
            self.weights[index as usize].at = at;
            self.bring_part(index, 0..self.bytes[index as usize].len(), "copying")?;
            at = at.offset(self.constants.occupied(index, granule));
        }
        for one in &self.tables {
            if self.constants.is_pinned(one.table) {
                self.weights[one.stands as usize].in_place =
                    Some(self.weights[one.table as usize].at);
            }
        }
        Ok(())
    }

    /// Starts a copy of bytes of a weight to where it lies.
    fn bring_part(
        &mut self,
        weight: WeightIndex,
        range: Range<u64>,
        doing: &'static str,
    ) -> Result<()> {
        let at = self.weights[weight as usize].at.offset(range.start);
        let part = self.bytes[weight as usize].part(range);
        let stored = part.stored_bytes();
        let copied = self.device.bring(at, part);
        copied.map_err(|error| self.about(weight, doing, error))?;
        self.stats.bytes_copied += stored;
        Ok(())
    }

    /// The bytes of a constant that is never decoded.
    fn as_stored(&self, index: WeightIndex) -> Result<HostBytes> {
        let stored = self.bytes[index as usize].as_stored();
        stored.ok_or_else(|| {
            let name = self.constants.name(index);
            Error::Internal(format!("the bytes of {name} change, and are decoded"))
        })
    }

    /// Has the initial bytes of a mutable buffer at `at`, in compute-stream order.
    pub(crate) fn write_initial(&mut self, index: WeightIndex, at: DevicePtr) -> Result<()> {
        let bytes = self.as_stored(index)?;
        let written = self.device.upload_bytes(at, bytes);
        written.map_err(|error| self.about(index, "writing the initial bytes of", error))
    }

    /// Between passes, with both streams idle: copies again what is there of these weights, whose bytes on the host have changed.
    pub(crate) fn copy_again(&mut self, changed: &[WeightIndex]) -> Result<()> {
        self.rows_go_home()?;
        for &weight in changed {
            let bytes = self.as_stored(weight)?;
            self.device.source_changed(bytes);
        }
        if self.gave_way {
            // All of them are copied before the next pass.
            return Ok(());
        }
        let mut start = Vec::new();
        self.residency.policy().start(&mut start);
        let staying = start.into_iter().filter_map(|action| match action {
            Action::Load { weight, range, .. } => Some((weight, range)),
            Action::Evict { .. } => None,
        });
        let passing = (0..)
            .zip(&self.weights)
            .map(|(weight, there)| (weight, there.copied.clone()));
        // rule: changed-bytes-in-the-ring-are-copied-again
        let there: Vec<_> = staying.chain(passing).collect();
        for (weight, range) in there {
            if !changed.contains(&weight) || range.is_empty() {
                continue;
            }
            self.bring_part(weight, range, "copying again")?;
        }
        self.wait_for_loads()
    }

    /// The budget from now on: of the pool and of the device. What they hold may be more until the weights are moved.
    pub(crate) fn set_budget(&mut self, bytes: u64) -> Result<()> {
        let told = self.device.set_budget(bytes);
        told.map_err(|error| error.during(|| format!("the budget of {}", bytes_text(bytes))))?;
        self.pool.set_cap(bytes);
        self.budget = bytes;
        Ok(())
    }

    /// The peak is what is there now: it is one of the present budget.
    pub(crate) fn forget_peak(&mut self) {
        self.pool.forget_peak();
    }

    /// Between passes, with both streams idle: all weights move to where `residency` has them. What stays under both plans
    /// is not copied, where the device keeps pages. What has to be copied comes in the order of `reads`, while the next pass
    /// runs: each read waits for its own.
    pub(crate) fn move_to(&mut self, residency: Residency, reads: &[WeightIndex]) -> Result<()> {
        if !self.gave_way {
            // rule: heads-have-their-rows-before-a-move
            self.rows_go_home()?;
            self.device.synchronize()?;
        }
        // rule: moved-weights-are-of-another-generation
        self.generation += 1;
        // rule: ring-is-forgotten-by-a-new-plan
        for (weight, there) in (0..).zip(&mut self.weights) {
            if self.constants.is_probed(weight) {
                there.forget();
            }
        }
        let loads = self.move_memory(&residency)?;
        self.gave_way = false;
        self.policy = residency.policy();
        self.residency = residency;
        // Before anything is planned: where it fails, nothing is left to be carried out.
        self.load_kept()?;
        self.policy.start(&mut self.actions);
        if let Some(loads) = loads {
            self.place_resident();
            self.actions.clear();
            self.actions.extend(loads);
        }
        let mut first = vec![usize::MAX; self.weights.len()];
        for (at, &weight) in reads.iter().enumerate().rev() {
            first[weight as usize] = at;
        }
        self.actions.sort_by_key(|action| match action {
            Action::Load { weight, .. } | Action::Evict { weight } => first[*weight as usize],
        });
        // What stays is loaded ahead of no read of a pass.
        let prefetches = self.stats.prefetches;
        let loaded = self.load_resident();
        self.stats.prefetches = prefetches;
        loaded?;
        self.is_loaded = true;
        // Rows that stay are read without a wait, once they are told.
        // rule: rows-are-told-when-they-are-there
        if self.policy.everything_stays() || !self.rows.is_empty() {
            self.wait_for_loads()?;
        }
        self.tell_rows()
    }

    /// In a pass that reads no weight any more: the memory of all but the `leased` weights goes back to the device, after everything that
    /// was issued. The weights have to be moved before the next pass. The bytes that went.
    pub(crate) fn give_way(&mut self, leased: &[WeightIndex]) -> Result<u64> {
        let Backing::Mapped(view) = &self.residency.layout.memory else {
            return Ok(0);
        };
        let view = view.clone();
        let shown = leased.iter().filter_map(|&weight| {
            let there = &self.weights[weight as usize];
            let start = there.at.0.checked_sub(self.block.0)?;
            let end = start + self.constants.specs[weight as usize].bytes;
            (there.in_place.is_none() && end <= view.bytes).then_some(start..end)
        });
        let shown: Vec<Range<u64>> = shown.collect();
        for weight in 0..self.weights.len() as WeightIndex {
            if self.constants.is_probed(weight) && !leased.contains(&weight) {
                self.weights[weight as usize].forget();
            }
        }
        (self.is_loaded, self.gave_way) = (false, true);
        self.rows.forget();
        self.forget_kept();
        let gone = self.pool.thin(&mut self.device, &view, &shown);
        if let Err(error) = &gone {
            self.poison(format!("memory could not be taken from a pass: {error}"));
        }
        gone
    }

    /// Whether the weights have to be moved before the next pass.
    pub(crate) fn has_given_way(&self) -> bool {
        self.gave_way
    }

    /// The memory of the layout, by the pages of the present one if they can be kept. Then what has to be loaded.
    fn move_memory(&mut self, residency: &Residency) -> Result<Option<Vec<Action>>> {
        let block = std::mem::replace(&mut self.block, DevicePtr::EMPTY);
        // After a move that failed nobody knows what is there.
        // rule: pages-of-a-failed-move-are-not-kept
        let known = std::mem::replace(&mut self.is_loaded, false);
        let keeps = known && block != DevicePtr::EMPTY;
        let page = self.device.page().filter(|_| keeps);
        if let (Some(from), Some(to), Some(page)) = (self.residency.plan(), residency.plan(), page)
        {
            let moved = moves::between(from, to, page);
            let kept = moved.kept();
            let shown = self.pool.remap(&mut self.device, &to.view, &kept);
            let shown = shown.map_err(|error| error.during(|| "moving all weights".into()))?;
            self.block = shown.at;
            return Ok(Some(moved.loads(&shown.lost)));
        }
        if block != DevicePtr::EMPTY {
            match &self.residency.layout.memory {
                Backing::Mapped(_) => self.pool.unmap(&mut self.device)?,
                Backing::Block(bytes) => {
                    self.pool.give(&mut self.device, block, *bytes)?;
                    // A device may keep what is freed for the next allocation.
                    self.device.tidy_up()?;
                }
                Backing::PerWeight => {}
            }
        }
        self.take_fixed(&residency.layout)?;
        Ok(None)
    }

    /// Where the weights lie whose loads are planned: they may be there already.
    fn place_resident(&mut self) {
        for action in &self.actions {
            if let Action::Load { weight, window, .. } = *action {
                let offset = self.residency.layout.windows[window as usize];
                self.weights[weight as usize].at = self.block.offset(offset);
            }
        }
    }
}
