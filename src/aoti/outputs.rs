//! The outputs of a run, while their handles live.

use std::cell::RefCell;
use std::ops::Range;

use super::context::{Context, Fail};
use super::dtype::DType;
use super::hooks::PassHooks;
use super::inputs::Input;
use super::slab::{Handle, Slab};
use super::tensor::{contiguous_strides, is_dense, numel, reach};
use super::view::{copy, TensorView};
use crate::device::{not_here, DeviceBytes, DevicePtr, HostRoom};
use crate::error::{Error, Result};

/// The outputs of one run. An output may be an input, a view of one, or a weight under lease: it is to be
/// copied before the run's end, never kept.
pub struct Outputs<'a> {
    list: Vec<Output<'a>>,
    reader: Option<&'a dyn Reads>,
}

/// Where an output lies on a device, to be read again after a pass that writes to the same addresses.
#[derive(Debug, Clone)]
pub struct Kept {
    ptr: DevicePtr,
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

impl Kept {
    /// The addresses from its first byte to its last.
    pub fn range(&self) -> Range<u64> {
        let bytes = reach(&self.sizes, &self.strides).unwrap_or(0) as u64
            * self.dtype.itemsize().unwrap_or(0) as u64;
        self.ptr.0..self.ptr.0 + bytes
    }
}

/// Gives `take` outputs that were kept. `hooks` reads the device that they lie on.
pub fn with_kept(
    hooks: &mut dyn PassHooks,
    kept: &[Kept],
    take: impl FnOnce(&Outputs<'_>) -> Result<()>,
) -> Result<()> {
    let mut staging = Vec::new();
    let reader = RefCell::new(Reader {
        hooks,
        staging: &mut staging,
    });
    let reader = Some(&reader as &dyn Reads);
    let list = kept.iter().map(|one| Output {
        ptr: one.ptr,
        dtype: one.dtype,
        sizes: &one.sizes,
        strides: &one.strides,
        reader,
    });
    take(&Outputs {
        list: list.collect(),
        reader,
    })
}

/// What copies outputs that lie in a device's memory.
pub(super) struct Reader<'a> {
    /// Of the pass that made them.
    pub(super) hooks: &'a mut dyn PassHooks,
    /// For an output whose elements have to be put into another order: with the holes and overlaps that it has
    /// on the device.
    pub(super) staging: &'a mut Vec<u8>,
}

/// One output.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    /// First element, on the device that the program runs on.
    ptr: DevicePtr,
    /// Scalar type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub sizes: &'a [i64],
    /// Strides in elements.
    pub strides: &'a [i64],
    /// `None` where the host reads its memory as it is.
    reader: Option<&'a dyn Reads>,
}

/// A [`Reader`] that all outputs share, whatever it borrows.
trait Reads {
    fn with(&self, work: &mut dyn FnMut(&mut Reader<'_>) -> Result<()>) -> Result<()>;
}

impl Reads for RefCell<Reader<'_>> {
    fn with(&self, work: &mut dyn FnMut(&mut Reader<'_>) -> Result<()>) -> Result<()> {
        work(&mut self.borrow_mut())
    }
}

/// The places of the outputs, which are asked for before the hooks go to the [`Reader`].
pub(super) fn places(context: &Context<'_>, handles: &[Handle]) -> Result<Vec<DevicePtr>> {
    let place = |(index, handle): (usize, &Handle)| {
        context.address(*handle).map_err(|fail| match fail {
            Fail::What(what) => Error::Internal(format!("output {index}: {what}")),
            Fail::Hooks(error) => error,
        })
    };
    handles.iter().enumerate().map(place).collect()
}

impl<'a> Outputs<'a> {
    /// `places` are those of the handles; `reader` copies from them if the program runs on a device.
    pub(super) fn new(
        slab: &'a Slab,
        handles: &[Handle],
        places: &[DevicePtr],
        reader: Option<&'a RefCell<Reader<'a>>>,
    ) -> Result<Outputs<'a>> {
        let reader = reader.map(|reader| reader as &dyn Reads);
        let output = |(index, (handle, ptr)): (usize, (&Handle, &DevicePtr))| {
            let tensor = slab.tensor(*handle);
            let tensor =
                tensor.map_err(|what| Error::Internal(format!("output {index}: {what}")))?;
            Ok(Output {
                ptr: *ptr,
                dtype: tensor.dtype,
                sizes: tensor.dims.sizes(),
                strides: tensor.dims.strides(),
                reader,
            })
        };
        let list = handles.iter().zip(places).enumerate().map(output);
        Ok(Outputs {
            list: list.collect::<Result<_>>()?,
            reader,
        })
    }

    /// All outputs, in order.
    pub fn list(&self) -> &[Output<'a>] {
        &self.list
    }

    /// An input of the run, for a caller to whom it is an output too.
    pub fn input<'b>(&self, input: &Input<'b>) -> Output<'b>
    where
        'a: 'b,
    {
        Output {
            ptr: input.ptr,
            dtype: input.dtype,
            sizes: input.sizes,
            strides: input.strides,
            reader: self.reader,
        }
    }
}

