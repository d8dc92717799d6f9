//! Ranges: reserved addresses whose memory comes and goes. `range_memory` says which of it stays.
#![allow(non_camel_case_types)] // the names are those of the header

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;

use super::origin::MakerProcess;
use super::{args, dlpack};
use crate::device::{AnyPages, UserStream};
use crate::elastic::range::{Answer, Refusal};
use crate::elastic::{Range, Ranges};
use crate::ffi::status::{guarded, Failure, Status};
use crate::figures::DeviceId;

/// Which device is looked for, for messages.
pub(super) const WITH_RANGES: &str = "with ranges";

/// A range. A child of this process cannot use it, and leaks it.
pub struct ws_range {
    range: ManuallyDrop<Range<AnyPages>>,
    device: DeviceId,
    made_in: MakerProcess,
}

/// What a fault came to.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ws_fault {
    /// `ws_fault_outcome`.
    pub outcome: i32,
    /// `ws_refusal`, if it was refused.
    pub reason: i32,
    /// Which contents these are; 0 if it was refused.
    pub generation: u64,
    /// The first byte; NULL if it was refused.
    pub data: *mut c_void,
    /// Bytes of the allocation.
    pub nbytes: u64,
}

impl From<Answer> for ws_fault {
    fn from(answer: Answer) -> Self {
        let place = answer.place();
        let (outcome, reason) = match answer {
            Answer::Hit(_) => (0, 0),
            Answer::Fill(_) => (1, 0),
            Answer::Refused(refusal) => (2, refusal as i32),
        };
        ws_fault {
            outcome,
            reason,
            generation: place.map_or(0, |place| place.generation),
            data: place.map_or(std::ptr::null_mut(), |place| {
                std::ptr::with_exposed_provenance_mut(place.at.0 as usize)
            }),
            nbytes: place.map_or(0, |place| place.bytes),
        }
    }
}

/// The range behind an argument.
///
/// # Safety
/// `range` is NULL or live.
pub(super) unsafe fn opened<'a>(range: *const ws_range) -> Result<&'a Range<AnyPages>, Failure> {
    // SAFETY: by this function's contract.
    let range = unsafe { args::reference("range", range) }?;
    range.made_in.check("range")?;
    Ok(&range.range)
}

/// A new range.
///
/// # Safety
/// Texts are NULL or NUL-terminated; `range` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_range_create(
    device: *const c_char,
    name: *const c_char,
    bytes: u64,
    range: *mut *mut ws_range,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (device, name, range) = unsafe {
            (
                args::text("device", device)?,
                args::text("name", name)?,
                args::output("range", range)?,
            )
        };
        let device = DeviceId::named(device, WITH_RANGES)?;
        let made = Ranges::of(device)?.create(name, bytes)?;
        *range = Box::into_raw(Box::new(ws_range {
            range: ManuallyDrop::new(made),
            device,
            made_in: MakerProcess::here(),
        }));
        Ok(())
    })
}

/// The next bytes of a range.
///
/// # Safety
/// `range` is NULL or live; `alloc` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_range_alloc(
    range: *const ws_range,
    bytes: u64,
    alloc: *mut u32,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (range, alloc) = unsafe { (opened(range)?, args::output("alloc", alloc)?) };
        *alloc = range.alloc(bytes)?;
        Ok(())
    })
}

/// The contents of an allocation, or memory for them.
///
/// # Safety
/// `range` is NULL or live; `stream` is NULL or a stream; `fault` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_range_fault(
    range: *const ws_range,
    alloc: u32,
    stream: *mut c_void,
    fault: *mut ws_fault,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (range, fault, stream) = unsafe {
            (
                opened(range)?,
                args::output("fault", fault)?,
                UserStream::new(stream),
            )
        };
        *fault = range.fault(alloc, stream)?.into();
        Ok(())
    })
}

