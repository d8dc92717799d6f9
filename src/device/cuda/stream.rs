//! Streams, and events that are used again.

use super::context::{Entered, PrimaryContext};
use super::library::{check, log_failure};
use crate::device::{DevicePtr, HostBytes};
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// Inputs of at most so many bytes are copied from memory of our own, which nobody has pinned.
const SMALL: usize = 4096;

/// One ordered queue of the device.
pub(super) struct Stream {
    raw: CUstream,
    /// Made here, so destroyed here. The caller's stream is not.
    owned: bool,
    context: Arc<PrimaryContext>,
}

// SAFETY: a stream may be used from any thread, and the driver locks it; `raw` is only a name for it.
unsafe impl Send for Stream {}
// SAFETY: as for `Send`.
unsafe impl Sync for Stream {}

/// Refuses the per-thread default stream. Needs no driver.
pub(super) fn check_caller(raw: *mut c_void) -> Result<()> {
    match raw.addr() == PER_THREAD {
        true => Err(Error::InvalidInput(
            "the per-thread default stream is another stream on each thread; give a stream of your own, or null \
             for the default stream of all threads"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

impl Stream {
    /// A stream that does not wait for the default stream.
    pub(super) fn new(context: &Arc<PrimaryContext>) -> Result<Stream> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, and the driver writes one pointer.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut raw, flags)
        })?;
        Ok(Stream {
            raw,
            owned: true,
            context: Arc::clone(context),
        })
    }

    /// The caller's stream, which must be of the same context. Null is the default stream.
    ///
    /// # Safety
    /// `raw` is null or a stream that exists until this value is dropped.
    pub(super) unsafe fn of_caller(
        context: &Arc<PrimaryContext>,
        raw: *mut c_void,
    ) -> Result<Stream> {
        check_caller(raw)?;
        let raw: CUstream = raw.cast();
        let _entered = context.enter()?;
        let mut owner = std::ptr::null_mut();
        // SAFETY: a stream by the caller's promise; the driver writes one pointer.
        check("cuStreamGetCtx", unsafe {
            sys::cuStreamGetCtx(raw, &mut owner)
        })?;
        match context.is(owner) {
            true => Ok(Stream {
                raw,
                owned: false,
                context: Arc::clone(context),
            }),
            false => Err(Error::InvalidInput(format!(
                "the stream that was given does not belong to the primary context of {}",
                context.name()
            ))),
        }
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    pub(super) fn context(&self) -> &Arc<PrimaryContext> {
        &self.context
    }

    /// Blocks until everything issued so far is done.
    pub(super) fn synchronize(&self, _entered: &Entered<'_>) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.raw)
        })
    }

    /// Whether the driver refuses it for good: after a fault in a kernel every call gives that kernel's error. A stream
    /// of the caller's that is being captured is refused too, but lives.
    pub(super) fn is_lost(&self, _entered: &Entered<'_>) -> bool {
        // SAFETY: the stream lives as long as `self`.
        let code = unsafe { sys::cuStreamQuery(self.raw) };
        let of_capture = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32
            ..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as u32;
        code != CUresult::CUDA_SUCCESS
            && code != CUresult::CUDA_ERROR_NOT_READY
            && !of_capture.contains(&(code as u32))
    }

    /// Whether a graph is being captured from it.
    pub(super) fn is_capturing(&self, _entered: &Entered<'_>) -> Result<bool> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives as long as `self`; the driver writes the one value.
        check("cuStreamIsCapturing", unsafe {
            sys::cuStreamIsCapturing(self.raw, &mut status)
        })?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Puts `event` after everything issued so far.
    #[inline]
    pub(super) fn record(&self, event: &CudaEvent, entered: &Entered<'_>) -> Result<()> {
        self.record_raw(event.raw.0, entered)
    }

    /// The same for an event of the same context that keeps time; it lives.
    #[inline]
    pub(super) fn record_raw(&self, event: CUevent, _entered: &Entered<'_>) -> Result<()> {
        // SAFETY: both live, and belong to one context: all events and streams of a device do.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(event, self.raw)
        })
    }

    /// Everything issued later waits for `event`, as it was recorded last.
    #[inline]
    pub(super) fn wait(&self, event: &CudaEvent, _entered: &Entered<'_>) -> Result<()> {
        // SAFETY: both live.
        check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(self.raw, event.raw.0, 0)
        })
    }

    /// # Safety
    /// `dst` is device memory of at least `src.len()` bytes, until the copy is done.
    pub(super) unsafe fn copy_in(
        &self,
        dst: DevicePtr,
        src: HostBytes,
        _entered: &Entered<'_>,
    ) -> Result<()> {
        // SAFETY: `src` is readable until the device is dropped, which waits for its streams first
        // (`HostBytes::new`); `dst` by the caller's promise.
        let code = unsafe {
            sys::cuMemcpyHtoDAsync_v2(dst.0, src.as_ptr().cast(), src.len() as usize, self.raw)
        };
        check("cuMemcpyHtoDAsync", code)
    }

    /// Copies `src`, and returns when that may be changed.
    ///
    /// From pageable memory the driver has read all of it when its call returns (CUDA Driver API, "API synchronization
    /// behavior"); to wait for the device as well would take longer than the copy of a few tokens.
    ///
    /// # Safety
    /// `dst` is device memory of at least `src.len()` bytes.
    pub(super) unsafe fn upload(
        &self,
        dst: DevicePtr,
        src: &[u8],
        entered: &Entered<'_>,
    ) -> Result<()> {
        let mut own = [0; SMALL];
        let (src, pageable) = match own.get_mut(..src.len()) {
            // To ask the driver about the caller's memory would take longer.
            Some(own) => {
                own.copy_from_slice(src);
                (&*own, true)
            }
            None => (src, is_pageable(src, entered)),
        };
        // SAFETY: `src` is borrowed until it was read: pageable memory is by this call, and any other by the end of the wait
        // below; `dst` by the caller's promise.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(dst.0, src.as_ptr().cast(), src.len(), self.raw) };
        match check("cuMemcpyHtoDAsync", code) {
            Ok(()) if pageable => Ok(()),
            issued => self.synchronize(entered).and(issued),
        }
    }

    /// Copies to `dst`, and returns when the bytes are there.
    ///
    /// # Safety
    /// `src` is device memory of at least `dst.len()` bytes.
    pub(super) unsafe fn download(
        &self,
        src: DevicePtr,
        dst: &mut [u8],
        entered: &Entered<'_>,
    ) -> Result<()> {
        // SAFETY: `dst` is borrowed until the copy is done, by the wait below; `src` by the caller's promise.
        let code = unsafe {
            sys::cuMemcpyDtoHAsync_v2(dst.as_mut_ptr().cast(), src.0, dst.len(), self.raw)
        };
        let issued = check("cuMemcpyDtoHAsync", code);
        self.synchronize(entered).and(issued)
    }

    /// # Safety
    /// `dst` is pinned memory of at least `bytes` bytes, which nobody uses, and `src` device memory of as many, until the
    /// copy is done.
    pub(super) unsafe fn copy_out(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        bytes: usize,
        _entered: &Entered<'_>,
    ) -> Result<()> {
        // SAFETY: by the caller's promise.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(dst.cast(), src.0, bytes, self.raw) };
        check("cuMemcpyDtoHAsync", code)
    }

    /// # Safety
    /// `dst` and `src` are device memory of at least `bytes` bytes, until the copy is done.
    pub(super) unsafe fn copy_across(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        _entered: &Entered<'_>,
    ) -> Result<()> {
        // SAFETY: by the caller's promise.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes as usize, self.raw) };
        check("cuMemcpyDtoDAsync", code)
    }

    /// # Safety
    /// `dst` is device memory of at least `bytes` bytes, until it was written.
    pub(super) unsafe fn zero(
        &self,
        dst: DevicePtr,
        bytes: u64,
        _entered: &Entered<'_>,
    ) -> Result<()> {
        // SAFETY: by the caller's promise.
        let code = unsafe { sys::cuMemsetD8Async(dst.0, 0, bytes as usize, self.raw) };
        check("cuMemsetD8Async", code)
    }
}

