//! What a caller has done while its thread waits.

use crate::device::waiting::while_waiting;
use std::ffi::c_void;

/// `ws_wait_fn`.
pub type WaitFn = unsafe extern "C" fn(*mut c_void);

/// Has `call` called while the calling thread waits for a GPU; NULL: nothing is.
///
/// # Safety
/// Until the calling thread sets another one or ends, `call` may be called with `data` on it, and returns without an
/// exception.
#[no_mangle]
pub unsafe extern "C" fn ws_while_waiting(call: Option<WaitFn>, data: *mut c_void) {
    // SAFETY: by the caller's promise; the hook never leaves this thread.
    while_waiting(call.map(|call| Box::new(move || unsafe { call(data) }) as _));
}
