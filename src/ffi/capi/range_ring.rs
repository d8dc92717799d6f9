//! The ring of a range: memory for allocations whose fault was refused.
#![allow(non_camel_case_types)] // the names are those of the header

use std::ffi::c_void;

use super::args;
use super::range::{opened, ws_fault, ws_range};
use crate::device::UserStream;
use crate::elastic::range::Answer;
use crate::ffi::status::{guarded, Status};

/// A ring of so many bytes, or none.
///
/// # Safety
/// `range` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_range_set_ring(range: *const ws_range, bytes: u64) -> Status {
    // SAFETY: by this function's contract.
    guarded(|| Ok(unsafe { opened(range) }?.set_ring(bytes)?))
}

/// A slot of the ring.
///
/// # Safety
/// `range` is NULL or live; `stream` is NULL or a stream; `slot` and `fault` are NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_range_slot(
    range: *const ws_range,
    alloc: u32,
    stream: *mut c_void,
    slot: *mut u32,
    fault: *mut ws_fault,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (range, slot, fault, stream) = unsafe {
            (
                opened(range)?,
                args::output("slot", slot)?,
                args::output("fault", fault)?,
                UserStream::new(stream),
            )
        };
        let (number, place) = range.slot(alloc, stream)?;
        *slot = number;
        *fault = Answer::Fill(place).into();
        Ok(())
    })
}