/// Whether the driver knows none of these bytes: it copies from such memory through its own. Memory that was pinned or registered
/// in part is asked about at both ends.
fn is_pageable(bytes: &[u8], _entered: &Entered<'_>) -> bool {
    let Some(last) = bytes.last() else {
        return true;
    };
    let unknown = |address: *const u8| {
        let what = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let mut kind = 0u32;
        // SAFETY: the driver writes one `CUmemorytype`, an integer of 32 bits, and reads nothing at the address.
        let code = unsafe {
            sys::cuPointerGetAttribute(
                std::ptr::from_mut(&mut kind).cast(),
                what,
                address.expose_provenance() as u64,
            )
        };
        code == CUresult::CUDA_ERROR_INVALID_VALUE
    };
    unknown(bytes.as_ptr()) && unknown(last)
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        // SAFETY: made in `new`, and nobody else has it.
        let code = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        log_failure(self.context.name(), check("cuStreamDestroy", code));
    }
}

/// The driver's name for an event.
struct Raw(CUevent);

// SAFETY: an event may be used from any thread, and the driver locks it.
unsafe impl Send for Raw {}
// SAFETY: as for `Send`.
unsafe impl Sync for Raw {}

/// The events of one device. One that is dropped is recorded again later: a wait that was issued keeps the
/// point at which it was issued, so nothing but new records see the new point.
pub(super) struct Events {
    stock: Mutex<Stock>,
    context: Arc<PrimaryContext>,
}

