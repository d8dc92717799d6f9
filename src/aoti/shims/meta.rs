//! Questions about a tensor, and its handle's life.

use std::ffi::c_void;

use super::super::context;
use super::super::dtype::DType;
use super::super::slab::Handle;
use super::args::{dim, run, Out};
use super::table::shim_table;

shim_table! {
    aoti_torch_get_data_ptr, aoti_torch_get_storage_size, aoti_torch_get_storage_numel, aoti_torch_get_dim,
    aoti_torch_get_numel, aoti_torch_get_sizes, aoti_torch_get_size, aoti_torch_get_strides,
    aoti_torch_get_stride, aoti_torch_get_dtype, aoti_torch_get_device_type, aoti_torch_get_device_index,
    aoti_torch_get_layout, aoti_torch_get_storage_offset, aoti_torch_is_contiguous, aoti_torch_is_defined,
    aoti_torch_dtype_element_size, aoti_torch_delete_tensor_object,
}

extern "C" fn aoti_torch_get_data_ptr(tensor: Handle, ret: Out<*mut c_void>) -> i32 {
    run("aoti_torch_get_data_ptr", |c| {
        let address = c.address(tensor)?;
        ret.set(std::ptr::with_exposed_provenance_mut(address.0 as usize))
    })
}

extern "C" fn aoti_torch_get_storage_size(tensor: Handle, ret: Out<i64>) -> i32 {
    run("aoti_torch_get_storage_size", |c| {
        ret.set(c.slab.storage(tensor)?.bytes as i64)
    })
}

extern "C" fn aoti_torch_get_storage_numel(tensor: Handle, ret: Out<i64>) -> i32 {
    run("aoti_torch_get_storage_numel", |c| {
        let item = c.slab.tensor(tensor)?.dtype.itemsize().unwrap_or(1) as i64;
        ret.set(c.slab.storage(tensor)?.bytes as i64 / item)
    })
}

extern "C" fn aoti_torch_get_dim(tensor: Handle, ret: Out<i64>) -> i32 {
    run("aoti_torch_get_dim", |c| {
        ret.set(c.slab.tensor(tensor)?.dims.sizes().len() as i64)
    })
}

extern "C" fn aoti_torch_get_numel(tensor: Handle, ret: Out<i64>) -> i32 {
    run("aoti_torch_get_numel", |c| {
        ret.set(
            c.slab
                .tensor(tensor)?
                .dims
                .numel()
                .ok_or("the number of elements overflows")?,
        )
    })
}

// The compiled code keeps these two pointers while the handle lives, and only reads through them. They
// point into the handle's slot, which does not move and is not written before the handle is deleted.
extern "C" fn aoti_torch_get_sizes(tensor: Handle, ret: Out<*mut i64>) -> i32 {
    run("aoti_torch_get_sizes", |c| {
        ret.set(c.slab.tensor(tensor)?.dims.sizes().as_ptr().cast_mut())
    })
}

extern "C" fn aoti_torch_get_strides(tensor: Handle, ret: Out<*mut i64>) -> i32 {
    run("aoti_torch_get_strides", |c| {
        ret.set(c.slab.tensor(tensor)?.dims.strides().as_ptr().cast_mut())
    })
}

extern "C" fn aoti_torch_get_size(tensor: Handle, d: i64, ret: Out<i64>) -> i32 {
    run("aoti_torch_get_size", |c| {
        let sizes = c.slab.tensor(tensor)?.dims.sizes();
        ret.set(
            *sizes
                .get(dim(d, sizes.len())?)
                .ok_or("the tensor has no dimensions")?,
        )
    })
}

extern "C" fn aoti_torch_get_stride(tensor: Handle, d: i64, ret: Out<i64>) -> i32 {
    run("aoti_torch_get_stride", |c| {
        let strides = c.slab.tensor(tensor)?.dims.strides();
        ret.set(
            *strides
                .get(dim(d, strides.len())?)
                .ok_or("the tensor has no dimensions")?,
        )
    })
}

extern "C" fn aoti_torch_get_dtype(tensor: Handle, ret: Out<i32>) -> i32 {
    run("aoti_torch_get_dtype", |c| {
        ret.set(c.slab.tensor(tensor)?.dtype.0)
    })
}

extern "C" fn aoti_torch_get_device_type(tensor: Handle, ret: Out<i32>) -> i32 {
    run("aoti_torch_get_device_type", |c| {
        c.slab.tensor(tensor)?;
        ret.set(c.device.kind)
    })
}

extern "C" fn aoti_torch_get_device_index(tensor: Handle, ret: Out<i32>) -> i32 {
    run("aoti_torch_get_device_index", |c| {
        c.slab.tensor(tensor)?;
        ret.set(c.device.index)
    })
}

extern "C" fn aoti_torch_get_layout(tensor: Handle, ret: Out<i32>) -> i32 {
    run("aoti_torch_get_layout", |c| {
        c.slab.tensor(tensor)?;
        ret.set(0) // strided: there are no others here
    })
}

extern "C" fn aoti_torch_get_storage_offset(tensor: Handle, ret: Out<i64>) -> i32 {
    run("aoti_torch_get_storage_offset", |c| {
        ret.set(c.slab.tensor(tensor)?.offset)
    })
}

extern "C" fn aoti_torch_is_contiguous(tensor: Handle, ret: Out<bool>) -> i32 {
    run("aoti_torch_is_contiguous", |c| {
        ret.set(c.slab.tensor(tensor)?.dims.is_contiguous())
    })
}

extern "C" fn aoti_torch_is_defined(tensor: Handle, ret: Out<bool>) -> i32 {
    run("aoti_torch_is_defined", |_| ret.set(tensor != Handle::NULL))
}

extern "C" fn aoti_torch_dtype_element_size(dtype: i32) -> usize {
    DType(dtype).itemsize().unwrap_or(0)
}

/// Called by destructors of the compiled code, where an error code ends the process: always 0. What goes
/// wrong is kept and ends the pass.
extern "C" fn aoti_torch_delete_tensor_object(tensor: Handle) -> i32 {
    if tensor != Handle::NULL {
        context::enter("aoti_torch_delete_tensor_object", |c| c.delete(tensor));
    }
    0
}
