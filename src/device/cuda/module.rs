//! The crate's own kernels: PTX, which the driver compiles for the device when it is loaded.

use super::context::{Entered, PrimaryContext};
use super::library::{check, log_failure};
use super::stream::Stream;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUfunction, CUmodule};
use std::ffi::{c_void, CStr, CString};
use std::sync::Arc;

/// Code on one device.
pub(super) struct Module {
    raw: CUmodule,
    context: Arc<PrimaryContext>,
}

// SAFETY: a module may be used from any thread, and the driver locks it; `raw` is only a name for it.
unsafe impl Send for Module {}
// SAFETY: as for `Send`.
unsafe impl Sync for Module {}

/// One kernel, which keeps its module.
pub(super) struct Kernel {
    raw: CUfunction,
    module: Arc<Module>,
}

// SAFETY: as for a module.
unsafe impl Send for Kernel {}
// SAFETY: as for a module.
unsafe impl Sync for Kernel {}

impl Module {
    pub(super) fn load(
        context: &Arc<PrimaryContext>,
        ptx: &str,
        _entered: &Entered<'_>,
    ) -> Result<Arc<Module>> {
        let text = CString::new(ptx).map_err(|error| Error::Internal(error.to_string()))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the text ends with a zero, and the driver writes one pointer.
        let loaded = check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut raw, text.as_ptr().cast())
        });
        loaded.map_err(|error| {
            Error::Unsupported(format!(
                "{} cannot run the kernels that decode packed weights ({error}): they need compute capability 7.5; use weights that \
                 are not packed",
                context.name()
            ))
        })?;
        Ok(Arc::new(Module {
            raw,
            context: Arc::clone(context),
        }))
    }

    pub(super) fn kernel(self: &Arc<Self>, name: &CStr, _entered: &Entered<'_>) -> Result<Kernel> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module lives; the driver writes one pointer.
        check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&mut raw, self.raw, name.as_ptr())
        })?;
        Ok(Kernel {
            raw,
            module: Arc::clone(self),
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        // SAFETY: loaded in `load`, and unloaded here only; kernels keep it, and the device waits for its streams before it drops them.
        let code = unsafe { sys::cuModuleUnload(self.raw) };
        log_failure(self.context.name(), check("cuModuleUnload", code));
    }
}

impl Kernel {
    /// Starts so many blocks of so many threads.
    ///
    /// # Safety
    /// `parameters` point to values of the kernel's parameters, in their order and of their types. The memory that they name is there
    /// until the kernel has run, and ordered against its other users.
    pub(super) unsafe fn launch(
        &self,
        (blocks, threads): (u32, u32),
        parameters: &mut [*mut c_void],
        stream: &Stream,
        _entered: &Entered<'_>,
    ) -> Result<()> {
        debug_assert!(!self.module.raw.is_null());
        let nothing = std::ptr::null_mut();
        // SAFETY: by the caller's promise; the driver reads the parameters in this call.
        let code = unsafe {
            sys::cuLaunchKernel(
                self.raw,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.raw(),
                parameters.as_mut_ptr(),
                nothing,
            )
        };
        check("cuLaunchKernel", code)
    }
}