struct Stock {
    idle: Vec<Raw>,
    created: usize,
}

/// A point in one of the device's streams.
pub struct CudaEvent {
    raw: Raw,
    home: Arc<Events>,
}

impl Events {
    pub(super) fn new(context: &Arc<PrimaryContext>) -> Arc<Events> {
        Arc::new(Events {
            stock: Mutex::new(Stock {
                idle: Vec::new(),
                created: 0,
            }),
            context: Arc::clone(context),
        })
    }

    /// An event without timing: an idle one, or a new one if all are in use.
    pub(super) fn take(self: &Arc<Self>, entered: &Entered<'_>) -> Result<CudaEvent> {
        let mut stock = self.stock();
        let raw = match stock.idle.pop() {
            Some(raw) => raw,
            None => stock.create(entered)?,
        };
        drop(stock);
        Ok(CudaEvent {
            raw,
            home: Arc::clone(self),
        })
    }

    /// How many were ever made.
    pub(super) fn created(&self) -> usize {
        self.stock().created
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stock {
    #[cold]
    fn create(&mut self, _entered: &Entered<'_>) -> Result<Raw> {
        let mut raw = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the context is current, and the driver writes one pointer.
        check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut raw, flags)
        })?;
        self.created += 1;
        // Room for all of them, so that giving one back never allocates.
        self.idle.reserve(self.created);
        Ok(Raw(raw))
    }
}

impl CudaEvent {
    /// Whether everything before it is done.
    pub(super) fn is_done(&self, _entered: &Entered<'_>) -> Result<bool> {
        // SAFETY: the event lives as long as `self`.
        match unsafe { sys::cuEventQuery(self.raw.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Blocks until everything before it is done.
    pub(super) fn synchronize(&self, _entered: &Entered<'_>) -> Result<()> {
        // SAFETY: the event lives as long as `self`.
        check("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(self.raw.0)
        })
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let raw = Raw(self.raw.0);
        self.home.stock().idle.push(raw);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        let stock = self.stock.get_mut().unwrap_or_else(PoisonError::into_inner);
        for Raw(event) in stock.idle.drain(..) {
            // SAFETY: made in `create`; every event in use keeps this value alive, so all are idle.
            let code = unsafe { sys::cuEventDestroy_v2(event) };
            log_failure(self.context.name(), check("cuEventDestroy", code));
        }
    }
}
