//! Physical memory of the device, and addresses that it is put behind: the driver's virtual memory management.

use super::context::{Context, Entered};
use super::library::{check, log_failure};
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUdevice_attribute, CUmemAccessDesc, CUmemAccess_flags as Access,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Drivers were seen to refuse access for a moment after memory was unmapped, and to grant it when they were asked again.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);

/// Bytes of a page of the device; `None` if it maps none.
pub(super) fn page(context: &Context, _entered: &Entered<'_>) -> Result<Option<u64>> {
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
fn properties(context: &Context) -> CUmemAllocationProp {
    // SAFETY: zero is a value of each field: no kind of handle to share, no location, no flags, a null pointer.
    let mut props: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    props.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.__bindgen_anon_1.id = context.device();
    props
}

/// What the memory of views is for, in messages.
pub(super) const PAGES: &str = "weights' pages";

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

/// One allocation of physical memory, which is mapped as a whole. Dropped, it lives on as long as it is mapped somewhere.
pub(super) struct Physical {
    handle: CUmemGenericAllocationHandle,
    bytes: u64,
    context: Arc<Context>,
}

impl Physical {
    /// `bytes` are whole pages. `what` says in an error what they are for.
    pub(super) fn new(
        context: &Arc<Context>,
        bytes: u64,
        what: impl FnOnce() -> String,
    ) -> Result<Physical> {
        let mut handle = 0;
        // SAFETY: the properties are complete, and the driver writes the one handle.
        let code =
            unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &properties(context), 0) };
        match code {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory {
                what: format!("{} on {}", what(), context.name()),
                bytes,
            }),
            code => check("cuMemCreate", code).map(|()| Physical {
                handle,
                bytes,
                context: Arc::clone(context),
            }),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
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

/// Neighbouring addresses that are ours. Dropped, what is mapped there is unmapped, and they are given back: nobody may
/// use them any more.
pub(super) struct Addresses {
    pub(super) start: u64,
    bytes: u64,
    /// Where memory is mapped: bytes from the start, and how many. Each is unmapped as it was mapped.
    mapped: BTreeMap<u64, u64>,
    context: Arc<Context>,
}

impl Addresses {
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn name(&self) -> &str {
        self.context.name()
    }

    /// `what` says in an error what they are for.
    pub(super) fn reserve(context: &Arc<Context>, bytes: u64, what: &str) -> Result<Addresses> {
        let mut start = 0;
        // SAFETY: the driver chooses the addresses, and writes the first one.
        match unsafe { sys::cuMemAddressReserve(&mut start, bytes as usize, 0, 0, 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory {
                what: format!("addresses for {what} on {}", context.name()),
                bytes,
            }),
            code => check("cuMemAddressReserve", code).map(|()| Addresses {
                start,
                bytes,
                mapped: BTreeMap::new(),
                context: Arc::clone(context),
            }),
        }
    }

    /// Puts the memory behind the addresses from `at` on, in bytes from the start: nothing may be there yet.
    pub(super) fn map(&mut self, at: u64, physical: &Physical) -> Result<()> {
        let end = at + physical.bytes;
        let below = self.mapped.range(..end).next_back();
        assert!(
            end <= self.bytes && below.is_none_or(|(start, bytes)| start + bytes <= at),
            "a view was checked before it was mapped"
        );
        // SAFETY: reserved addresses, by the check, behind which nothing is mapped yet.
        unsafe { physical.map(self.start + at) }?;
        self.mapped.insert(at, physical.bytes);
        Ok(())
    }

    /// Takes away what was mapped at `at`. It acts at once: nobody may use the addresses any more.
    pub(super) fn unmap(&mut self, at: u64) -> Result<()> {
        let bytes = self.mapped.remove(&at).ok_or_else(|| {
            Error::Internal(format!(
                "{:#x} is unmapped, but nothing is mapped there",
                self.start + at
            ))
        })?;
        // SAFETY: mapped in one piece, and taken out of the list; the caller's promise for those who read there.
        check("cuMemUnmap", unsafe {
            sys::cuMemUnmap(self.start + at, bytes as usize)
        })
    }

    /// Lets the device at these addresses, in bytes from the start, which all have memory.
    pub(super) fn allow(&self, range: Range<u64>, access: Access) -> Result<()> {
        let (start, bytes) = (self.start + range.start, range.end - range.start);
        allow(&self.context, start, bytes, access)
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        let name = self.context.name();
        for (at, bytes) in std::mem::take(&mut self.mapped) {
            // SAFETY: mapped in one piece. Nobody uses it: the owner that drops this has waited for the streams, or never handed
            // the addresses out.
            let code = unsafe { sys::cuMemUnmap(self.start + at, bytes as usize) };
            log_failure(name, check("cuMemUnmap", code));
        }
        // SAFETY: reserved in `reserve` with this size; nothing is mapped there any more.
        let code = unsafe { sys::cuMemAddressFree(self.start, self.bytes as usize) };
        log_failure(name, check("cuMemAddressFree", code));
    }
}
