//! Plain memory of a device, for callers: what ExecuTorch plans there, and copies into and out of it. It counts
//! towards no budget.
//!
//! A copy happens on the default stream, after everything that was issued to it and to the streams that wait
//! for it, and is done when the function returns. No pass is on the way then that could use the memory: a call
//! of a method returns when its work is done.

use super::caller::check_memory;
use super::context::PrimaryContext;
use super::library::{self, check, is_gone};
use super::stream::Stream;
use crate::device::{DeviceBytes, DevicePtr};
use crate::error::{Error, Result};
use crate::figures::DeviceId;
use cudarc::driver::sys::{self, CUresult};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What the driver aligns its memory to, at the least.
const ALIGNMENT: u64 = 256;

/// One device, as long as memory of it is handed out.
struct Plain {
    context: Arc<PrimaryContext>,
    /// What was asked for, by the address handed out: the address that the driver gave.
    live: BTreeMap<u64, u64>,
}

/// By index of the device. Not held together with any other lock.
static DEVICES: Mutex<BTreeMap<u32, Plain>> = Mutex::new(BTreeMap::new());

/// Allocates `bytes` on the device of this index, at a multiple of `alignment` (a power of two).
pub fn allocate(index: u32, bytes: u64, alignment: u64) -> Result<DevicePtr> {
    if !alignment.is_power_of_two() {
        return Err(Error::InvalidInput(format!(
            "an alignment of {alignment} bytes, which is no power of two"
        )));
    }
    // No bytes have an address of their own too: the caller tells allocations apart by it.
    let padding = if alignment > ALIGNMENT { alignment } else { 0 };
    let Some(whole) = bytes.max(1).checked_add(padding) else {
        return Err(out_of_memory(index, bytes));
    };
    on(index, |plain| {
        let _entered = plain.context.enter()?;
        let mut base = 0;
        // SAFETY: the context is current, and the driver writes one address.
        match unsafe { sys::cuMemAlloc_v2(&mut base, whole as usize) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(out_of_memory(index, bytes)),
            code => check("cuMemAlloc", code)?,
        }
        let ptr = base.next_multiple_of(alignment);
        plain.live.insert(ptr, base);
        Ok(DevicePtr(ptr))
    })
}

/// Frees what [`allocate`] returned, when the device has done what was issued to it.
pub fn free(index: u32, ptr: DevicePtr) -> Result<()> {
    if is_gone() {
        return Ok(());
    }
    on(index, |plain| {
        let base = plain.live.remove(&ptr.0).ok_or_else(|| {
            Error::InvalidInput(format!(
                "memory at {:#x} is freed, which was not allocated on {}",
                ptr.0,
                DeviceId::Cuda(index)
            ))
        })?;
        let _entered = plain.context.enter()?;
        // SAFETY: the driver gave it in `allocate`, and it stood in `live` until now.
        check("cuMemFree", unsafe { sys::cuMemFree_v2(base) })
    })
}

/// Copies host bytes to memory of a device, which is as long, and returns when they are there: on whatever stream they are
/// used next.
pub fn copy_in(dst: DeviceBytes, src: &[u8]) -> Result<()> {
    check_length(dst, src.len())?;
    with_default_stream(dst, |stream, entered| {
        // SAFETY: the driver was asked about the destination, and it is as long as the source.
        unsafe { stream.upload(dst.ptr(), src, entered) }?;
        stream.synchronize(entered)
    })
}

/// Copies memory of a device to host bytes, as many.
pub fn copy_out(dst: &mut [u8], src: DeviceBytes) -> Result<()> {
    check_length(src, dst.len())?;
    with_default_stream(src, |stream, entered| {
        // SAFETY: the driver was asked about the source, and it is as long as the destination.
        unsafe { stream.download(src.ptr(), dst, entered) }
    })
}

fn with_default_stream(
    bytes: DeviceBytes,
    body: impl FnOnce(&Stream, &super::Entered<'_>) -> Result<()>,
) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    // Not under the lock: a copy may take long.
    let context = on(bytes.index(), |plain| Ok(Arc::clone(&plain.context)))?;
    let entered = context.enter()?;
    check_memory(&context, bytes, &entered)?;
    // SAFETY: null is the default stream, which exists as long as its context.
    let stream = unsafe { Stream::of_caller(&context, std::ptr::null_mut()) }?;
    body(&stream, &entered)
}

/// Runs `body` on the device, whose context is kept while memory of it is handed out.
fn on<R>(index: u32, body: impl FnOnce(&mut Plain) -> Result<R>) -> Result<R> {
    // In a child neither the context nor the lock can be used.
    library::open()?;
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut plain = match devices.remove(&index) {
        Some(plain) => plain,
        None => Plain {
            context: PrimaryContext::retain(index)?,
            live: BTreeMap::new(),
        },
    };
    let result = body(&mut plain);
    if !plain.live.is_empty() {
        devices.insert(index, plain);
    }
    result
}

fn check_length(device: DeviceBytes, host: usize) -> Result<()> {
    match device.len() == host as u64 {
        true => Ok(()),
        false => Err(Error::Internal(format!(
            "a copy of {host} bytes on the host and {} on the device",
            device.len()
        ))),
    }
}

fn out_of_memory(index: u32, bytes: u64) -> Error {
    Error::OutOfMemory {
        what: format!(
            "a buffer that the program plans on {}",
            DeviceId::Cuda(index)
        ),
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alignment_is_a_power_of_two() {
        for alignment in [0, 3, 24] {
            let error = allocate(0, 64, alignment).unwrap_err().to_string();
            assert!(error.contains("no power of two"), "{error}");
        }
    }
}
