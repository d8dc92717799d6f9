//! Arguments of the C functions as types, so that the functions' bodies need no unsafe code. Every type here
//! has the layout of the C argument it stands for, and is made by the compiled code only.

use std::ffi::{c_char, CStr};

use super::super::context::{self, Context, Fail, Shim};
use super::super::dtype::DType;
use super::super::slab::Handle;
use super::super::tensor::{contiguous_strides, reach, Dims, Owner, Storage, Tensor};
use super::super::view::TensorView;
use crate::device::DevicePtr;

/// Runs a shim's body and gives the code that the compiled code checks.
pub(super) fn run(function: &'static str, body: impl FnOnce(&mut Context<'_>) -> Shim) -> i32 {
    i32::from(!context::call(function, body))
}

/// Where a result goes.
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result.
    pub(super) fn set(self, value: T) -> Shim {
        if self.0.is_null() {
            return Err("the place for the result is a null pointer".into());
        }
        // SAFETY: the compiled code passes the address of a variable of this type (the functions'
        // declarations in PyTorch's headers say so); it is not null, checked above.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// An argument passed by address that may be absent.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Maybe<T>(*const T);

impl<T: Copy> Maybe<T> {
    /// The argument, if it is there.
    pub(super) fn get(&self) -> Option<T> {
        // SAFETY: null, or the address of a value of this type that lives during the call.
        unsafe { self.0.as_ref() }.copied()
    }
}

/// The first of a list of values, whose length is another argument.
#[repr(transparent)]
pub(super) struct List<T>(*const T);

impl<T: Copy> List<T> {
    /// The list's `len` values.
    pub(super) fn get(&self, len: i64) -> Shim<&[T]> {
        match usize::try_from(len) {
            Ok(0) => Ok(&[]),
            // No call has longer lists; a wild length must not become a wild read.
            Ok(n) if n <= 1 << 16 && !self.0.is_null() => {
                // SAFETY: the compiled code passes an array of this many values, alive during the call;
                // `self` is an argument of that call and bounds the borrow.
                Ok(unsafe { std::slice::from_raw_parts(self.0, n) })
            }
            _ => Err(format!("a list of {len} values at {:?}", self.0).into()),
        }
    }
}

/// One value for each of `space` dimensions from a list that may hold one for all of them.
pub(super) fn per_dimension(name: &str, list: &[i64], space: usize) -> Result<Vec<i64>, String> {
    match list {
        [one] => Ok(vec![*one; space]),
        all if all.len() == space => Ok(all.to_vec()),
        all => Err(format!(
            "{name} has {} values ({all:?}), and {space} dimensions take {space} or 1",
            all.len()
        )),
    }
}

/// A C string, possibly null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Text(*const c_char);

impl Text {
    /// The text; bytes that are no UTF-8 are replaced.
    pub(super) fn get(&self) -> String {
        if self.0.is_null() {
            return String::new();
        }
        // SAFETY: not null, and by the functions' declarations a terminated string alive during the call.
        unsafe { CStr::from_ptr(self.0) }
            .to_string_lossy()
            .into_owned()
    }
}

/// Sizes and strides as the compiled code passes them.
pub(super) fn dims(ndim: i64, sizes: &List<i64>, strides: &List<i64>) -> Shim<Dims> {
    Ok(Dims::new(sizes.get(ndim)?, strides.get(ndim)?)?)
}

/// The known scalar type with number `dtype`.
pub(super) fn dtype(dtype: i32) -> Shim<DType> {
    match DType(dtype).itemsize() {
        Some(_) => Ok(DType(dtype)),
        None => Err(format!("dtype number {dtype} is unknown").into()),
    }
}

/// `dim` counted from the end if negative.
pub(super) fn dim(dim: i64, ndim: usize) -> Shim<usize> {
    let count = ndim.max(1) as i64;
    if dim < -count || dim >= count {
        return Err(format!("dimension {dim} is out of range for {ndim} dimensions").into());
    }
    Ok(if dim < 0 { dim + count } else { dim } as usize)
}

impl Context<'_> {
    /// Address of a tensor's first element.
    pub(in crate::aoti) fn address(&self, handle: Handle) -> Shim<DevicePtr> {
        Ok(self.slab.address(handle)?)
    }

    /// A tensor's elements, for arithmetic on the host.
    pub(super) fn view(&self, handle: Handle) -> Shim<TensorView> {
        if !self.device.is_host() {
            return Err(
                "it works on the CPU's tensors only, and this program runs on a device".into(),
            );
        }
        let (tensor, ptr) = (self.slab.tensor(handle)?, self.address(handle)?);
        let ptr = std::ptr::with_exposed_provenance_mut(ptr.0 as usize);
        let (sizes, strides) = (tensor.dims.sizes().to_vec(), tensor.dims.strides().to_vec());
        // SAFETY: the window was checked against its storage when the handle was made, and storages live
        // until their last handle is deleted, which cannot happen during a call. What the owner said about
        // the storage (hooks, the caller's inputs, the constants' addresses) is trusted.
        Ok(unsafe { TensorView::new(ptr, tensor.dtype, sizes, strides) }?)
    }

    /// A new activation.
    pub(super) fn empty(&mut self, dtype: DType, dims: Dims) -> Shim<Handle> {
        let fail = || Fail::What(format!("sizes {:?} are too large", dims.sizes()));
        let item = dtype.itemsize().ok_or("the dtype has no size")? as i64;
        let bytes = dims
            .reach()
            .and_then(|reach| reach.checked_mul(item))
            .ok_or_else(fail)? as u64;
        let storage = match bytes {
            0 => Storage {
                owner: Owner::Borrowed,
                ptr: DevicePtr(0),
                bytes,
            },
            _ => {
                let ptr = self.hooks()?.alloc_activation(bytes)?;
                Storage {
                    owner: Owner::Activation,
                    ptr,
                    bytes,
                }
            }
        };
        let made = self.slab.insert(
            storage,
            Tensor {
                dtype,
                offset: 0,
                dims,
            },
        );
        if made.is_err() {
            self.end(storage)?;
        }
        Ok(made?)
    }

    /// A new row-major activation and its elements.
    pub(super) fn result(&mut self, dtype: DType, sizes: &[i64]) -> Shim<(Fresh, TensorView)> {
        self.result_strided(dtype, sizes, &contiguous_strides(sizes))
    }

    /// A new activation and its elements.
    pub(super) fn result_strided(
        &mut self,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
    ) -> Shim<(Fresh, TensorView)> {
        let handle = self.empty(dtype, Dims::new(sizes, strides)?)?;
        let view = self.view(handle);
        match view {
            Ok(view) => Ok((Fresh(handle), view)),
            Err(fail) => {
                self.delete(handle)?;
                Err(fail)
            }
        }
    }

    /// A further result; if it cannot be made, the `made` ones are deleted.
    pub(super) fn result_beside<const N: usize>(
        &mut self,
        made: [&Fresh; N],
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
    ) -> Shim<(Fresh, TensorView)> {
        let result = self.result_strided(dtype, sizes, strides);
        if result.is_err() {
            for fresh in made {
                self.delete(fresh.0)?;
            }
        }
        result
    }

    /// Runs `body`, and deletes the given new handles if it fails: the compiled code would not.
    pub(super) fn filling<const N: usize>(
        &mut self,
        fresh: [Fresh; N],
        body: impl FnOnce() -> Shim,
    ) -> Shim<[Handle; N]> {
        match body() {
            Ok(()) => Ok(fresh.map(|f| f.0)),
            Err(fail) => {
                for f in fresh {
                    self.delete(f.0)?;
                }
                Err(fail)
            }
        }
    }

    /// A new handle into the storage of `of`.
    pub(super) fn window(
        &mut self,
        of: Handle,
        dtype: DType,
        offset: i64,
        dims: Dims,
    ) -> Shim<Handle> {
        Ok(self.slab.share(
            of,
            Tensor {
                dtype,
                offset,
                dims,
            },
        )?)
    }
}

/// A handle that the compiled code does not know yet.
#[derive(Debug)]
#[must_use]
pub(super) struct Fresh(Handle);

/// A handle to borrowed memory of the compiled code.
pub(super) fn borrowed(context: &mut Context<'_>, ptr: *const u8, tensor: Tensor) -> Shim<Handle> {
    let item = tensor.dtype.itemsize().unwrap_or(1) as u64;
    let window = reach(tensor.dims.sizes(), tensor.dims.strides())
        .unwrap_or(i64::MAX)
        .max(0) as u64;
    let bytes = match window {
        0 => 0,
        n => n
            .saturating_add(tensor.offset.max(0) as u64)
            .saturating_mul(item),
    };
    let ptr = DevicePtr(ptr.expose_provenance() as u64);
    Ok(context.slab.insert(
        Storage {
            owner: Owner::Borrowed,
            ptr,
            bytes,
        },
        tensor,
    )?)
}
