//! Carries out what the policy decided, in order, on the copy stream.
//!
//! The two rules of stream order live here and in the probe: a victim's memory is freed behind the event of
//! its last lease's end, so that whatever is copied there later waits for its last reader; and each copy
//! leaves an event that the first probe of the weight waits for.

use super::{build, Session};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::residency::{Action, Memory};
use crate::schedule::{ProbeId, WeightIndex};
use std::ops::Range;

impl<D: Device> Session<D> {
    /// Carries out all planned actions. On an error the policy is told, from the last one backwards, which
    /// of them did not happen.
    pub(super) fn carry_out(&mut self) -> Result<()> {
        let count = self.actions.len();
        for at in 0..count {
            if let Err(error) = self.perform(at) {
                // What is queued in front of it is not its fault, unless it is.
                let error = self.issue_copy().err().unwrap_or(error);
                self.undo(self.run.undo_from(at));
                return Err(error);
            }
        }
        if let Err(error) = self.issue_copy() {
            self.undo(self.run.undo_from(count));
            return Err(error);
        }
        self.actions.clear();
        Ok(())
    }

    fn undo(&mut self, from: usize) {
        for at in (from..self.actions.len()).rev() {
            match self.actions[at].clone() {
                Action::Evict { weight } => self.policy.evict_failed(weight),
                Action::Load { weight, .. } => self.policy.load_failed(weight),
            }
        }
        self.actions.clear();
        self.stop_run();
    }

    /// Carries out what serves the read of probe `id`. A pool may have the bytes, but in pieces: then one
    /// weight after the other is given up, until the pieces are large enough or all that is left is leased;
    /// then the device is asked, once, to make larger pieces of what is free.
    pub(super) fn carry_out_demand(&mut self, id: ProbeId) -> Result<()> {
        let mut tidied = false;
        loop {
            match self.carry_out() {
                Err(Error::OutOfMemory { .. }) if self.policy.make_room(&mut self.actions) => {
                    self.fragmentation_misses += 1;
                }
                Err(Error::OutOfMemory { .. }) if !tidied => {
                    tidied = true;
                    self.device.tidy_up()?;
                    self.compactions += 1;
                }
                done => return done,
            }
            self.policy.demand(id, &mut self.actions)?;
        }
    }

    fn perform(&mut self, at: usize) -> Result<()> {
        match self.actions[at].clone() {
            Action::Evict { weight } => {
                self.issue_copy()?;
                self.give_up(weight)?;
                self.stats.evictions += 1;
                Ok(())
            }
            Action::Load {
                weight,
                range,
                window,
                ahead,
            } => {
                if !self.tenants[weight as usize].copied.is_empty() {
                    return Err(self.wrong_load(weight, &range));
                }
                self.take_memory(weight, window)?;
                if self.rehearsing {
                    return Ok(());
                }
                self.tenants[weight as usize].copied = range.clone();
                if range.is_empty() {
                    return Ok(());
                }
                let start = range.start;
                let src = self.bytes[weight as usize].slice(range);
                let queued = self.queue_copy(at, (weight, start), ahead, src);
                if queued.is_err() {
                    self.give_memory(weight)?;
                }
                queued
            }
        }
    }

    /// The policy takes other bytes for present than are. A kernel would read what is not there, so nothing runs any more.
    #[cold]
    fn wrong_load(&mut self, weight: WeightIndex, range: &Range<u64>) -> Error {
        let copied = &self.tenants[weight as usize].copied;
        let name = build::weight_name(&self.program, weight);
        let why = format!("bytes {range:?} of {name} were to be loaded, and {copied:?} are there");
        self.poison(why.clone());
        Error::Internal(why)
    }

    /// Gives up what was copied of the weight, behind its last reader.
    fn give_up(&mut self, weight: WeightIndex) -> Result<()> {
        self.wait_for_readers(weight)?;
        self.give_memory(weight)
    }

    fn wait_for_readers(&mut self, weight: WeightIndex) -> Result<()> {
        let Some(event) = &self.tenants[weight as usize].last_read else {
            return Ok(());
        };
        let waited = self.device.copy_wait(event);
        waited.map_err(|error| self.about(weight, "waiting for the last reader of", error))
    }

    fn take_memory(&mut self, weight: WeightIndex, window: u32) -> Result<()> {
        let index = weight as usize;
        let size = self.program.weights[index].occupied(self.device.granule());
        let pooled = self.layout.memory == Memory::PerWeight;
        let at = match pooled {
            true => {
                let taken = self.pool.take(&mut self.device, size);
                taken.map_err(|error| self.about(weight, "taking memory for", error))?
            }
            false => self.block.offset(self.layout.windows[window as usize]),
        };
        let tenant = &mut self.tenants[index];
        (tenant.at, tenant.pooled) = (at, pooled);
        Ok(())
    }

    /// Gives the weight's memory back to the pool, or its bytes of the block to others; nothing that is known of it
    /// holds any more.
    pub(super) fn give_memory(&mut self, weight: WeightIndex) -> Result<()> {
        let tenant = &self.tenants[weight as usize];
        let given = match tenant.pooled {
            true => {
                let size = self.program.weights[weight as usize].occupied(self.device.granule());
                self.pool.give(&mut self.device, tenant.at, size)
            }
            false => {
                let Range { start, end } = tenant.copied;
                self.device.discard(tenant.at.offset(start), end - start)
            }
        };
        given.map_err(|error| self.about(weight, "giving back the memory of", error))?;
        let tenant = &mut self.tenants[weight as usize];
        tenant.pooled = false;
        tenant.copied = 0..0;
        tenant.ready = None;
        tenant.last_read = None;
        Ok(())
    }

    /// Issues the copies for later reads. The read that was just served is right whatever happens here, so
    /// a failure is kept, and ends the pass at its next probe. Where the pool has no piece that is large
    /// enough, weights that nobody holds are given up, as for a demand; if that is not enough, the copy is
    /// left to its read.
    pub(super) fn look_ahead(&mut self) {
        self.policy.ahead(&mut self.actions);
        while !self.actions.is_empty() {
            match self.carry_out() {
                Ok(()) => {}
                Err(Error::OutOfMemory { .. }) => {
                    self.fragmentation_misses += 1;
                    if !self.policy.make_room(&mut self.actions) {
                        return;
                    }
                    self.policy.ahead(&mut self.actions);
                }
                Err(error) => {
                    self.failed.get_or_insert(error.clone());
                    self.keep(error);
                }
            }
        }
    }

    /// The lease of a weight that may be evicted ended: keeps the point in the compute stream behind its
    /// last reader.
    pub(super) fn keep_last_read(&mut self, weight: WeightIndex) {
        if self.rehearsing {
            return;
        }
        match self.device.record_compute() {
            Ok(event) => self.tenants[weight as usize].last_read = Some(event),
            // Nothing that was captured happens then.
            Err(error) if self.is_capturing() => {
                self.failed.get_or_insert(error);
            }
            Err(error) => {
                // Without the event nothing may ever be copied over this weight again.
                let name = build::weight_name(&self.program, weight);
                self.poison(format!("the end of a lease of {name} was lost: {error}"));
                self.keep(self.about(weight, "ending a lease of", error));
            }
        }
    }

    /// The error of a device call that was made for `weight`.
    #[cold]
    pub(super) fn about(&self, weight: WeightIndex, doing: &str, error: Error) -> Error {
        error.during(|| format!("{doing} {}", build::weight_name(&self.program, weight)))
    }

    #[cold]
    pub(super) fn poison(&mut self, why: String) {
        self.poisoned.get_or_insert(why);
    }
}
