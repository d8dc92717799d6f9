//! Load and end of a model, and what can be asked without loading.
#![allow(non_camel_case_types)] // the names are those of the header

use std::cell::RefCell;
use std::ffi::{c_char, c_void, CString};
use std::path::PathBuf;

use super::args;
use super::types::{ws_options, ws_program};
use crate::config::{self, Options};
use crate::delegate::{Beside, Delegate, Program};
use crate::device::CallerStream;
use crate::error::Error;
use crate::ffi::status::{guarded, Failure, Status};

/// A loaded method.
pub struct ws_model {
    pub(super) delegate: Delegate,
    /// What it was loaded with, for other methods and sessions of its program.
    data: PathBuf,
    options: Options,
    stream: Option<CallerStream>,
}

/// Least budget of a method or of a program, in bytes.
///
/// # Safety
/// The strings are NULL or NUL-terminated; `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_required_budget(
    pte_path: *const c_char,
    method: *const c_char,
    bytes: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        unsafe { least_budget(pte_path, None, method, bytes) }
    })
}

/// The same with the weights of a file.
///
/// # Safety
/// The strings are NULL or NUL-terminated; `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_required_budget_with_data(
    pte_path: *const c_char,
    ptd_path: *const c_char,
    method: *const c_char,
    bytes: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        unsafe { least_budget(pte_path, Some(ptd_path), method, bytes) }
    })
}

/// # Safety
/// As for both above.
unsafe fn least_budget(
    pte_path: *const c_char,
    ptd_path: Option<*const c_char>,
    method: *const c_char,
    bytes: *mut u64,
) -> Result<(), Failure> {
    // SAFETY: all of them by the caller's promise.
    let (path, data, method, bytes) = unsafe {
        let method = match method.is_null() {
            true => None,
            false => Some(args::text("method", method)?),
        };
        let data = ptd_path.map(|path| args::path("ptd_path", path));
        let data = data.transpose()?;
        let pte = args::path("pte_path", pte_path)?;
        (pte, data, method, args::output("bytes", bytes)?)
    };
    let program = Program::open(&path)?;
    *bytes = program.required_budget_with(method, data.as_deref())?;
    Ok(())
}

/// Sets defaults of this process for later loads.
///
/// # Safety
/// `options` is NULL or valid as the header says.
#[no_mangle]
pub unsafe extern "C" fn ws_set_options(options: *const ws_options) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        let specs = unsafe { args::specs(options) }?;
        Ok(config::set_defaults(&specs)?)
    })
}

/// Loads a method.
///
/// # Safety
/// Pointers are NULL or valid as the header says; `model` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_init(
    program: *const ws_program,
    ptd_path: *const c_char,
    method: *const c_char,
    options: *const ws_options,
    model: *mut *mut ws_model,
) -> Status {
    // SAFETY: by this function's contract.
    unsafe { init(program, ptd_path, method, options, None, model) }
}

/// Loads a method for a stream of the caller's.
///
/// # Safety
/// As for [`ws_init`]; `stream` is NULL or a stream that exists until the model is destroyed.
#[no_mangle]
pub unsafe extern "C" fn ws_init_on_stream(
    program: *const ws_program,
    ptd_path: *const c_char,
    method: *const c_char,
    options: *const ws_options,
    stream: *mut c_void,
    model: *mut *mut ws_model,
) -> Status {
    // SAFETY: by this function's contract; `ws_model` holds the device that is handed the stream.
    unsafe {
        let stream = CallerStream::new(stream);
        init(program, ptd_path, method, options, Some(stream), model)
    }
}

/// # Safety
/// As for [`ws_init_on_stream`].
unsafe fn init(
    program: *const ws_program,
    ptd_path: *const c_char,
    method: *const c_char,
    options: *const ws_options,
    stream: Option<CallerStream>,
    model: *mut *mut ws_model,
) -> Status {
    crate::ffi::log::install();
    guarded(|| {
        // SAFETY: all five by this function's contract.
        let (program, ptd, method, options, model) = unsafe {
            (
                open(args::reference("program", program)?)?,
                args::path("ptd_path", ptd_path)?,
                args::text("method", method)?,
                args::options(options)?,
                args::output("model", model)?,
            )
        };
        let delegate = program.load_on(method, ptd.clone(), &options, stream)?;
        *model = Box::into_raw(Box::new(ws_model {
            delegate,
            data: ptd,
            options,
            stream,
        }));
        Ok(())
    })
}

