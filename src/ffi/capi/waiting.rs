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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::waiting::call_until;
    use std::cell::Cell;
    use std::ptr::{from_ref, null_mut};

    unsafe extern "C" fn count(calls: *mut c_void) {
        // SAFETY: what this test gives, and keeps until it has set another one.
        let calls = unsafe { &*calls.cast::<Cell<u32>>() };
        calls.set(calls.get() + 1);
    }

    #[test]
    fn what_was_set_is_called_with_its_data_until_null_is_set() {
        let calls = Cell::new(0u32);
        let data = from_ref(&calls).cast_mut().cast();
        // SAFETY: `calls` outlives what follows, which ends with NULL.
        unsafe { ws_while_waiting(Some(count), data) };
        call_until(|| calls.get() == 2);
        // SAFETY: nothing is to be called.
        unsafe { ws_while_waiting(None, null_mut()) };
        call_until(|| unreachable!("it was taken away"));
        assert_eq!(calls.get(), 2);
    }
}
