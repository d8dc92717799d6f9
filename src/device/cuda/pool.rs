//! Stream-ordered device memory, under a cap for weights and without one for activations.
//!
//! # What the cap means
//! The driver rounds a pool's maximum size up to 32 MiB and lets allocations fill all of it (caps of 4, 10, 33
//! and 100 MiB were seen to reserve 32, 32, 64 and 128). So the driver's cap bounds what it reserves, and
//! our own count keeps the budget: what is handed out never exceeds it by a byte.
//!
//! # Holes
//! A pool with enough free bytes may have them in pieces that are too small. What helps is to wait for the stream,
//! so that all frees have happened, and to give the free memory back to the device. That stops the overlap of
//! copies and kernels, so it is counted, and under a cap it is left to the caller ([`MemPool::rescue`]), who may have
//! something better: to free more.

use super::context::{Entered, PrimaryContext};
use super::library::{check, log_failure};
use super::stream::Stream;
use crate::device::DevicePtr;
use crate::error::{bytes_text, Error, Result};
use cudarc::driver::sys::{
    self, CUmemPoolProps, CUmemPool_attribute as Attribute, CUmemoryPool, CUresult,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One pool, and the stream in whose order it allocates and frees.
pub(super) struct MemPool {
    raw: CUmemoryPool,
    stream: Arc<Stream>,
    /// What the memory is for, in messages.
    what: &'static str,
    cap: Option<u64>,
    /// Bytes of what is handed out, by address.
    live: BTreeMap<u64, u64>,
    live_bytes: u64,
    compactions: u64,
}

// SAFETY: a pool may be used from any thread, and the driver locks it; `raw` is only a name for it.
unsafe impl Send for MemPool {}

impl MemPool {
    /// A pool that hands out at most `cap` bytes at a time, or as much as there is.
    pub(super) fn new(
        stream: &Arc<Stream>,
        what: &'static str,
        cap: Option<u64>,
        entered: &Entered<'_>,
    ) -> Result<MemPool> {
        let context = stream.context();
        let props = properties(context, cap)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the properties are complete, and the driver writes one pointer.
        check("cuMemPoolCreate", unsafe {
            sys::cuMemPoolCreate(&mut raw, &props)
        })
        .map_err(|error| named(context, what, cap, error))?;
        let pool = MemPool {
            raw,
            stream: Arc::clone(stream),
            what,
            cap,
            live: BTreeMap::new(),
            live_bytes: 0,
            compactions: 0,
        };
        pool.configure(entered)
            .map_err(|error| named(context, what, cap, error))?;
        Ok(pool)
    }

    /// Freed memory is reused at once where stream order or an event allows it, and stays the pool's: given
    /// back at each synchronisation, it would have to be mapped again.
    fn configure(&self, _entered: &Entered<'_>) -> Result<()> {
        let reuse = [
            Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        ];
        for attribute in reuse {
            let mut on: i32 = 1;
            // SAFETY: the pool exists, and these attributes are read from one `int`.
            let code =
                unsafe { sys::cuMemPoolSetAttribute(self.raw, attribute, (&raw mut on).cast()) };
            check("cuMemPoolSetAttribute", code)?;
        }
        let mut keep = u64::MAX;
        let threshold = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool exists, and this attribute is read from one 64-bit integer.
        let code =
            unsafe { sys::cuMemPoolSetAttribute(self.raw, threshold, (&raw mut keep).cast()) };
        check("cuMemPoolSetAttribute", code)
    }

    /// Memory of `bytes`, in the order of the stream. No bytes have no memory.
    pub(super) fn alloc(&mut self, bytes: u64, entered: &Entered<'_>) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        if self.is_over_cap(bytes) {
            return Err(self.out_of_memory(bytes, "over its cap"));
        }
        let ptr = match self.try_alloc(bytes, entered)? {
            Some(ptr) => ptr,
            None if self.cap.is_some() => {
                return Err(self.out_of_memory(bytes, "no free piece is large enough"));
            }
            None => {
                self.rescue(entered)?;
                self.try_alloc(bytes, entered)?.ok_or_else(|| {
                    self.out_of_memory(
                        bytes,
                        "no free piece is large enough, or the device is full",
                    )
                })?
            }
        };
        self.live.insert(ptr.0, bytes);
        self.live_bytes += bytes;
        Ok(ptr)
    }

    /// Gives back what [`MemPool::alloc`] returned, in the order of the stream.
    pub(super) fn free(&mut self, ptr: DevicePtr, bytes: u64, entered: &Entered<'_>) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match self.live.get(&ptr.0) {
            Some(&found) if found == bytes => {}
            Some(found) => {
                return Err(self.stray(
                    ptr,
                    &format!("freed with {bytes} bytes, allocated with {found}"),
                ));
            }
            None => return Err(self.stray(ptr, "freed, but not allocated")),
        }
        self.free_raw(ptr.0, entered)?;
        self.live.remove(&ptr.0);
        self.live_bytes -= bytes;
        Ok(())
    }

    /// Another cap for what is handed out. The driver's own stays: a single allocation is never larger than the first one.
    pub(super) fn set_cap(&mut self, bytes: u64) -> Result<()> {
        check_total(self.stream.context(), bytes)?;
        self.cap = Some(bytes);
        Ok(())
    }

    /// Counts memory that is taken elsewhere, under the same cap.
    pub(super) fn count(&mut self, bytes: u64) -> Result<()> {
        if self.is_over_cap(bytes) {
            return Err(self.out_of_memory(bytes, "over its cap"));
        }
        self.live_bytes += bytes;
        Ok(())
    }

    fn is_over_cap(&self, bytes: u64) -> bool {
        let room = |cap: u64| cap.saturating_sub(self.live_bytes);
        self.cap.is_some_and(|cap| bytes > room(cap))
    }

    /// What was counted is given back.
    pub(super) fn discount(&mut self, bytes: u64) {
        self.live_bytes -= bytes;
    }

    /// Whether `len` bytes at `ptr` lie in one allocation.
    pub(super) fn covers(&self, ptr: DevicePtr, len: u64) -> bool {
        let below = self.live.range(..=ptr.0).next_back();
        below.is_some_and(|(start, bytes)| {
            let offset = ptr.0 - start;
            offset <= *bytes && len <= bytes - offset
        })
    }

    /// Refuses memory that this pool did not hand out.
    pub(super) fn check_target(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        match self.covers(ptr, len) {
            true => Ok(()),
            false => Err(self.stray(
                ptr,
                &format!("{len} bytes copied outside of any allocation"),
            )),
        }
    }

    /// Bytes handed out now, by our own count.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes that the driver holds for the pool.
    pub(super) fn reserved_bytes(&self) -> Result<u64> {
        self.attribute(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Bytes handed out now, by the driver's count.
    pub(super) fn used_bytes(&self) -> Result<u64> {
        self.attribute(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// How often the stream was waited for and the pool was trimmed.
    pub(super) fn compactions(&self) -> u64 {
        self.compactions
    }

    fn attribute(&self, attribute: Attribute) -> Result<u64> {
        let mut value: u64 = 0;
        // SAFETY: the pool exists, and the attributes asked for are written as one 64-bit integer.
        let code =
            unsafe { sys::cuMemPoolGetAttribute(self.raw, attribute, (&raw mut value).cast()) };
        check("cuMemPoolGetAttribute", code)?;
        Ok(value)
    }

    /// `None` if the driver finds no room.
    fn try_alloc(&self, bytes: u64, _entered: &Entered<'_>) -> Result<Option<DevicePtr>> {
        let mut ptr = 0;
        // SAFETY: pool and stream live as long as `self`, and the driver writes one address.
        let code = unsafe {
            sys::cuMemAllocFromPoolAsync(&mut ptr, bytes as usize, self.raw, self.stream.raw())
        };
        match code {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            code => check("cuMemAllocFromPoolAsync", code).map(|()| Some(DevicePtr(ptr))),
        }
    }

    /// Waits for the stream, and gives free memory back to the device: it may come back in larger pieces.
    #[cold]
    pub(super) fn rescue(&mut self, entered: &Entered<'_>) -> Result<()> {
        if self.stream.is_capturing(entered)? {
            // Neither may happen while a graph is captured: it would end the capture.
            return Ok(());
        }
        self.stream.synchronize(entered)?;
        // SAFETY: the pool exists. What is handed out stays; only free memory goes.
        check("cuMemPoolTrimTo", unsafe {
            sys::cuMemPoolTrimTo(self.raw, 0)
        })?;
        self.compactions += 1;
        log::debug!(
            "{}: trimmed the pool of {}",
            self.stream.context().name(),
            self.what
        );
        Ok(())
    }

    fn free_raw(&self, ptr: u64, _entered: &Entered<'_>) -> Result<()> {
        // SAFETY: handed out by this pool and not freed yet (it stands in `live`). Whoever used it has been
        // waited for by the stream: that is the caller's side of the ordering contract.
        check("cuMemFreeAsync", unsafe {
            sys::cuMemFreeAsync(ptr, self.stream.raw())
        })
    }

    #[cold]
    fn out_of_memory(&self, bytes: u64, why: &str) -> Error {
        let count = |bytes: Result<u64>| bytes.map_or("unknown".to_string(), |b| b.to_string());
        let cap = self
            .cap
            .map_or("no cap".to_string(), |cap| format!("a cap of {cap}"));
        Error::OutOfMemory {
            what: format!(
                "{} on {}: {why} ({} bytes handed out, {cap}, {} reserved by the driver)",
                self.what,
                self.stream.context().name(),
                self.live_bytes,
                count(self.reserved_bytes()),
            ),
            bytes,
        }
    }

    #[cold]
    fn stray(&self, ptr: DevicePtr, what: &str) -> Error {
        Error::Internal(format!(
            "{} {:#x}: {what}",
            self.stream.context().name(),
            ptr.0
        ))
    }
}

impl Drop for MemPool {
    fn drop(&mut self) {
        let context = Arc::clone(self.stream.context());
        let Some(entered) = context.enter_to_drop() else {
            return;
        };
        for ptr in std::mem::take(&mut self.live).into_keys() {
            log_failure(context.name(), self.free_raw(ptr, &entered));
        }
        // So that the memory is back when this returns, not at some later time.
        log_failure(context.name(), self.stream.synchronize(&entered));
        // SAFETY: made in `new`, and nobody else has it.
        let code = unsafe { sys::cuMemPoolDestroy(self.raw) };
        log_failure(context.name(), check("cuMemPoolDestroy", code));
    }
}

/// Refuses a cap that the device can never hold; the driver might find that out in the middle of a pass.
fn check_total(context: &PrimaryContext, cap: u64) -> Result<()> {
    let total = context.total_bytes()?;
    match cap > total {
        true => Err(Error::OutOfMemory {
            what: format!(
                "weights on {}, which has {} in all",
                context.name(),
                bytes_text(total)
            ),
            bytes: cap,
        }),
        false => Ok(()),
    }
}

fn properties(context: &PrimaryContext, cap: Option<u64>) -> Result<CUmemPoolProps> {
    cap.map_or(Ok(()), |cap| check_total(context, cap))?;
    // SAFETY: zero is a value of each field: no kind of handle, no location, no maximum, reserved bytes.
    let mut props: CUmemPoolProps = unsafe { std::mem::zeroed() };
    props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.__bindgen_anon_1.id = context.device();
    props.maxSize = cap.unwrap_or(0) as usize;
    Ok(props)
}

/// A pool's failure, with what it was to be.
#[cold]
fn named(context: &PrimaryContext, what: &'static str, cap: Option<u64>, error: Error) -> Error {
    let cap = cap.map_or("no cap".to_string(), |cap| {
        format!("a cap of {}", bytes_text(cap))
    });
    match error {
        Error::Device { call, what: why } => Error::Device {
            call,
            what: format!("{why} (pool for {what} on {}, {cap})", context.name()),
        },
        other => other,
    }
}
