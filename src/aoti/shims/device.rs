//! Copies and fills of tensors in a device's memory. The copy engine can only do one run of bytes. All
//! else is a kernel's work, and compiled code brings its own kernels for it.

use super::super::context::{Context, Shim};
use super::super::slab::Handle;
use super::super::tensor::{is_dense, Dims, Tensor};

/// A copy of `of` with these strides, if they are its own.
pub(super) fn cloned(c: &mut Context<'_>, of: Handle, strides: &[i64]) -> Shim<Handle> {
    let src = c.slab.tensor(of)?;
    let (dtype, dims) = (src.dtype, Dims::new(src.dims.sizes(), strides)?);
    check_same_order(src.dims.sizes(), strides, src.dims.strides())?;
    let bytes = bytes(src)?;
    let fresh = c.empty(dtype, dims)?;
    // Holes and overlaps too: in the fresh tensor they are where they are in its source.
    let moved = moved(c, fresh, of, bytes);
    if let Err(fail) = moved {
        c.delete(fresh)?;
        return Err(fail);
    }
    Ok(fresh)
}

/// Copies `src` into `dst` of the same type, sizes and dense layout.
pub(super) fn copied(c: &mut Context<'_>, dst: Handle, src: Handle) -> Shim {
    let (to, from) = (c.slab.tensor(dst)?, c.slab.tensor(src)?);
    if to.dtype != from.dtype {
        let (to, from) = (to.dtype.name(), from.dtype.name());
        return Err(format!(
            "a copy from {from} to {to} on the device is a kernel's work, and there is none"
        )
        .into());
    }
    if to.dims.sizes() != from.dims.sizes() {
        let (to, from) = (to.dims.sizes(), from.dims.sizes());
        return Err(format!("sizes {from:?} cannot be copied to {to:?} on the device").into());
    }
    check_same_order(to.dims.sizes(), to.dims.strides(), from.dims.strides())?;
    check_dense(to)?;
    let bytes = bytes(to)?;
    moved(c, dst, src, bytes)
}

/// Sets every element to `value`, which must be zero.
pub(super) fn fill(c: &mut Context<'_>, handle: Handle, value: f64) -> Shim {
    let tensor = c.slab.tensor(handle)?;
    // Minus zero has a bit that is set, in floating-point types.
    if value.to_bits() != 0 {
        return Err(format!(
            "a fill with {value} on the device is a kernel's work, and there is none"
        )
        .into());
    }
    check_dense(tensor)?;
    let bytes = bytes(tensor)?;
    let at = c.address(handle)?;
    if bytes > 0 {
        c.hooks()?.zero_on_device(at, bytes)?;
    }
    Ok(())
}

fn moved(c: &mut Context<'_>, dst: Handle, src: Handle, bytes: u64) -> Shim {
    let (to, from) = (c.address(dst)?, c.address(src)?);
    // A tensor may be copied onto itself.
    if bytes > 0 && to != from {
        if to.0.abs_diff(from.0) < bytes {
            return Err("the source overlaps the destination".into());
        }
        c.hooks()?.copy_on_device(to, from, bytes)?;
    }
    Ok(())
}

/// Bytes from the first element to the end of the last one.
fn bytes(tensor: &Tensor) -> Shim<u64> {
    let item = tensor.dtype.itemsize().ok_or("the dtype has no size")? as u64;
    let reach = tensor.dims.reach().ok_or("the sizes overflow")? as u64;
    Ok(reach.checked_mul(item).ok_or("the sizes overflow")?)
}

fn check_same_order(sizes: &[i64], to: &[i64], from: &[i64]) -> Shim {
    let same = |d: usize| sizes[d] == 1 || to[d] == from[d];
    match sizes.contains(&0) || (0..sizes.len()).all(same) {
        true => Ok(()),
        false => Err(format!(
            "a copy on the device from strides {from:?} to {to:?}, sizes {sizes:?}, is a kernel's work, and there \
             is none"
        )
        .into()),
    }
}

fn check_dense(tensor: &Tensor) -> Shim {
    let (sizes, strides) = (tensor.dims.sizes(), tensor.dims.strides());
    match sizes.contains(&0) || is_dense(sizes, strides) {
        true => Ok(()),
        false => Err(format!(
            "writing sizes {sizes:?}, strides {strides:?} on the device would reach between them"
        )
        .into()),
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
