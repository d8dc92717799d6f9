//! Memory that grows where it is: addresses for as much as the device has, and pages behind the first of them.
//!
//! ```text
//!  addresses  |========|============|..................|
//!               pages    pages of     reserved, nothing
//!               first    a growth     mapped
//! ```
//! Each growth is one piece of memory behind the next addresses. Nothing that is mapped changes, so graphs that use it stay right.

use crate::device::{pages_of, Device, DevicePtr, PageAccess, Pages, Purpose};
use crate::error::{Error, Result};

/// Activations of captured passes. [`Growing::close`] gives everything back; what is dropped stays until the device's end.
#[derive(Debug)]
pub struct Growing {
    at: DevicePtr,
    /// Bytes of addresses, and bytes from the first one on with memory behind them, in whole pages.
    reserved: u64,
    mapped: u64,
}

impl Growing {
    /// Addresses, and no memory yet. `None` where memory cannot be put behind addresses later.
    pub fn open<D: Device>(device: &mut D) -> Result<Option<Growing>> {
        let Some(pages) = device.pages() else {
            return Ok(None);
        };
        let reserved = pages.total_bytes()?.next_multiple_of(pages.page());
        Ok(Some(Growing {
            at: pages.reserve(reserved, Purpose::Activations)?,
            reserved,
            mapped: 0,
        }))
    }

    /// The first address.
    pub fn at(&self) -> DevicePtr {
        self.at
    }

    /// Has memory behind the first `bytes` bytes; what is there already stays as it is, and kernels that use it go on. Not while
    /// something is captured. On an error it is as it was.
    pub fn grow<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<()> {
        let name = device.name();
        let pages = pages_of(device)?;
        let whole = bytes.next_multiple_of(pages.page());
        if whole > self.reserved {
            return Err(Error::OutOfMemory {
                what: format!("{} on {name}", Purpose::Activations.name()),
                bytes,
            });
        }
        if whole > self.mapped {
            let (at, more) = (self.at.offset(self.mapped), whole - self.mapped);
            let memory = pages.create_one(more, Purpose::Activations)?;
            pages.map(at, &memory)?;
            if let Err(error) = pages.allow(at, more, PageAccess::ReadWrite) {
                return pages.unmap(at).and(Err(error));
            }
            self.mapped = whole;
            log::debug!(
                "{} on {name}: {whole} bytes now",
                Purpose::Activations.name()
            );
        }
        Ok(())
    }

    /// Gives addresses and memory back, after everything that was issued.
    pub fn close<D: Device>(self, device: &mut D) -> Result<()> {
        device.synchronize()?;
        pages_of(device)?.release(self.at)
    }
}
