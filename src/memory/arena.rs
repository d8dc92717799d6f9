//! One block of device memory, divided here.
//!
//! A device's own pool cannot join pieces that were freed apart: with half of it free in small pieces, a large
//! weight finds no room until the copy stream has been waited for and the pool has been trimmed, which costs
//! the overlap of copies and kernels. One block can be divided without any call: all its memory is used in
//! copy-stream order only, so that bookkeeping on the host is as ordered as a stream-ordered free, and freed
//! neighbours are one piece again at once. Weights go in the order in which they were read, so that neighbours
//! are mostly freed one after the other.

use super::Pool;
use super::Remapped;
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::figures::{FreeList, KeptPages, View};
use std::ops::Range;

/// A pool in one block. First fit, lowest address first.
#[derive(Debug)]
pub struct Arena {
    block: DevicePtr,
    cap: u64,
    free: FreeList,
    used: u64,
    peak: u64,
}

impl Arena {
    /// Takes a block of `cap` bytes (a multiple of the granule) from the device.
    pub fn open<D: Device>(device: &mut D, cap: u64) -> Result<Arena> {
        let block = device.alloc(cap)?;
        Ok(Arena {
            block,
            cap,
            free: FreeList::of(cap),
            used: 0,
            peak: 0,
        })
    }
}

