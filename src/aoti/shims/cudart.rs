//! The functions of CUDA's runtime library that compiled code calls, over the driver. They are bound through
//! the library's own table like all others, so no `libcudart` is needed and none is disturbed. Without a
//! driver each of them returns an error.

use std::cell::Cell;
use std::ffi::{c_char, c_void, CStr};
use std::panic::{catch_unwind, UnwindSafe};

use super::super::context;
use super::args::Out;
use super::table::shim_table;
use crate::device::cuda::runtime::{self, Code};

shim_table! {
    cudaEventCreate, cudaEventCreateWithFlags, cudaEventDestroy, cudaEventQuery, cudaEventRecord,
    cudaEventSynchronize, cudaFree, cudaGetDevice, cudaGetErrorString, cudaGetLastError, cudaMalloc, cudaMemcpy,
    cudaMemcpyAsync, cudaPointerGetAttributes, cudaSetDevice, cudaStreamCreateWithFlags, cudaStreamDestroy,
    cudaStreamSynchronize,
}

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(0) };
}

/// Runs the body of a function; keeps its error as the thread's last one, and as the pass's if one runs.
fn answer(function: &'static str, body: impl FnOnce() -> Result<(), Code> + UnwindSafe) -> Code {
    let code = match catch_unwind(body) {
        Ok(Ok(())) => return 0,
        Ok(Err(code)) => code,
        Err(_) => runtime::UNKNOWN,
    };
    if code != runtime::NOT_READY {
        LAST.set(code);
        let text = text(code).to_string_lossy();
        context::note(function, format!("CUDA error {code}: {text}"));
    }
    code
}

/// Stores a result.
fn set<T>(place: Out<T>, value: T) -> Result<(), Code> {
    place.set(value).map_err(|_| runtime::INVALID_VALUE)
}

fn text(code: Code) -> &'static CStr {
    match code {
        0 => c"no error",
        runtime::NO_DRIVER => c"there is no CUDA driver that can be used",
        code => runtime::text(code).unwrap_or(c"unknown CUDA error"),
    }
}

extern "C" fn cudaGetErrorString(code: Code) -> *const c_char {
    catch_unwind(|| text(code))
        .unwrap_or(c"unknown CUDA error")
        .as_ptr()
}

extern "C" fn cudaGetLastError() -> Code {
    LAST.replace(0)
}

extern "C" fn cudaGetDevice(device: Out<i32>) -> Code {
    answer("cudaGetDevice", || set(device, runtime::current_device()?))
}

/// The device of the program is current whenever compiled code runs, and no other may become it: the
/// caller's thread would keep it.
extern "C" fn cudaSetDevice(device: i32) -> Code {
    answer("cudaSetDevice", || {
        match runtime::current_device()? == device {
            true => Ok(()),
            false => Err(runtime::INVALID_DEVICE),
        }
    })
}

extern "C" fn cudaMalloc(at: Out<*mut c_void>, bytes: usize) -> Code {
    answer("cudaMalloc", || set(at, runtime::allocate(bytes)?))
}

extern "C" fn cudaFree(at: *mut c_void) -> Code {
    // SAFETY: compiled code frees what it has from `cudaMalloc`, once.
    answer("cudaFree", || unsafe { runtime::free(at) })
}

/// `kind` is left to the driver, which sees from the addresses where they lie.
extern "C" fn cudaMemcpy(dst: *mut c_void, src: *const c_void, bytes: usize, _kind: i32) -> Code {
    // SAFETY: by the function's declaration in CUDA's headers, both have room for this many bytes.
    answer("cudaMemcpy", || unsafe { runtime::copy(dst, src, bytes) })
}

extern "C" fn cudaEventCreate(event: Out<*mut c_void>) -> Code {
    answer("cudaEventCreate", || set(event, runtime::create_event()?))
}

/// The flags choose whether an event takes times, and how a thread waits for it: nothing that changes a result.
extern "C" fn cudaEventCreateWithFlags(event: Out<*mut c_void>, _flags: u32) -> Code {
    answer("cudaEventCreateWithFlags", || {
        set(event, runtime::create_event()?)
    })
}

/// What the container would copy constants with, through pinned memory and a stream of its own. The runtime
/// places constants itself, so a program that calls one of these does something that no test has seen.
fn unused(function: &'static str) -> Code {
    answer(function, || Err(runtime::NOT_SUPPORTED))
}

