//! A child made by fork: CUDA's driver is not called there once its parent has initialised it.

mod device_support;
#[path = "support/fork.rs"]
mod fork;

use device_support::gpu;
use weightstream::device::{cuda, CudaDevice};

#[test]
fn a_child_is_told_and_frees_nothing() {
    let Some(_gpu) = gpu("a_child_is_told_and_frees_nothing") else {
        return;
    };
    let parent = std::process::id();
    let mut device = Some(CudaDevice::new(0).unwrap());
    let memory = cuda::memory::allocate(0, 4096, 256).unwrap();
    fork::in_child(|| {
        let told = [
            cuda::device_count().map(drop),
            CudaDevice::new(0).map(drop),
            cuda::memory::allocate(0, 4096, 256).map(drop),
        ];
        for told in told {
            let text = told.unwrap_err().to_string();
            let expected = format!(
                "was initialised in process {parent}, and this is process {}",
                std::process::id()
            );
            assert!(
                text.contains(&expected) && text.contains("'spawn'"),
                "{text}"
            );
        }
        cuda::memory::free(0, memory).unwrap();
        drop(device.take());
    });
    cuda::memory::free(0, memory).unwrap();
    assert!(device.unwrap().free_bytes().unwrap() > 0);
}
