//! Making tensors, and copying and filling them.

use super::super::context::{Context, Shim};
use super::super::dtype::DType;
use super::super::slab::Handle;
use super::super::tensor::{contiguous_strides, preserved_strides, Dims, Tensor};
use super::super::view::copy;
use super::args::{borrowed, dims, dtype, run, List, Maybe, Out};
use super::device;
use super::table::shim_table;

shim_table! {
    aoti_torch_empty_strided, aoti_torch_empty_strided_pinned, aoti_torch_create_tensor_from_blob, aoti_torch_create_tensor_from_blob_v2,
    aoti_torch_clone, aoti_torch_clone_preserve_strides, aoti_torch_copy_, aoti_torch_tensor_copy_,
    aoti_torch_assign_tensors, aoti_torch_zero_, aoti_torch_cpu_fill__Scalar, aoti_torch_aten_fill__Scalar,
    aoti_torch_aten_full, aoti_torch_cpu_cat,
}

fn check_device(c: &Context<'_>, kind: i32, index: i32) -> Shim {
    // The index of the CPU is told in several ways.
    if kind == c.device.kind && (kind == 0 || index == c.device.index) {
        return Ok(());
    }
    Err(format!(
        "a tensor on device type {kind}, index {index}, in a program for device type {}, index {}",
        c.device.kind, c.device.index
    )
    .into())
}

extern "C" fn aoti_torch_empty_strided(
    ndim: i64,
    sizes: List<i64>,
    strides: List<i64>,
    number: i32,
    device_type: i32,
    device_index: i32,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_empty_strided", |c| {
        check_device(c, device_type, device_index)?;
        let handle = c.empty(dtype(number)?, dims(ndim, &sizes, &strides)?)?;
        ret.set(handle)
    })
}

/// The container would stage constants in such memory. The runtime places constants itself.
extern "C" fn aoti_torch_empty_strided_pinned(
    _ndim: i64,
    _sizes: List<i64>,
    _strides: List<i64>,
    _number: i32,
    _device_type: i32,
    _device_index: i32,
    _ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_empty_strided_pinned", |_| {
        Err("compiled code asked for pinned memory, which only a container that copies constants needs".into())
    })
}

/// The blob stays the caller's, for longer than the handle lives.
extern "C" fn aoti_torch_create_tensor_from_blob(
    data: *mut u8,
    ndim: i64,
    sizes: List<i64>,
    strides: List<i64>,
    offset: i64,
    number: i32,
    device_type: i32,
    device_index: i32,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_create_tensor_from_blob", |c| {
        check_device(c, device_type, device_index)?;
        let dims = dims(ndim, &sizes, &strides)?;
        ret.set(borrowed(
            c,
            data,
            Tensor {
                dtype: dtype(number)?,
                offset,
                dims,
            },
        )?)
    })
}

extern "C" fn aoti_torch_create_tensor_from_blob_v2(
    data: *mut u8,
    ndim: i64,
    sizes: List<i64>,
    strides: List<i64>,
    offset: i64,
    number: i32,
    device_type: i32,
    device_index: i32,
    ret: Out<Handle>,
    layout: i32,
    _opaque_metadata: *const u8,
    _opaque_metadata_size: i64,
) -> i32 {
    run("aoti_torch_create_tensor_from_blob_v2", |c| {
        check_device(c, device_type, device_index)?;
        if layout != 0 {
            return Err(format!("layout {layout} is not strided").into());
        }
        let dims = dims(ndim, &sizes, &strides)?;
        ret.set(borrowed(
            c,
            data,
            Tensor {
                dtype: dtype(number)?,
                offset,
                dims,
            },
        )?)
    })
}

fn cloned(c: &mut Context<'_>, of: Handle, strides: &[i64]) -> Shim<Handle> {
    if !c.device.is_host() {
        return device::cloned(c, of, strides);
    }
    let src = c.view(of)?;
    let (fresh, dst) = c.result_strided(src.dtype, &src.sizes, strides)?;
    let [handle] = c.filling([fresh], || Ok(copy(&dst, &src)?))?;
    Ok(handle)
}

extern "C" fn aoti_torch_clone(of: Handle, ret: Out<Handle>) -> i32 {
    run("aoti_torch_clone", |c| {
        let dims = c.slab.tensor(of)?.dims.clone();
        let strides = preserved_strides(dims.sizes(), dims.strides());
        ret.set(cloned(c, of, &strides)?)
    })
}