/// Loads another method of a program, or the same one, over the same weights and the same state.
///
/// # Safety
/// `first` is NULL or a model; the others as for [`ws_init`].
#[no_mangle]
pub unsafe extern "C" fn ws_init_method(
    first: *const ws_model,
    program: *const ws_program,
    method: *const c_char,
    model: *mut *mut ws_model,
) -> Status {
    // SAFETY: by this function's contract.
    unsafe { init_beside(first, false, program, method, model) }
}

/// The same with a state of its own.
///
/// # Safety
/// As for [`ws_init_method`].
#[no_mangle]
pub unsafe extern "C" fn ws_new_session(
    first: *const ws_model,
    program: *const ws_program,
    method: *const c_char,
    model: *mut *mut ws_model,
) -> Status {
    // SAFETY: by this function's contract.
    unsafe { init_beside(first, true, program, method, model) }
}

/// # Safety
/// As for [`ws_init_method`].
unsafe fn init_beside(
    first: *const ws_model,
    new_session: bool,
    program: *const ws_program,
    method: *const c_char,
    model: *mut *mut ws_model,
) -> Status {
    guarded(|| {
        // SAFETY: all four by this function's contract.
        let (first, program, method, model) = unsafe {
            (
                args::reference("first", first)?,
                open(args::reference("program", program)?)?,
                args::text("method", method)?,
                args::output("model", model)?,
            )
        };
        let (data, options, stream) = (first.data.clone(), first.options.clone(), first.stream);
        let beside = match new_session {
            false => Beside::Session(&first.delegate),
            true => Beside::NewSession(&first.delegate),
        };
        let delegate = program.load_beside(beside, method, data.clone(), &options, stream)?;
        *model = Box::into_raw(Box::new(ws_model {
            delegate,
            data,
            options,
            stream,
        }));
        Ok(())
    })
}

/// The buffers that the program writes get their initial bytes back.
///
/// # Safety
/// `model` is NULL or a model.
#[no_mangle]
pub unsafe extern "C" fn ws_reset_state(model: *const ws_model) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        let model = unsafe { args::reference("model", model) }?;
        Ok(model.delegate.reset_state()?)
    })
}

/// Another budget for all methods and sessions of the program, from the next pass on.
///
/// # Safety
/// `model` is NULL or a model.
#[no_mangle]
pub unsafe extern "C" fn ws_set_budget(model: *const ws_model, bytes: u64) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        let model = unsafe { args::reference("model", model) }?;
        Ok(model.delegate.set_budget(bytes)?)
    })
}

thread_local! {
    static METHOD_NAME: RefCell<CString> = RefCell::default();
}

/// The name of a method of a program.
///
/// # Safety
/// The path is NULL or a C string; `name` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_method_name(
    pte_path: *const c_char,
    index: usize,
    name: *mut *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (path, name) = unsafe {
            (
                args::path("pte_path", pte_path)?,
                args::output("name", name)?,
            )
        };
        let names = Program::open(&path)?.methods()?;
        let found = names.get(index).ok_or_else(|| Error::Missing {
            name: format!("method {index}"),
            place: format!("{}: methods that run here: {}", path.display(), names.len()),
        })?;
        let text = CString::new(found.as_str());
        let text = text.map_err(|_| Failure::Argument("a name holds a NUL".to_owned()))?;
        METHOD_NAME.with(|kept| {
            *kept.borrow_mut() = text;
            *name = kept.borrow().as_ptr();
        });
        Ok(())
    })
}

/// # Safety
/// The program's data and path are NULL or valid as the header says, during `'a`.
unsafe fn open<'a>(program: &ws_program) -> Result<Program<'a>, Failure> {
    match (program.data.is_null(), program.path.is_null()) {
        (true, true) => Err(Failure::Argument(
            "program has neither data nor path".to_owned(),
        )),
        (false, false) => Err(Failure::Argument(
            "program has both data and path; give one".to_owned(),
        )),
        (false, true) => {
            // SAFETY: `size` bytes by this function's contract.
            let bytes = unsafe { args::array("program->data", program.data.cast(), program.size) }?;
            Ok(Program::from_bytes(bytes))
        }
        (true, false) => {
            // SAFETY: a C string by this function's contract.
            let path = unsafe { args::path("program->path", program.path) }?;
            Ok(Program::open(&path)?)
        }
    }
}

/// Ends a model; NULL is allowed.
///
/// # Safety
/// `model` is NULL or came from [`ws_init`], is not executing, and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn ws_destroy(model: *mut ws_model) {
    if model.is_null() {
        return;
    }
    guarded(|| {
        // SAFETY: made by Box::into_raw in ws_init, and used no more, by this function's contract.
        drop(unsafe { Box::from_raw(model) });
        Ok(())
    });
}
