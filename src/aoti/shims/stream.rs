//! Guards that make a stream PyTorch's current one. Nothing here asks for a current stream: kernels get theirs
//! as an argument, and everything else happens on the stream of the pass. So a guard guards nothing.
#![deny(unsafe_code)]

use std::ffi::c_void;

use super::super::context;
use super::args::{run, Out};
use super::table::shim_table;

shim_table! { aoti_torch_create_cuda_stream_guard, aoti_torch_delete_cuda_stream_guard }

/// What a guard is to the compiled code: opaque, but not null.
const GUARD: usize = 0x57_53_47;

extern "C" fn aoti_torch_create_cuda_stream_guard(
    _stream: *mut c_void,
    device_index: i32,
    ret: Out<usize>,
) -> i32 {
    run("aoti_torch_create_cuda_stream_guard", |c| {
        if c.device.is_host() || device_index != c.device.index {
            return Err(format!(
                "a stream of CUDA device {device_index}, in a program on device {} of type {}",
                c.device.index, c.device.kind
            )
            .into());
        }
        ret.set(GUARD)
    })
}

/// Called by a destructor of the compiled code, where an error code ends the process: always 0.
extern "C" fn aoti_torch_delete_cuda_stream_guard(guard: usize) -> i32 {
    if guard != GUARD && guard != 0 {
        context::enter("aoti_torch_delete_cuda_stream_guard", |_| {
            Err(format!("{guard:#x} is not a stream guard").into())
        });
    }
    0
}
