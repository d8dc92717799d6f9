//! Status codes, the last error of each thread, and the boundary that no panic crosses.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::error::Error;

/// The numbers of `ws_status`. Append-only: a number never changes its meaning.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // each is explained in weightstream.h, which a test compares with this list
pub enum Status {
    Ok = 0,
    InvalidArgument = 1,
    InvalidOption = 2,
    InvalidInput = 3,
    Io = 4,
    Malformed = 5,
    Missing = 6,
    Mismatch = 7,
    BudgetTooSmall = 8,
    Unsupported = 9,
    OutOfMemory = 10,
    Busy = 11,
    Divergence = 12,
    CompiledCode = 13,
    Device = 14,
    Poisoned = 15,
    Internal = 16,
}

impl From<&Error> for Status {
    fn from(error: &Error) -> Status {
        match error {
            Error::Malformed { .. } => Status::Malformed,
            Error::Io { .. } => Status::Io,
            Error::Missing { .. } => Status::Missing,
            Error::Mismatch { .. } => Status::Mismatch,
            Error::BudgetTooSmall { .. } | Error::CapTooSmall { .. } => Status::BudgetTooSmall,
            Error::Option { .. } => Status::InvalidOption,
            Error::Unsupported(_) => Status::Unsupported,
            Error::Divergence { .. } => Status::Divergence,
            Error::InvalidInput(_) => Status::InvalidInput,
            Error::Busy => Status::Busy,
            Error::Poisoned(_) => Status::Poisoned,
            Error::Compiled { .. } => Status::CompiledCode,
            Error::OutOfMemory { .. } => Status::OutOfMemory,
            Error::Device { .. } | Error::Lost { .. } => Status::Device,
            Error::Internal(_) => Status::Internal,
        }
    }
}

/// Why a call failed: the caller's arguments, or the work itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The named argument is NULL, out of range, or not what its type promises.
    Argument(String),
    /// The work failed.
    Work(Error),
}

impl Failure {
    /// The argument `name` is NULL.
    pub fn null(name: &str) -> Failure {
        Failure::Argument(format!("argument '{name}' is NULL"))
    }

    /// Status and text for the caller.
    pub fn report(&self) -> (Status, String) {
        match self {
            Failure::Argument(what) => {
                (Status::InvalidArgument, format!("invalid argument: {what}"))
            }
            Failure::Work(error) => (Status::from(error), error.to_string()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Work(error)
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// The last error's text on this thread; valid until the next [`set_last_error`] on it.
pub fn last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

/// Replaces the last error's text on this thread. A NUL inside (a file name cannot hold one, a damaged
/// file's text can) ends the text for a C reader, so it is replaced.
pub fn set_last_error(text: &str) {
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    LAST_ERROR.with_borrow_mut(|last| *last = text);
}

/// Runs `work` behind the boundary: a failure or a panic becomes a status and the thread's last error.
pub fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> Status {
    let (status, text) = match caught(work) {
        Ok(()) => return Status::Ok,
        Err(failure) => failure.report(),
    };
    set_last_error(&text);
    status
}

/// Runs `work`; a panic becomes an error. Whoever holds state that a panic leaves half-changed marks it
/// (the delegate poisons itself), so going on after the catch is sound.
pub fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without text".to_owned());
        Err(Failure::Work(Error::Internal(text)))
    })
}

thread_local! {
    static LAST_STATUS: Cell<i32> = const { Cell::new(0) };
}

/// Code of the last failure on this thread, a `ws_status`.
pub fn last_status() -> i32 {
    LAST_STATUS.get()
}

/// Sets the text of `ws_last_error` for a failure on the C++ side.
pub fn set_error(text: &str) {
    LAST_STATUS.set(Status::InvalidArgument as i32);
    set_last_error(text);
}

/// Forgets the last error, so that it can be told whether a call left one.
pub fn clear_error() {
    LAST_STATUS.set(Status::Ok as i32);
    set_last_error("");
}

/// Runs `work` at the boundary to C++. What fails is kept for [`last_status`] and `ws_last_error`.
pub fn crossing<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, String> {
    caught(work).map_err(|failure| {
        let (status, text): (Status, String) = failure.report();
        LAST_STATUS.set(status as i32);
        set_last_error(&text);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last_text() -> String {
        // SAFETY: the pointer is the thread's own CString, which nothing replaces during the copy.
        unsafe { CStr::from_ptr(last_error()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn a_failure_sets_status_and_text() {
        let status = guarded(|| Err(Failure::Work(Error::Busy)));
        assert_eq!(status, Status::Busy);
        assert_eq!(last_text(), Error::Busy.to_string());
    }

    #[test]
    fn a_panic_stops_at_the_boundary() {
        assert_eq!(guarded(|| panic!("what broke")), Status::Internal);
        assert!(last_text().contains("what broke"));
        let number = 7;
        assert_eq!(guarded(|| panic!("broken {number}")), Status::Internal);
        assert!(last_text().contains("broken 7"));
    }

    #[test]
    fn success_keeps_the_earlier_text() {
        set_last_error("earlier");
        assert_eq!(guarded(|| Ok(())), Status::Ok);
        assert_eq!(last_text(), "earlier");
    }

    #[test]
    fn each_thread_has_its_own_text() {
        set_last_error("mine");
        std::thread::spawn(|| assert_eq!(last_text(), ""))
            .join()
            .unwrap();
        assert_eq!(last_text(), "mine");
    }

    #[test]
    fn a_nul_inside_the_text_does_not_end_it() {
        set_last_error("a\0b");
        assert_eq!(last_text(), "a\u{fffd}b");
    }

    /// The header and this file are two texts of one list.
    #[test]
    fn the_header_has_the_same_numbers() {
        let header = include_str!("../../cpp/include/weightstream/weightstream.h");
        let listed: Vec<(String, i32)> = header
            .lines()
            .filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "))
            .filter(|(name, _)| {
                name.starts_with("WS_")
                    && !name.starts_with("WS_OPTION_")
                    && !name.starts_with("WS_LOG_")
                    && !name.starts_with("WS_REFUSED_")
                    && !name.starts_with("WS_OFFLOAD_")
            })
            .map(|(name, number)| {
                (
                    name[3..].replace('_', "").to_lowercase(),
                    number.parse().unwrap(),
                )
            })
            .collect();
        let statuses = [
            Status::Ok,
            Status::InvalidArgument,
            Status::InvalidOption,
            Status::InvalidInput,
            Status::Io,
            Status::Malformed,
            Status::Missing,
            Status::Mismatch,
            Status::BudgetTooSmall,
            Status::Unsupported,
            Status::OutOfMemory,
            Status::Busy,
            Status::Divergence,
            Status::CompiledCode,
            Status::Device,
            Status::Poisoned,
            Status::Internal,
        ];
        let here: Vec<(String, i32)> = statuses
            .iter()
            .map(|status| (format!("{status:?}").to_lowercase(), *status as i32))
            .collect();
        assert_eq!(listed, here);
    }
}
