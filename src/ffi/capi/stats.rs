//! Counters of a model.

use std::cell::RefCell;
use std::ffi::{c_char, CString};
use std::mem::size_of;

use super::args;
use super::load::Model;
use super::types::ws_stats_data;
use crate::ffi::status::{guarded, Failure, Status};
use crate::session::Stats;

/// Size of the structure in the first version, the least that a caller may have.
const FIRST_SIZE: usize = 14 * size_of::<u64>();

thread_local! {
    static LAST_JSON: RefCell<CString> = RefCell::new(CString::default());
}

impl From<Stats> for ws_stats_data {
    fn from(stats: Stats) -> Self {
        ws_stats_data {
            struct_size: size_of::<ws_stats_data>() as u64,
            budget_bytes: stats.budget_bytes,
            floor_bytes: stats.floor_bytes,
            hard_minimum_bytes: stats.hard_minimum_bytes,
            direct_bytes: stats.direct_bytes,
            total_weight_bytes: stats.total_weight_bytes,
            peak_bytes: stats.peak_bytes,
            passes: stats.passes,
            hits: stats.hits,
            misses: stats.misses,
            evictions: stats.evictions,
            prefetches: stats.prefetches,
            bytes_copied: stats.bytes_copied,
            bytes_copied_last_pass: stats.bytes_copied_last_pass,
            activation_peak_bytes: stats.activation_peak_bytes,
            io_bytes: stats.io_bytes,
            host_pinned_bytes: stats.host_pinned_bytes,
            host_mapped_bytes: stats.host_mapped_bytes,
            gathered_bytes: stats.gathered_bytes,
            replans: stats.replans,
            inputs_copied: stats.inputs_copied,
        }
    }
}

/// Counters as a structure.
///
/// # Safety
/// `model` is NULL or live; `stats` is NULL or points to `struct_size` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn ws_stats(model: *const Model, stats: *mut ws_stats_data) -> Status {
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
pub unsafe extern "C" fn ws_stats_json(model: *const Model, json: *mut *const c_char) -> Status {
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
        let text = CString::new(to_json(&stats, options)).unwrap_or_default();
        *json = LAST_JSON.with_borrow_mut(|last| {
            *last = text;
            last.as_ptr()
        });
        Ok(())
    })
}

/// The counters as a JSON object, keys as in the README; `options` is an object too.
pub fn to_json(stats: &Stats, options: &str) -> String {
    let fields: Vec<String> = stats
        .entries()
        .iter()
        .map(|(key, value)| format!("\"{key}\": {value}"))
        .collect();
    format!("{{{}, \"options\": {options}}}", fields.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that the JSON has, and in the same order.
    #[test]
    fn the_structure_holds_every_counter() {
        let count = Stats::default().entries().len();
        assert_eq!(size_of::<ws_stats_data>(), (1 + count) * size_of::<u64>());
        let stats = Stats {
            replans: 3,
            inputs_copied: 4,
            ..Stats::default()
        };
        let data = ws_stats_data::from(stats);
        assert_eq!((data.replans, data.inputs_copied), (3, 4));
    }
}
