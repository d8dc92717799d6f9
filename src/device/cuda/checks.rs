//! Whose memory an address is in.

use super::CudaDevice;
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use std::ops::Range;

impl CudaDevice {
    /// Refuses memory that is neither a weight's, nor an input that was lent, nor an activation's.
    pub(super) fn check_any(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        let weights = self.weights.as_ref();
        let pooled = weights.is_some_and(|pool| pool.covers(ptr, len));
        let read_only = self.views.cover(ptr, len) || self.is_in_place(ptr, len);
        let beside = read_only || self.lasting.cover(ptr, len);
        match pooled || beside || self.is_lent(ptr, len) {
            true => Ok(()),
            false => self.activations.check_target(ptr, len),
        }
    }

    /// Whether it is host memory that kernels read in place.
    fn is_in_place(&self, ptr: DevicePtr, len: u64) -> bool {
        let inside = |range: &Range<u64>| range.contains(&ptr.0) && len <= range.end - ptr.0;
        self.in_place.iter().any(inside)
    }

    /// The same for what is written, by anything but a copy of weights.
    pub(super) fn check_written(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        self.views.check_not_written(ptr)?;
        if self.is_in_place(ptr, 0) {
            return Err(Error::Internal(format!(
                "{} {:#x} is host memory that kernels read in place: nothing writes there",
                self.context.name(),
                ptr.0
            )));
        }
        self.check_any(ptr, len)
    }
}
