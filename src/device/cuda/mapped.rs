//! Memory that shows at several addresses, by the driver's virtual memory management.
//!
//! What lies between two borders of a view ([`View::borders`]) is one allocation of physical memory: the driver maps one
//! as a whole only. Each is mapped once in the memory's own order, writable, where the copy engine writes; and once for
//! each piece of the view that shows it, read-only, where kernels read: a store there is a fault that loses the context,
//! loudly, instead of a wrong weight. Everything is mapped at once when a view is, and unmapped when it goes.

use super::access::{allow, properties};
use super::context::{Context, Entered};
use super::library::{check, log_failure};
use crate::device::{DevicePtr, HostBytes};
use crate::error::{Error, Result};
use crate::figures::View;
use cudarc::driver::sys::{
    self, CUdevice_attribute, CUmemAccess_flags as Access, CUmemAllocationGranularity_flags,
    CUmemGenericAllocationHandle, CUresult,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

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

/// One allocation of physical memory. Dropped, it lives on as long as it is mapped somewhere.
struct Physical {
    handle: CUmemGenericAllocationHandle,
    /// What it is of the view's memory.
    range: Range<u64>,
    context: Arc<Context>,
}

impl Physical {
    fn new(context: &Arc<Context>, range: Range<u64>, view: &View) -> Result<Physical> {
        let mut handle = 0;
        let bytes = range.end - range.start;
        // SAFETY: the properties are complete, and the driver writes the one handle.
        let code =
            unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &properties(context), 0) };
        match code {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory {
                what: format!(
                    "weights' pages on {}: {} bytes are left to find of {}",
                    context.name(),
                    view.whole() - range.start,
                    view.whole()
                ),
                bytes,
            }),
            code => check("cuMemCreate", code).map(|()| Physical {
                handle,
                range,
                context: Arc::clone(context),
            }),
        }
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
struct Addresses {
    start: u64,
    bytes: u64,
    /// Bytes from the start that have memory behind them.
    mapped: u64,
    context: Arc<Context>,
}

impl Addresses {
    fn reserve(context: &Arc<Context>, bytes: u64) -> Result<Addresses> {
        let mut start = 0;
        // SAFETY: the driver chooses the addresses, and writes the first one.
        match unsafe { sys::cuMemAddressReserve(&mut start, bytes as usize, 0, 0, 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory {
                what: format!("addresses for weights' pages on {}", context.name()),
                bytes,
            }),
            code => check("cuMemAddressReserve", code).map(|()| Addresses {
                start,
                bytes,
                mapped: 0,
                context: Arc::clone(context),
            }),
        }
    }

    /// Puts the memory behind the next addresses.
    fn map(&mut self, physical: &Physical) -> Result<()> {
        let bytes = physical.range.end - physical.range.start;
        assert!(
            bytes <= self.bytes - self.mapped,
            "a view was checked before it was mapped"
        );
        // SAFETY: reserved addresses, by the check, behind which nothing is mapped yet; the handle lives, and is mapped
        // whole.
        check("cuMemMap", unsafe {
            sys::cuMemMap(
                self.start + self.mapped,
                bytes as usize,
                0,
                physical.handle,
                0,
            )
        })?;
        self.mapped += bytes;
        Ok(())
    }

    /// Lets the device at all of the addresses, which all have memory.
    fn allow(&self, access: Access) -> Result<()> {
        allow(&self.context, self.start, self.mapped, access)
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        let name = self.context.name();
        if self.mapped > 0 {
            // SAFETY: mapped from the start on without a gap. Nobody uses them: the owner that drops this has waited for the
            // streams, or never handed the addresses out.
            let code = unsafe { sys::cuMemUnmap(self.start, self.mapped as usize) };
            log_failure(name, check("cuMemUnmap", code));
        }
        // SAFETY: reserved in `reserve` with this size; nothing is mapped there any more.
        let code = unsafe { sys::cuMemAddressFree(self.start, self.bytes as usize) };
        log_failure(name, check("cuMemAddressFree", code));
    }
}

/// One view, mapped. Its memory is freed when both mappings are gone.
struct Mapped {
    view: View,
    /// The view's addresses, read-only.
    shown: Addresses,
    /// The memory in its own order, writable.
    memory: Addresses,
}

