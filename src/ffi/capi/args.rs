//! Arguments of a C caller as Rust values. NULL and text that is not UTF-8 are errors that name the
//! argument.

use std::ffi::{c_char, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::types::{ws_option, ws_options, ws_tensor};
use crate::config::{Options, Spec, SpecValue};
use crate::delegate::{InputTensor, Memory, OutputTensor, Room};
use crate::device::{DeviceBytes, HostRoom};
use crate::error::Error;
use crate::ffi::status::Failure;

/// More dimensions than any program has; a larger number is a garbled argument.
const MAX_DIMS: i32 = 64;
/// More items than any call has.
const MAX_ITEMS: usize = 1 << 16;

/// The text of a C string.
///
/// # Safety
/// `text` is NULL or a NUL-terminated string that stays unchanged during `'a`.
pub unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: not NULL, and a C string by this function's contract.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes
        .to_str()
        .map_err(|_| Failure::Argument(format!("argument '{name}' is not UTF-8")))
}

/// A path, in whatever encoding the system uses.
///
/// # Safety
/// As for [`text`].
pub unsafe fn path(name: &str, path: *const c_char) -> Result<PathBuf, Failure> {
    if path.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: not NULL, and a C string by this function's contract.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(PathBuf::from(OsStr::from_bytes(bytes)))
}

/// A reference to an argument.
///
/// # Safety
/// `pointer` is NULL or points to a `T` that lives and is not written during `'a`.
pub unsafe fn reference<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: NULL, or a live T by this function's contract.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::null(name))
}

/// A place to write a result to.
///
/// # Safety
/// `pointer` is NULL or points to a `T` that only this call uses during `'a`.
pub unsafe fn output<'a, T>(name: &str, pointer: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: NULL, or a live and unshared T by this function's contract.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::null(name))
}

/// An array of `count` values; NULL is the empty array.
///
/// # Safety
/// `items` is NULL or points to `count` values that live and are not written during `'a`.
pub unsafe fn array<'a, T>(name: &str, items: *const T, count: usize) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if items.is_null() {
        return Err(Failure::null(name));
    }
    if count > isize::MAX as usize / std::mem::size_of::<T>().max(1) {
        return Err(Failure::Argument(format!(
            "argument '{name}' cannot have {count} items"
        )));
    }
    // SAFETY: not NULL, `count` live values by this function's contract, and no more than fit in memory.
    Ok(unsafe { std::slice::from_raw_parts(items, count) })
}

/// Items to write to; NULL is none.
///
/// # Safety
/// `items` is NULL or points to `count` values that only the result uses during `'a`.
pub unsafe fn array_mut<'a, T>(
    name: &str,
    items: *mut T,
    count: usize,
) -> Result<&'a mut [T], Failure> {
    // SAFETY: by this function's contract; only looked at, for the checks.
    let checked = unsafe { array(name, items.cast_const(), count) }?.len();
    if checked == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not NULL and no more than fit in memory, which `array` has checked; the rest by this contract.
    Ok(unsafe { std::slice::from_raw_parts_mut(items, checked) })
}

/// Parsed options; NULL is no options.
///
/// # Safety
/// `options` is NULL or points to options whose items, keys and texts live during the call.
pub unsafe fn options(options: *const ws_options) -> Result<Options, Failure> {
    // SAFETY: by this function's contract.
    Ok(Options::parse(&unsafe { specs(options) }?)?)
}

/// Options as they were given; NULL is none.
///
/// # Safety
/// As for [`options`].
pub unsafe fn specs(options: *const ws_options) -> Result<Vec<Spec>, Failure> {
    // SAFETY: NULL or live, by this function's contract.
    let Some(options) = (unsafe { options.as_ref() }) else {
        return Ok(Vec::new());
    };
    if options.count > MAX_ITEMS {
        return Err(Failure::Argument(format!(
            "options->count is {}",
            options.count
        )));
    }
    // SAFETY: the items live, by this function's contract.
    let items = unsafe { array("options->items", options.items, options.count) }?;
    // SAFETY: keys and texts live, by this function's contract.
    items.iter().map(|item| unsafe { spec(item) }).collect()
}

/// # Safety
/// The item's key and text are NULL or live C strings.
unsafe fn spec(item: &ws_option) -> Result<Spec, Failure> {
    // SAFETY: by this function's contract.
    let key = unsafe { text("key of an option", item.key) }?.to_owned();
    let value = match item.kind {
        0 => SpecValue::Bool(item.number != 0),
        1 => SpecValue::Int(item.number),
        // SAFETY: by this function's contract.
        2 => SpecValue::Text(
            unsafe { text(&format!("text of option {key}"), item.text) }?.to_owned(),
        ),
        kind => {
            let what = format!("has the type number {kind}; 0 is bool, 1 int, 2 string");
            return Err(Error::Option { key, what }.into());
        }
    };
    Ok(Spec { key, value })
}

/// The inputs of a call.
///
/// # Safety
/// `tensors` is NULL or points to `count` tensors whose data, sizes and strides live and are not
/// written during `'a`.
pub unsafe fn inputs<'a>(
    tensors: *const ws_tensor,
    count: usize,
) -> Result<Vec<InputTensor<'a>>, Failure> {
    if count > MAX_ITEMS {
        return Err(Failure::Argument(format!("num_inputs is {count}")));
    }
    // SAFETY: `count` tensors by this function's contract.
    let tensors = unsafe { array("inputs", tensors, count) }?;
    // SAFETY: their parts live, by this function's contract.
    tensors
        .iter()
        .enumerate()
        .map(|(index, tensor)| unsafe { input(index, tensor) })
        .collect()
}