/// Overlapping windows keep their strides as well; the copy then has the reach of the source.
extern "C" fn aoti_torch_clone_preserve_strides(of: Handle, ret: Out<Handle>) -> i32 {
    run("aoti_torch_clone_preserve_strides", |c| {
        let dims = c.slab.tensor(of)?.dims.clone();
        ret.set(cloned(c, of, dims.strides())?)
    })
}

fn copied(c: &mut Context<'_>, dst: Handle, src: Handle) -> Shim {
    if !c.device.is_host() {
        return device::copied(c, dst, src);
    }
    Ok(copy(&c.view(dst)?, &c.view(src)?)?)
}

extern "C" fn aoti_torch_copy_(dst: Handle, src: Handle, _non_blocking: i32) -> i32 {
    run("aoti_torch_copy_", |c| copied(c, dst, src))
}

extern "C" fn aoti_torch_tensor_copy_(src: Handle, dst: Handle) -> i32 {
    run("aoti_torch_tensor_copy_", |c| copied(c, dst, src))
}

/// PyTorch makes `dst` another name of `src`. A handle's storage cannot be changed here, so the values are
/// copied. A reader sees no difference while nobody writes into `src` afterwards. Nobody does: compiled
/// code calls this for the results of subgraphs, and deletes their handles next.
extern "C" fn aoti_torch_assign_tensors(src: Handle, dst: Handle) -> i32 {
    run("aoti_torch_assign_tensors", |c| copied(c, dst, src))
}

fn fill(c: &mut Context<'_>, handle: Handle, value: f64) -> Shim {
    if !c.device.is_host() {
        return device::fill(c, handle, value);
    }
    let view = c.view(handle)?;
    if view.dtype.is_int() {
        Ok(view.fill(value as i64)?)
    } else {
        Ok(view.fill(value)?)
    }
}

extern "C" fn aoti_torch_zero_(handle: Handle) -> i32 {
    run("aoti_torch_zero_", |c| fill(c, handle, 0.0))
}

extern "C" fn aoti_torch_cpu_fill__Scalar(handle: Handle, value: f64) -> i32 {
    run("aoti_torch_cpu_fill__Scalar", |c| fill(c, handle, value))
}

extern "C" fn aoti_torch_aten_fill__Scalar(handle: Handle, value: f64) -> i32 {
    run("aoti_torch_aten_fill__Scalar", |c| fill(c, handle, value))
}

#[allow(clippy::too_many_arguments)] // the signature is PyTorch's
extern "C" fn aoti_torch_aten_full(
    sizes: List<i64>,
    len: i64,
    value: f64,
    number: Maybe<i32>,
    _layout: Maybe<i32>,
    device_type: Maybe<i32>,
    device_index: i32,
    _pin_memory: Maybe<i32>,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_aten_full", |c| {
        // The index is that of the device at export, written into the code; everything else asks for the one
        // that the program was loaded on.
        let _ = device_index;
        check_device(
            c,
            device_type.get().unwrap_or(c.device.kind),
            c.device.index,
        )?;
        let dims = Dims::contiguous(sizes.get(len)?)?;
        let handle = c.empty(number.get().map_or(Ok(DType::F32), dtype)?, dims)?;
        if let Err(fail) = fill(c, handle, value) {
            c.delete(handle)?;
            return Err(fail);
        }
        ret.set(handle)
    })
}

extern "C" fn aoti_torch_cpu_cat(tensors: List<Handle>, len: i64, d: i64, ret: Out<Handle>) -> i32 {
    run("aoti_torch_cpu_cat", |c| {
        let parts = tensors
            .get(len)?
            .iter()
            .map(|h| c.view(*h))
            .collect::<Shim<Vec<_>>>()?;
        // PyTorch lets empty one-dimensional tensors stand among others.
        let parts: Vec<_> = parts.into_iter().filter(|p| p.sizes != [0]).collect();
        let first = parts.first().ok_or("there is nothing to join")?;
        let d = super::args::dim(d, first.ndim())?;
        let mut sizes = first.sizes.clone();
        if parts
            .iter()
            .any(|p| p.ndim() != sizes.len() || p.dtype != first.dtype)
            || sizes.is_empty()
        {
            return Err("the tensors differ in dtype or dimensions".into());
        }
        sizes[d] = parts.iter().map(|p| p.sizes[d]).sum();
        let (fresh, whole) = c.result_strided(first.dtype, &sizes, &contiguous_strides(&sizes))?;
        let [handle] = c.filling([fresh], || {
            let mut start = 0;
            for part in &parts {
                copy(&whole.narrow(d, start, part.sizes[d])?, part)?;
                start += part.sizes[d];
            }
            Ok(())
        })?;
        ret.set(handle)
    })
}
