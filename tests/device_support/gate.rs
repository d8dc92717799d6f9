//! Holds a CUDA stream until it is told to go on. The only calls of the driver in the tests.

use cudarc::driver::sys::{self, CUresult, CUstream};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// A closed gate; dropped, it opens.
pub struct Gate {
    /// In pinned memory, freed only with its context: the device reads it at a time of its own.
    flag: &'static AtomicU32,
    /// Opens the gate by itself; told to stop when the gate is dropped, since the flag goes with the context.
    opener: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Gate {
    /// Everything that is issued to the stream from now on waits until the gate opens, which it does by
    /// itself after `patience`.
    pub fn close(stream: *mut c_void, patience: Duration) -> Gate {
        let stream: CUstream = stream.cast();
        let mut gate = Gate {
            flag: in_context_of(stream, pinned_flag),
            opener: None,
        };
        in_context_of(stream, || {
            let mut at = 0;
            // SAFETY: the flag is pinned memory, which the driver has mapped; it writes one address.
            check(unsafe {
                sys::cuMemHostGetDevicePointer_v2(&mut at, gate.flag.as_ptr().cast(), 0)
            });
            // SAFETY: a stream of a device that lives, and a flag that is never freed. Waits until it is 1.
            check(unsafe { sys::cuStreamWaitValue32_v2(stream, at, 1, 0) });
        });
        let flag = gate.flag;
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            if stopped.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                flag.store(1, Ordering::Release);
            }
        });
        gate.opener = Some((stop, thread));
        gate
    }

    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.flag.store(1, Ordering::Release);
        if let Some((stop, thread)) = self.opener.take() {
            drop(stop);
            thread.join().expect("the opener only waits");
        }
    }
}

/// Whether any context is current on this thread.
pub fn a_context_is_current() -> bool {
    let mut current = std::ptr::null_mut();
    // SAFETY: called with a device at hand, so the driver is there; it writes one pointer.
    check(unsafe { sys::cuCtxGetCurrent(&mut current) });
    !current.is_null()
}

/// Runs `body` with the stream's context current.
pub fn in_context_of<R>(stream: CUstream, body: impl FnOnce() -> R) -> R {
    let mut context = std::ptr::null_mut();
    // SAFETY: a stream of a device that lives; the driver writes one pointer.
    check(unsafe { sys::cuStreamGetCtx(stream, &mut context) });
    // SAFETY: the stream's own context.
    check(unsafe { sys::cuCtxPushCurrent_v2(context) });
    let result = body();
    // SAFETY: pushed above.
    check(unsafe { sys::cuCtxPopCurrent_v2(&mut context) });
    result
}

/// A stream that the caller of a device might have.
pub fn stream_like(other: *mut c_void) -> *mut c_void {
    in_context_of(other.cast(), || {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a context is current; the driver writes one pointer.
        check(unsafe { sys::cuStreamCreate(&mut stream, 1) });
        stream.cast()
    })
}

/// Runs `body` while a graph is captured from the stream, and throws that graph away.
pub fn while_captured<R>(stream: *mut c_void, body: impl FnOnce() -> R) -> R {
    let stream: CUstream = stream.cast();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a stream that lives.
    check(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) });
    let result = body();
    let mut graph = std::ptr::null_mut();
    // SAFETY: it is being captured; the driver writes one pointer. Null, or with an error, if something ended the capture.
    let ended = unsafe { sys::cuStreamEndCapture(stream, &mut graph) };
    if ended == CUresult::CUDA_SUCCESS && !graph.is_null() {
        // SAFETY: just made, and nobody else has it.
        check(unsafe { sys::cuGraphDestroy(graph) });
    }
    result
}

/// Whether everything issued to the stream is done.
pub fn is_idle(stream: *mut c_void) -> bool {
    // SAFETY: a stream that lives.
    let code = in_context_of(stream.cast(), || unsafe {
        sys::cuStreamQuery(stream.cast())
    });
    if code == CUresult::CUDA_ERROR_NOT_READY {
        return false;
    }
    check(code);
    true
}

fn pinned_flag() -> &'static AtomicU32 {
    let mut memory = std::ptr::null_mut();
    // SAFETY: a context is current; the driver writes one pointer.
    check(unsafe { sys::cuMemHostAlloc(&mut memory, 4, sys::CU_MEMHOSTALLOC_DEVICEMAP) });
    // SAFETY: four bytes that were just allocated, aligned to a page, and are never freed.
    unsafe {
        memory.cast::<u32>().write(0);
        AtomicU32::from_ptr(memory.cast())
    }
}

fn check(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}
