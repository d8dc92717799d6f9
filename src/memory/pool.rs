//! Device memory under a cap.

use crate::device::{Device, DevicePtr, Remapped};
use crate::error::{Error, Result};
use crate::figures::{KeptPages, View};

/// Hands out device memory in copy-stream order, never more than its cap.
pub trait Pool<D: Device>: Send {
    /// Memory of `bytes` (a multiple of the granule).
    fn take(&mut self, device: &mut D, bytes: u64) -> Result<DevicePtr>;

    /// The same for memory that stays until the device ends, beside what [`Pool::map`] takes.
    fn take_lasting(&mut self, device: &mut D, bytes: u64) -> Result<DevicePtr>;

    /// Gives back what [`Pool::take`] returned.
    fn give(&mut self, device: &mut D, ptr: DevicePtr, bytes: u64) -> Result<()>;

    /// Memory of `view.memory` bytes, mapped as the view says.
    fn map(&mut self, device: &mut D, view: &View) -> Result<DevicePtr>;

    /// Gives back what [`Pool::map`] returned for `view`.
    fn unmap(&mut self, device: &mut D, ptr: DevicePtr, view: &View) -> Result<()>;

    /// Shows what [`Pool::map`] returned for the first view as the second one says, with the pages that are kept. On an error nothing is
    /// mapped any more.
    fn remap(
        &mut self,
        device: &mut D,
        ptr: DevicePtr,
        views: (&View, &View),
        kept: &[KeptPages],
    ) -> Result<Remapped>;

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
#[derive(Debug)]
pub struct StreamOrdered {
    cap: u64,
    used: u64,
    peak: u64,
}

impl StreamOrdered {
    /// A pool that holds at most `cap` bytes at any time.
    pub fn new(cap: u64) -> Self {
        StreamOrdered {
            cap,
            used: 0,
            peak: 0,
        }
    }
}

impl StreamOrdered {
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

impl<D: Device> Pool<D> for StreamOrdered {
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
        self.check_room(view.memory)?;
        let ptr = device.map(view)?;
        self.count(view.memory);
        Ok(ptr)
    }

    fn unmap(&mut self, device: &mut D, ptr: DevicePtr, view: &View) -> Result<()> {
        device.unmap(ptr)?;
        self.used -= view.memory;
        Ok(())
    }

    fn remap(
        &mut self,
        device: &mut D,
        ptr: DevicePtr,
        (from, to): (&View, &View),
        kept: &[KeptPages],
    ) -> Result<Remapped> {
        self.used -= from.memory;
        self.check_room(to.memory)?;
        let shown = device.remap(ptr, to, kept)?;
        self.count(to.memory);
        Ok(shown)
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
            false => Err(format!("the pool does not add up: {self:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::HostDevice;

    #[test]
    fn keeps_the_cap_and_counts() {
        let mut device = HostDevice::new().unwrap();
        let mut pool = StreamOrdered::new(256);
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
        let mut pool = StreamOrdered::new(1000);
        pool.warm_up(&mut device, &[1024, 640, 320, 128, 64])
            .unwrap();
        // 1024 is over the cap; 640 + 320 fit, and then neither 128 nor 64 does.
        assert_eq!((pool.used, pool.peak, device.live_bytes()), (0, 960, 0));
    }
}
