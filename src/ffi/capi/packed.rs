//! Packed copies of weights in host memory.
#![allow(non_camel_case_types)] // the names are those of the header

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use super::args;
use crate::device::HostBytes;
use crate::ffi::status::{guarded, Failure, Status};
use crate::figures::NumberForm;
use crate::format::packed::PackedHeader;
use crate::format::ScalarType;
use crate::weights::{PackedCopy, PackedWeight, SharedBytes};

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
        let made = match form_of(dtype)? {
            Some(form) => PackedCopy::of(name, form, raw)?,
            None => None,
        };
        *packed = made.map_or(std::ptr::null_mut(), |made| {
            Box::into_raw(Box::new(ws_packed(made)))
        });
        Ok::<(), Failure>(())
    })
}

/// How numbers of this type are made of bits; `None` if they are not packed.
fn form_of(dtype: i32) -> Result<Option<NumberForm>, Failure> {
    let known = ScalarType::from_number(i64::from(dtype));
    let known = known.ok_or_else(|| {
        Failure::Argument(format!(
            "argument 'dtype' is {dtype}, the number of no type"
        ))
    })?;
    Ok(known.form())
}

/// Memory of the caller.
struct Lent(HostBytes);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: readable and unchanged as long as the copy, by the contract of `ws_packed_read`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len() as usize) }
    }
}

/// A copy that was packed before: bytes that `ws_packed_parts` gave.
///
/// # Safety
/// `name` is NULL or a text; `data` has `nbytes` readable bytes that nobody writes to meanwhile; `stored` has `stored_nbytes` that nobody
/// writes to as long as the copy lives; `exponents` is NULL or has 13; `packed` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_packed_read(
    name: *const c_char,
    dtype: i32,
    data: *const c_void,
    nbytes: u64,
    stored: *const c_void,
    stored_nbytes: u64,
    exponents: *const u8,
    packed: *mut *mut ws_packed,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (name, raw, stored, exponents, packed) = unsafe {
            (
                args::text("name", name)?,
                args::array("data", data.cast::<u8>(), nbytes as usize)?,
                args::array("stored", stored.cast::<u8>(), stored_nbytes as usize)?,
                *args::reference("exponents", exponents.cast::<[u8; 13]>())?,
                args::output("packed", packed)?,
            )
        };
        let form = form_of(dtype)?.ok_or_else(|| {
            Failure::Argument(format!(
                "argument 'dtype' is {dtype}, whose numbers are not packed"
            ))
        })?;
        let header = PackedHeader {
            form,
            bytes: nbytes,
            exponents,
        };
        // SAFETY: by this function's contract.
        let lent = Lent(unsafe { HostBytes::new(stored.as_ptr(), stored_nbytes) });
        let stored = SharedBytes::new(Arc::new(lent), 0..stored.len())?;
        let read = PackedCopy::read(name.to_owned(), header, stored, raw)?;
        *packed = Box::into_raw(Box::new(ws_packed(read)));
        Ok::<(), Failure>(())
    })
}

/// The stored bytes of a copy, which stay as long as it lives, and its 13 exponents.
///
/// # Safety
/// `packed` is NULL or live; `stored` is NULL or writable; `exponents` is NULL or has room for 13.
#[no_mangle]
pub unsafe extern "C" fn ws_packed_parts(
    packed: *const ws_packed,
    stored: *mut *const c_void,
    exponents: *mut u8,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (packed, stored, exponents) = unsafe {
            (
                args::reference("packed", packed)?,
                args::output("stored", stored)?,
                args::output("exponents", exponents.cast::<[u8; 13]>())?,
            )
        };
        *stored = packed.0.stored().addr().cast();
        *exponents = packed.0.weight().header().exponents;
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
