//! Places in the order of a device: of models, of offloaded modules and of ranges.

use super::args;
use super::load::ws_model;
use super::offload::{self, ws_offload};
use super::range::{self, ws_range};
use crate::elastic::{next_turn, Rank, Reorder};
use crate::ffi::status::{guarded, Failure, Status};

/// # Safety
/// `model` is NULL or live.
unsafe fn of_model(model: *const ws_model, to: Reorder) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    let model = unsafe { args::reference("model", model) }?;
    Ok(model.delegate.reorder(to)?)
}

/// # Safety
/// `offload` is NULL or live.
unsafe fn of_offload(offload: *const ws_offload, to: Reorder) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    Ok(unsafe { offload::opened(offload) }?.reorder(to)?)
}

/// # Safety
/// `range` is NULL or live.
unsafe fn of_range(range: *const ws_range, to: Reorder) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    Ok(unsafe { range::opened(range) }?.reorder(to)?)
}

macro_rules! order_calls {
    ($($reorder:ident($of:ty): $set:ident, $first:ident, $last:ident;)*) => { $(
        /// Another number.
        ///
        /// # Safety
        /// The first argument is NULL or live.
        #[no_mangle]
        pub unsafe extern "C" fn $set(of: *const $of, priority: i64) -> Status {
            // SAFETY: by this function's contract.
            guarded(|| unsafe { $reorder(of, Reorder::To(priority)) })
        }

        /// It comes first of its number.
        ///
        /// # Safety
        /// The argument is NULL or live.
        #[no_mangle]
        pub unsafe extern "C" fn $first(of: *const $of) -> Status {
            // SAFETY: by this function's contract.
            guarded(|| unsafe { $reorder(of, Reorder::First) })
        }

        /// It comes last of its number.
        ///
        /// # Safety
        /// The argument is NULL or live.
        #[no_mangle]
        pub unsafe extern "C" fn $last(of: *const $of) -> Status {
            // SAFETY: by this function's contract.
            guarded(|| unsafe { $reorder(of, Reorder::Last) })
        }
    )* };
}

/// A turn, which comes before all earlier ones.
#[no_mangle]
pub extern "C" fn ws_next_turn() -> i64 {
    next_turn()
}

/// A place that the caller kept.
///
/// # Safety
/// `offload` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_set_place(
    offload: *const ws_offload,
    priority: i64,
    turn: i64,
) -> Status {
    let place = Reorder::Place(Rank::at(priority, turn));
    // SAFETY: by this function's contract.
    guarded(|| unsafe { of_offload(offload, place) })
}

order_calls! {
    of_model(ws_model): ws_set_priority, ws_prioritize, ws_deprioritize;
    of_offload(ws_offload): ws_offload_set_priority, ws_offload_prioritize, ws_offload_deprioritize;
    of_range(ws_range): ws_range_set_priority, ws_range_prioritize, ws_range_deprioritize;
}
