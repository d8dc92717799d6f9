//! What a plan needs to know of a device.

use super::{Link, PackedResidents};

/// A weight takes whole pages if that loses at most one of so many parts of it.
const MOST_LOST: u64 = 32;

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
    /// A weight that nearly fills its last page takes all of it: its pages can be kept when the budget changes.
    pub whole_pages: bool,
    /// Whether stored bytes of packed weights may stay on the device, which decodes them.
    pub packed: PackedResidents,
}

impl DeviceModel {
    /// The same beside so many bytes of direct constants.
    pub fn beside(self, direct: u64) -> DeviceModel {
        DeviceModel {
            apart: direct,
            ..self
        }
    }

    /// The same where packed weights stay so.
    pub fn with_packed(self, packed: PackedResidents) -> DeviceModel {
        DeviceModel { packed, ..self }
    }

    /// The same with whole pages for weights that nearly fill them.
    pub fn in_whole_pages(self) -> DeviceModel {
        DeviceModel {
            whole_pages: true,
            ..self
        }
    }

    /// Bytes that a weight takes which takes so many in the granule.
    pub fn occupied(&self, bytes: u64) -> u64 {
        let whole = match self.page.filter(|_| self.whole_pages) {
            Some(page) => bytes.div_ceil(page).saturating_mul(page),
            None => return bytes,
        };
        match whole - bytes <= bytes / MOST_LOST {
            true => whole,
            false => bytes,
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
