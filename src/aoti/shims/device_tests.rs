//! A device whose addresses are no memory of this process: whatever would read one here would crash.

use super::*;
use crate::aoti::context::{Fail, TorchDevice};
use crate::aoti::dtype::DType;
use crate::aoti::hooks::{PassHooks, ProbeLayout};
use crate::aoti::slab::Slab;
use crate::aoti::tensor::{Owner, Storage};
use crate::device::DevicePtr;
use crate::error::{Error, Result};

/// Hands out addresses from 0x1000 on, and keeps a log of what is asked of it.
#[derive(Default)]
struct Gpu {
    log: Vec<String>,
    next: u64,
    lost: bool,
}

impl PassHooks for Gpu {
    fn probe(&mut self, _: i64) -> Result<DevicePtr> {
        unreachable!("no weights here")
    }
    fn probe_layout(&self, _: i64) -> Result<ProbeLayout<'_>> {
        unreachable!("no weights here")
    }
    fn release(&mut self, _: i64) {}
    fn alloc_activation(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.next += 0x1000;
        self.log.push(format!("alloc {bytes}"));
        Ok(DevicePtr(self.next))
    }
    fn free_activation(&mut self, ptr: DevicePtr, bytes: u64) {
        self.log.push(format!("free {:#x} {bytes}", ptr.0));
    }
    fn copy_on_device(&mut self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        if self.lost {
            return Err(Error::Internal("lost".into()));
        }
        self.log
            .push(format!("copy {:#x} {:#x} {bytes}", dst.0, src.0));
        Ok(())
    }
    fn zero_on_device(&mut self, dst: DevicePtr, bytes: u64) -> Result<()> {
        self.log.push(format!("zero {:#x} {bytes}", dst.0));
        Ok(())
    }
}