impl<D: Device> Pool<D> for Arena {
    fn take(&mut self, _device: &mut D, bytes: u64) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        if bytes > self.cap - self.used {
            return Err(Error::Internal(format!(
                "{bytes} bytes asked of a pool that holds {} of {} bytes",
                self.used, self.cap
            )));
        }
        let Some(offset) = self.free.take(bytes) else {
            return Err(Error::OutOfMemory {
                what: format!(
                    "a weight: {} bytes are free, in pieces of at most {}",
                    self.cap - self.used,
                    self.free.largest()
                ),
                bytes,
            });
        };
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        Ok(self.block.offset(offset))
    }

    fn map(&mut self, _device: &mut D, view: &View) -> Result<DevicePtr> {
        Err(Error::Internal(format!(
            "{} bytes were to be mapped beside one block for all weights",
            view.memory
        )))
    }

    /// Nothing is.
    fn unmap(&mut self, _device: &mut D) -> Result<()> {
        Ok(())
    }

    fn remap(&mut self, device: &mut D, view: &View, _kept: &[KeptPages]) -> Result<Remapped> {
        let at = self.map(device, view)?;
        Ok(Remapped {
            at,
            lost: Vec::new(),
        })
    }

    /// The block stays as it is.
    /// An arena maps nothing.
    fn thin(&mut self, _device: &mut D, _view: &View, _kept: &[Range<u64>]) -> Result<u64> {
        Ok(0)
    }

    fn set_cap(&mut self, _bytes: u64) {}

    fn take_lasting(&mut self, device: &mut D, bytes: u64) -> Result<DevicePtr> {
        self.take(device, bytes)
    }

    fn give(&mut self, device: &mut D, ptr: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        device.discard(ptr, bytes)?;
        self.free.give(ptr.0 - self.block.0, bytes);
        self.used -= bytes;
        Ok(())
    }

    fn is_one_block(&self) -> bool {
        true
    }

    fn close(&mut self, device: &mut D) -> Result<()> {
        device.free(self.block, self.cap)?;
        self.cap = 0;
        self.free.clear();
        Ok(())
    }

    fn used_bytes(&self) -> u64 {
        self.used
    }

    fn peak_bytes(&self) -> u64 {
        self.peak
    }

    fn forget_peak(&mut self) {
        self.peak = self.used;
    }

    fn validate(&self) -> std::result::Result<(), String> {
        let mut end = None;
        let mut free = 0;
        for (offset, len) in self.free.iter() {
            // FreeList that touch would be one.
            if len == 0 || end.is_some_and(|end| offset <= end) {
                return Err(format!("the piece at {offset} is not apart: {self:?}"));
            }
            end = Some(offset + len);
            free += len;
        }
        let inside = end.is_none_or(|end| end <= self.cap);
        match inside && free + self.used == self.cap && self.used <= self.peak {
            true => Ok(()),
            false => Err(format!("the pool does not add up: {self:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::HostDevice;
    use proptest::prelude::*;

    fn take(arena: &mut Arena, device: &mut HostDevice, bytes: u64) -> Result<DevicePtr> {
        Pool::<HostDevice>::take(arena, device, bytes)
    }

    #[test]
    fn freed_neighbours_are_one_piece() {
        let mut device = HostDevice::new().unwrap();
        let mut arena = Arena::open(&mut device, 640).unwrap();
        let pieces: Vec<_> = (0..10)
            .map(|_| take(&mut arena, &mut device, 64).unwrap())
            .collect();
        for at in [2, 4, 3] {
            arena.give(&mut device, pieces[at], 64).unwrap();
        }
        assert!(arena.free.iter().eq([(128, 192)]));
        assert_eq!(take(&mut arena, &mut device, 192).unwrap(), pieces[2]);
        assert_eq!((arena.used, arena.peak), (640, 640));
    }

    #[test]
    fn pieces_that_are_too_small_are_named() {
        let mut device = HostDevice::new().unwrap();
        let mut arena = Arena::open(&mut device, 256).unwrap();
        let pieces: Vec<_> = (0..4)
            .map(|_| take(&mut arena, &mut device, 64).unwrap())
            .collect();
        arena.give(&mut device, pieces[0], 64).unwrap();
        arena.give(&mut device, pieces[2], 64).unwrap();
        let refused = take(&mut arena, &mut device, 128).unwrap_err().to_string();
        assert!(
            refused.contains("128 bytes are free, in pieces of at most 64"),
            "{refused}"
        );
        assert!(matches!(
            take(&mut arena, &mut device, 192),
            Err(Error::Internal(_))
        ));
    }

    #[test]
    fn closing_gives_the_block_back() {
        let mut device = HostDevice::new().unwrap();
        let mut arena = Arena::open(&mut device, 256).unwrap();
        assert_eq!(device.live_bytes(), 256);
        arena.close(&mut device).unwrap();
        assert_eq!(device.live_bytes(), 0);
        assert_eq!(take(&mut arena, &mut device, 0).unwrap(), DevicePtr::EMPTY);
    }

    proptest! {
        #[test]
        fn pieces_never_overlap_and_nothing_is_lost(
            steps in prop::collection::vec((any::<bool>(), 1..20u64, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut device = HostDevice::new().unwrap();
            let mut arena = Arena::open(&mut device, 64 * 64).unwrap();
            let mut live: Vec<(DevicePtr, u64)> = Vec::new();
            for (give, size, pick) in steps {
                let bytes = size * 64;
                if give && !live.is_empty() {
                    let (ptr, bytes) = live.swap_remove(pick.index(live.len()));
                    arena.give(&mut device, ptr, bytes).unwrap();
                } else if bytes <= arena.cap - arena.used {
                    if let Ok(ptr) = take(&mut arena, &mut device, bytes) {
                        live.push((ptr, bytes));
                    } else {
                        prop_assert!(arena.free.largest() < bytes);
                    }
                }
                // Live and free pieces, by address, tile the block.
                let free = arena.free.iter().map(|(o, l)| (arena.block.0 + o, l));
                let mut all: Vec<_> = live.iter().map(|(p, b)| (p.0, *b)).chain(free).collect();
                all.sort_unstable();
                let end = all.iter().fold(arena.block.0, |at, (start, len)| {
                    assert_eq!(*start, at);
                    at + len
                });
                prop_assert_eq!(end, arena.block.0 + arena.cap);
                let touching = arena.free.iter().zip(arena.free.iter().skip(1));
                prop_assert!(touching.into_iter().all(|((o, l), (next, _))| o + l < next));
            }
        }
    }
}
