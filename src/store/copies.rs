//! Loads become copies: queued, joined with their neighbours, and issued with an event after them.

use super::Store;
use crate::device::{Device, Source};
use crate::error::Result;
use crate::schedule::WeightIndex;
use std::sync::Arc;

impl<D: Device> Store<D> {
    /// A load, from byte `start` of the weight on, that has its memory: joined to those before it, or kept for those after
    /// it. An error is one of the copy before it.
    pub(super) fn queue_copy(
        &mut self,
        action: usize,
        (weight, start): (WeightIndex, u64),
        ahead: bool,
        src: Source,
    ) -> Result<()> {
        let at = self.weights[weight as usize].at.offset(start);
        // Neighbours in two allocations of the device are none.
        let one_block = self.pool.is_one_block() || !self.layout().is_per_weight();
        let joined = one_block
            .then(|| self.batch.joined(&self.device, at, &src))
            .flatten();
        if joined.is_none() {
            self.issue_copy()?;
            self.batch.first = action;
        }
        let start = self.batch.copy.as_ref().map_or(at, |(start, _)| *start);
        self.batch.copy = Some((start, joined.unwrap_or(src)));
        self.batch.weights.push(weight);
        self.batch.ahead += u64::from(ahead);
        Ok(())
    }

    /// Issues what is queued. On an error none of these weights was loaded.
    pub(super) fn issue_copy(&mut self) -> Result<()> {
        let Some((at, src)) = self.batch.copy.take() else {
            return Ok(());
        };
        let stored = src.stored_bytes();
        // rule: event-comes-after-the-copy
        let copied = self
            .device
            .bring(at, src)
            .and_then(|()| self.device.record_copy());
        match copied {
            Ok(event) => {
                let event = Arc::new(event);
                for &weight in &self.batch.weights {
                    // rule: copy-leaves-an-event
                    self.weights[weight as usize].ready = Some(Arc::clone(&event));
                }
                self.stats.bytes_copied += stored;
                self.stats.prefetches += self.batch.ahead;
                self.batch.stop();
                Ok(())
            }
            Err(error) => {
                let error = error.during(|| format!("copying {}", self.batch_names()));
                self.drop_copy();
                Err(error)
            }
        }
    }

    /// What is queued, in a message.
    fn batch_names(&self) -> String {
        let names = self.batch.weights.iter();
        let names = names.map(|&weight| self.constants.name(weight));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Gives the memory of what is queued back. In copy-stream order, so right even if the copy was issued and only its
    /// event failed.
    fn drop_copy(&mut self) {
        for at in 0..self.batch.weights.len() {
            let weight = self.batch.weights[at];
            // A failure here as well changes nothing: the first one is reported, and the cap stays counted.
            if let Err(error) = self.give_memory(weight) {
                self.poison(format!("memory could not be given back: {error}"));
            }
        }
        // The actions still have to be undone: `first` stays.
        self.batch.ahead = 0;
        self.batch.copy = None;
    }
}