/// Runs `body` in a pass on `cuda:2` and gives the log of the device.
fn on_gpu(mut gpu: Gpu, body: impl FnOnce(&mut Context<'_>)) -> Vec<String> {
    let mut slab = Slab::new();
    let device = TorchDevice { kind: 1, index: 2 };
    let mut context = Context::new(&mut slab, Some(&mut gpu), device);
    body(&mut context);
    context.reclaim();
    slab.validate().unwrap();
    gpu.log
}

/// A tensor in somebody's device memory at `at`.
fn tensor(c: &mut Context<'_>, at: u64, dtype: DType, sizes: &[i64], strides: &[i64]) -> Handle {
    let storage = Storage {
        owner: Owner::Borrowed,
        ptr: DevicePtr(at),
        bytes: 4096,
    };
    let tensor = Tensor {
        dtype,
        offset: 4,
        dims: Dims::new(sizes, strides).unwrap(),
    };
    c.slab.insert(storage, tensor).unwrap()
}

fn refused<T: std::fmt::Debug>(result: Shim<T>, what: &str) {
    match result {
        Err(Fail::What(why)) => assert!(why.contains(what), "{why}"),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_clone_with_its_own_strides_is_one_copy() {
    let log = on_gpu(Gpu::default(), |c| {
        // With holes, and with overlap: the copy has the reach of the source.
        for (strides, address) in [([4, 1], 0x70_0000), ([0, 1], 0x80_0000)] {
            let src = tensor(c, address, DType::F32, &[2, 3], &strides);
            let made = cloned(c, src, &strides).unwrap();
            assert_eq!(c.slab.tensor(made).unwrap().dims.strides(), strides);
            c.delete(made).unwrap();
        }
        let empty = tensor(c, 0x70_0000, DType::F32, &[0, 3], &[3, 1]);
        cloned(c, empty, &[3, 1]).unwrap();
    });
    let expected = [
        "alloc 28",
        "copy 0x1000 0x700010 28",
        "free 0x1000 28",
        "alloc 12",
        "copy 0x2000 0x800010 12",
        "free 0x2000 12",
    ];
    assert_eq!(log, expected);
}

#[test]
fn a_clone_in_another_order_is_refused_and_leaves_nothing() {
    let log = on_gpu(Gpu::default(), |c| {
        let src = tensor(c, 0x70_0000, DType::F32, &[2, 3], &[4, 1]);
        refused(cloned(c, src, &[3, 1]), "strides [4, 1] to [3, 1]");
    });
    assert!(log.is_empty(), "{log:?}");
    let lost = Gpu {
        lost: true,
        ..Gpu::default()
    };
    let log = on_gpu(lost, |c| {
        let src = tensor(c, 0x70_0000, DType::F32, &[2, 3], &[3, 1]);
        assert!(matches!(cloned(c, src, &[3, 1]), Err(Fail::Hooks(_))));
    });
    assert_eq!(log, ["alloc 24", "free 0x1000 24"]);
}

#[test]
fn copies_are_of_one_type_one_layout_and_dense() {
    let log = on_gpu(Gpu::default(), |c| {
        let dense = tensor(c, 0x10_0000, DType::F32, &[2, 3], &[1, 2]);
        let same = tensor(c, 0x20_0000, DType::F32, &[2, 3], &[1, 2]);
        copied(c, dense, same).unwrap();
        copied(c, dense, dense).unwrap();
        let wide = tensor(c, 0x30_0000, DType::F64, &[2, 3], &[1, 2]);
        refused(copied(c, dense, wide), "float64 to float32");
        let rows = tensor(c, 0x30_0000, DType::F32, &[2, 3], &[3, 1]);
        refused(copied(c, dense, rows), "strides [3, 1] to [1, 2]");
        let row = tensor(c, 0x30_0000, DType::F32, &[3], &[1]);
        refused(copied(c, rows, row), "sizes [3] cannot be copied");
        let holes = tensor(c, 0x30_0000, DType::F32, &[2, 3], &[4, 1]);
        let others = tensor(c, 0x40_0000, DType::F32, &[2, 3], &[4, 1]);
        refused(copied(c, holes, others), "would reach between them");
        let beside = tensor(c, 0x10_0004, DType::F32, &[2, 3], &[1, 2]);
        refused(copied(c, dense, beside), "overlaps");
    });
    assert_eq!(log, ["copy 0x100010 0x200010 24"]);
}

#[test]
fn only_dense_tensors_are_set_to_zero() {
    let log = on_gpu(Gpu::default(), |c| {
        let dense = tensor(c, 0x10_0000, DType::BF16, &[2, 3], &[3, 1]);
        fill(c, dense, 0.0).unwrap();
        refused(fill(c, dense, 1.0), "fill with 1");
        refused(fill(c, dense, -0.0), "fill with -0");
        let holes = tensor(c, 0x30_0000, DType::F32, &[2, 3], &[4, 1]);
        refused(fill(c, holes, 0.0), "would reach between them");
    });
    assert_eq!(log, ["zero 0x100008 12"]);
}

#[test]
fn no_address_of_a_device_is_read_here() {
    let log = on_gpu(Gpu::default(), |c| {
        let x = tensor(c, 0x10_0000, DType::F32, &[2, 3], &[3, 1]);
        refused(c.view(x).map(drop), "this program runs on a device");
        refused(c.result(DType::F32, &[2]).map(drop), "runs on a device");
    });
    // What was allocated for the result is given back.
    assert_eq!(log, ["alloc 8", "free 0x1000 8"]);
}

#[test]
fn guards_are_for_the_device_of_the_pass() {
    use std::ffi::c_void;
    type Create = extern "C" fn(*mut c_void, i32, *mut usize) -> i32;
    type Delete = extern "C" fn(usize) -> i32;
    let find = |name| crate::aoti::shims::lookup(name).unwrap();
    // SAFETY: `Out<T>` is a transparent `*mut T`, and these are the functions' signatures in PyTorch's header.
    let (create, delete) = unsafe {
        (
            std::mem::transmute::<*const c_void, Create>(find(
                "aoti_torch_create_cuda_stream_guard",
            )),
            std::mem::transmute::<*const c_void, Delete>(find(
                "aoti_torch_delete_cuda_stream_guard",
            )),
        )
    };
    on_gpu(Gpu::default(), |c| {
        let mut guard = 0;
        c.with(|| {
            assert_eq!(create(std::ptr::null_mut(), 2, &mut guard), 0);
            assert_ne!(guard, 0);
            assert_eq!(delete(guard), 0);
        });
        assert_eq!(c.take_error(), None);
        c.with(|| assert_eq!(create(std::ptr::null_mut(), 0, &mut guard), 1));
        let error = c.take_error().unwrap().to_string();
        assert!(error.contains("CUDA device 0"), "{error}");
        c.with(|| assert_eq!(delete(7), 0));
        assert!(c.take_error().is_some());
    });
}
