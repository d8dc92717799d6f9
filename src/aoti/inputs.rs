//! The inputs of a run.
#![deny(unsafe_code)]

use super::context::Context;
use super::dtype::DType;
use super::slab::Handle;
use super::tensor::{Dims, Owner, Storage, Tensor};
use crate::device::DevicePtr;
use crate::error::{Error, Result};

/// One input of a run, borrowed for the run.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// First element.
    pub ptr: DevicePtr,
    /// Scalar type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub sizes: &'a [i64],
    /// Strides in elements.
    pub strides: &'a [i64],
}

/// Makes a handle for each input; the compiled code deletes them.
pub(super) fn place_inputs(
    context: &mut Context<'_>,
    inputs: &[Input<'_>],
    handles: &mut [Handle],
) -> Result<()> {
    for (index, (input, handle)) in inputs.iter().zip(handles).enumerate() {
        let made = Dims::new(input.sizes, input.strides).and_then(|dims| {
            let overflow = || "its sizes overflow".to_owned();
            let item = input.dtype.itemsize().ok_or("its dtype is unknown")? as i64;
            let bytes = dims
                .reach()
                .and_then(|n| n.checked_mul(item))
                .ok_or_else(overflow)? as u64;
            let storage = Storage {
                owner: Owner::Borrowed,
                ptr: input.ptr,
                bytes,
            };
            context.slab.insert(
                storage,
                Tensor {
                    dtype: input.dtype,
                    offset: 0,
                    dims,
                },
            )
        });
        *handle = made.map_err(|what| {
            Error::InvalidInput(format!("input {index} of the compiled code: {what}"))
        })?;
    }
    Ok(())
}
