//! Carries out what the policy decided, in order, on the copy stream.
//!
//! A victim's memory is given up after the event of its last lease's end, so that whatever is copied there later waits for its
//! last reader; and each copy leaves an event that the next read of the weight waits for.

use super::Store;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::residency::Action;
use crate::schedule::{ProbeId, WeightIndex};
use std::ops::Range;

impl<D: Device> Store<D> {
    /// Carries out all planned actions. On an error the policy is told, from the last one backwards, which of them did not
    /// happen.
    pub(super) fn carry_out(&mut self) -> Result<()> {
        let count = self.actions.len();
        for at in 0..count {
            if let Err(error) = self.perform(at) {
                // What is queued before it is not its fault, unless it is.
                // rule: queued-copies-go-first
                let error = self.issue_copy().err().unwrap_or(error);
                // rule: failed-action-is-undone
                self.undo(self.batch.undo_from(at));
                return Err(error);
            }
        }
        if let Err(error) = self.issue_copy() {
            // rule: failed-last-copy-is-undone
            self.undo(self.batch.undo_from(count));
            return Err(error);
        }
        self.actions.clear();
        Ok(())
    }

    fn undo(&mut self, from: usize) {
        // rule: undone-from-the-last-action
        for at in (from..self.actions.len()).rev() {
            match self.actions[at].clone() {
                Action::Evict { weight } => self.policy.evict_failed(weight),
                Action::Load { weight, .. } => self.policy.load_failed(weight),
            }
        }
        self.actions.clear();
        self.batch.stop();
    }

    /// Carries out what serves the read of probe `id`. A pool may have the bytes, but in pieces: then one weight after the
    /// other is given up, until the pieces are large enough or all that is left is leased; then the device is asked, once, to
    /// make larger pieces of what is free.
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
                self.evict(weight)
            }
            Action::Load {
                weight,
                range,
                window,
                ahead,
            } => self.load_weight(at, weight, range, window, ahead),
        }
    }

    fn load_weight(
        &mut self,
        action: usize,
        weight: WeightIndex,
        range: Range<u64>,
        window: u32,
        ahead: bool,
    ) -> Result<()> {
        if !self.rehearsing && self.weights[weight as usize].has_copied() {
            return Err(self.loaded_twice(weight, &range));
        }
        self.take_memory(weight, window)?;
        if self.rehearsing || range.is_empty() {
            return Ok(());
        }
        self.weights[weight as usize].copied = range.clone();
        let start = range.start;
        let kept = self.weights[weight as usize].kept;
        let src = self.bytes[weight as usize].part(range).with_kept(kept);
        let queued = self.queue_copy(action, (weight, start), ahead, src);
        if queued.is_err() {
            self.give_memory(weight)?;
        }
        queued
    }

    /// The policy takes a weight for absent that is there: kernels may be reading it, so nothing runs any more.
    #[cold]
    fn loaded_twice(&mut self, weight: WeightIndex, range: &Range<u64>) -> Error {
        let copied = &self.weights[weight as usize].copied;
        let name = self.constants.name(weight);
        let why = format!("bytes {range:?} of {name} were to be loaded, and {copied:?} are there");
        self.poison(why.clone());
        Error::Internal(why)
    }

    /// Gives up what was copied of the weight, after its last reader.
    fn evict(&mut self, weight: WeightIndex) -> Result<()> {
        if let Some(event) = &self.weights[weight as usize].last_read {
            // rule: copy-waits-for-reader
            let waited = self.device.copy_wait(event);
            waited.map_err(|error| self.about(weight, "waiting for the last reader of", error))?;
        }
        self.give_memory(weight)?;
        self.stats.evictions += 1;
        Ok(())
    }

    fn take_memory(&mut self, weight: WeightIndex, window: u32) -> Result<()> {
        let layout = &self.residency.layout;
        let at = match layout.is_per_weight() {
            true => {
                let size = self.constants.occupied(weight, self.device.granule());
                let taken = self.pool.take(&mut self.device, size);
                taken.map_err(|error| self.about(weight, "taking memory for", error))?
            }
            false => self.block.offset(layout.windows[window as usize]),
        };
        let there = &mut self.weights[weight as usize];
        there.pooled = layout.is_per_weight();
        there.at = at;
        Ok(())
    }

    /// Gives the weight's memory back to the pool, or its copied bytes of the block to others.
    pub(super) fn give_memory(&mut self, weight: WeightIndex) -> Result<()> {
        let there = &self.weights[weight as usize];
        let given = match there.pooled {
            true => {
                let size = self.constants.occupied(weight, self.device.granule());
                self.pool.give(&mut self.device, there.at, size)
            }
            false => {
                let Range { start, end } = there.copied;
                self.device.discard(there.at.offset(start), end - start)
            }
        };
        given.map_err(|error| self.about(weight, "giving back the memory of", error))?;
        self.weights[weight as usize].forget();
        Ok(())
    }

    /// Issues the copies for later reads. Where the pool has no piece that is large enough, weights that nobody holds are
    /// given up, as for a demand; if that is not enough, the copy is left to its read. The first error is returned; the read
    /// that was served before is right all the same.
    pub(crate) fn look_ahead(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        self.policy.ahead(&mut self.actions);
        while !self.actions.is_empty() {
            match self.carry_out() {
                Ok(()) => {}
                Err(Error::OutOfMemory { .. }) => {
                    self.fragmentation_misses += 1;
                    if !self.policy.make_room(&mut self.actions) {
                        return outcome;
                    }
                    self.policy.ahead(&mut self.actions);
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Nothing is leased any more: all weights can go.
    pub(crate) fn give_up_all(&mut self) -> Result<()> {
        self.policy.abort();
        while self.policy.make_room(&mut self.actions) {
            self.carry_out()?;
        }
        let mut left = (0..).zip(&self.weights).filter(|(_, weight)| weight.pooled);
        left.next().map_or(Ok(()), |(weight, _)| {
            Err(Error::Internal(format!(
                "{} kept its memory when all was given up",
                self.constants.name(weight)
            )))
        })
    }
}
