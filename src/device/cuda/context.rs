//! The device's primary context, made current around each entry.
//!
//! The primary context is the one that libcudart, PyTorch and the compiled code use, so their addresses and
//! streams and ours belong together. The thread that calls may have another one current, or none, and finds it
//! unchanged when we return.

use super::library::{self, check, is_gone, log_failure};
use crate::error::{Error, Result};
use crate::figures::DeviceId;
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute};
use std::ffi::{c_char, CStr};
use std::marker::PhantomData;
use std::sync::Arc;

/// One device and its primary context, retained.
pub(super) struct PrimaryContext {
    raw: CUcontext,
    device: CUdevice,
    index: u32,
    /// `cuda:0 (NVIDIA H200)`, for messages.
    name: String,
}

// SAFETY: a context may be used from any thread, and the driver locks it; `raw` is only a name for it.
unsafe impl Send for PrimaryContext {}
// SAFETY: as for `Send`.
unsafe impl Sync for PrimaryContext {}

/// Proof that the context is current on this thread. Dropped, it makes the previous one current again.
pub(super) struct Entered<'a> {
    /// `false` if it was current already, as it is in a process that uses one device.
    pushed: bool,
    /// Bound to its thread, and to the context's life.
    _thread: PhantomData<(*const (), &'a PrimaryContext)>,
}

impl PrimaryContext {
    /// Retains the primary context of the device of this index.
    pub(super) fn retain(index: u32) -> Result<Arc<PrimaryContext>> {
        let device = library::device(index)?;
        let name = format!("{} ({})", DeviceId::Cuda(index), model(device)?);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver is initialised and the device is one of its own; it writes one pointer.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut raw, device)
        })?;
        let context = Arc::new(PrimaryContext {
            raw,
            device,
            index,
            name,
        });
        match context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? {
            0 => Err(Error::Unsupported(format!(
                "{} has no stream-ordered memory pools",
                context.name
            ))),
            _ => Ok(context),
        }
    }

    /// Makes the context current, as long as the result lives.
    #[inline]
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver is initialised, since this context exists; it writes one pointer.
        check("cuCtxGetCurrent", unsafe {
            sys::cuCtxGetCurrent(&mut current)
        })?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: `raw` is retained as long as `self` lives. `Entered::drop` pops it.
            check("cuCtxPushCurrent", unsafe {
                sys::cuCtxPushCurrent_v2(self.raw)
            })?;
        }
        Ok(Entered {
            pushed,
            _thread: PhantomData,
        })
    }

    /// The context, or `None` with the reason logged: for `drop`, which tells nobody. `None` at exit too, and in a child.
    pub(super) fn enter_to_drop(&self) -> Option<Entered<'_>> {
        if is_gone() {
            return None;
        }
        self.enter()
            .inspect_err(|error| log::warn!("{}: {error}", self.name))
            .ok()
    }

    /// The device and its model, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The device's index.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// The device, by the driver's number.
    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    /// Whether `other` is this context.
    pub(super) fn is(&self, other: CUcontext) -> bool {
        self.raw == other
    }

    /// One fact about the device.
    pub(super) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the device is the driver's own, and the driver writes the one integer.
        let code = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) };
        check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// All memory of the device, bytes.
    pub(super) fn total_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the device is the driver's own, and the driver writes the one integer.
        check("cuDeviceTotalMem", unsafe {
            sys::cuDeviceTotalMem_v2(&mut bytes, self.device)
        })?;
        Ok(bytes as u64)
    }

    /// Memory of the device that nobody uses now, bytes.
    pub(super) fn free_bytes(&self, _entered: &Entered<'_>) -> Result<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current, and the driver writes the two integers.
        check("cuMemGetInfo", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok(free as u64)
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        if is_gone() {
            return;
        }
        // SAFETY: retained once in `retain`. Streams, events and pools hold this value, so they are gone.
        let code = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        log_failure(&self.name, check("cuDevicePrimaryCtxRelease", code));
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.pushed {
            return;
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: `enter` pushed on this thread (the type cannot leave it), and these values are dropped in
        // reverse order, so ours is on top.
        let code = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        log_failure("leaving the CUDA context", check("cuCtxPopCurrent", code));
    }
}

/// The device's model.
fn model(device: CUdevice) -> Result<String> {
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the driver writes at most the given number of bytes, with a zero at their end.
    let code = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) };
    check("cuDeviceGetName", code)?;
    // SAFETY: the array was zeroed, and what the driver wrote ends with a zero.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }
        .to_string_lossy()
        .into_owned())
}
