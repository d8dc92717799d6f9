//! Outputs on a device whose addresses are no memory of this process: whatever would read one would crash.

use super::*;
use crate::aoti::context::TorchDevice;
use crate::aoti::hooks::ProbeLayout;
use crate::aoti::tensor::{Dims, Owner, Storage, Tensor};

/// Bytes from `BASE` on, and a log of what is asked for.
struct Gpu {
    bytes: Vec<u8>,
    log: Vec<String>,
    uploaded: Vec<u8>,
}

const BASE: u64 = 0x1000;
const ROOM: u64 = 0x9000;

impl PassHooks for Gpu {
    fn probe(&mut self, _: i64) -> Result<DevicePtr> {
        unreachable!("no weights here")
    }
    fn probe_layout(&self, _: i64) -> Result<ProbeLayout<'_>> {
        unreachable!("no weights here")
    }
    fn release(&mut self, _: i64) {}
    fn alloc_activation(&mut self, _: u64) -> Result<DevicePtr> {
        unreachable!("nothing is allocated for outputs")
    }
    fn free_activation(&mut self, _: DevicePtr, _: u64) {}
    fn read_from_device(&mut self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        let start = (src.0 - BASE) as usize;
        self.log.push(format!("read {start} {}", dst.len()));
        dst.copy_from_slice(&self.bytes[start..start + dst.len()]);
        Ok(())
    }
    fn copy_to_caller(&mut self, dst: DeviceBytes, src: DevicePtr) -> Result<()> {
        let start = src.0 - BASE;
        self.log
            .push(format!("copy {:#x} {start} {}", dst.ptr().0, dst.len()));
        Ok(())
    }
    fn upload_to_caller(&mut self, dst: DeviceBytes, src: &[u8]) -> Result<()> {
        self.log
            .push(format!("upload {:#x} {}", dst.ptr().0, dst.len()));
        self.uploaded = src.to_vec();
        Ok(())
    }
}

/// Runs `body` on an output of int32 values 0, 1, 2, ... that lies by these strides from the second value on.
fn on_gpu(sizes: &[i64], strides: &[i64], body: impl FnOnce(&Output<'_>)) -> Gpu {
    let mut slab = Slab::new();
    let storage = Storage {
        owner: Owner::Borrowed,
        ptr: DevicePtr(BASE),
        bytes: 128,
    };
    let tensor = Tensor {
        dtype: DType::I32,
        offset: 1,
        dims: Dims::new(sizes, strides).unwrap(),
    };
    let handle = slab.insert(storage, tensor).unwrap();
    let mut gpu = Gpu {
        bytes: (0..32i32).flat_map(i32::to_le_bytes).collect(),
        log: Vec::new(),
        uploaded: Vec::new(),
    };
    let mut staging = vec![0xEE; 3];
    let reader = RefCell::new(Reader {
        hooks: &mut gpu,
        staging: &mut staging,
    });
    let places = [DevicePtr(BASE + 4)];
    let outputs = Outputs::new(&slab, &[handle], &places, Some(&reader)).unwrap();
    body(&outputs.list()[0]);
    gpu
}

fn values(bytes: &[u8]) -> Vec<i32> {
    let (words, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    words.iter().map(|word| i32::from_le_bytes(*word)).collect()
}

fn room(len: u64) -> DeviceBytes {
    // SAFETY: nobody reads it.
    unsafe { DeviceBytes::new(0, ROOM, len) }
}

#[test]
fn one_run_of_bytes_is_one_copy_to_either_side() {
    for (sizes, strides) in [([2, 3], [3, 1]), ([2, 3], [1, 2]), ([1, 6], [77, 1])] {
        let gpu = on_gpu(&sizes, &strides, |output| {
            let mut found = [0; 24];
            output.copy_to(&mut found, &strides).unwrap();
            assert_eq!(values(&found), [1, 2, 3, 4, 5, 6]);
            output.copy_to_caller(room(24), &strides).unwrap();
        });
        assert_eq!(gpu.log, ["read 4 24", "copy 0x9000 4 24"]);
    }
}

#[test]
fn holes_overlaps_and_other_orders_are_put_right_on_the_host() {
    let cases: [([i64; 2], usize, [i32; 6]); 3] = [
        ([4, 1], 28, [1, 2, 3, 5, 6, 7]),
        ([0, 1], 12, [1, 2, 3, 1, 2, 3]),
        ([1, 2], 24, [1, 3, 5, 2, 4, 6]),
    ];
    for (strides, reach, expected) in cases {
        let gpu = on_gpu(&[2, 3], &strides, |output| {
            let mut found = [0; 24];
            output.copy_to_dense(&mut found).unwrap();
            assert_eq!(values(&found), expected);
            output.copy_to_caller(room(24), &[3, 1]).unwrap();
        });
        let read = format!("read 4 {reach}");
        assert_eq!(gpu.log, [&read, &read, "upload 0x9000 24"]);
        assert_eq!(values(&gpu.uploaded), expected);
    }
}

#[test]
fn room_of_another_size_or_with_holes_is_refused_before_anything_is_read() {
    let gpu = on_gpu(&[2, 3], &[3, 1], |output| {
        let mut short = [0; 23];
        assert!(output.copy_to_dense(&mut short).is_err());
        assert!(output.copy_to(&mut [0; 24], &[4, 1]).is_err());
        for (len, strides) in [(23, [3, 1]), (25, [3, 1]), (24, [4, 1])] {
            let error = output.copy_to_caller(room(len), &strides).unwrap_err();
            assert!(matches!(error, Error::InvalidInput(_)), "{error}");
        }
    });
    assert!(gpu.log.is_empty(), "{:?}", gpu.log);
}

#[test]
fn memory_of_a_device_is_no_room_for_a_program_of_the_host() {
    let mut slab = Slab::new();
    let storage = Storage {
        owner: Owner::Borrowed,
        ptr: DevicePtr(BASE),
        bytes: 4,
    };
    let tensor = Tensor {
        dtype: DType::I32,
        offset: 0,
        dims: Dims::contiguous(&[1]).unwrap(),
    };
    let handle = slab.insert(storage, tensor).unwrap();
    let outputs = Outputs::new(&slab, &[handle], &[DevicePtr(BASE)], None).unwrap();
    let error = outputs.list()[0].copy_to_caller(room(4), &[1]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("on cuda:0") && text.contains("exported for the device 'cpu'"),
        "{text}"
    );
}

#[test]
fn outputs_that_are_one_handle_are_deleted_once() {
    let tensor = || Tensor {
        dtype: DType::I32,
        offset: 0,
        dims: Dims::contiguous(&[1]).unwrap(),
    };
    let storage = || Storage {
        owner: Owner::Borrowed,
        ptr: DevicePtr(BASE),
        bytes: 4,
    };
    let mut slab = Slab::new();
    let (a, b) = (
        slab.insert(storage(), tensor()).unwrap(),
        slab.insert(storage(), tensor()).unwrap(),
    );
    let mut context = Context::new(&mut slab, None, TorchDevice::CPU);
    let mut outputs = [a, b, Handle::NULL, a, b, b];
    finish(&mut context, &mut outputs, Ok(())).unwrap();
    assert_eq!(outputs, [Handle::NULL; 6]);
    assert_eq!(slab.live(), 0);
    // One that the compiled code deleted itself is still told.
    let mut context = Context::new(&mut slab, None, TorchDevice::CPU);
    let error = finish(&mut context, &mut [a, a], Ok(())).unwrap_err();
    assert!(error.to_string().contains("deleted"), "{error}");
}
