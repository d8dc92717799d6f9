//! Which memory a call means, and that nothing else uses it at that time.

use super::clock::{Access, Actor, What};
use super::{space::Space, stray, Sim, SCRATCH};
use crate::device::DevicePtr;
use crate::error::Result;
use std::ops::Range;

impl Sim {
    /// A new time of the stream, after all that the calling thread knows.
    pub(super) fn issue(&mut self, actor: Actor, what: What) -> Access {
        let host = self.host.get();
        let call = self.faults.calls();
        let stream = self.stream(actor);
        stream.clock.join(&host);
        let epoch = stream.clock.tick(actor);
        Access {
            what,
            stream: stream.actor,
            epoch,
            call,
        }
    }

    pub(super) fn reads(&mut self, range: Range<u64>, access: Access) {
        let clock = self.stream(access.stream).clock;
        let regions = &mut self.space_of(range.start).regions;
        if let Some(problem) = regions.read(range, access, &clock) {
            self.report(problem);
        }
    }

    /// `valid` says that the bytes may be read afterwards.
    pub(super) fn writes(&mut self, range: Range<u64>, access: Access, valid: bool) {
        let clock = self.stream(access.stream).clock;
        let regions = &mut self.space_of(range.start).regions;
        if let Some(problem) = regions.write(range, access, &clock, valid) {
            self.report(problem);
        }
    }

    /// A copy on the device. Bytes that hold nothing may be copied: then the copy holds nothing.
    pub(super) fn copies(&mut self, to: &[Range<u64>], from: &[Range<u64>], access: Access) {
        let clock = self.stream(access.stream).clock;
        let mut valid = Vec::new();
        for range in from {
            let (found, problem) =
                self.space_of(range.start)
                    .regions
                    .copied(range.clone(), access, &clock);
            valid.extend(found);
            problem.into_iter().for_each(|problem| self.report(problem));
        }
        let mut valid = valid.into_iter();
        let mut left = 0;
        let mut is_valid = false;
        for range in to {
            let mut at = range.start;
            while at < range.end {
                if left == 0 {
                    let Some((bytes, next)) = valid.next() else {
                        return;
                    };
                    (left, is_valid) = (bytes, next);
                }
                let bytes = left.min(range.end - at);
                self.writes(at..at + bytes, access, is_valid);
                (at, left) = (at + bytes, left - bytes);
            }
        }
    }

    pub(super) fn space_of(&mut self, address: u64) -> &mut Space {
        match address < SCRATCH {
            true => &mut self.weights,
            false => &mut self.scratch,
        }
    }

    pub(super) fn bytes(&self, range: &Range<u64>) -> &[u8] {
        match range.start < SCRATCH {
            true => self.weights.bytes(range),
            false => self.scratch.bytes(range),
        }
    }

    pub(super) fn bytes_mut(&mut self, range: &Range<u64>) -> &mut [u8] {
        self.space_of(range.start).bytes_mut(range)
    }

    /// The memory of addresses within one live block of weights, or of what is mapped.
    pub(super) fn of_weights(&self, ptr: DevicePtr, bytes: u64) -> Result<Vec<Range<u64>>> {
        let range = self.weights.within(ptr, bytes);
        let memory = range
            .filter(|_| !self.is_hidden(ptr))
            .map(|range| vec![range]);
        let memory = memory.or_else(|| self.mapped.behind(ptr, bytes));
        memory.ok_or_else(|| stray(ptr, bytes))
    }

    /// The same for any live block.
    pub(super) fn anywhere(&self, ptr: DevicePtr, bytes: u64) -> Result<Vec<Range<u64>>> {
        let range = self.scratch.within(ptr, bytes);
        match range.filter(|_| !self.is_hidden(ptr)) {
            Some(range) => Ok(vec![range]),
            None => self.of_weights(ptr, bytes),
        }
    }

    /// Whether it is the memory of pages, whose address nobody was told.
    pub(super) fn is_hidden(&self, ptr: DevicePtr) -> bool {
        self.mapped.own(ptr.0)
    }

    /// The same for what the host reads, after all that was issued to the compute stream.
    pub(super) fn read_back(&mut self, ptr: DevicePtr, bytes: u64) -> Result<Vec<Range<u64>>> {
        let memory = self.anywhere(ptr, bytes)?;
        let access = self.issue(Actor::Compute, What::Download);
        for range in &memory {
            self.reads(range.clone(), access);
        }
        Ok(memory)
    }

    /// The same for what is written by anything but a copy of weights.
    pub(super) fn written(&self, ptr: DevicePtr, bytes: u64) -> Result<Vec<Range<u64>>> {
        self.mapped.table.check_written("sim", ptr, bytes)?;
        self.anywhere(ptr, bytes)
    }
}
