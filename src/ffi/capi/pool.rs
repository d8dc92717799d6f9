//! The memory of a device that several models share.

use std::cell::RefCell;
use std::ffi::{c_char, CString};

use super::args;
use crate::elastic::DevicePool;
use crate::ffi::status::{guarded, Status};
use crate::figures::DeviceId;

/// `WS_DEVICE_BUDGET_AUTO` in the header.
const AUTO: u64 = u64::MAX;

/// Which device is looked for, for messages.
const WITH_POOL: &str = "with a pool";

thread_local! {
    static LAST_REPORT: RefCell<CString> = RefCell::new(CString::default());
}

/// Bytes that all models with a shared budget may hold on a device.
///
/// # Safety
/// `device` is NULL or NUL-terminated.
#[no_mangle]
pub unsafe extern "C" fn ws_set_device_budget(device: *const c_char, bytes: u64) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        let device = unsafe { args::text("device", device) }?;
        let cap = (bytes != AUTO).then_some(bytes);
        let device = DeviceId::named(device, WITH_POOL)?;
        Ok(DevicePool::of(device).set_cap(cap)?)
    })
}

/// Who has what of a device, and why, as JSON.
///
/// # Safety
/// `device` is NULL or NUL-terminated; `json` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_device_report(
    device: *const c_char,
    json: *mut *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (device, json) =
            unsafe { (args::text("device", device)?, args::output("json", json)?) };
        let device = DeviceId::named(device, WITH_POOL)?;
        let report = DevicePool::of(device).report().to_json();
        // Texts in which a NUL is written out.
        let text = CString::new(report).unwrap_or_default();
        *json = LAST_REPORT.with_borrow_mut(|last| {
            *last = text;
            last.as_ptr()
        });
        Ok(())
    })
}
