//! Blocks of activations that grow where they are: addresses for as much as the device has, and pages behind the first of
//! them.
//!
//! ```text
//!  addresses  |========|============|..................|
//!               pages    pages of     reserved, nothing
//!               first    a growth     mapped
//! ```
//! Each growth is one allocation of physical memory behind the next addresses. Nothing that is mapped changes, so graphs that
//! use the block stay right.

use super::context::{Context, Entered};
use super::library::{check, log_failure};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUmemAccessDesc, CUmemAccess_flags as Access, CUmemAllocationProp, CUresult,
};
use std::sync::Arc;
use std::time::Duration;

/// As for views: drivers were seen to refuse access for a moment.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);

struct Block {
    start: u64,
    /// Bytes of addresses, a multiple of the page.
    reserved: u64,
    /// Bytes from the start with memory behind them, in whole pages.
    mapped: u64,
    /// Bytes that were asked for.
    bytes: u64,
    context: Arc<Context>,
}

impl Block {
    fn reserve(context: &Arc<Context>, bytes: u64, _entered: &Entered<'_>) -> Result<Block> {
        let mut start = 0;
        // SAFETY: the driver chooses the addresses, and writes the first one.
        match unsafe { sys::cuMemAddressReserve(&mut start, bytes as usize, 0, 0, 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory {
                what: format!("addresses for activations on {}", context.name()),
                bytes,
            }),
            code => check("cuMemAddressReserve", code).map(|()| Block {
                start,
                reserved: bytes,
                mapped: 0,
                bytes: 0,
                context: Arc::clone(context),
            }),
        }
    }

    /// Memory behind the first `bytes` bytes. On an error the block is as it was.
    fn grow(&mut self, bytes: u64, page: u64, _entered: &Entered<'_>) -> Result<()> {
        let whole = bytes.next_multiple_of(page);
        if whole > self.reserved {
            return Err(out_of_memory(&self.context, bytes));
        }
        if whole > self.mapped {
            let (at, more) = (self.start + self.mapped, whole - self.mapped);
            map(&self.context, at, more)?;
            self.mapped = whole;
        }
        self.bytes = self.bytes.max(bytes);
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        let name = self.context.name();
        if self.mapped > 0 {
            // SAFETY: mapped from the start on without a gap, in whole allocations. Nobody uses them: the owner that drops this
            // has waited for the streams.
            let code = unsafe { sys::cuMemUnmap(self.start, self.mapped as usize) };
            log_failure(name, check("cuMemUnmap", code));
        }
        // SAFETY: reserved in `reserve` with this size; nothing is mapped there any more.
        let code = unsafe { sys::cuMemAddressFree(self.start, self.reserved as usize) };
        log_failure(name, check("cuMemAddressFree", code));
    }
}

/// New memory of `bytes`, whole pages, behind reserved addresses that have none.
fn map(context: &Arc<Context>, at: u64, bytes: u64) -> Result<()> {
    let properties = properties(context);
    let mut handle = 0;
    // SAFETY: the properties are complete, and the driver writes the one handle.
    match unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &properties, 0) } {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(out_of_memory(context, bytes)),
        code => check("cuMemCreate", code)?,
    }
    // SAFETY: reserved addresses, by the caller's promise, behind which nothing is mapped; the handle is mapped whole.
    let mapped = check("cuMemMap", unsafe {
        sys::cuMemMap(at, bytes as usize, 0, handle, 0)
    });
    // SAFETY: made above, and released here only. What is mapped stays until it is unmapped.
    let released = unsafe { sys::cuMemRelease(handle) };
    log_failure(context.name(), check("cuMemRelease", released));
    mapped?;
    allow(context, at, bytes, &properties).inspect_err(|_| {
        // SAFETY: mapped above, and nobody was told of it.
        let code = unsafe { sys::cuMemUnmap(at, bytes as usize) };
        log_failure(context.name(), check("cuMemUnmap", code));
    })
}

/// Lets the device read and write there.
fn allow(context: &Context, at: u64, bytes: u64, properties: &CUmemAllocationProp) -> Result<()> {
    let description = CUmemAccessDesc {
        location: properties.location,
        flags: Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    for attempt in 0..ATTEMPTS {
        // SAFETY: addresses with memory behind all of them, and one description.
        let code = unsafe { sys::cuMemSetAccess(at, bytes as usize, &description, 1) };
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

fn properties(context: &Context) -> CUmemAllocationProp {
    // SAFETY: zero is a value of each field: no kind of handle to share, no location, no flags, a null pointer.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.__bindgen_anon_1.id = context.device();
    properties
}

#[cold]
fn out_of_memory(context: &Context, bytes: u64) -> Error {
    Error::OutOfMemory {
        what: format!("activations of captured passes on {}", context.name()),
        bytes,
    }
}

/// All of a device's. Few: one for each store on it.
#[derive(Default)]
pub(super) struct Blocks(Vec<Block>);

impl Blocks {
    /// Whether `len` bytes at `ptr` lie in one of them.
    pub(super) fn cover(&self, ptr: DevicePtr, len: u64) -> bool {
        self.0.iter().any(|block| {
            let offset = ptr.0.checked_sub(block.start);
            offset.is_some_and(|at| at <= block.bytes && len <= block.bytes - at)
        })
    }

    /// Addresses of a block: as many as the device has bytes.
    pub(super) fn reserve(
        &mut self,
        context: &Arc<Context>,
        page: u64,
        entered: &Entered<'_>,
    ) -> Result<DevicePtr> {
        let bytes = context.total_bytes()?.next_multiple_of(page);
        let block = Block::reserve(context, bytes, entered)?;
        let start = block.start;
        self.0.push(block);
        Ok(DevicePtr(start))
    }

    /// Memory behind the first `bytes` bytes of a block, in pages of `page` bytes.
    pub(super) fn grow(
        &mut self,
        block: DevicePtr,
        bytes: u64,
        page: u64,
        entered: &Entered<'_>,
    ) -> Result<()> {
        let at = self.find(block)?;
        self.0[at].grow(bytes, page, entered)
    }

    /// Gives a block back. The caller has waited for both streams.
    pub(super) fn free(&mut self, block: DevicePtr) -> Result<()> {
        let at = self.find(block)?;
        self.0.swap_remove(at);
        Ok(())
    }

    fn find(&mut self, block: DevicePtr) -> Result<usize> {
        let found = self.0.iter().position(|one| one.start == block.0);
        found.ok_or_else(|| Error::Internal(format!("no block begins at {:#x}", block.0)))
    }
}
