//! What a plan needs to know of a device.

use super::Link;

/// What a plan needs to know of a device, which need not be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceModel {
    /// Allocation sizes are rounded up to this many bytes.
    pub granule: u64,
    /// What a copy costs beyond its bytes, as the bytes that could be copied in that time.
    pub bytes_per_copy: u64,
    /// Bytes of the pages that memory is mapped in; `None` where it cannot be mapped.
    pub page: Option<u64>,
    /// Bytes of direct constants, which count but lie apart from the weights' pages, in pages of their own.
    pub apart: u64,
}

impl DeviceModel {
    /// The same beside so many bytes of direct constants.
    pub fn beside(self, direct: u64) -> DeviceModel {
        DeviceModel {
            apart: direct,
            ..self
        }
    }

    /// The same on a link of this kind, if copies go through one.
    pub fn on_link(self, link: Link) -> DeviceModel {
        let bytes_per_copy = match self.bytes_per_copy {
            0 => 0,
            _ => link.bytes_per_copy(),
        };
        DeviceModel {
            bytes_per_copy,
            ..self
        }
    }
}
