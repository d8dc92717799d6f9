//! Memory of a GPU for ExecuTorch's planned buffers, inputs and outputs: what `cpp/src/allocator.cpp` calls.

use super::status::crossing;
use super::types::{device_index, Place};
use crate::device::cuda::memory;
use crate::device::DevicePtr;

/// See [`memory::allocate`].
pub(super) fn device_allocate(index: i32, bytes: usize, alignment: usize) -> Result<usize, String> {
    super::log::install();
    crossing(|| {
        let index = device_index(index)?;
        Ok(memory::allocate(index, bytes as u64, alignment as u64)?.0 as usize)
    })
}

/// See [`memory::free`].
pub(super) fn device_free(index: i32, address: usize) -> Result<(), String> {
    crossing(|| {
        Ok(memory::free(
            device_index(index)?,
            DevicePtr(address as u64),
        )?)
    })
}

/// See [`memory::copy_in`].
///
/// # Safety
/// `dst` must be what it says, and nobody else's during the call.
pub(super) unsafe fn device_copy_in(dst: Place, src: &[u8]) -> Result<(), String> {
    // SAFETY: by this function's contract.
    crossing(|| Ok(memory::copy_in(unsafe { dst.on_device() }?, src)?))
}

/// See [`memory::copy_out`].
///
/// # Safety
/// `src` must be what it says, and not be written during the call.
pub(super) unsafe fn device_copy_out(dst: &mut [u8], src: Place) -> Result<(), String> {
    // SAFETY: by this function's contract.
    crossing(|| Ok(memory::copy_out(dst, unsafe { src.on_device() }?)?))
}