impl Output<'_> {
    /// Bytes of the output when dense.
    pub fn nbytes(&self) -> usize {
        numel(self.sizes).unwrap_or(0) as usize * self.dtype.itemsize().unwrap_or(0)
    }

    /// Where it lies.
    pub fn keep(&self) -> Kept {
        Kept {
            ptr: self.ptr,
            dtype: self.dtype,
            sizes: self.sizes.to_vec(),
            strides: self.strides.to_vec(),
        }
    }

    /// Copies the elements out in row-major order. `dst` has exactly
    /// [`Output::nbytes`] bytes.
    pub fn copy_to_dense(&self, dst: &mut [u8]) -> Result<()> {
        self.copy_to(dst, &contiguous_strides(self.sizes))
    }

    /// Copies the elements out in the order that `strides` give them. The strides are dense over the output's
    /// sizes, and `dst` has exactly [`Output::nbytes`] bytes.
    pub fn copy_to(&self, dst: &mut [u8], strides: &[i64]) -> Result<()> {
        self.check_room(dst.len() as u64, strides)?;
        let Some(reader) = self.reader else {
            let from = std::ptr::with_exposed_provenance_mut(self.ptr.0 as usize);
            return self.copy_from(from, dst, strides);
        };
        reader.with(&mut |reader| match self.lies_by(strides) {
            true => reader.hooks.read_from_device(self.ptr, dst),
            false => {
                let staged = self.stage(reader)?;
                self.copy_from(staged, dst, strides)
            }
        })
    }

    /// The same to memory that is filled by the end of the call that the output is of, and may be not before.
    pub fn copy_out(&self, mut room: HostRoom, strides: &[i64]) -> Result<()> {
        self.check_room(room.len() as u64, strides)?;
        let Some(reader) = self.reader.filter(|_| self.lies_by(strides)) else {
            return self.copy_to(room.bytes(), strides);
        };
        let mut room = Some(room);
        reader.with(&mut |reader| match room.take() {
            Some(room) => reader.hooks.read_for_caller(self.ptr, room),
            None => Ok(()),
        })
    }

    /// The same to memory of the caller's on the device that the program runs on. An output that lies otherwise
    /// than `strides` say goes through the host.
    pub fn copy_to_caller(&self, dst: DeviceBytes, strides: &[i64]) -> Result<()> {
        self.check_room(dst.len(), strides)?;
        let Some(reader) = self.reader else {
            return Err(not_here("cpu", dst));
        };
        reader.with(&mut |reader| {
            if self.lies_by(strides) {
                return reader.hooks.copy_to_caller(dst, self.ptr);
            }
            let mut ordered = vec![0; self.nbytes()];
            let staged = self.stage(reader)?;
            self.copy_from(staged, &mut ordered, strides)?;
            reader.hooks.upload_to_caller(dst, &ordered)
        })
    }

    fn check_room(&self, bytes: u64, strides: &[i64]) -> Result<()> {
        let needed = self.nbytes();
        if bytes == needed as u64 && (is_dense(self.sizes, strides) || needed == 0) {
            return Ok(());
        }
        Err(Error::InvalidInput(format!(
            "an output of sizes {:?} needs {needed} bytes and dense strides; {bytes} bytes and strides {strides:?} were given",
            self.sizes,
        )))
    }

    /// Whether the elements lie by these dense strides already, so that their bytes are one run.
    fn lies_by(&self, strides: &[i64]) -> bool {
        let same = |d: usize| self.sizes[d] == 1 || self.strides[d] == strides[d];
        self.nbytes() == 0 || (0..self.sizes.len()).all(same)
    }

    /// The output in host memory, with the holes and overlaps that it has on the device.
    fn stage(&self, reader: &mut Reader<'_>) -> Result<*mut u8> {
        let reach = reach(self.sizes, self.strides).unwrap_or(0) as usize;
        // The window was checked to lie within its storage, so this does not overflow.
        let bytes = reach * self.dtype.itemsize().unwrap_or(0);
        reader.staging.resize(bytes, 0);
        reader.hooks.read_from_device(self.ptr, reader.staging)?;
        Ok(reader.staging.as_mut_ptr())
    }

    /// `from` is the first element of this output or of a staged copy of it.
    fn copy_from(&self, from: *mut u8, dst: &mut [u8], strides: &[i64]) -> Result<()> {
        // SAFETY: the handle of this output is alive, so its window is readable, and a staged copy is as
        // long. `dst` has room for all elements, and dense strides reach no further (`check_room`). Its bytes
        // are ours alone, so they do not overlap.
        let result = unsafe {
            TensorView::new(from, self.dtype, self.sizes.to_vec(), self.strides.to_vec()).and_then(
                |src| {
                    let dst = TensorView::new(
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

/// Deletes the outputs and whatever else a pass left, and gives the pass's first error. Outputs that are one buffer have one
/// handle, which is deleted once.
pub(super) fn finish(
    context: &mut Context<'_>,
    outputs: &mut [Handle],
    result: Result<()>,
) -> Result<()> {
    for index in 0..outputs.len() {
        let handle = outputs[index];
        if handle != Handle::NULL && !outputs[..index].contains(&handle) {
            context.discard(handle);
        }
    }
    outputs.fill(Handle::NULL);
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

#[cfg(test)]
#[path = "outputs_tests.rs"]
mod tests;
