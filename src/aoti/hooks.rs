//! What the compiled code's calls need from the pass.

use std::ffi::c_void;

use crate::device::{DeviceBytes, DevicePtr, HostRoom};
use crate::error::{Error, Result};

/// Serves one pass of compiled code. The session implements it; `aoti` calls it through the context that
/// is installed for the calling thread while a container runs.
pub trait PassHooks {
    /// The compiled code is about to read the weight of probe `id`. Returns the address of its bytes,
    /// which stay in place until [`PassHooks::release`] is called with the same id.
    fn probe(&mut self, id: i64) -> Result<DevicePtr>;

    /// Shape of what probe `id` returns: the recorded layout of the probe's output.
    fn probe_layout(&self, id: i64) -> Result<ProbeLayout<'_>>;

    /// The last tensor handle that shared the storage of probe `id` was deleted: its lease ends. Never
    /// fails towards the caller (a failure here would end the process inside compiled code); what goes
    /// wrong is kept and reported when the pass ends.
    fn release(&mut self, id: i64);

    /// Memory for an activation, aligned to 64 bytes, on the device the program was compiled for.
    fn alloc_activation(&mut self, bytes: u64) -> Result<DevicePtr>;

    /// Gives back what [`PassHooks::alloc_activation`] returned.
    fn free_activation(&mut self, ptr: DevicePtr, bytes: u64);

    /// The stream on which kernels are launched; null on the CPU.
    fn stream(&self) -> *mut c_void {
        std::ptr::null_mut()
    }

    /// Copies `bytes` of device memory to other device memory, in the order of the kernels. Never asked for
    /// on the CPU, as the next five.
    fn copy_on_device(&mut self, _dst: DevicePtr, _src: DevicePtr, _bytes: u64) -> Result<()> {
        Err(no_device("copies"))
    }

    /// Sets `bytes` of device memory to zero, in the order of the kernels.
    fn zero_on_device(&mut self, _dst: DevicePtr, _bytes: u64) -> Result<()> {
        Err(no_device("fills"))
    }

    /// Reads device memory, after all kernels issued so far.
    fn read_from_device(&mut self, _src: DevicePtr, _dst: &mut [u8]) -> Result<()> {
        Err(no_device("reads"))
    }

    /// The same for an output. The bytes may come as late as at the end of the wait for the pass.
    fn read_for_caller(&mut self, _src: DevicePtr, _dst: HostRoom) -> Result<()> {
        Err(no_device("reads"))
    }

    /// Copies device memory to the whole of the caller's memory `dst`, in the order of the kernels.
    fn copy_to_caller(&mut self, _dst: DeviceBytes, _src: DevicePtr) -> Result<()> {
        Err(no_device("copies"))
    }

    /// Copies host bytes to the caller's memory `dst`, which is as long, in the order of the kernels.
    fn upload_to_caller(&mut self, _dst: DeviceBytes, _src: &[u8]) -> Result<()> {
        Err(no_device("writes"))
    }
}

fn no_device(what: &str) -> Error {
    Error::Internal(format!("nobody {what} memory of a device in this pass"))
}

/// Layout of a probe's output, in elements of `dtype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeLayout<'a> {
    /// Scalar type in the numbering of ExecuTorch and PyTorch (`ScalarType`).
    pub dtype: i32,
    /// Sizes, outermost first.
    pub sizes: &'a [i64],
    /// Strides in elements, outermost first.
    pub strides: &'a [i64],
}