/// # Safety
/// The tensor's data, sizes and strides live and are not written during `'a`.
unsafe fn input<'a>(index: usize, tensor: &ws_tensor) -> Result<InputTensor<'a>, Failure> {
    let name = format!("inputs[{index}]");
    // SAFETY: by this function's contract.
    let (sizes, strides) = unsafe { shape(&name, tensor) }?;
    let memory = match place(&name, tensor)? {
        Place::Host => {
            let data = tensor.data.cast();
            // SAFETY: `nbytes` bytes of host memory, by this function's contract.
            Memory::Host(unsafe { array(&format!("{name}.data"), data, tensor.nbytes) }?)
        }
        // SAFETY: memory of the device that lives and is not written, by this function's contract.
        Place::Device(device) => Memory::Device(unsafe { device_bytes(&name, tensor, device) }?),
    };
    Ok(InputTensor {
        dtype: tensor.dtype,
        sizes,
        strides,
        memory,
    })
}

/// The room for the outputs of a call.
///
/// # Safety
/// `tensors` is NULL or points to `count` tensors whose sizes and strides live and are not written during `'a`,
/// and whose data only this call uses.
pub unsafe fn outputs<'a>(
    tensors: *const ws_tensor,
    count: usize,
) -> Result<Vec<OutputTensor<'a>>, Failure> {
    if count > MAX_ITEMS {
        return Err(Failure::Argument(format!("num_outputs is {count}")));
    }
    // SAFETY: `count` tensors by this function's contract.
    let tensors = unsafe { array("outputs", tensors, count) }?;
    // SAFETY: their parts live, by this function's contract.
    tensors
        .iter()
        .enumerate()
        .map(|(index, tensor)| unsafe { room(index, tensor) })
        .collect()
}

/// # Safety
/// The tensor's sizes and strides live and are not written during `'a`, and only this call uses its data.
unsafe fn room<'a>(index: usize, tensor: &ws_tensor) -> Result<OutputTensor<'a>, Failure> {
    let name = format!("outputs[{index}]");
    // SAFETY: by this function's contract.
    let (sizes, strides) = unsafe { shape(&name, tensor) }?;
    let room = match place(&name, tensor)? {
        Place::Host => {
            let data = tensor.data.cast();
            // SAFETY: `nbytes` bytes of host memory that only this call uses, by this function's contract.
            let bytes = unsafe { array_mut(&format!("{name}.data"), data, tensor.nbytes) }?;
            // SAFETY: the same, and the call ends after the device's wait for its pass.
            Room::Call(unsafe { HostRoom::new(bytes.as_mut_ptr(), bytes.len()) })
        }
        // SAFETY: memory of the device that only this call uses, by this function's contract.
        Place::Device(device) => Room::Device(unsafe { device_bytes(&name, tensor, device) }?),
    };
    Ok(OutputTensor {
        dtype: tensor.dtype,
        sizes,
        strides,
        room,
    })
}

/// Where a tensor's data lies, as its caller says.
enum Place {
    Host,
    /// On the GPU of this index.
    Device(u32),
}

fn place(name: &str, tensor: &ws_tensor) -> Result<Place, Failure> {
    match tensor.device_type {
        0 => Ok(Place::Host),
        1 => u32::try_from(tensor.device_index)
            .map(Place::Device)
            .map_err(|_| {
                Failure::Argument(format!("{name}.device_index is {}", tensor.device_index))
            }),
        other => Err(Failure::Argument(format!(
            "{name}.device_type is {other}; 0 is the CPU, 1 CUDA"
        ))),
    }
}

/// # Safety
/// As `DeviceBytes::new` asks for.
unsafe fn device_bytes(name: &str, tensor: &ws_tensor, index: u32) -> Result<DeviceBytes, Failure> {
    if tensor.data.is_null() && tensor.nbytes > 0 {
        return Err(Failure::null(&format!("{name}.data")));
    }
    let ptr = tensor.data.expose_provenance() as u64;
    // SAFETY: by this function's contract.
    Ok(unsafe { DeviceBytes::new(index, ptr, tensor.nbytes as u64) })
}

type Shape<'a> = (&'a [i64], Option<&'a [i64]>);

/// Sizes and strides.
///
/// # Safety
/// The tensor's sizes and strides live and are not written during `'a`.
unsafe fn shape<'a>(name: &str, tensor: &ws_tensor) -> Result<Shape<'a>, Failure> {
    if !(0..=MAX_DIMS).contains(&tensor.ndim) {
        return Err(Failure::Argument(format!("{name}.ndim is {}", tensor.ndim)));
    }
    let ndim = tensor.ndim as usize;
    // SAFETY: by this function's contract, here and below.
    let sizes = unsafe { array(&format!("{name}.sizes"), tensor.sizes, ndim) }?;
    let strides = match tensor.strides.is_null() {
        true => None,
        // SAFETY: see above.
        false => Some(unsafe { array(&format!("{name}.strides"), tensor.strides, ndim) }?),
    };
    Ok((sizes, strides))
}
