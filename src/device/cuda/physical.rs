//! Physical memory of the device, and who may access it where.

use super::context::{Entered, PrimaryContext};
use super::library::{check, log_failure};
use crate::device::Purpose;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUdevice_attribute, CUmemAccessDesc, CUmemAccess_flags as Access,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult,
};
use std::sync::Arc;
use std::time::Duration;

/// Drivers were seen to refuse access for a moment after memory was unmapped, and to grant it when they were asked again.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);

/// Bytes of a page of the device; `None` if it maps none.
pub(super) fn page(context: &PrimaryContext, _entered: &Entered<'_>) -> Result<Option<u64>> {
    let can = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
    if context.attribute(can)? == 0 {
        return Ok(None);
    }
    let props = properties(context);
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut bytes = 0;
    // SAFETY: the properties are complete, and the driver writes the one integer.
    check("cuMemGetAllocationGranularity", unsafe {
        sys::cuMemGetAllocationGranularity(&mut bytes, &props, least)
    })?;
    let bytes = bytes as u64;
    Ok((bytes > 0 && bytes.is_multiple_of(super::units::GRANULE)).then_some(bytes))
}

/// Memory of the device, as weights need it.
fn properties(context: &PrimaryContext) -> CUmemAllocationProp {
    // SAFETY: zero is a value of each field: no kind of handle to share, no location, no flags, a null pointer.
    let mut props: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    props.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.__bindgen_anon_1.id = context.device();
    props
}

/// Lets the device at these addresses, which are ours and all have memory.
pub(super) fn allow(
    context: &PrimaryContext,
    start: u64,
    bytes: u64,
    access: Access,
) -> Result<()> {
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

/// One allocation of physical memory, which is mapped as a whole. Dropped, it lives on as long as it is mapped somewhere.
pub struct Physical {
    handle: CUmemGenericAllocationHandle,
    bytes: u64,
    context: Arc<PrimaryContext>,
}

impl Physical {
    /// `bytes` are whole pages.
    pub(super) fn new(
        context: &Arc<PrimaryContext>,
        bytes: u64,
        purpose: Purpose,
    ) -> Result<Physical> {
        let mut handle = 0;
        // SAFETY: the properties are complete, and the driver writes the one handle.
        let code =
            unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &properties(context), 0) };
        match code {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory {
                what: format!("{} on {}", purpose.name(), context.name()),
                bytes,
            }),
            code => check("cuMemCreate", code).map(|()| Physical {
                handle,
                bytes,
                context: Arc::clone(context),
            }),
        }
    }

    /// Puts it behind addresses.
    ///
    /// # Safety
    /// They are reserved, as many as it has bytes, and have no memory.
    pub(super) unsafe fn map(&self, at: u64) -> Result<()> {
        // SAFETY: the caller's promise; the handle lives, and is mapped whole.
        check("cuMemMap", unsafe {
            sys::cuMemMap(at, self.bytes as usize, 0, self.handle, 0)
        })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        // SAFETY: made in `new`, and released here only.
        let code = unsafe { sys::cuMemRelease(self.handle) };
        log_failure(self.context.name(), check("cuMemRelease", code));
    }
}
