//! The driver's library, found at run time, and the errors that say what is missing.
//!
//! cudarc opens the library by itself at its first call, and panics if there is none, or if a function is
//! not in it. So everything here comes first: [`open`] asks for the library and for every function that is
//! called later, and each failure is an error that names what was not found.

use crate::error::{counted, Error, Result};
use crate::figures::DeviceId;
use cudarc::driver::sys::{self, CUdevice, CUresult};
use std::ffi::{c_char, c_int, CStr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// What the driver installs. Where this can be opened, cudarc finds it too: it is the last of its names.
const LIBRARY: &CStr = c"libcuda.so.1";

/// The first driver whose memory pools have a maximum size, as `cuDriverGetVersion` says it.
const OLDEST: c_int = 12020;

/// Drivers of CUDA 12.8 and later have it: called only where [`has`] has found it.
pub(super) const ELAPSED_TIME: &str = "cuEventElapsedTime_v2";

/// Every other function that this module's parent calls.
const FUNCTIONS: [&str; 70] = [
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphGetNodes",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAllocFromPoolAsync",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFreeAsync",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemMap",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpy",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemGetInfo_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetCtx",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cuThreadExchangeStreamCaptureMode",
];

/// The process has begun to exit.
static EXITING: AtomicBool = AtomicBool::new(false);

/// The process that initialised the driver, or is about to; 0: none.
static INITIALISED_IN: AtomicU32 = AtomicU32::new(0);

/// Whether the driver cannot be called any more: the process has begun to exit, or was forked from one that had
/// initialised it. Nothing is released then: the system takes back everything, the device's memory too.
pub(super) fn is_gone() -> bool {
    EXITING.load(Ordering::Acquire) || check_process().is_err()
}

/// The driver does not survive a fork. Nothing of it may be called in a child of the process that has initialised it.
fn check_process() -> Result<()> {
    let (parent, here) = (INITIALISED_IN.load(Ordering::Acquire), std::process::id());
    match parent == 0 || parent == here {
        true => Ok(()),
        false => Err(Error::Unsupported(format!(
            "device 'cuda': the NVIDIA driver was initialised in process {parent}, and this is process {here}, forked from it: \
             CUDA does not survive fork; fork before anything is loaded for a GPU, or start processes in another way \
             (multiprocessing's 'spawn')"
        ))),
    }
}

extern "C" fn mark_exit() {
    EXITING.store(true, Ordering::Release);
}

/// Finds the driver and initialises it, once. Nothing of the driver may be called before this was `Ok`.
pub(super) fn open() -> Result<()> {
    static OPENED: Mutex<bool> = Mutex::new(false);
    // Before the lock, which another thread may have held at a fork.
    check_process()?;
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if *opened {
        return Ok(());
    }
    INITIALISED_IN.store(std::process::id(), Ordering::Release);
    initialise().inspect_err(|_| INITIALISED_IN.store(0, Ordering::Release))?;
    // After `cuInit`: handlers run in reverse order, so this one runs before any that the driver has set up.
    // SAFETY: the handler only stores to a static.
    if unsafe { libc::atexit(mark_exit) } != 0 {
        log::warn!(
            "no exit handler could be set: devices that are left at exit may not end quietly"
        );
    }
    *opened = true;
    Ok(())
}

fn initialise() -> Result<()> {
    find()?;
    check_functions()?;
    check_version()?;
    // SAFETY: the function is there (checked above) and has no preconditions.
    init_outcome(unsafe { sys::cuInit(0) })
}

/// Number of CUDA devices, or what keeps the driver from telling.
pub(super) fn count() -> Result<u32> {
    open()?;
    let mut count = 0;
    // SAFETY: the driver is initialised, and writes the one integer.
    check("cuDeviceGetCount", unsafe {
        sys::cuDeviceGetCount(&mut count)
    })?;
    Ok(count.max(0) as u32)
}

/// The device of this index.
pub(super) fn device(index: u32) -> Result<CUdevice> {
    let count = count()?;
    if index >= count {
        return Err(no_such_device(index, count));
    }
    let mut device = 0;
    // SAFETY: the driver is initialised, and writes the one integer.
    check("cuDeviceGet", unsafe {
        sys::cuDeviceGet(&mut device, index as c_int)
    })?;
    Ok(device)
}

/// The outcome of a driver call.
#[inline]
pub(super) fn check(call: &'static str, code: CUresult) -> Result<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(failure(call, code)),
    }
}

/// Reports what went wrong where nobody can be told: in `drop`.
pub(super) fn log_failure(what: &str, outcome: Result<()>) {
    if let Err(error) = outcome {
        log::warn!("{what}: {error}");
    }
}

#[cold]
fn failure(call: &'static str, code: CUresult) -> Error {
    Error::Device {
        call,
        what: text(code),
    }
}