impl Mapped {
    /// `view` was checked, and has bytes. What was done before a failure is undone by the values' ends.
    fn new(context: &Arc<Context>, view: &View, _entered: &Entered<'_>) -> Result<Mapped> {
        let mut memory = Addresses::reserve(context, view.whole())?;
        let mut shown = Addresses::reserve(context, view.bytes)?;
        let mut all = Vec::new();
        for pair in view.borders().windows(2) {
            let physical = Physical::new(context, pair[0]..pair[1], view)?;
            memory.map(&physical)?;
            all.push(physical);
        }
        for piece in &view.pieces {
            let end = piece.memory + piece.bytes;
            let from = all.partition_point(|physical| physical.range.start < piece.memory);
            for physical in all[from..].iter().take_while(|p| p.range.end <= end) {
                shown.map(physical)?;
            }
        }
        memory.allow(Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        shown.allow(Access::CU_MEM_ACCESS_FLAGS_PROT_READ)?;
        Ok(Mapped {
            view: view.clone(),
            shown,
            memory,
        })
    }
}

/// The views of a device, by address.
#[derive(Default)]
pub(super) struct Views {
    by_address: BTreeMap<u64, Mapped>,
    bytes: u64,
}

impl Views {
    /// Bytes of memory behind all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps a view that was checked, and has bytes.
    pub(super) fn map(
        &mut self,
        context: &Arc<Context>,
        view: &View,
        entered: &Entered<'_>,
    ) -> Result<DevicePtr> {
        let mapped = Mapped::new(context, view, entered)?;
        let address = mapped.shown.start;
        self.bytes += view.memory;
        self.by_address.insert(address, mapped);
        Ok(DevicePtr(address))
    }

    /// Unmaps what [`Views::map`] returned, after everything on both streams, which the caller has waited for. Bytes of
    /// memory that were behind it.
    pub(super) fn unmap(&mut self, ptr: DevicePtr) -> Result<u64> {
        let mapped = self.by_address.remove(&ptr.0).ok_or_else(|| {
            Error::Internal(format!(
                "{:#x} is unmapped, but no view begins there",
                ptr.0
            ))
        })?;
        self.bytes -= mapped.view.memory;
        Ok(mapped.view.memory)
    }

    /// Whether `len` bytes at `ptr` lie in one of them.
    pub(super) fn cover(&self, ptr: DevicePtr, len: u64) -> bool {
        self.find(ptr)
            .is_some_and(|(mapped, offset)| len <= mapped.view.bytes - offset)
    }

    /// Refuses what is written to an address of a view by anything but a copy of weights: the driver would find out
    /// in the middle of a stream, and lose the context.
    pub(super) fn check_not_written(&self, ptr: DevicePtr) -> Result<()> {
        match self.find(ptr) {
            None => Ok(()),
            Some((mapped, _)) => Err(Error::Internal(format!(
                "{} {:#x} is a view's: kernels and uploads only read there, copies of weights write",
                mapped.shown.context.name(),
                ptr.0
            ))),
        }
    }

    /// Where the copy engine writes a copy of `src` to `ptr`, and what goes there: where neighbouring pieces are no
    /// neighbours in memory, it is a copy for each. `None` if `ptr` is no address of a view.
    pub(super) fn targets(
        &self,
        ptr: DevicePtr,
        src: HostBytes,
    ) -> Option<Result<Vec<(DevicePtr, HostBytes)>>> {
        let (mapped, offset) = self.find(ptr)?;
        let Some(parts) = mapped.view.split(offset, src.len()) else {
            return Some(Err(Error::Internal(format!(
                "{} {:#x}: {} bytes that leave their view",
                mapped.shown.context.name(),
                ptr.0,
                src.len()
            ))));
        };
        let memory = DevicePtr(mapped.memory.start);
        let parts = parts
            .into_iter()
            .map(|(at, part)| (memory.offset(at), src.slice(part)));
        Some(Ok(parts.collect()))
    }

    /// The view with the address `ptr`, and the offset there.
    fn find(&self, ptr: DevicePtr) -> Option<(&Mapped, u64)> {
        let (start, mapped) = self.by_address.range(..=ptr.0).next_back()?;
        let offset = ptr.0 - start;
        (offset < mapped.view.bytes).then_some((mapped, offset))
    }
}
