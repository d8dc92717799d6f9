//! What the device holds of one weight.

use crate::device::DevicePtr;
use std::ops::Range;
use std::sync::Arc;

/// One weight on the device. `E` is the device's event.
pub(super) struct DeviceWeight<E> {
    /// Its address; kept when it is evicted, but then not handed out.
    pub at: DevicePtr,
    /// Kernels always find it there, in host memory or with the direct constants: passes never copy it.
    pub in_place: Option<DevicePtr>,
    /// Its memory was taken from the pool and holds it.
    pub pooled: bool,
    /// Its bytes that copies of passes brought and that are there, or on their way. Not those that stay for good.
    pub copied: Range<u64>,
    /// Where so many of its first stored bytes are, packed.
    pub kept: Option<(DevicePtr, u64)>,
    /// The event after its copy. `None` once the compute stream has waited for it.
    pub ready: Option<Arc<E>>,
    /// The event after the last kernel that read the bytes that are there now.
    pub last_read: Option<E>,
}

impl<E> DeviceWeight<E> {
    pub fn empty() -> Self {
        DeviceWeight {
            at: DevicePtr::EMPTY,
            in_place: None,
            pooled: false,
            copied: 0..0,
            kept: None,
            ready: None,
            last_read: None,
        }
    }

    /// Where a kernel reads it.
    #[inline]
    pub fn address(&self) -> DevicePtr {
        self.in_place.unwrap_or(self.at)
    }

    /// Whether copies of passes brought bytes of it that were not given up.
    pub fn has_copied(&self) -> bool {
        !self.copied.is_empty()
    }

    /// Its memory is given up: nothing that is known of it holds any more.
    pub fn forget(&mut self) {
        self.pooled = false;
        self.copied = 0..0;
        self.ready = None;
        self.last_read = None;
    }
}
