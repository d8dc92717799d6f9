//! A device as those use it who copy weights to it from the host: how they are held there, and what is free on the device.
#![deny(unsafe_code)]

use super::{CudaDevice, Device, HostBytes, HostDevice, HostSource};
use crate::error::Result;
use crate::figures::DeviceId;
use crate::system_memory;
use std::ops::Range;

/// How weights are held on the host for copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostStorage {
    /// In the mapped files, which are registered with the device if that copies by itself.
    Mapped,
    /// In a pinned copy.
    Pinned,
    /// In the files, which are read during the passes, through a ring of pinned buffers.
    Staged {
        /// Size of the ring, bytes.
        ring: u64,
    },
}

/// What the device does with host memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAccess {
    /// The device's name and model.
    pub device: String,
    /// Whether it can read a mapping that is read-only.
    pub maps: bool,
}

impl HostStorage {
    /// Its name among the option's values.
    pub fn name(self) -> &'static str {
        match self {
            HostStorage::Mapped => "mapped",
            HostStorage::Pinned => "pinned",
            HostStorage::Staged { .. } => "staged",
        }
    }
}

/// A device that weights are copied to.
pub trait WeightDevice: Device {
    /// Which device it is.
    fn id(&self) -> DeviceId;

    /// The device's name as its maker gives it.
    fn full_name(&self) -> String;

    /// Bytes that can be allocated on the device now, by this process or another.
    fn free_bytes(&self) -> Result<u64>;

    /// What the device does with host memory; `None` if it needs nothing to be prepared.
    fn host_access(&self) -> Result<Option<HostAccess>>;

    /// Makes ready for copies from `source`; what lies in files is held as `held` says. Returns what each of its parts is to be copied from.
    fn prepare_source(&mut self, source: HostSource, held: HostStorage) -> Result<Vec<HostBytes>>;

    /// Host memory that is pinned, and mapped memory that is registered, bytes.
    fn host_bytes(&self) -> (u64, u64);
}

impl WeightDevice for HostDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn full_name(&self) -> String {
        "CPU".to_owned()
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(system_memory::available()?.bytes())
    }

    fn host_access(&self) -> Result<Option<HostAccess>> {
        Ok(None)
    }

    fn prepare_source(&mut self, source: HostSource, _held: HostStorage) -> Result<Vec<HostBytes>> {
        // Where they are already.
        Ok(source.parts)
    }

    fn host_bytes(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl WeightDevice for CudaDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Cuda(self.index())
    }

    fn full_name(&self) -> String {
        // The device's own function of this name.
        CudaDevice::full_name(self).to_owned()
    }

    fn free_bytes(&self) -> Result<u64> {
        CudaDevice::free_bytes(self)
    }

    fn host_access(&self) -> Result<Option<HostAccess>> {
        Ok(Some(HostAccess {
            device: self.full_name().to_owned(),
            maps: self.can_register_mapped()?,
        }))
    }

    fn prepare_source(&mut self, source: HostSource, held: HostStorage) -> Result<Vec<HostBytes>> {
        let HostSource { files, mut parts } = source;
        let (mut in_memory, mut staged) = ((0..parts.len()).collect::<Vec<_>>(), Vec::new());
        for file in files {
            let (of_file, others): (Vec<usize>, Vec<usize>) =
                { in_memory.into_iter() }.partition(|&at| file.offset_of(parts[at]).is_some());
            in_memory = others;
            let ranges = { of_file.iter() }.filter_map(|&at| file.range_of(parts[at]));
            let ranges: Vec<Range<u64>> = ranges.collect();
            match held {
                _ if of_file.is_empty() => {}
                HostStorage::Mapped => {
                    let mut cuts: Vec<u64> = ranges.iter().map(|range| range.start).collect();
                    cuts.sort_unstable();
                    self.share_host(file.bytes(), &cuts)?;
                }
                HostStorage::Pinned => {
                    for (at, copy) in of_file.into_iter().zip(self.pin_host(&file, &ranges)?) {
                        parts[at] = copy;
                    }
                }
                HostStorage::Staged { .. } => staged.push(file),
            }
        }
        let kept: Vec<HostBytes> = in_memory.iter().map(|&at| parts[at]).collect();
        for (at, place) in in_memory.into_iter().zip(self.keep_parts(&kept)?) {
            parts[at] = place;
        }
        match held {
            HostStorage::Staged { ring } if !staged.is_empty() => self.stage_host(staged, ring)?,
            _ => {}
        }
        Ok(parts)
    }

    fn host_bytes(&self) -> (u64, u64) {
        (self.host_pinned_bytes(), self.host_mapped_bytes())
    }
}
