//! New handles into the memory of others.

use super::super::context::Shim;
use super::super::dtype::DType;
use super::super::slab::Handle;
use super::super::tensor::Dims;
use super::args::{dim, dims, dtype, run, List, Maybe, Out};
use super::table::shim_table;

shim_table! {
    aoti_torch_new_tensor_handle, aoti_torch__reinterpret_tensor, aoti_torch__alloc_from_pool,
    aoti_torch_as_strided, aoti_torch_assign_tensors_out, aoti_torch_aten_narrow, aoti_torch_cpu_narrow,
    aoti_torch_cpu_permute, aoti_torch_cpu_slice_Tensor, aoti_torch_cpu_squeeze_dim,
    aoti_torch_cpu_view_dtype, aoti_torch_cuda_view_dtype,
}

extern "C" fn aoti_torch_new_tensor_handle(orig: Handle, ret: Out<Handle>) -> i32 {
    run("aoti_torch_new_tensor_handle", |c| {
        let tensor = c.slab.tensor(orig)?.clone();
        ret.set(c.slab.share(orig, tensor)?)
    })
}

extern "C" fn aoti_torch_assign_tensors_out(src: Handle, ret: Out<Handle>) -> i32 {
    run("aoti_torch_assign_tensors_out", |c| {
        let tensor = c.slab.tensor(src)?.clone();
        ret.set(c.slab.share(src, tensor)?)
    })
}

/// `offset` is counted from the tensor's own first element, in elements of its type.
extern "C" fn aoti_torch__reinterpret_tensor(
    tensor: Handle,
    ndim: i64,
    sizes: List<i64>,
    strides: List<i64>,
    offset: i64,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch__reinterpret_tensor", |c| {
        let dims = dims(ndim, &sizes, &strides)?;
        let of = c.slab.tensor(tensor)?;
        let (dtype, from) = (of.dtype, of.offset);
        let offset = from.checked_add(offset).ok_or("the offset overflows")?;
        ret.set(c.window(tensor, dtype, offset, dims)?)
    })
}

/// `offset` is counted from the storage's start, in bytes.
extern "C" fn aoti_torch__alloc_from_pool(
    tensor: Handle,
    offset: i64,
    number: i32,
    ndim: i64,
    sizes: List<i64>,
    strides: List<i64>,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch__alloc_from_pool", |c| {
        let (dims, dtype) = (dims(ndim, &sizes, &strides)?, dtype(number)?);
        let item = dtype.itemsize().unwrap_or(1) as i64;
        if offset % item != 0 {
            return Err(format!("offset {offset} is no multiple of {item}").into());
        }
        ret.set(c.window(tensor, dtype, offset / item, dims)?)
    })
}

extern "C" fn aoti_torch_as_strided(
    tensor: Handle,
    sizes: List<i64>,
    strides: List<i64>,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_as_strided", |c| {
        let of = c.slab.tensor(tensor)?;
        let dims = dims(of.dims.sizes().len() as i64, &sizes, &strides)?;
        let (dtype, offset) = (of.dtype, of.offset);
        ret.set(c.window(tensor, dtype, offset, dims)?)
    })
}

fn narrow(
    name: &'static str,
    tensor: Handle,
    d: i64,
    start: i64,
    length: i64,
    step: i64,
    ret: Out<Handle>,
) -> i32 {
    run(name, |c| {
        let of = c.slab.tensor(tensor)?;
        let d = dim(d, of.dims.sizes().len())?;
        let (mut sizes, mut strides) = (of.dims.sizes().to_vec(), of.dims.strides().to_vec());
        let size = *sizes.get(d).ok_or("the tensor has no dimensions")?;
        let last = length.checked_sub(1).and_then(|n| n.checked_mul(step));
        let inside = length == 0 || last.is_some_and(|last| last.saturating_add(start) < size);
        if start < 0 || length < 0 || start > size || !inside {
            return Err(format!("{length} indices from {start} leave a size of {size}").into());
        }
        let offset = of.offset + start * strides[d];
        (sizes[d], strides[d]) = (length, strides[d].saturating_mul(step));
        let dtype = of.dtype;
        ret.set(c.window(tensor, dtype, offset, Dims::new(&sizes, &strides)?)?)
    })
}

extern "C" fn aoti_torch_cpu_narrow(
    tensor: Handle,
    d: i64,
    start: i64,
    length: i64,
    ret: Out<Handle>,
) -> i32 {
    narrow("aoti_torch_cpu_narrow", tensor, d, start, length, 1, ret)
}

extern "C" fn aoti_torch_aten_narrow(
    tensor: Handle,
    d: i64,
    start: i64,
    length: i64,
    ret: Out<Handle>,
) -> i32 {
    narrow("aoti_torch_aten_narrow", tensor, d, start, length, 1, ret)
}

