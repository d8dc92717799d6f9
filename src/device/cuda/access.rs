//! Physical memory of a device, and who may access it where it is mapped.

use super::context::Context;
use super::library::check;
use crate::error::Result;
use cudarc::driver::sys::{
    self, CUmemAccessDesc, CUmemAccess_flags as Access, CUmemAllocationProp, CUresult,
};
use std::time::Duration;

/// Drivers were seen to refuse access for a moment after memory was unmapped, and to grant it when they were asked again.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);

/// Memory of the device, as weights need it.
pub(super) fn properties(context: &Context) -> CUmemAllocationProp {
    // SAFETY: zero is a value of each field: no kind of handle to share, no location, no flags, a null pointer.
    let mut props: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    props.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.__bindgen_anon_1.id = context.device();
    props
}

/// Lets the device at these addresses, which are ours and all have memory.
pub(super) fn allow(context: &Context, start: u64, bytes: u64, access: Access) -> Result<()> {
    let description = CUmemAccessDesc {
        location: properties(context).location,
        flags: access,
    };
    for attempt in 0..ATTEMPTS {
        // SAFETY: one description; the driver refuses addresses that are not mapped.
        let code = unsafe { sys::cuMemSetAccess(start, bytes as usize, &description, 1) };
        if code != CUresult::CUDA_ERROR_NOT_READY || attempt + 1 == ATTEMPTS {
            return check("cuMemSetAccess", code);
        }
        log::warn!(
            "{}: cuMemSetAccess of {bytes} bytes is not ready: trying again",
            context.name()
        );
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