/// Name, number and text of an error of the driver.
#[cold]
pub(super) fn text(code: CUresult) -> String {
    let ask = |f: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: both functions that are passed write a pointer to a text that lives for ever, or null.
        let answered = unsafe { f(code, &mut text) };
        if answered != CUresult::CUDA_SUCCESS || text.is_null() {
            return "unknown error".to_string();
        }
        // SAFETY: a C string of the driver, see above.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    };
    format!(
        "{} ({}): {}",
        ask(sys::cuGetErrorName),
        code as u32,
        ask(sys::cuGetErrorString)
    )
}

/// Opens the library, and keeps it open for the life of the process.
fn find() -> Result<()> {
    // SAFETY: the name is a C string. The library's initialisers are the driver's, which any CUDA program
    // runs.
    let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(());
    }
    // SAFETY: returns this thread's last text, valid until its next dl call, or null.
    let text = unsafe { libc::dlerror() };
    let why = match text.is_null() {
        true => "no reason given".to_string(),
        // SAFETY: a C string, see above.
        false => unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    };
    Err(Error::Missing {
        name: LIBRARY.to_string_lossy().into_owned(),
        place: format!(
            "the loader's path ({why}): device 'cuda' needs the NVIDIA driver; in a container, start it with \
             access to the GPU"
        ),
    })
}

/// Whether the driver has a function. The library was found.
pub(super) fn has(name: &str) -> bool {
    // SAFETY: `find` has seen that the library can be opened, so this neither panics nor runs anything but
    // the driver's own initialisers.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is only looked up; it is never called through this type.
    unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
}

fn check_functions() -> Result<()> {
    for name in FUNCTIONS {
        if !has(name) {
            return Err(Error::Missing {
                name: name.to_string(),
                place: format!(
                    "{}: the NVIDIA driver is too old",
                    LIBRARY.to_string_lossy()
                ),
            });
        }
    }
    Ok(())
}

fn check_version() -> Result<()> {
    let mut version = 0;
    // SAFETY: may be called before `cuInit`, and writes the one integer.
    check("cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&mut version)
    })?;
    match version < OLDEST {
        true => Err(too_old(version)),
        false => Ok(()),
    }
}

fn init_outcome(code: CUresult) -> Result<()> {
    let why = match code {
        CUresult::CUDA_SUCCESS => return Ok(()),
        CUresult::CUDA_ERROR_NO_DEVICE => "no NVIDIA GPU was found",
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "the libcuda that was loaded is the CUDA toolkit's stub; take its 'stubs' folder out of LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_NOT_INITIALIZED => {
            "the NVIDIA driver cannot be initialised here, as in a process that was forked from one that uses it: CUDA does not \
             survive fork; start processes in another way (multiprocessing's 'spawn')"
        }
        _ => return Err(failure("cuInit", code)),
    };
    Err(Error::Unsupported(format!(
        "device 'cuda': {why} (cuInit: {})",
        text(code)
    )))
}

fn no_such_device(index: u32, count: u32) -> Error {
    Error::Missing {
        name: DeviceId::Cuda(index).to_string(),
        place: format!(
            "this machine, whose NVIDIA driver shows {}, counted from 0",
            counted(count.into(), "device")
        ),
    }
}

fn too_old(version: c_int) -> Error {
    let show = |v: c_int| format!("{}.{}", v / 1000, v % 1000 / 10);
    Error::Unsupported(format!(
        "device 'cuda': the NVIDIA driver supports CUDA {}, and {} or newer is needed, for memory pools with a \
         maximum size",
        show(version),
        show(OLDEST)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_indices_are_named() {
        let old = too_old(11080).to_string();
        assert!(
            old.contains("CUDA 11.8") && old.contains("12.2 or newer"),
            "{old}"
        );
        let none = no_such_device(3, 2).to_string();
        assert!(
            none.contains("'cuda:3' is missing") && none.contains("2 devices, counted"),
            "{none}"
        );
    }

    #[test]
    fn every_function_is_asked_for_once() {
        let mut names = FUNCTIONS.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FUNCTIONS.len());
    }

    /// The list above is what keeps cudarc from panicking on an old driver, so it must be complete.
    #[test]
    fn every_function_that_is_called_is_asked_for() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/device/cuda");
        let files = std::fs::read_dir(folder).unwrap();
        let sources: Vec<String> = files
            .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
            .collect();
        let mut called: Vec<&str> = sources
            .iter()
            .flat_map(|source| source.split("sys::cu").skip(1))
            .map(|rest| {
                rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
                    .unwrap_or("")
            })
            .filter(|name| name.starts_with(char::is_uppercase))
            .collect();
        called.sort_unstable();
        called.dedup();
        let all = FUNCTIONS.iter().chain([&ELAPSED_TIME]);
        let mut listed: Vec<&str> = all.map(|name| &name[2..]).collect();
        listed.sort_unstable();
        assert_eq!(listed, called);
    }
}
