//! For benches and tests: the probe through its C functions, as compiled code calls it.

use super::context::{Context, TorchDevice};
use super::dtype::DType;
use super::hooks::PassHooks;
use super::shims;
use super::slab::{Handle, Slab};
use super::tensor::{Dims, Owner, Storage, Tensor};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use std::ops::Range;

type ProbeFn = extern "C" fn(Handle, i64, *mut Handle) -> i32;
type DeleteFn = extern "C" fn(Handle) -> i32;

/// Calls the probe and deletes its handle, over and over, on one pass's hooks.
#[doc(hidden)]
pub struct ProbeCalls {
    slab: Slab,
    placeholders: Vec<Handle>,
    probe: ProbeFn,
    delete: DeleteFn,
}

impl ProbeCalls {
    /// Looks the functions up and makes so many placeholders, with which they are called in turn.
    pub fn new(placeholders: usize) -> Result<ProbeCalls> {
        let mut slab = Slab::new();
        let storage = Storage {
            owner: Owner::Borrowed,
            ptr: DevicePtr::EMPTY,
            bytes: 4,
        };
        let dims = Dims::new(&[1], &[1]).map_err(Error::Internal)?;
        let tensor = Tensor {
            dtype: DType(6),
            offset: 0,
            dims,
        };
        let made = (0..placeholders).map(|_| slab.insert(storage, tensor.clone()));
        let placeholders = made.collect::<std::result::Result<_, _>>();
        let placeholders = placeholders.map_err(Error::Internal)?;
        let find = |name| shims::lookup(name).ok_or_else(|| Error::Internal(format!("no {name}")));
        // SAFETY: these are the types of the two functions in PyTorch's headers, with handles as handles.
        let probe = unsafe {
            std::mem::transmute::<*const std::ffi::c_void, ProbeFn>(find("aoti_torch_cpu_probe")?)
        };
        // SAFETY: as above.
        let delete = unsafe {
            std::mem::transmute::<*const std::ffi::c_void, DeleteFn>(find(
                "aoti_torch_delete_tensor_object",
            )?)
        };
        Ok(ProbeCalls {
            slab,
            placeholders,
            probe,
            delete,
        })
    }

    /// Probes `ids` in order, each released before the next.
    pub fn run(&mut self, hooks: &mut dyn PassHooks, ids: Range<i64>) -> Result<()> {
        let (probe, delete) = (self.probe, self.delete);
        let placeholders = self.placeholders.iter().cycle();
        let mut context = Context::new(&mut self.slab, Some(hooks), TorchDevice::CPU);
        context.with(|| {
            for (id, &placeholder) in ids.zip(placeholders) {
                let mut handle = Handle::NULL;
                if probe(placeholder, id, &mut handle) != 0 {
                    return;
                }
                delete(std::hint::black_box(handle));
            }
        });
        context.take_error().map_or(Ok(()), Err)
    }
}