extern "C" fn cudaMemcpyAsync(
    _dst: *mut c_void,
    _src: *const c_void,
    _bytes: usize,
    _kind: i32,
    _stream: *mut c_void,
) -> Code {
    unused("cudaMemcpyAsync")
}

extern "C" fn cudaPointerGetAttributes(_attributes: *mut c_void, _at: *const c_void) -> Code {
    unused("cudaPointerGetAttributes")
}

extern "C" fn cudaStreamCreateWithFlags(_stream: Out<*mut c_void>, _flags: u32) -> Code {
    unused("cudaStreamCreateWithFlags")
}

extern "C" fn cudaStreamDestroy(_stream: *mut c_void) -> Code {
    unused("cudaStreamDestroy")
}

extern "C" fn cudaStreamSynchronize(_stream: *mut c_void) -> Code {
    unused("cudaStreamSynchronize")
}

extern "C" fn cudaEventDestroy(event: *mut c_void) -> Code {
    // SAFETY: compiled code destroys events of its own, once.
    answer("cudaEventDestroy", || unsafe {
        runtime::destroy_event(event)
    })
}

extern "C" fn cudaEventQuery(event: *mut c_void) -> Code {
    // SAFETY: compiled code asks about events of its own.
    answer("cudaEventQuery", || unsafe { runtime::query_event(event) })
}

extern "C" fn cudaEventSynchronize(event: *mut c_void) -> Code {
    // SAFETY: compiled code waits for events of its own.
    answer("cudaEventSynchronize", || unsafe {
        runtime::synchronize_event(event)
    })
}

extern "C" fn cudaEventRecord(event: *mut c_void, stream: *mut c_void) -> Code {
    // SAFETY: an event of the compiled code's own, and the stream that it was given for the run.
    answer("cudaEventRecord", || unsafe {
        runtime::record_event(event, stream)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_driver() -> bool {
        runtime::text(0).is_some() || runtime::text(1).is_some()
    }

    #[test]
    fn every_code_has_a_text() {
        for code in [0, 1, 2, 35, 101, 600, 700, 999, -1, 123_456] {
            let text = cudaGetErrorString(code);
            assert!(!text.is_null());
        }
        assert_eq!(text(0), c"no error");
        assert_eq!(text(123_456), c"unknown CUDA error");
    }

    #[test]
    fn without_a_driver_every_function_fails_and_the_error_is_kept_once() {
        if has_driver() {
            return;
        }
        let mut device = -7;
        let mut memory = std::ptr::null_mut::<c_void>();
        type GetDevice = extern "C" fn(*mut i32) -> Code;
        type Malloc = extern "C" fn(*mut *mut c_void, usize) -> Code;
        let function = |name| lookup(name).unwrap();
        // SAFETY: `Out<T>` is a transparent `*mut T`, and these are the functions' signatures in CUDA's headers.
        let (get_device, malloc) = unsafe {
            (
                std::mem::transmute::<*const c_void, GetDevice>(function("cudaGetDevice")),
                std::mem::transmute::<*const c_void, Malloc>(function("cudaMalloc")),
            )
        };
        assert_eq!(cudaGetLastError(), 0);
        assert_eq!(get_device(&mut device), runtime::NO_DRIVER);
        assert_eq!(device, -7, "nothing is stored");
        assert_eq!(cudaGetLastError(), runtime::NO_DRIVER);
        assert_eq!(cudaGetLastError(), 0, "asked for once");
        assert_eq!(malloc(&mut memory, 64), runtime::NO_DRIVER);
        assert_eq!(cudaSetDevice(0), runtime::NO_DRIVER);
        let none = std::ptr::null_mut();
        assert_eq!(cudaMemcpy(none, none, 8, 1), runtime::NO_DRIVER);
        for function in [
            cudaEventDestroy,
            cudaEventQuery,
            cudaEventSynchronize,
            cudaFree,
        ] {
            assert_eq!(function(none), runtime::NO_DRIVER);
        }
        assert_eq!(cudaEventRecord(none, none), runtime::NO_DRIVER);
        assert_eq!(cudaStreamDestroy(none), runtime::NOT_SUPPORTED);
    }
}
