//! Device memory under a cap.

use super::MappedView;
use crate::device::{Device, DevicePtr, PageAccess};
use crate::error::{Error, Result};
use crate::figures::{KeptPages, View};
use std::ops::Range;

/// What [`Pool::remap`] has mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remapped {
    /// Its first address.
    pub at: DevicePtr,
    /// Pages that were to be kept and are not: bytes from the start of the new memory.
    pub lost: Vec<Range<u64>>,
}

/// Hands out device memory in copy-stream order, never more than its cap.
pub trait Pool<D: Device>: Send {
    /// Memory of `bytes` (a multiple of the granule).
    fn take(&mut self, device: &mut D, bytes: u64) -> Result<DevicePtr>;

    /// Memory that stays until the device ends, beside what [`Pool::map`] takes.
    fn take_lasting(&mut self, device: &mut D, bytes: u64) -> Result<DevicePtr>;

    /// Gives back what [`Pool::take`] returned.
    fn give(&mut self, device: &mut D, ptr: DevicePtr, bytes: u64) -> Result<()>;

    /// Memory of `view.memory` bytes, of which the last page may be used in part, shown as the view says: the address of its first byte.
    /// Kernels only read there; copies of weights write. No call of a pass maps anything.
    fn map(&mut self, device: &mut D, view: &View) -> Result<DevicePtr>;

    /// Gives back what is mapped, after everything that was issued.
    fn unmap(&mut self, device: &mut D) -> Result<()>;

    /// Shows what is mapped as `view` says, with the pages of the old memory that are `kept`, each once, bytes and all, but for those
    /// that it returns as lost. The other pages hold nothing. On an error nothing is mapped any more.
    fn remap(&mut self, device: &mut D, view: &View, kept: &[KeptPages]) -> Result<Remapped>;

    /// Takes what is mapped away again, but for what shows in `kept`: bytes from the start of `view`, which is mapped. It counts until
    /// it is unmapped, which is the only call that may follow. The bytes that went.
    fn thin(&mut self, device: &mut D, view: &View, kept: &[Range<u64>]) -> Result<u64>;

    /// From now on the cap is so large. What is handed out may be more until it is given back.
    fn set_cap(&mut self, bytes: u64);

    /// Whether all that is handed out lies in one allocation of the device.
    fn is_one_block(&self) -> bool {
        false
    }

    /// Makes ready for allocations of these sizes, largest first.
    fn warm_up(&mut self, _device: &mut D, _sizes: &[u64]) -> Result<()> {
        Ok(())
    }

    /// Gives all memory back; nothing is handed out any more.
    fn close(&mut self, _device: &mut D) -> Result<()> {
        Ok(())
    }

    /// Bytes handed out now.
    fn used_bytes(&self) -> u64;

    /// Most bytes ever handed out at one time.
    fn peak_bytes(&self) -> u64;

    /// The peak is what is handed out now.
    fn forget_peak(&mut self);

    /// Recounts everything; a text says what does not add up.
    fn validate(&self) -> std::result::Result<(), String>;
}

/// One allocation of the device per weight. The cap is kept by our own count: the driver's own cap is
/// rounded up (to 32 MiB on the pools measured), and a host has none.
pub struct StreamOrdered<D: Device> {
    cap: u64,
    used: u64,
    peak: u64,
    /// What kernels may do with what is mapped.
    access: PageAccess,
    /// What is mapped, and its bytes.
    mapped: Option<(MappedView<D>, u64)>,
}

impl<D: Device> StreamOrdered<D> {
    /// A pool that holds at most `cap` bytes at any time.
    pub fn new(cap: u64, access: PageAccess) -> Self {
        StreamOrdered {
            cap,
            used: 0,
            peak: 0,
            access,
            mapped: None,
        }
    }

    fn check_room(&self, bytes: u64) -> Result<()> {
        match bytes > self.cap.saturating_sub(self.used) {
            true => Err(Error::Internal(format!(
                "{bytes} bytes asked of a pool that holds {} of {} bytes",
                self.used, self.cap
            ))),
            false => Ok(()),
        }
    }

    fn count(&mut self, bytes: u64) {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
    }
}

impl<D: Device> Pool<D> for StreamOrdered<D> {
    fn take(&mut self, device: &mut D, bytes: u64) -> Result<DevicePtr> {
        self.check_room(bytes)?;
        let ptr = device.alloc(bytes)?;
        self.count(bytes);
        Ok(ptr)
    }

    fn take_lasting(&mut self, device: &mut D, bytes: u64) -> Result<DevicePtr> {
        self.check_room(bytes)?;
        let ptr = device.alloc_lasting(bytes)?;
        self.count(bytes);
        Ok(ptr)
    }

    fn map(&mut self, device: &mut D, view: &View) -> Result<DevicePtr> {
        // One view at a time: what is there could not be given back before.
        self.unmap(device)?;
        self.check_room(view.memory)?;
        if view.bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        let mapped = MappedView::open(device, view, self.access)?;
        let at = mapped.at();
        self.mapped = Some((mapped, view.memory));
        self.count(view.memory);
        Ok(at)
    }

    fn unmap(&mut self, device: &mut D) -> Result<()> {
        if let Some((mapped, bytes)) = &mut self.mapped {
            mapped.close(device)?;
            self.used -= *bytes;
            self.mapped = None;
        }
        Ok(())
    }

