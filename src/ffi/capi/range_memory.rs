//! Which memory a range keeps, and what it says of it.
#![allow(non_camel_case_types)] // the names are those of the header

use std::cell::RefCell;
use std::ffi::{c_char, CString};

use super::args;
use super::range::{opened, ws_range};
use crate::elastic::range::{Freed, Refusal};
use crate::ffi::status::{guarded, Failure, Status};

/// `WS_RANGE_NO_LIMIT` in the header.
const NO_LIMIT: u64 = u64::MAX;
/// `WS_RANGE_ALL` in the header.
const ALL: u32 = u32::MAX;

/// What `ws_range_free_bytes` did.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ws_freed {
    /// Bytes that were freed.
    pub freed: u64,
    /// Bytes that are pinned.
    pub pinned: u64,
    /// Bytes that kernels still use.
    pub pending: u64,
}

thread_local! {
    static LAST_TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// A text that stays until the next one of this thread.
pub(super) fn kept_text(text: String) -> *const c_char {
    let text = CString::new(text).unwrap_or_default();
    LAST_TEXT.with_borrow_mut(|last| {
        *last = text;
        last.as_ptr()
    })
}

/// Frees memory of a range.
///
/// # Safety
/// `range` is NULL or live; `freed` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_range_free_bytes(
    range: *const ws_range,
    bytes: u64,
    wait: i32,
    freed: *mut ws_freed,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (range, freed) = unsafe { (opened(range)?, args::output("freed", freed)?) };
        let Freed {
            bytes,
            pinned,
            pending,
        } = range.free_bytes(bytes, wait != 0)?;
        *freed = ws_freed {
            freed: bytes,
            pinned,
            pending,
        };
        Ok(())
    })
}

/// The most that a range may hold.
///
/// # Safety
/// `range` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_range_set_limit(range: *const ws_range, bytes: u64) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        let range = unsafe { opened(range) }?;
        range.set_limit((bytes != NO_LIMIT).then_some(bytes))?;
        Ok(())
    })
}

/// Contents are worth nothing.
///
/// # Safety
/// `range` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_range_invalidate(range: *const ws_range, alloc: u32) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        let range = unsafe { opened(range) }?;
        Ok(range.invalidate((alloc != ALL).then_some(alloc))?)
    })
}

/// Up to where faults take memory, and why.
///
/// # Safety
/// `range` is NULL or live; `bytes` and `why` are NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_range_watermark(
    range: *const ws_range,
    bytes: *mut u64,
    why: *mut *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (range, bytes, why) = unsafe {
            (
                opened(range)?,
                args::output("bytes", bytes)?,
                args::output("why", why)?,
            )
        };
        let watermark = range.watermark()?;
        *bytes = watermark.bytes;
        *why = kept_text(watermark.why.unwrap_or_default());
        Ok(())
    })
}

/// A refusal in words.
///
/// # Safety
/// `range` is NULL or live; `why` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_range_why(
    range: *const ws_range,
    reason: i32,
    why: *mut *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (range, why) = unsafe { (opened(range)?, args::output("why", why)?) };
        let known = usize::try_from(reason).ok();
        let known = known.and_then(|at| Refusal::ALL.get(at).copied());
        let refusal = known.ok_or_else(|| {
            Failure::Argument(format!("{reason} is no reason of a refused fault"))
        })?;
        *why = kept_text(range.explain(refusal)?);
        Ok(())
    })
}

/// What a range holds, as JSON.
///
/// # Safety
/// `range` is NULL or live; `json` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_range_residency(
    range: *const ws_range,
    json: *mut *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (range, json) = unsafe { (opened(range)?, args::output("json", json)?) };
        *json = kept_text(range.residency()?.to_json());
        Ok(())
    })
}
