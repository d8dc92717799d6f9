//! The CPU as a device: the calling thread is the compute stream, one thread is the copy stream.
//!
//! Copies run on their own thread, in the order of issue, so prefetching is real. A compute event is
//! complete as soon as it is recorded, since the calling thread has done everything before it.

mod block;
mod copier;
mod memory_file;
mod pages;
mod progress;

use super::{Device, DevicePtr, HostBytes, Pages, Source};
use crate::error::{Error, Result};
use block::{Block, Blocks, CopyTarget};
use copier::{Command, Copier};
pub use memory_file::FilePages;
pub use pages::HostPages;
pub(super) use pages::{page, GRANULE};
use std::sync;

/// A point in one of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostEvent {
    /// Commands of the copy thread that lie before it; 0 for a point of the compute stream, before
    /// which everything is done.
    commands: u64,
}

/// The CPU, its memory and its copy thread.
pub struct HostDevice {
    copier: Copier,
    live: Blocks,
    scratch: Blocks,
    /// If the system has memory files.
    pages: Option<HostPages>,
    /// What is read where it is.
    in_place: Vec<HostBytes>,
    /// Freed blocks kept for the next allocation of their size, oldest first. Fresh memory costs a page
    /// fault per 4 KiB, about as much as the copy itself. Never more than what keeps
    /// `live + cached <= peak`, so that the process's memory stays within what the pool once held.
    cached: Vec<Block>,
    cached_bytes: u64,
    peak_bytes: u64,
}

impl HostDevice {
    /// Starts the copy thread.
    pub fn new() -> Result<Self> {
        Ok(HostDevice {
            copier: Copier::start()?,
            live: Blocks::default(),
            scratch: Blocks::default(),
            pages: HostPages::new().ok(),
            in_place: Vec::new(),
            cached: Vec::new(),
            cached_bytes: 0,
            peak_bytes: 0,
        })
    }

    /// Bytes allocated and not freed, mapped memory among them, without activations.
    pub fn live_bytes(&self) -> u64 {
        self.live.bytes() + self.pages.as_ref().map_or(0, |pages| pages.table.bytes())
    }

    /// Copies issued to the copy stream.
    pub fn copies_issued(&self) -> u64 {
        self.copier.issued()
    }

    /// Bytes of activations allocated and not freed.
    pub fn live_scratch_bytes(&self) -> u64 {
        self.scratch.bytes()
    }

    fn take_cached(&mut self, bytes: u64) -> Option<Block> {
        let at = self.cached.iter().rposition(|b| b.bytes() == bytes)?;
        self.cached_bytes -= bytes;
        Some(self.cached.remove(at))
    }

    /// Reads bytes that are in place; `false` if these are none.
    fn reads_in_place(&self, src: DevicePtr, dst: &mut [u8]) -> bool {
        let bytes = dst.len() as u64;
        let offset = |all: &HostBytes| {
            let offset = src.0.checked_sub(address(*all).0)?;
            (offset <= all.len() && bytes <= all.len() - offset).then_some((*all, offset))
        };
        let Some((all, offset)) = self.in_place.iter().find_map(offset) else {
            return false;
        };
        let found = all.slice(offset..offset + bytes);
        // SAFETY: readable and unchanged as long as this device lives (`HostBytes::new`), and `dst` is as long.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), dst.as_mut_ptr(), dst.len()) };
        true
    }

    /// Where bytes of mapped memory lie, with no copy under way there: the calling thread accesses them. `None` if nothing is mapped
    /// at `ptr`.
    fn mapped(&mut self, ptr: DevicePtr, bytes: u64) -> Result<Option<*mut u8>> {
        let Some(pages) = self.pages.as_ref().filter(|pages| pages.table.contain(ptr)) else {
            return Ok(None);
        };
        if !pages.table.cover(ptr, bytes) {
            return Err(Error::Internal(format!(
                "host memory {:#x}: {bytes} bytes that leave their pages",
                ptr.0
            )));
        }
        let at = pages.pointer(ptr);
        self.synchronize()?;
        Ok(Some(at))
    }

    /// The same, where it may be written by anything but a copy of weights.
    fn mapped_to_write(&mut self, ptr: DevicePtr, bytes: u64) -> Result<Option<*mut u8>> {
        if let Some(pages) = &self.pages {
            pages.table.check_written("host memory", ptr, bytes)?;
        }
        self.mapped(ptr, bytes)
    }

    /// The blocks among which `ptr` lies, with no copy under way on them: the calling thread accesses them.
    fn idle_blocks(&mut self, ptr: DevicePtr) -> Result<&mut Blocks> {
        if !self.live.contain(ptr) {
            return Ok(&mut self.scratch);
        }
        self.copier.wait(self.copier.issued())?;
        Ok(&mut self.live)
    }

    /// Frees cached blocks, oldest first, until `bytes` fresh ones keep within the peak. In copy-stream
    /// order: the thread unmaps them before it touches the fresh memory, so the process never holds more.
    fn trim_cache(&mut self, bytes: u64) -> Result<()> {
        let needed = self.live_bytes().saturating_add(bytes);
        let allowed = self.peak_bytes.max(needed);
        while self.cached_bytes > 0 && needed.saturating_add(self.cached_bytes) > allowed {
            let block = self.cached.remove(0);
            self.cached_bytes -= block.bytes();
            self.copier.issue(Command::Free(block))?;
        }
        Ok(())
    }
}

