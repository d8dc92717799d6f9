//! Execution and its outputs.
#![allow(non_camel_case_types)] // the names are those of the header

use super::args;
use super::load::ws_model;
use super::types::ws_tensor;
use crate::aoti::outputs::Output as PassOutput;
use crate::delegate::contiguous_strides;
use crate::device::HostRoom;
use crate::error::{counted, Error};
use crate::ffi::status::{guarded, Failure, Status};

/// Outputs of one execution, copied out of the pass.
pub struct ws_outputs {
    items: Vec<Output>,
}

struct Output {
    dtype: i32,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    bytes: Vec<u8>,
}

impl Output {
    fn copy(tensor: &PassOutput<'_>) -> crate::Result<Output> {
        let strides = contiguous_strides(tensor.sizes);
        let length = tensor.nbytes();
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(length)
            .map_err(|_| Error::OutOfMemory {
                what: "an output".to_owned(),
                bytes: length as u64,
            })?;
        bytes.resize(length, 0);
        // SAFETY: these bytes stay where they are until the model has executed, whatever becomes of it: `ws_execute` keeps
        // each output that long, and nobody else sees it.
        let room = unsafe { HostRoom::new(bytes.as_mut_ptr(), length) };
        tensor.copy_out(room, &strides)?;
        Ok(Output {
            dtype: tensor.dtype.0,
            sizes: tensor.sizes.to_vec(),
            strides,
            bytes,
        })
    }
}

/// Runs the method once.
///
/// # Safety
/// `model` is NULL or live; `inputs` are `num_inputs` tensors valid as the header says; `outputs` is
/// NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_execute(
    model: *mut ws_model,
    inputs: *const ws_tensor,
    num_inputs: usize,
    outputs: *mut *mut ws_outputs,
) -> Status {
    guarded(|| {
        // SAFETY: all three by this function's contract. The model is only shared: two threads may be here.
        let (model, inputs, outputs) = unsafe {
            (
                args::reference("model", model)?,
                args::inputs(inputs, num_inputs)?,
                args::output("outputs", outputs)?,
            )
        };
        let mut items = Vec::new();
        model.delegate.execute(&inputs, &mut |_, tensor| {
            items.push(Output::copy(tensor)?);
            Ok(())
        })?;
        *outputs = Box::into_raw(Box::new(ws_outputs { items }));
        Ok(())
    })
}

/// Runs the method once, with its outputs copied to memory of the caller's.
///
/// # Safety
/// `model` is NULL or live; `inputs` and `outputs` are as many tensors as is said, valid as the header says.
#[no_mangle]
pub unsafe extern "C" fn ws_execute_into(
    model: *mut ws_model,
    inputs: *const ws_tensor,
    num_inputs: usize,
    outputs: *const ws_tensor,
    num_outputs: usize,
) -> Status {
    guarded(|| {
        // SAFETY: all three by this function's contract. The model is only shared: two threads may be here.
        let (model, inputs, mut outputs) = unsafe {
            (
                args::reference("model", model)?,
                args::inputs(inputs, num_inputs)?,
                args::outputs(outputs, num_outputs)?,
            )
        };
        Ok(model.delegate.execute_into(&inputs, &mut outputs)?)
    })
}

/// Number of outputs.
///
/// # Safety
/// `outputs` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_outputs_count(outputs: *const ws_outputs) -> usize {
    // SAFETY: NULL or live, by this function's contract.
    unsafe { outputs.as_ref() }.map_or(0, |outputs| outputs.items.len())
}

/// A view of one output.
///
/// # Safety
/// `outputs` is NULL or live; `tensor` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_outputs_get(
    outputs: *const ws_outputs,
    index: usize,
    tensor: *mut ws_tensor,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (outputs, tensor) = unsafe {
            (
                args::reference("outputs", outputs)?,
                args::output("tensor", tensor)?,
            )
        };
        let output = outputs.items.get(index).ok_or_else(|| {
            Failure::Argument(format!(
                "index is {index}, of {}",
                counted(outputs.items.len() as u64, "output")
            ))
        })?;
        *tensor = ws_tensor {
            data: output.bytes.as_ptr().cast_mut().cast(),
            nbytes: output.bytes.len(),
            dtype: output.dtype,
            ndim: output.sizes.len() as i32,
            sizes: output.sizes.as_ptr(),
            strides: output.strides.as_ptr(),
            device_type: 0,
            device_index: 0,
        };
        Ok(())
    })
}

/// Ends outputs; NULL is allowed.
///
/// # Safety
/// `outputs` is NULL or came from [`ws_execute`] and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn ws_outputs_destroy(outputs: *mut ws_outputs) {
    if !outputs.is_null() {
        // SAFETY: made by Box::into_raw in ws_execute, and used no more, by this function's contract.
        drop(unsafe { Box::from_raw(outputs) });
    }
}
