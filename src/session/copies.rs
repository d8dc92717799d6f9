//! Copies of small weights that lie next to each other, in the file and on the device, are one copy: each costs
//! some microseconds beyond its bytes, as much as 200 kB take on a fast link.

use super::{build, Session};
use crate::device::{Device, DevicePtr, HostBytes};
use crate::error::Result;
use crate::schedule::WeightIndex;
use std::sync::Arc;

/// A joined copy has at most so many bytes: its first weight is not there before its last one is.
const LONGEST: u64 = 1 << 20;

/// Loads that have their memory, and whose copy is not issued yet.
#[derive(Default)]
pub(super) struct Run {
    weights: Vec<WeightIndex>,
    /// How many of them are for later reads.
    ahead: u64,
    /// Index of the first one's action.
    first: usize,
    /// Where to and where from.
    copy: Option<(DevicePtr, HostBytes)>,
}

impl Run {
    /// Index of the first action that a failure undoes, if the action `at` fails.
    pub(super) fn undo_from(&self, at: usize) -> usize {
        match self.weights.is_empty() {
            true => at,
            false => self.first,
        }
    }

    /// The copy with `src` behind it, if that is to go where this one ends.
    fn joined<D: Device>(&self, device: &D, at: DevicePtr, src: HostBytes) -> Option<HostBytes> {
        let (start, bytes) = self.copy?;
        let fits = start.offset(bytes.len()) == at && bytes.len() + src.len() <= LONGEST;
        let joined = bytes.followed_by(src).filter(|_| fits)?;
        device.copies_across(src).then_some(joined)
    }
}

impl<D: Device> Session<D> {
    /// A load, from byte `start` of the weight on, that has its memory: joined to those before it, or kept for those
    /// behind it. An error is one of the copy before it.
    pub(super) fn queue_copy(
        &mut self,
        action: usize,
        (weight, start): (WeightIndex, u64),
        ahead: bool,
        src: HostBytes,
    ) -> Result<()> {
        let at = self.tenants[weight as usize].at.offset(start);
        // Neighbours in two allocations of the device are none.
        let one_block = self.pool.is_one_block() || self.layout.bytes() > 0;
        let joined = one_block
            .then(|| self.run.joined(&self.device, at, src))
            .flatten();
        if joined.is_none() {
            self.issue_copy()?;
            self.run.first = action;
        }
        let start = self.run.copy.map_or(at, |(start, _)| start);
        self.run.copy = Some((start, joined.unwrap_or(src)));
        self.run.weights.push(weight);
        self.run.ahead += u64::from(ahead);
        Ok(())
    }

    /// Issues what is queued. On an error none of these weights was loaded.
    pub(super) fn issue_copy(&mut self) -> Result<()> {
        let Some((at, src)) = self.run.copy.take() else {
            return Ok(());
        };
        let copied = self
            .device
            .copy_to_device(at, src)
            .and_then(|()| self.device.record_copy());
        match copied {
            Ok(event) => {
                let event = Arc::new(event);
                for &weight in &self.run.weights {
                    self.tenants[weight as usize].ready = Some(Arc::clone(&event));
                }
                self.stats.bytes_copied += src.len();
                self.stats.prefetches += self.run.ahead;
                self.stop_run();
                Ok(())
            }
            Err(error) => {
                let error = error.during(|| format!("copying {}", self.run_names()));
                self.drop_copy();
                Err(error)
            }
        }
    }

    /// What is queued, in a message.
    fn run_names(&self) -> String {
        let names = self.run.weights.iter();
        let names = names.map(|&weight| build::weight_name(&self.program, weight));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Gives the memory of what is queued back. In copy-stream order, so right even if the copy was issued and
    /// only its event failed. Nobody reads bytes that were taken over in front of it: the copies wait for their readers
    /// since what it brings again was given up.
    fn drop_copy(&mut self) {
        for at in 0..self.run.weights.len() {
            let weight = self.run.weights[at];
            // A failure here as well changes nothing: the first one is reported, and the cap stays counted.
            if let Err(error) = self.give_memory(weight) {
                self.poison(format!("memory could not be given back: {error}"));
            }
        }
        // The actions still have to be undone: `first` stays.
        self.run.ahead = 0;
        self.run.copy = None;
    }

    /// Nothing is queued any more.
    pub(super) fn stop_run(&mut self) {
        self.run.weights.clear();
        self.run.ahead = 0;
        self.run.copy = None;
    }
}