impl Device for HostDevice {
    type Event = HostEvent;
    /// It captures none.
    type Graph = std::convert::Infallible;
    type Pages = HostPages;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn granule(&self) -> u64 {
        GRANULE
    }

    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        let block = match self.take_cached(bytes) {
            Some(block) => block,
            None => {
                self.trim_cache(bytes)?;
                Block::new(bytes).ok_or_else(|| out_of_memory("weights", bytes))?
            }
        };
        let ptr = self.live.insert(block);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes());
        Ok(ptr)
    }

    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let block = self.live.remove(ptr, bytes)?;
        if block.is_mapped() {
            // Queued copies may still write it. Whoever gets it next writes it by a later copy only.
            self.cached_bytes += bytes;
            // rule: host-keeps-memory-for-later-copies
            self.cached.push(block);
            return Ok(());
        }
        self.copier.issue(Command::Free(block))
    }

    fn page(&self) -> Option<u64> {
        self.pages.as_ref().map(Pages::page)
    }

    fn pages(&mut self) -> Option<&mut HostPages> {
        // What is kept for the next allocation is not held beside them.
        self.tidy_up().ok()?;
        self.pages.as_mut()
    }

    /// Gives what is kept for the next allocation back to the system.
    fn tidy_up(&mut self) -> Result<()> {
        self.cached_bytes = 0;
        self.peak_bytes = self.live_bytes();
        let kept = std::mem::take(&mut self.cached).into_iter();
        { kept }.try_for_each(|block| self.copier.issue(Command::Free(block)))
    }

    fn in_place(&mut self, bytes: HostBytes) -> Result<Option<DevicePtr>> {
        self.in_place.push(bytes);
        Ok(Some(address(bytes)))
    }

    fn alloc_scratch(&mut self, bytes: u64) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        let block = Block::heap(bytes).ok_or_else(|| out_of_memory("an activation", bytes))?;
        Ok(self.scratch.insert(block))
    }

    fn free_scratch(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        if bytes > 0 {
            // At once: the calling thread, which is the compute stream, has read it for the last time.
            drop(self.scratch.remove(ptr, bytes)?);
        }
        Ok(())
    }

    fn upload(&mut self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        match src.is_empty() {
            true => Ok(()),
            false => match self.mapped_to_write(dst, src.len() as u64)? {
                Some(to) => {
                    // SAFETY: mapped, by the table, and no copy is under way there; `src` is other memory, as pages are never lent
                    // as slices.
                    unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), to, src.len()) };
                    Ok(())
                }
                None => self.idle_blocks(dst)?.write(dst, src),
            },
        }
    }

    fn download(&mut self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        match self.mapped(src, dst.len() as u64)? {
            // SAFETY: as in `upload`, with the directions exchanged; what is mapped can be read.
            Some(from) => unsafe {
                std::ptr::copy_nonoverlapping(from, dst.as_mut_ptr(), dst.len())
            },
            None if self.reads_in_place(src, dst) => {}
            None => self.idle_blocks(src)?.read(src, dst)?,
        }
        Ok(())
    }

    fn bring(&mut self, dst: DevicePtr, src: impl Into<Source>) -> Result<()> {
        let src = src.into();
        if src.is_empty() {
            return Ok(());
        }
        let pages = self.pages.as_ref();
        if let Some((pages, parts)) =
            pages.and_then(|pages| Some((pages, pages.table.targets(dst, src.len())?)))
        {
            return parts?.into_iter().try_for_each(|(at, part)| {
                let (target, src) = (CopyTarget(pages.pointer(at)), src.part(part));
                self.copier.issue(Command::Copy { target, src })
            });
        }
        let target = self.live.target(dst, src.len())?;
        self.copier.issue(Command::Copy { target, src })
    }

    fn record_compute(&mut self) -> Result<HostEvent> {
        Ok(HostEvent { commands: 0 })
    }

    fn copy_wait(&mut self, event: &HostEvent) -> Result<()> {
        // The copy stream is one queue, so it has nothing to wait for in an event of its own either.
        debug_assert!(event.commands <= self.copier.issued());
        Ok(())
    }

    fn record_copy(&mut self) -> Result<HostEvent> {
        Ok(HostEvent {
            commands: self.copier.issued(),
        })
    }

    fn compute_wait(&mut self, event: &HostEvent) -> Result<()> {
        // rule: host-waits-for-its-copies
        self.copier.wait(event.commands)
    }

    fn is_done(&self, event: &HostEvent) -> Result<bool> {
        self.copier.is_done(event.commands)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.copier.wait(self.copier.issued())
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        // Before the blocks go: the thread may be writing into them.
        self.copier.stop();
    }
}

fn address(bytes: HostBytes) -> DevicePtr {
    DevicePtr(bytes.as_ptr().expose_provenance() as u64)
}

fn out_of_memory(what: &str, bytes: u64) -> Error {
    Error::OutOfMemory {
        what: what.to_string(),
        bytes,
    }
}

#[cfg(test)]
mod tests;
