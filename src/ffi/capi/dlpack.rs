//! Tensors of DLPack, version 0: views of a range's memory that hold a lease.

use std::ffi::c_void;

use crate::device::DevicePtr;
use crate::elastic::range::Lease;
use crate::error::{bytes_text, Error, Result};
use crate::figures::DeviceId;
use crate::format::dtype_name;

#[repr(C)]
struct Device {
    /// 1 the CPU, 2 CUDA.
    kind: i32,
    index: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    /// 0 integers, 1 unsigned, 2 floats, 4 bfloat, 5 complex, 6 bool.
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct View {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor` of dlpack.h.
#[repr(C)]
pub struct ManagedTensor {
    view: View,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// What a tensor keeps until it is deleted.
struct Kept {
    tensor: ManagedTensor,
    shape: Vec<i64>,
    /// Its end is a mark: no driver is called, and no lock is taken.
    _lease: Lease,
}

/// The type of a ScalarType's number, as in ExecuTorch and PyTorch.
fn data_type(number: i32) -> Result<DataType> {
    let (code, bits) = match number {
        0 => (1, 8),
        1 => (0, 8),
        2 => (0, 16),
        3 => (0, 32),
        4 => (0, 64),
        5 => (2, 16),
        6 => (2, 32),
        7 => (2, 64),
        9 => (5, 64),
        10 => (5, 128),
        11 => (6, 8),
        15 => (4, 16),
        _ => {
            return Err(Error::InvalidInput(format!(
                "DLPack has no type for dtype {}: take a tensor of uint8, and view it",
                dtype_name(number)
            )))
        }
    };
    Ok(DataType {
        code,
        bits,
        lanes: 1,
    })
}

/// Checks that a contiguous tensor fits into `bytes` bytes.
pub(super) fn check(dtype: i32, sizes: &[i64], bytes: u64) -> Result<()> {
    let item = u64::from(data_type(dtype)?.bits) / 8;
    let count = |total: u64, &size: &i64| total.checked_mul(u64::try_from(size).ok()?);
    let needed = sizes.iter().try_fold(item, count);
    match needed {
        Some(needed) if needed <= bytes => Ok(()),
        _ => Err(Error::InvalidInput(format!(
            "a tensor of dtype {} and sizes {sizes:?} does not fit into an allocation of {}",
            dtype_name(dtype),
            bytes_text(bytes)
        ))),
    }
}

/// A contiguous tensor at `at`, on that device, that holds the lease until it is deleted. The caller owns it.
pub(super) fn tensor(
    at: DevicePtr,
    device: DeviceId,
    dtype: i32,
    sizes: &[i64],
    lease: Lease,
) -> Result<*mut ManagedTensor> {
    let device = match device {
        DeviceId::Cpu => Device { kind: 1, index: 0 },
        // The driver counts them in an int too.
        DeviceId::Cuda(index) => Device {
            kind: 2,
            index: index as i32,
        },
    };
    let mut kept = Box::new(Kept {
        tensor: ManagedTensor {
            view: View {
                data: std::ptr::with_exposed_provenance_mut(at.0 as usize),
                device,
                ndim: sizes.len() as i32,
                dtype: data_type(dtype)?,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        shape: sizes.to_vec(),
        _lease: lease,
    });
    kept.tensor.view.shape = kept.shape.as_mut_ptr();
    let kept = Box::into_raw(kept);
    // SAFETY: just made, and nobody else has it. The tensor is a field of it, and stays where it is.
    unsafe {
        (*kept).tensor.manager_ctx = kept.cast();
        Ok(&raw mut (*kept).tensor)
    }
}

/// The deleter: on any thread, at any time, also at exit.
///
/// # Safety
/// `tensor` is NULL or came from [`tensor`], and is not used afterwards.
unsafe extern "C" fn delete(tensor: *mut ManagedTensor) {
    if tensor.is_null() {
        return;
    }
    // SAFETY: by this function's contract the context is the box that `tensor` made, which is dropped once.
    drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Kept>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for (dtype, sizes, bytes, fits) in [
            (6, &[2, 3][..], 24, true),
            (6, &[2, 3], 23, false),
            (15, &[], 2, true),
            (0, &[-1], 100, false),
            (0, &[i64::MAX, 4], u64::MAX, false),
            (23, &[1], 100, false),
        ] {
            assert_eq!(
                check(dtype, sizes, bytes).is_ok(),
                fits,
                "{dtype} {sizes:?}"
            );
        }
    }
}