/// The same for several allocations.
///
/// # Safety
/// `range` is NULL or live; `allocs` and `faults` are NULL or have `count` items, those of `faults` writable; `stream` is NULL or a
/// stream.
#[no_mangle]
pub unsafe extern "C" fn ws_range_fault_many(
    range: *const ws_range,
    allocs: *const u32,
    count: usize,
    stream: *mut c_void,
    faults: *mut ws_fault,
) -> Status {
    guarded(|| {
        if count > 0 && faults.is_null() {
            return Err(Failure::null("faults"));
        }
        // SAFETY: all by this function's contract.
        let (range, allocs, stream) = unsafe {
            (
                opened(range)?,
                args::array("allocs", allocs, count)?,
                UserStream::new(stream),
            )
        };
        for at in 0..count {
            // SAFETY: not NULL, and there are as many items.
            unsafe { faults.add(at).write(Answer::Refused(Refusal::InUse).into()) };
        }
        let mut at = 0;
        range.fault_many(allocs, stream, |answer| {
            // SAFETY: not NULL, and there are as many answers as allocations at most.
            unsafe { faults.add(at).write(answer.into()) };
            at += 1;
        })?;
        Ok(())
    })
}

/// The end of as many faults.
///
/// # Safety
/// `range` is NULL or live; `allocs` is NULL or has `count` items; `stream` is NULL or a stream.
#[no_mangle]
pub unsafe extern "C" fn ws_range_unpin(
    range: *const ws_range,
    allocs: *const u32,
    count: usize,
    stream: *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (range, allocs, stream) = unsafe {
            (
                opened(range)?,
                args::array("allocs", allocs, count)?,
                UserStream::new(stream),
            )
        };
        Ok(range.unpin(allocs, stream)?)
    })
}

/// A tensor of an allocation, which holds a lease until it is deleted.
///
/// # Safety
/// `range` is NULL or live; `sizes` is NULL or has `ndim` items; `stream` is NULL or a stream; `tensor` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_range_tensor(
    range: *const ws_range,
    alloc: u32,
    dtype: i32,
    sizes: *const i64,
    ndim: usize,
    stream: *mut c_void,
    tensor: *mut *mut dlpack::ManagedTensor,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (handle, open, sizes, stream, tensor) = unsafe {
            (
                args::reference("range", range)?,
                opened(range)?,
                args::array("sizes", sizes, ndim)?,
                UserStream::new(stream),
                args::output("tensor", tensor)?,
            )
        };
        let (place, lease) = open.lease(alloc, stream)?;
        dlpack::check(dtype, sizes, place.bytes)?;
        *tensor = dlpack::tensor(place.at, handle.device, dtype, sizes, lease)?;
        Ok(())
    })
}

/// Tensors of an allocation are used on this stream too.
///
/// # Safety
/// `range` is NULL or live; `stream` is NULL or a stream.
#[no_mangle]
pub unsafe extern "C" fn ws_range_used_on(
    range: *const ws_range,
    alloc: u32,
    stream: *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (range, stream) = unsafe { (opened(range)?, UserStream::new(stream)) };
        Ok(range.used_on(alloc, stream)?)
    })
}

/// Ends a range; NULL is allowed. After an error it is still there.
///
/// # Safety
/// `range` is NULL or came from [`ws_range_create`]; after `WS_OK` it is not used any more.
#[no_mangle]
pub unsafe extern "C" fn ws_range_destroy(range: *mut ws_range) -> Status {
    if range.is_null() {
        return Status::Ok;
    }
    guarded(|| {
        // SAFETY: live by this function's contract.
        let mine = unsafe { args::reference("range", range.cast_const())? };
        let of_parent = mine.made_in.is_parent();
        if !of_parent {
            mine.range.destroy()?;
        }
        // SAFETY: made by Box::into_raw in ws_range_create, and used no more, by this function's contract.
        let ended = unsafe { Box::from_raw(range) };
        if !of_parent {
            drop(ManuallyDrop::into_inner(ended.range));
        }
        Ok(())
    })
}
