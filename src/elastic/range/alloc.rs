//! What one allocation of a range holds, and who uses it.

use super::answer::Place;
use crate::device::{DevicePtr, UserStreams};
use crate::error::Result;
use crate::memory::Units;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Allocations begin at multiples of this, as those of CUDA do.
pub const ALIGNMENT: u64 = 256;

/// Number of one allocation in its range, or of a slot of the range's ring.
pub type AllocId = u32;

/// No contents.
pub(super) const NOTHING: u64 = 0;

/// A number for contents that are about to be written. No number is used twice in a process.
fn next_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(NOTHING + 1);
    // rule: generation-is-never-used-again
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A point in a stream, after which nobody uses the bytes there.
pub(super) struct Use<D: UserStreams> {
    pub stream: D::Stream,
    pub event: Arc<D::Event>,
}

/// Some bytes of a range, or of its ring.
pub(super) struct Alloc<D: UserStreams> {
    pub at: DevicePtr,
    /// From the start of the range or ring.
    pub offset: u64,
    pub bytes: u64,
    /// Which contents these are; [`NOTHING`] once they are lost.
    pub generation: u64,
    /// Somebody was told to write them, and has not said that it is done.
    pub filling: bool,
    /// Faults that were not unpinned, and leases that have not ended.
    pub pins: u32,
    pub leases: u32,
    /// The streams that leases were given to.
    pub lease_streams: Vec<D::Stream>,
    /// Where the contents were written, until that was seen to be complete.
    pub filled: Option<Use<D>>,
    /// Uses that have ended on the host, the last one of each stream.
    pub uses: Vec<Use<D>>,
}

impl<D: UserStreams> Alloc<D> {
    pub fn new(start: DevicePtr, offset: u64, bytes: u64) -> Self {
        Alloc {
            at: start.offset(offset),
            offset,
            bytes,
            generation: NOTHING,
            filling: false,
            pins: 0,
            leases: 0,
            lease_streams: Vec::new(),
            filled: None,
            uses: Vec::new(),
        }
    }

    pub fn place(&self) -> Place {
        Place {
            at: self.at,
            bytes: self.bytes,
            generation: self.generation,
        }
    }

    /// Somebody is to write new contents.
    pub fn begin_fill(&mut self) {
        self.generation = next_generation();
        self.filling = true;
        self.pins = 1;
        self.filled = None;
    }

    /// Its contents are there.
    pub fn is_valid(&self) -> bool {
        self.generation != NOTHING && !self.filling
    }

    /// A use ends at this event: it stands for all earlier ones of its stream.
    pub fn used(&mut self, stream: D::Stream, event: &Arc<D::Event>) {
        let event = event.clone();
        match self.uses.iter_mut().find(|one| one.stream == stream) {
            Some(last) => last.event = event,
            None => self.uses.push(Use { stream, event }),
        }
    }

    /// Forgets the uses that are complete. Whether none is left.
    pub fn is_idle(&mut self, device: &Units<D>) -> Result<bool> {
        while let Some(last) = self.uses.last() {
            if !device.pages.is_done(&last.event)? {
                return Ok(false);
            }
            self.uses.pop();
        }
        Ok(true)
    }

    /// Blocks until all uses are complete.
    pub fn finish(&mut self, device: &mut Units<D>) -> Result<()> {
        while let Some(last) = self.uses.last() {
            device.pages.wait(&last.event)?;
            self.uses.pop();
        }
        Ok(())
    }

    /// What is issued to `stream` later comes after the write of the contents.
    pub fn order_after_fill(&mut self, device: &mut Units<D>, stream: D::Stream) -> Result<()> {
        let Some(filled) = self.filled.as_ref().filter(|one| one.stream != stream) else {
            return Ok(());
        };
        if device.pages.is_done(&filled.event)? {
            self.filled = None;
            return Ok(());
        }
        // rule: hit-waits-for-the-fill-of-another-stream
        device.pages.stream_wait(stream, &filled.event)?;
        Ok(())
    }

    /// What is issued to `stream` later comes after all uses.
    pub fn order_after_uses(&mut self, device: &mut Units<D>, stream: D::Stream) -> Result<()> {
        for one in self.uses.iter().filter(|one| one.stream != stream) {
            // rule: fill-waits-for-readers-of-other-streams
            device.pages.stream_wait(stream, &one.event)?;
        }
        Ok(())
    }

    /// Its memory goes, or its bytes are said to be worth nothing.
    pub fn lose(&mut self) {
        // rule: lost-contents-are-not-a-hit
        self.generation = NOTHING;
        self.filled = None;
    }
}
