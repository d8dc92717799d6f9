//! What the driver says about an address.

use super::context::{Entered, PrimaryContext};
use super::library::check;
use crate::device::HostBytes;
use crate::error::Result;
use cudarc::driver::sys::{
    self, CUcontext, CUmemorytype, CUpointer_attribute as Attribute, CUresult,
};
use std::ffi::c_void;

/// Where an address lies, as the driver knows it.
#[derive(Debug)]
pub(super) struct PointerInfo {
    /// `CUmemorytype`; 0 for an address that the driver does not know.
    kind: u32,
    ordinal: i32,
    /// Null for memory that belongs to no context.
    context: CUcontext,
    pub(super) start: u64,
    bytes: usize,
    /// Zero for addresses that were reserved, with no memory behind them.
    mapped: u32,
}

impl PointerInfo {
    /// In what this is not memory of the context's device.
    pub(super) fn unlike(&self, context: &PrimaryContext) -> Option<String> {
        if self.kind == CUmemorytype::CU_MEMORYTYPE_HOST as u32 {
            return Some("is host memory".to_owned());
        }
        if self.kind != CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 {
            return Some(
                "is not memory of a GPU: it is an address of the host, or was freed".to_owned(),
            );
        }
        if self.mapped == 0 {
            return Some("is an address without memory behind it".to_owned());
        }
        if i64::from(self.ordinal) != i64::from(context.index()) {
            let name = context.name();
            return Some(format!(
                "is memory of cuda:{}, and this method is on {name}",
                self.ordinal
            ));
        }
        if !self.context.is_null() && !context.is(self.context) {
            let name = context.name();
            return Some(format!(
                "belongs to another context than the primary one of {name}"
            ));
        }
        None
    }

    /// The first address behind it; `None` where there is none.
    pub(super) fn end(&self) -> Option<u64> {
        self.start.checked_add(self.bytes as u64)
    }
}

/// Whether somebody has pinned all of these bytes, as one allocation. Copies from them run at full speed as they are.
pub(super) fn is_pinned(bytes: HostBytes, entered: &Entered<'_>) -> Result<bool> {
    let start = bytes.as_ptr().addr() as u64;
    let place = ask(start, entered)?;
    let inside =
        |end| place.start <= start && start.checked_add(bytes.len()).is_some_and(|it| it <= end);
    Ok(place.kind == CUmemorytype::CU_MEMORYTYPE_HOST as u32 && place.end().is_some_and(inside))
}

/// What the driver says about an address.
pub(super) fn ask(ptr: u64, _entered: &Entered<'_>) -> Result<PointerInfo> {
    let mut place = PointerInfo {
        kind: 0,
        ordinal: -1,
        context: std::ptr::null_mut(),
        start: 0,
        bytes: 0,
        mapped: 0,
    };
    let mut attributes = [
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        Attribute::CU_POINTER_ATTRIBUTE_MAPPED,
    ];
    let mut answers: [*mut c_void; 6] = [
        (&raw mut place.kind).cast(),
        (&raw mut place.ordinal).cast(),
        (&raw mut place.context).cast(),
        (&raw mut place.start).cast(),
        (&raw mut place.bytes).cast(),
        (&raw mut place.mapped).cast(),
    ];
    // SAFETY: the driver is initialised. It reads nothing at `ptr`; each answer is a place of the type that the
    // driver's documentation gives for its attribute.
    let code = unsafe {
        sys::cuPointerGetAttributes(
            attributes.len() as u32,
            attributes.as_mut_ptr(),
            answers.as_mut_ptr(),
            ptr,
        )
    };
    match code {
        // Some drivers answer so for an address that they do not know, others with zeroes.
        CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_INVALID_CONTEXT => {
            place.kind = 0;
            Ok(place)
        }
        code => check("cuPointerGetAttributes", code).map(|()| place),
    }
}
