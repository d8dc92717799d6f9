//! What compiled code asks of CUDA's runtime library, asked of the driver instead: a process then needs no
//! `libcudart`, and one that has its own is left alone.
//!
//! Events and streams are the driver's own in both interfaces, and so are the numbers of errors. Nothing
//! here is called in a pass: containers ask these things when they are made, if at all.

use super::library;
use crate::error::Error;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{c_char, c_void, CStr};

/// `cudaError_t`.
pub(crate) type Code = i32;

/// `cudaErrorInvalidValue`.
pub(crate) const INVALID_VALUE: Code = 1;
/// `cudaErrorInsufficientDriver`: none that can be used.
pub(crate) const NO_DRIVER: Code = 35;
/// `cudaErrorNotSupported`.
pub(crate) const NOT_SUPPORTED: Code = 801;
/// `cudaErrorInvalidDevice`.
pub(crate) const INVALID_DEVICE: Code = 101;
/// `cudaErrorNotReady`: an answer, no failure.
pub(crate) const NOT_READY: Code = 600;
/// `cudaErrorUnknown`.
pub(crate) const UNKNOWN: Code = 999;

type Answer<T = ()> = Result<T, Code>;

/// The driver, ready to be called; `NO_DRIVER` where there is none.
fn ready() -> Answer {
    library::open().map_err(|error| {
        log::error!("compiled code calls CUDA: {error}");
        match error {
            Error::Device { .. } => UNKNOWN,
            _ => NO_DRIVER,
        }
    })
}

fn check(code: CUresult) -> Answer {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(code as Code),
    }
}

/// A new event, which keeps time.
pub(crate) fn create_event() -> Answer<*mut c_void> {
    ready()?;
    let mut event = std::ptr::null_mut();
    // SAFETY: the driver is initialised, and writes one pointer.
    check(unsafe { sys::cuEventCreate(&mut event, 0) })?;
    Ok(event.cast())
}

/// # Safety
/// `event` came from [`create_event`] and is not used afterwards.
pub(crate) unsafe fn destroy_event(event: *mut c_void) -> Answer {
    ready()?;
    // SAFETY: by the caller's promise.
    check(unsafe { sys::cuEventDestroy_v2(event.cast()) })
}

/// # Safety
/// `event` came from [`create_event`].
pub(crate) unsafe fn query_event(event: *mut c_void) -> Answer {
    ready()?;
    // SAFETY: by the caller's promise.
    check(unsafe { sys::cuEventQuery(event.cast()) })
}

/// # Safety
/// `event` came from [`create_event`].
pub(crate) unsafe fn synchronize_event(event: *mut c_void) -> Answer {
    ready()?;
    // SAFETY: by the caller's promise.
    check(unsafe { sys::cuEventSynchronize(event.cast()) })
}

/// # Safety
/// `event` came from [`create_event`]; `stream` exists, or is null for the default one.
pub(crate) unsafe fn record_event(event: *mut c_void, stream: *mut c_void) -> Answer {
    ready()?;
    // SAFETY: by the caller's promise.
    check(unsafe { sys::cuEventRecord(event.cast(), stream.cast()) })
}

/// Memory of the current device. No bytes have no memory.
pub(crate) fn allocate(bytes: usize) -> Answer<*mut c_void> {
    ready()?;
    let mut at = 0;
    if bytes > 0 {
        // SAFETY: the driver is initialised, and writes one address.
        check(unsafe { sys::cuMemAlloc_v2(&mut at, bytes) })?;
    }
    Ok(std::ptr::with_exposed_provenance_mut(at as usize))
}

/// # Safety
/// `at` came from [`allocate`] and is not used afterwards.
pub(crate) unsafe fn free(at: *mut c_void) -> Answer {
    ready()?;
    if at.is_null() {
        return Ok(());
    }
    // SAFETY: by the caller's promise.
    check(unsafe { sys::cuMemFree_v2(at.expose_provenance() as u64) })
}

/// Copies between any two places; the driver sees from the addresses which side each is on.
///
/// # Safety
/// `bytes` are readable at `src` and writable at `dst`, in host or device memory.
pub(crate) unsafe fn copy(dst: *mut c_void, src: *const c_void, bytes: usize) -> Answer {
    ready()?;
    let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
    // SAFETY: by the caller's promise.
    check(unsafe { sys::cuMemcpy(dst as u64, src as u64, bytes) })
}

/// Index of the device whose context is current; that of the first one where there is none.
pub(crate) fn current_device() -> Answer<i32> {
    ready()?;
    let mut device = 0;
    // SAFETY: the driver is initialised, and writes one integer.
    match unsafe { sys::cuCtxGetDevice(&mut device) } {
        CUresult::CUDA_ERROR_INVALID_CONTEXT => return Ok(0),
        code => check(code)?,
    }
    let count = library::count().map_err(|_| UNKNOWN)?;
    (0..count)
        .find(|&index| library::device(index) == Ok(device))
        .map(|index| index as i32)
        .ok_or(INVALID_DEVICE)
}

/// The driver's text for an error; `None` where there is no driver, or no such error.
pub(crate) fn text(code: Code) -> Option<&'static CStr> {
    library::open().ok()?;
    let known = known(code)?;
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the driver is there, and writes a pointer to a text that lives as long as it, or null.
    let answered = unsafe { sys::cuGetErrorString(known, &mut text) };
    if answered != CUresult::CUDA_SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: a C string that lives as long as the driver, which is never unloaded.
    Some(unsafe { CStr::from_ptr(text) })
}

/// The driver's name for a number that one of its functions may have given.
fn known(code: Code) -> Option<CUresult> {
    use CUresult::*;
    let all = [
        CUDA_ERROR_INVALID_VALUE,
        CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_NOT_INITIALIZED,
        CUDA_ERROR_DEINITIALIZED,
        CUDA_ERROR_NO_DEVICE,
        CUDA_ERROR_INVALID_DEVICE,
        CUDA_ERROR_INVALID_CONTEXT,
        CUDA_ERROR_INVALID_HANDLE,
        CUDA_ERROR_NOT_READY,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        CUDA_ERROR_LAUNCH_TIMEOUT,
        CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_UNKNOWN,
    ];
    all.into_iter().find(|known| *known as Code == code)
}