extern "C" fn aoti_torch_cpu_slice_Tensor(
    tensor: Handle,
    d: i64,
    start: Maybe<i64>,
    end: Maybe<i64>,
    step: i64,
    ret: Out<Handle>,
) -> i32 {
    let mut found = (0, 0);
    let code = run("aoti_torch_cpu_slice_Tensor", |c| {
        let sizes = c.slab.tensor(tensor)?.dims.sizes();
        let size = *sizes
            .get(dim(d, sizes.len())?)
            .ok_or("the tensor has no dimensions")?;
        if step < 1 {
            return Err(format!("step {step} is not positive").into());
        }
        let clamp = |v: i64| if v < 0 { v.saturating_add(size) } else { v }.clamp(0, size);
        let (from, to) = (
            clamp(start.get().unwrap_or(0)),
            clamp(end.get().unwrap_or(i64::MAX)),
        );
        found = (from, ((to - from).max(0) + step - 1) / step);
        Ok(())
    });
    match code {
        0 => narrow(
            "aoti_torch_cpu_slice_Tensor",
            tensor,
            d,
            found.0,
            found.1,
            step,
            ret,
        ),
        code => code,
    }
}

extern "C" fn aoti_torch_cpu_permute(
    tensor: Handle,
    order: List<i64>,
    len: i64,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_permute", |c| {
        let of = c.slab.tensor(tensor)?;
        let ndim = of.dims.sizes().len();
        let order = order
            .get(len)?
            .iter()
            .map(|d| dim(*d, ndim))
            .collect::<Shim<Vec<_>>>()?;
        if (0..ndim).any(|d| !order.contains(&d)) || order.len() != ndim {
            return Err(format!("{order:?} is no order of {ndim} dimensions").into());
        }
        let pick = |from: &[i64]| order.iter().map(|d| from[*d]).collect::<Vec<_>>();
        let dims = Dims::new(&pick(of.dims.sizes()), &pick(of.dims.strides()))?;
        let (dtype, offset) = (of.dtype, of.offset);
        ret.set(c.window(tensor, dtype, offset, dims)?)
    })
}

extern "C" fn aoti_torch_cpu_squeeze_dim(tensor: Handle, d: i64, ret: Out<Handle>) -> i32 {
    run("aoti_torch_cpu_squeeze_dim", |c| {
        let of = c.slab.tensor(tensor)?;
        let (mut sizes, mut strides) = (of.dims.sizes().to_vec(), of.dims.strides().to_vec());
        let d = dim(d, sizes.len())?;
        if sizes.get(d) == Some(&1) {
            sizes.remove(d);
            strides.remove(d);
        }
        let (dtype, offset) = (of.dtype, of.offset);
        ret.set(c.window(tensor, dtype, offset, Dims::new(&sizes, &strides)?)?)
    })
}

extern "C" fn aoti_torch_cpu_view_dtype(tensor: Handle, number: i32, ret: Out<Handle>) -> i32 {
    view_dtype("aoti_torch_cpu_view_dtype", tensor, number, ret)
}

extern "C" fn aoti_torch_cuda_view_dtype(tensor: Handle, number: i32, ret: Out<Handle>) -> i32 {
    view_dtype("aoti_torch_cuda_view_dtype", tensor, number, ret)
}

/// The same bytes as another type. The last dimension shrinks or grows when the sizes of elements differ.
fn view_dtype(name: &'static str, tensor: Handle, number: i32, ret: Out<Handle>) -> i32 {
    run(name, |c| {
        let to = dtype(number)?;
        let of = c.slab.tensor(tensor)?;
        let (mut sizes, mut strides) = (of.dims.sizes().to_vec(), of.dims.strides().to_vec());
        let offset = scale(of.offset, of.dtype, to).ok_or("the offset does not divide")?;
        if of.dtype.itemsize() != to.itemsize() {
            let last = sizes
                .len()
                .checked_sub(1)
                .ok_or("a scalar cannot change its element size")?;
            let fail = || format!("sizes {:?} do not divide", of.dims.sizes());
            if strides[last] != 1 && sizes[last] != 1 {
                return Err(fail().into());
            }
            sizes[last] = scale(sizes[last], of.dtype, to).ok_or_else(fail)?;
            for stride in &mut strides[..last] {
                *stride = scale(*stride, of.dtype, to).ok_or_else(fail)?;
            }
        }
        ret.set(c.window(tensor, to, offset, Dims::new(&sizes, &strides)?)?)
    })
}

/// `count` elements of one type, in elements of another.
fn scale(count: i64, from: DType, to: DType) -> Option<i64> {
    let (from, to) = (from.itemsize()? as i64, to.itemsize()? as i64);
    let bytes = count.checked_mul(from)?;
    (bytes % to == 0).then_some(bytes / to)
}
