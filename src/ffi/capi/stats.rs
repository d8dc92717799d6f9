//! Counters of a model.

use std::cell::RefCell;
use std::ffi::{c_char, CString};
use std::mem::size_of;

use super::args;
use super::load::ws_model;
use super::types::ws_stats_data;
use crate::ffi::status::{guarded, Failure, Status};

/// Size of the structure in the first version, the least that a caller may have.
const FIRST_SIZE: usize = 14 * size_of::<u64>();

thread_local! {
    static LAST_JSON: RefCell<CString> = RefCell::new(CString::default());
}

/// Counters as a structure.
///
/// # Safety
/// `model` is NULL or live; `stats` is NULL or points to `struct_size` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn ws_stats(model: *const ws_model, stats: *mut ws_stats_data) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract; the field is the first one in every version.
        let (model, size) = unsafe {
            (
                args::reference("model", model)?,
                args::reference("stats", stats.cast_const().cast::<u64>())?,
            )
        };
        let size = *size as usize;
        if size < FIRST_SIZE || !size.is_multiple_of(size_of::<u64>()) {
            return Err(Failure::Argument(format!(
                "stats->struct_size is {size}; set it to sizeof(*stats) before the call"
            )));
        }
        let mut data = ws_stats_data::from(model.delegate.stats()?);
        let length = size.min(size_of::<ws_stats_data>());
        data.struct_size = size as u64;
        // SAFETY: `size` bytes are writable by this function's contract, and `length` is at most that and
        // at most the size of `data`.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const data).cast::<u8>(), stats.cast(), length)
        };
        Ok(())
    })
}

/// Counters as JSON.
///
/// # Safety
/// `model` is NULL or live; `json` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_stats_json(model: *const ws_model, json: *mut *const c_char) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (model, json) = unsafe {
            (
                args::reference("model", model)?,
                args::output("json", json)?,
            )
        };
        let (stats, options) = (model.delegate.stats()?, model.delegate.options());
        // Names and numbers, and texts in which a NUL is written out.
        let text = CString::new(stats.to_json(options)).unwrap_or_default();
        *json = LAST_JSON.with_borrow_mut(|last| {
            *last = text;
            last.as_ptr()
        });
        Ok(())
    })
}
