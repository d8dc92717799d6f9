//! Which memory a call means, and that nothing else uses it at that time.

use super::clock::{Access, Actor, What};
use super::{space::Space, stray, Sim, SCRATCH};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
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

    pub(super) fn space_of(&mut self, address: u64) -> &mut Space {
        match self.block_of(address) {
            Some(at) => &mut self.blocks[at],
            None if address < SCRATCH => &mut self.weights,
            None => &mut self.scratch,
        }
    }

    pub(super) fn bytes(&self, range: &Range<u64>) -> &[u8] {
        match self.block_of(range.start) {
            Some(at) => self.blocks[at].bytes(range),
            None if self.weights.holds(range) => self.weights.bytes(range),
            None => self.scratch.bytes(range),
        }
    }

    pub(super) fn bytes_mut(&mut self, range: &Range<u64>) -> &mut [u8] {
        self.space_of(range.start).bytes_mut(range)
    }

    /// The memory of addresses within one live block of weights, within one view, or within units of a range.
    pub(super) fn of_weights(&self, ptr: DevicePtr, bytes: u64) -> Result<Vec<Range<u64>>> {
        let range = self.weights.within(ptr, bytes);
        let range = range.filter(|range| !self.views.own(range.start));
        let memory = range.map(|range| vec![range]);
        let memory = memory.or_else(|| self.views.behind(ptr, bytes));
        let memory = memory.or_else(|| self.units.behind(ptr, bytes));
        memory.ok_or_else(|| stray(ptr, bytes))
    }

    /// The same within any live block.
    pub(super) fn anywhere(&self, ptr: DevicePtr, bytes: u64) -> Result<Vec<Range<u64>>> {
        let block = self.block_of(ptr.0).map(|at| &self.blocks[at]);
        match block.unwrap_or(&self.scratch).within(ptr, bytes) {
            Some(range) => Ok(vec![range]),
            None => self.of_weights(ptr, bytes),
        }
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
    pub(super) fn written(&self, ptr: DevicePtr, bytes: u64) -> Result<Range<u64>> {
        if self.views.contain(ptr) {
            return Err(Error::Internal(format!(
                "{:#x} is an address of a view: kernels and uploads only read there, copies of weights write",
                ptr.0
            )));
        }
        // Without a view it is one piece, within one unit of a range too.
        match self.anywhere(ptr, bytes)?.as_slice() {
            [range] => Ok(range.clone()),
            _ => Err(stray(ptr, bytes)),
        }
    }
}
