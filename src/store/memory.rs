//! The memory of a store: what is taken at load, what is loaded for good, and the move to another plan.

use super::Store;
use crate::counters::Stats;
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::residency::{Arena, Backing, Residency, StreamOrdered};
use crate::schedule::WeightIndex;

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
        let budget = self.stats.budget_bytes;
        let whole = budget - budget % self.device.granule();
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
        self.pool = Box::new(StreamOrdered::new(self.stats.budget_bytes));
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
        self.take_fixed()?;
        self.load_resident()?;
        self.stats.prefetches = 0;
        Ok(())
    }

    /// The memory of a layout with windows.
    fn take_fixed(&mut self) -> Result<()> {
        let block = match &self.residency.layout.memory {
            Backing::PerWeight => return Ok(()),
            Backing::Block(bytes) => self.pool.take(&mut self.device, *bytes),
            // rule: mapped-memory-is-mapped
            Backing::Mapped(view) => self.pool.map(&mut self.device, view),
        };
        self.block =
            block.map_err(|error| error.during(|| "taking memory for all weights".into()))?;
        Ok(())
    }

    /// The policy's first loads: what stays. What streams is copied by the passes.
    fn load_resident(&mut self) -> Result<()> {
        self.policy.start(&mut self.actions);
        let started = self.carry_out();
        if self.layout().is_per_weight() {
            self.warm_up()?;
        }
        started?;
        // Direct constants are read without a wait, and what is resident from now on needs none.
        // rule: load-waits-for-its-copies
        let done = self.device.synchronize();
        done.map_err(|error| error.during(|| "waiting for the first loads".into()))?;
        for weight in &mut self.weights {
            weight.ready = None;
            // What stays is never given up.
            weight.copied = 0..0;
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
        let mut at = self.direct;
        for (index, spec) in self.constants.specs.iter().enumerate() {
            if self.constants.is_probed(index as WeightIndex) {
                continue;
            }
            let copied = self.device.copy_to_device(at, self.bytes[index]);
            copied.map_err(|error| error.during(|| format!("copying '{}'", spec.fqn)))?;
            self.stats.bytes_copied += spec.bytes;
            self.weights[index].at = at;
            at = at.offset(spec.occupied(granule));
        }
        for one in &self.tables {
            if self.constants.is_pinned(one.table) {
                // rule: pinned-weight-has-its-address
                self.weights[one.stands as usize].in_place =
                    Some(self.weights[one.table as usize].at);
            }
        }
        Ok(())
    }

    /// Has the initial bytes of a mutable buffer at `at`, in compute-stream order.
    pub(crate) fn write_initial(&mut self, index: WeightIndex, at: DevicePtr) -> Result<()> {
        let written = self.device.upload_bytes(at, self.bytes[index as usize]);
        written.map_err(|error| self.about(index, "writing the initial bytes of", error))
    }

    /// Between passes, with both streams idle: gives the memory of all weights back, and loads what stays by `residency`.
    pub(crate) fn move_to(&mut self, residency: Residency) -> Result<()> {
        if self.block != DevicePtr::EMPTY {
            match &self.residency.layout.memory {
                Backing::Mapped(view) => self.pool.unmap(&mut self.device, self.block, view)?,
                Backing::Block(bytes) => self.pool.give(&mut self.device, self.block, *bytes)?,
                Backing::PerWeight => {}
            }
        }
        self.block = DevicePtr::EMPTY;
        for (weight, there) in (0..).zip(&mut self.weights) {
            if self.constants.is_probed(weight) {
                there.forget();
            }
        }
        self.policy = residency.policy();
        self.residency = residency;
        self.take_fixed()?;
        // What stays is loaded ahead of no read of a pass.
        let prefetches = self.stats.prefetches;
        let loaded = self.load_resident();
        self.stats.prefetches = prefetches;
        loaded
    }
}