    fn remap(&mut self, device: &mut D, view: &View, kept: &[KeptPages]) -> Result<Remapped> {
        let bytes = self.mapped.as_ref().map_or(0, |(_, bytes)| *bytes);
        self.used -= bytes;
        let room = self.check_room(view.memory);
        self.used += bytes;
        let Some((mapped, _)) = self.mapped.take_if(|_| room.is_ok() && view.bytes > 0) else {
            self.unmap(device).and(room)?;
            let at = self.map(device, view)?;
            return Ok(Remapped {
                at,
                lost: Vec::new(),
            });
        };
        self.used -= bytes;
        let (mapped, lost) = mapped.moved(device, view, self.access, kept)?;
        let at = mapped.at();
        self.mapped = Some((mapped, view.memory));
        self.count(view.memory);
        Ok(Remapped { at, lost })
    }

    fn thin(&mut self, device: &mut D, view: &View, kept: &[Range<u64>]) -> Result<u64> {
        match &mut self.mapped {
            Some((mapped, _)) => mapped.thin(device, view, kept),
            None => Ok(0),
        }
    }

    fn set_cap(&mut self, bytes: u64) {
        self.cap = bytes;
    }

    fn give(&mut self, device: &mut D, ptr: DevicePtr, bytes: u64) -> Result<()> {
        device.free(ptr, bytes)?;
        self.used -= bytes;
        Ok(())
    }

    /// Allocates each distinct size once and frees it again, since the first allocation of a size is
    /// slow on some devices. Only as far as the cap allows.
    fn warm_up(&mut self, device: &mut D, sizes: &[u64]) -> Result<()> {
        let mut taken = Vec::new();
        for &size in sizes {
            if size <= self.cap - self.used {
                taken.push((self.take(device, size)?, size));
            }
        }
        taken
            .into_iter()
            .try_for_each(|(ptr, size)| self.give(device, ptr, size))
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
        match self.used <= self.peak && self.peak <= self.cap {
            true => Ok(()),
            false => Err(format!(
                "the pool does not add up: {} of {} bytes, at most {}",
                self.used, self.cap, self.peak
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::HostDevice;

    fn plain(pages: u64, page: u64) -> View {
        let piece = crate::figures::Piece {
            at: 0,
            memory: 0,
            bytes: pages * page,
        };
        View {
            bytes: pages * page,
            memory: pages * page,
            pieces: vec![piece].into_iter().filter(|_| pages > 0).collect(),
        }
    }

    /// What is mapped counts under the same cap. A move that does not fit leaves nothing mapped.
    #[test]
    fn mapped_memory_counts() {
        let mut device = HostDevice::new().unwrap();
        let page = device.page().unwrap();
        let mut pool = StreamOrdered::new(8 * page, PageAccess::Read);
        let block = pool.take(&mut device, 2 * page).unwrap();
        assert!(pool.map(&mut device, &plain(7, page)).is_err());
        assert_eq!(pool.map(&mut device, &plain(0, page)), Ok(DevicePtr::EMPTY));
        pool.map(&mut device, &plain(6, page)).unwrap();
        assert_eq!((pool.used, device.live_bytes()), (8 * page, 8 * page));
        assert!(pool.take(&mut device, 64).is_err());
        pool.remap(&mut device, &plain(3, page), &[]).unwrap();
        assert_eq!((pool.used, device.live_bytes()), (5 * page, 5 * page));
        assert!(pool.remap(&mut device, &plain(7, page), &[]).is_err());
        assert_eq!((pool.used, device.live_bytes()), (2 * page, 2 * page));
        let none = pool.remap(&mut device, &plain(0, page), &[]).unwrap();
        assert_eq!(none.at, DevicePtr::EMPTY);
        pool.remap(&mut device, &plain(1, page), &[]).unwrap();
        pool.unmap(&mut device).unwrap();
        pool.unmap(&mut device).unwrap();
        pool.give(&mut device, block, 2 * page).unwrap();
        assert_eq!((pool.used, pool.peak), (0, 8 * page));
    }

    #[test]
    fn keeps_the_cap_and_counts() {
        let mut device = HostDevice::new().unwrap();
        let mut pool = StreamOrdered::new(256, PageAccess::Read);
        let a = pool.take(&mut device, 128).unwrap();
        let b = pool.take(&mut device, 128).unwrap();
        assert!(matches!(
            pool.take(&mut device, 64),
            Err(Error::Internal(_))
        ));
        pool.give(&mut device, a, 128).unwrap();
        assert_eq!((pool.used, pool.peak, device.live_bytes()), (128, 256, 128));
        pool.give(&mut device, b, 128).unwrap();
        assert_eq!(device.live_bytes(), 0);
    }

    #[test]
    fn warm_up_stays_within_the_cap_and_leaves_nothing() {
        let mut device = HostDevice::new().unwrap();
        let mut pool = StreamOrdered::new(1000, PageAccess::Read);
        pool.warm_up(&mut device, &[1024, 640, 320, 128, 64])
            .unwrap();
        // 1024 is over the cap; 640 + 320 fit, and then neither 128 nor 64 does.
        assert_eq!((pool.used, pool.peak, device.live_bytes()), (0, 960, 0));
    }
}
