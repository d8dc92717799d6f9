//! Memory that stays until the device ends, beside the weights' pool: the driver takes the pool's memory in units of
//! 32 MiB, and a few bytes beside mapped pages would cost a whole one. Here the unit is a page.

use super::context::{Entered, PrimaryContext};
use super::library::{check, log_failure};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUresult};
use std::sync::Arc;

/// One allocation.
struct Block {
    start: u64,
    bytes: u64,
    context: Arc<PrimaryContext>,
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        // SAFETY: allocated in `Lasting::alloc`, and freed here only.
        let code = unsafe { sys::cuMemFree_v2(self.start) };
        log_failure(self.context.name(), check("cuMemFree", code));
    }
}

/// All of a device's. Few: they are looked through one by one.
#[derive(Default)]
pub(super) struct Lasting(Vec<Block>);

impl Lasting {
    /// Memory of `bytes`, which are not 0.
    pub(super) fn alloc(
        &mut self,
        context: &Arc<PrimaryContext>,
        bytes: u64,
        _entered: &Entered<'_>,
    ) -> Result<DevicePtr> {
        let mut start = 0;
        // SAFETY: the context is current, and the driver writes one address.
        match unsafe { sys::cuMemAlloc_v2(&mut start, bytes as usize) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                return Err(Error::OutOfMemory {
                    what: format!("weights' memory that stays on {}", context.name()),
                    bytes,
                });
            }
            code => check("cuMemAlloc", code)?,
        }
        self.0.push(Block {
            start,
            bytes,
            context: Arc::clone(context),
        });
        Ok(DevicePtr(start))
    }

    /// Whether `len` bytes at `ptr` lie in one of them.
    pub(super) fn cover(&self, ptr: DevicePtr, len: u64) -> bool {
        self.0.iter().any(|block| {
            let offset = ptr.0.checked_sub(block.start);
            offset.is_some_and(|at| at <= block.bytes && len <= block.bytes - at)
        })
    }

    /// Bytes of all of them, as they were asked for.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|block| block.bytes).sum()
    }
}
