//! Packed copies of weights in host memory.
#![allow(non_camel_case_types)] // the names are those of the header

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use super::args;
use crate::device::HostBytes;
use crate::ffi::status::{guarded, Failure, Status};
use crate::format::ScalarType;
use crate::weights::{PackedCopy, PackedWeight};

/// A packed copy of the bytes of a weight.
pub struct ws_packed(PackedCopy);

impl ws_packed {
    /// Raw bytes.
    pub(super) fn nbytes(&self) -> u64 {
        self.0.weight().bytes()
    }

    /// The stored bytes, which stay as long as this copy, and how they become the raw ones.
    pub(super) fn stored(&self) -> (HostBytes, Arc<PackedWeight>) {
        let stored = self.0.stored();
        // SAFETY: nobody writes to them, and callers keep the copy as long as what they make with it (`ws_offload_weight`).
        let bytes = unsafe { HostBytes::new(stored.addr(), stored.len()) };
        (bytes, Arc::clone(self.0.weight()))
    }
}

/// Packs bytes of numbers.
///
/// # Safety
/// `name` is NULL or a text; `data` has `nbytes` readable bytes that nobody writes to meanwhile; `packed` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_packed_create(
    name: *const c_char,
    dtype: i32,
    data: *const c_void,
    nbytes: u64,
    packed: *mut *mut ws_packed,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (name, raw, packed) = unsafe {
            (
                args::text("name", name)?,
                args::array("data", data.cast::<u8>(), nbytes as usize)?,
                args::output("packed", packed)?,
            )
        };
        let dtype = ScalarType::from_number(i64::from(dtype)).ok_or_else(|| {
            Failure::Argument(format!(
                "argument 'dtype' is {dtype}, the number of no type"
            ))
        })?;
        let made = match dtype.form() {
            Some(form) => PackedCopy::of(name, form, raw)?,
            None => None,
        };
        *packed = made.map_or(std::ptr::null_mut(), |made| {
            Box::into_raw(Box::new(ws_packed(made)))
        });
        Ok::<(), Failure>(())
    })
}

/// Bytes of the copy in host memory; of NULL, 0.
///
/// # Safety
/// `packed` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_packed_stored_bytes(packed: *const ws_packed) -> u64 {
    // SAFETY: by this function's contract.
    unsafe { packed.as_ref() }.map_or(0, |packed| packed.0.stored().len())
}

/// Ends a copy.
///
/// # Safety
/// `packed` is NULL or live, and nothing was made with it that lives.
#[no_mangle]
pub unsafe extern "C" fn ws_packed_destroy(packed: *mut ws_packed) {
    if !packed.is_null() {
        // SAFETY: made by `Box::into_raw`, and not used any more, by this function's contract.
        drop(unsafe { Box::from_raw(packed) });
    }
}
