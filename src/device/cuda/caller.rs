//! Memory of the caller's: what the driver says about it, and what is lent for a call.
//!
//! Inputs that lie in the device's memory are read where they are, and outputs are copied to where the caller
//! wants them. Neither is memory of ours, so the driver is asked about each address first: a host pointer, or
//! memory of another device or context, is an error that says so.
//!
//! # Order
//! Everything here happens on the compute stream. Where that is the caller's stream, what the caller issued to
//! it before the call is done before the call reads or writes. Where it is our own, the call begins after what
//! was issued to the default stream, and with it after every stream that waits for that one; work on other
//! streams has to be waited for by the caller.

use super::context::{Entered, PrimaryContext};
use super::pointer::ask;
use super::CudaDevice;
use crate::device::{Device, DeviceBytes, DevicePtr};
use crate::error::{Error, Result};

/// Compiled code reads its inputs in units of this many bytes (`GPU_ALIGN_BYTES` of PyTorch's compiler).
const ALIGNMENT: u64 = 16;

impl CudaDevice {
    /// Where kernels find an input of the caller's until [`CudaDevice::end_lending`]: where it lies, or, if its
    /// address is no multiple of 16, in a copy.
    pub fn lend(&mut self, bytes: DeviceBytes) -> Result<DevicePtr> {
        if bytes.is_empty() {
            return Ok(DevicePtr::EMPTY);
        }
        self.begin_use(bytes)?;
        if bytes.ptr().0.is_multiple_of(ALIGNMENT) {
            self.lent.push(bytes);
            return Ok(bytes.ptr());
        }
        let copy = self.alloc_scratch(bytes.len())?;
        let entered = self.context.enter()?;
        // SAFETY: `begin_use` has asked the driver about the source; the copy was just allocated, and both are
        // freed in stream order or after the call.
        let issued = unsafe {
            self.compute
                .copy_across(copy, bytes.ptr(), bytes.len(), &entered)
        };
        drop(entered);
        match issued {
            Ok(()) => Ok(copy),
            Err(error) => {
                // The copy's error says more than that of a device that is lost.
                let _ = self.free_scratch(copy, bytes.len());
                Err(error)
            }
        }
    }

    /// Everything that reads the input at `ptr`, which [`CudaDevice::lend`] gave for `bytes`, was issued.
    pub fn end_lending(&mut self, bytes: DeviceBytes, ptr: DevicePtr) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if ptr != bytes.ptr() {
            return self.free_scratch(ptr, bytes.len());
        }
        match self.lent.iter().position(|lent| *lent == bytes) {
            Some(index) => {
                self.lent.swap_remove(index);
                Ok(())
            }
            None => Err(Error::Internal(format!(
                "the input at {:#x} was given back twice",
                ptr.0
            ))),
        }
    }

    pub(super) fn is_lent(&self, ptr: DevicePtr, len: u64) -> bool {
        self.lent.iter().any(|lent| lent.covers(ptr, len))
    }

    pub(super) fn copy_out(&mut self, dst: DeviceBytes, src: DevicePtr) -> Result<()> {
        // An output that is an input is where it is to be already, if the caller says so.
        if dst.is_empty() || dst.ptr() == src {
            return Ok(());
        }
        self.check_any(src, dst.len())?;
        if dst.ptr().0.abs_diff(src.0) < dst.len() {
            return Err(Error::InvalidInput(
                "its memory overlaps that of the input which it is a part of; give it memory of its own"
                    .to_owned(),
            ));
        }
        self.begin_use(dst)?;
        let entered = self.context.enter()?;
        // SAFETY: the source was just checked, and is freed in stream order; the driver was asked about the
        // destination, which stays until the call returns (`DeviceBytes::new`), and that waits for the stream.
        unsafe {
            self.compute
                .copy_across(dst.ptr(), src, dst.len(), &entered)
        }
    }

    pub(super) fn upload_out(&mut self, dst: DeviceBytes, src: &[u8]) -> Result<()> {
        if src.len() as u64 != dst.len() {
            return Err(Error::Internal(format!(
                "{} bytes for a room of {}",
                src.len(),
                dst.len()
            )));
        }
        if src.is_empty() {
            return Ok(());
        }
        self.begin_use(dst)?;
        // SAFETY: the driver was asked about the destination, which is as long as the source.
        unsafe { self.compute.upload(dst.ptr(), src, &self.context.enter()?) }
    }

    /// Asks the driver about the caller's memory, and lets the compute stream wait for its producers.
    fn begin_use(&self, bytes: DeviceBytes) -> Result<()> {
        let entered = self.context.enter()?;
        check_memory(&self.context, bytes, &entered)?;
        let Some(default) = &self.default else {
            return Ok(());
        };
        let event = self.events.take(&entered)?;
        default.record(&event, &entered)?;
        self.compute.wait(&event, &entered)
    }
}

/// Refuses what is not memory of this device, all of it.
pub(super) fn check_memory(
    context: &PrimaryContext,
    bytes: DeviceBytes,
    entered: &Entered<'_>,
) -> Result<()> {
    let refused = |what: String| Err(Error::InvalidInput(what));
    if bytes.index() != context.index() {
        return refused(format!(
            "its memory is said to be on cuda:{}, and this method is on {}",
            bytes.index(),
            context.name()
        ));
    }
    let start = bytes.ptr().0;
    let Some(end) = start.checked_add(bytes.len()) else {
        return refused(format!("{} bytes at {start:#x} overflow", bytes.len()));
    };
    let mut at = start;
    // Memory that was mapped piece by piece, as PyTorch's expandable segments are, is told of in pieces.
    while at < end {
        let place = ask(at, entered)?;
        if let Some(what) = place.unlike(context) {
            return refused(match at == start {
                true => format!("its address {start:#x} {what}"),
                false => format!(
                    "only {} of its {} bytes at {start:#x} are memory of {}: what follows {what}",
                    at - start,
                    bytes.len(),
                    context.name()
                ),
            });
        }
        at = match place.end() {
            // The extent of a reserved range is the whole of it, mapped or not: its last byte is asked about too. A
            // hole inside it is left to the caller's promise.
            Some(next) if next >= end && at < end - 1 => end - 1,
            Some(next) if next > at => next,
            _ => {
                return refused(format!(
                    "the driver tells no extent of its memory at {at:#x}"
                ))
            }
        };
    }
    Ok(())
}
