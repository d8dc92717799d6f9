//! The outputs of a run, while their handles live.

use super::context::{Context, Fail, Shim};
use super::dtype::DType;
use super::slab::Handle;
use super::tensor::{contiguous_strides, numel};
use super::view::{copy, View};
use crate::device::DevicePtr;
use crate::error::{Error, Result};

/// The outputs of one run. An output may be an input, a view of one, or a weight under lease: it is to be
/// copied before the run's end, never kept.
#[derive(Debug)]
pub struct Outputs<'a> {
    list: Vec<Output<'a>>,
}

/// Copies outputs in a device's memory to the host, each with the holes and overlaps that it has there.
pub(super) fn stage(
    context: &mut Context<'_>,
    handles: &[Handle],
    staging: &mut Vec<Vec<u8>>,
) -> Result<()> {
    staging.resize_with(handles.len(), Vec::new);
    for (index, (handle, bytes)) in handles.iter().zip(staging).enumerate() {
        stage_one(context, *handle, bytes).map_err(|fail| match fail {
            Fail::What(what) => Error::Internal(format!("output {index}: {what}")),
            Fail::Hooks(error) => error,
        })?;
    }
    Ok(())
}

fn stage_one(context: &mut Context<'_>, handle: Handle, bytes: &mut Vec<u8>) -> Shim {
    let tensor = context.slab.tensor(handle)?;
    let reach = tensor.dims.reach().ok_or("its sizes overflow")? as usize;
    // The window was checked to lie within its storage, so this does not overflow.
    bytes.resize(reach * tensor.dtype.itemsize().unwrap_or(0), 0);
    let from = context.address(handle)?;
    Ok(context.hooks()?.read_from_device(from, bytes)?)
}

/// One output.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// First element, in host memory.
    pub ptr: DevicePtr,
    /// Scalar type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub sizes: &'a [i64],
    /// Strides in elements.
    pub strides: &'a [i64],
}

impl<'a> Outputs<'a> {
    /// `staged` holds what [`stage`] made of these handles, if they are in a device's memory.
    pub(super) fn new(
        context: &'a Context<'_>,
        handles: &[Handle],
        staged: &'a [Vec<u8>],
    ) -> Result<Outputs<'a>> {
        let output = |(index, handle): (usize, &Handle)| {
            let tensor = context.slab.tensor(*handle)?;
            let ptr = match staged.get(index) {
                Some(bytes) => DevicePtr(bytes.as_ptr().expose_provenance() as u64),
                None => context.address(*handle).map_err(|fail| match fail {
                    Fail::What(what) => what,
                    Fail::Hooks(error) => error.to_string(),
                })?,
            };
            let dims = &tensor.dims;
            Ok(Output {
                ptr,
                dtype: tensor.dtype,
                sizes: dims.sizes(),
                strides: dims.strides(),
            })
            .map_err(|what: String| format!("output {index}: {what}"))
        };
        let list = handles
            .iter()
            .enumerate()
            .map(output)
            .collect::<std::result::Result<_, String>>();
        Ok(Outputs {
            list: list.map_err(Error::Internal)?,
        })
    }

    /// All outputs, in order.
    pub fn list(&self) -> &[Output<'a>] {
        &self.list
    }
}

impl Output<'_> {
    /// Bytes of the output when dense.
    pub fn nbytes(&self) -> usize {
        numel(self.sizes).unwrap_or(0) as usize * self.dtype.itemsize().unwrap_or(0)
    }

    /// Copies the elements out in row-major order. `dst` has exactly
    /// [`Output::nbytes`] bytes.
    pub fn copy_to_dense(&self, dst: &mut [u8]) -> Result<()> {
        self.copy_to(dst, &contiguous_strides(self.sizes))
    }

    /// Copies the elements out in the order that `strides` give them. The strides are dense over the output's sizes, and `dst` has exactly [`Output::nbytes`] bytes.
    pub fn copy_to(&self, dst: &mut [u8], strides: &[i64]) -> Result<()> {
        if dst.len() != self.nbytes()
            || !super::tensor::is_dense(self.sizes, strides) && self.nbytes() > 0
        {
            return Err(Error::InvalidInput(format!(
                "an output of sizes {:?} needs {} bytes and dense strides; {} bytes and strides {strides:?} were given",
                self.sizes,
                self.nbytes(),
                dst.len()
            )));
        }
        let from = std::ptr::with_exposed_provenance_mut(self.ptr.0 as usize);
        // SAFETY: the handle behind this output is alive, so its window is readable. `dst` has room for all
        // elements and dense strides reach no further. Its bytes are ours alone, so they do not overlap.
        let result = unsafe {
            View::new(from, self.dtype, self.sizes.to_vec(), self.strides.to_vec()).and_then(
                |src| {
                    let dst = View::new(
                        dst.as_mut_ptr(),
                        self.dtype,
                        self.sizes.to_vec(),
                        strides.to_vec(),
                    )?;
                    copy(&dst, &src)
                },
            )
        };
        result.map_err(Error::Internal)
    }
}

/// Deletes the outputs and whatever else a pass left, and gives the pass's first error.
pub(super) fn finish(
    context: &mut Context<'_>,
    outputs: &mut [Handle],
    result: Result<()>,
) -> Result<()> {
    for handle in outputs.iter_mut().filter(|h| **h != Handle::NULL) {
        context.discard(*handle);
        *handle = Handle::NULL;
    }
    let left = context.reclaim();
    result?;
    match (context.take_error(), left) {
        (Some(error), _) => Err(error),
        (None, 0) => Ok(()),
        (None, left) => Err(Error::Internal(format!(
            "the compiled code left {left} tensor handles alive"
        ))),
    }
}
