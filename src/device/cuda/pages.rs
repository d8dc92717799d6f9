//! Pages of a GPU: the driver's virtual memory management, under the table that says what is whose.
//!
//! Creating, mapping and unmapping a handle costs about the same for 2 and for 32 MiB, 50 to 80 µs. A unit of 32 MiB takes
//! 600 µs to fill at 55 GB/s. With units of 2 MiB moving them would take longer than filling them.

use super::context::{Entered, PrimaryContext};
use super::library::{check, log_failure};
use super::physical::{self, Physical};
use super::stream::{CudaEvent, Events, Stream};
use crate::device::pages::{PageAccess, Pages, Purpose, UserStream, UserStreams};
use crate::device::{no_pages, DevicePtr};
use crate::device::{AddressTable, Frame};
use crate::error::{Error, Result};
use crate::figures::DeviceId;
use cudarc::driver::sys::{self, CUmemAccess_flags as Access, CUresult};
use std::sync::Arc;

const UNIT: u64 = 32 << 20;

/// Pages of a GPU, and the streams of its callers.
pub struct CudaPages {
    name: String,
    page: u64,
    pub(super) table: AddressTable<Physical>,
    events: Arc<Events>,
    context: Arc<PrimaryContext>,
}

impl CudaPages {
    /// Takes no memory.
    ///
    /// Errors: a GPU without virtual memory management.
    pub fn new(index: u32) -> Result<CudaPages> {
        let context = PrimaryContext::retain(index)?;
        let pages = CudaPages::of(&context)?;
        pages.ok_or_else(|| {
            let why = "CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED is 0";
            no_pages(&format!("{} ({why})", context.name()))
        })
    }

    /// `None` on a GPU without virtual memory management.
    pub(super) fn of(context: &Arc<PrimaryContext>) -> Result<Option<CudaPages>> {
        let page = physical::page(context, &context.enter()?)?;
        Ok(page.map(|page| CudaPages {
            name: DeviceId::Cuda(context.index()).to_string(),
            page,
            table: AddressTable::default(),
            events: Events::new(context),
            context: Arc::clone(context),
        }))
    }

    /// Bytes of addresses, with a page behind them that leads nowhere.
    fn guarded(&self, bytes: u64) -> usize {
        bytes.saturating_add(self.page) as usize
    }

    /// The stream, which the driver is asked about.
    fn stream(&self, stream: UserStream, entered: &Entered<'_>) -> Result<Stream> {
        // SAFETY: null or a stream, by the promise that `UserStream::new` asks for.
        let stream = unsafe { Stream::of_caller(&self.context, stream.raw()) }?;
        match stream.is_capturing(entered)? {
            false => Ok(stream),
            true => Err(Error::InvalidInput(
                "the stream is being captured: a graph holds addresses, so take a lease before the capture and end it after \
                 the last replay"
                    .to_owned(),
            )),
        }
    }
}

/// Unmaps what was mapped as a whole.
///
/// # Safety
/// `bytes` bytes were mapped at `at` in one piece. Nobody uses them: the promise of the caller of [`Pages::unmap`], or of a device's end.
unsafe fn hide(at: DevicePtr, bytes: u64) -> Result<()> {
    // SAFETY: the caller's promise.
    check("cuMemUnmap", unsafe {
        sys::cuMemUnmap(at.0, bytes as usize)
    })
}

/// Gives addresses back.
///
/// # Safety
/// `bytes` bytes were reserved from `start` on, and nothing is mapped there.
unsafe fn free(start: DevicePtr, bytes: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    check("cuMemAddressFree", unsafe {
        sys::cuMemAddressFree(start.0, bytes)
    })
}

impl Pages for CudaPages {
    type Memory = Arc<Frame<Physical>>;

    fn page(&self) -> u64 {
        self.page
    }

    fn unit(&self) -> u64 {
        UNIT.next_multiple_of(self.page)
    }

    fn total_bytes(&mut self) -> Result<u64> {
        self.context.total_bytes()
    }

    fn reserve(&mut self, bytes: u64, purpose: Purpose) -> Result<DevicePtr> {
        let _entered = self.context.enter()?;
        let mut start = 0;
        let reserved = self.guarded(bytes);
        // SAFETY: the driver chooses the addresses, and writes the first one.
        match unsafe { sys::cuMemAddressReserve(&mut start, reserved, 0, 0, 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory {
                what: format!("addresses of {} on {}", purpose.name(), self.context.name()),
                bytes,
            }),
            code => {
                check("cuMemAddressReserve", code)?;
                self.table.add(DevicePtr(start), bytes);
                Ok(DevicePtr(start))
            }
        }
    }

    fn release(&mut self, start: DevicePtr) -> Result<()> {
        let (bytes, mapped) = self.table.reservation(start)?;
        mapped.into_iter().try_for_each(|at| self.unmap(at))?;
        let _entered = self.context.enter()?;
        // SAFETY: by the table; what was mapped is unmapped.
        unsafe { free(start, self.guarded(bytes)) }?;
        self.table.remove(start);
        Ok(())
    }

    fn create(&mut self, sizes: &[u64], purpose: Purpose) -> Result<Vec<Self::Memory>> {
        let _entered = self.context.enter()?;
        let whole: u64 = sizes.iter().sum();
        let mut left = whole;
        let one = |&bytes: &u64| {
            let made = Physical::new(&self.context, bytes, purpose);
            let made = made.map_err(|error| {
                error.during(|| format!("{left} of {whole} bytes are left to find"))
            })?;
            left -= bytes;
            Ok(self.table.frame(made, bytes, purpose))
        };
        sizes.iter().map(one).collect()
    }

    fn map(&mut self, at: DevicePtr, memory: &Self::Memory) -> Result<()> {
        self.table.check_map(at, memory)?;
        let _entered = self.context.enter()?;
        // SAFETY: the addresses are reserved and have no memory, by the check.
        unsafe { memory.raw.map(at.0) }?;
        self.table.insert(at, memory);
        Ok(())
    }

    fn allow(&mut self, at: DevicePtr, bytes: u64, access: PageAccess) -> Result<()> {
        self.table.check_allow(at, bytes)?;
        let _entered = self.context.enter()?;
        let flags = match access {
            PageAccess::Read => Access::CU_MEM_ACCESS_FLAGS_PROT_READ,
            PageAccess::ReadWrite => Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        physical::allow(&self.context, at.0, bytes, flags)?;
        self.table.allow(at, bytes, access);
        Ok(())
    }

    fn unmap(&mut self, at: DevicePtr) -> Result<()> {
        let bytes = self.table.mapped(at)?;
        let _entered = self.context.enter()?;
        // SAFETY: by the table.
        unsafe { hide(at, bytes) }?;
        self.table.take(at);
        Ok(())
    }
}

impl UserStreams for CudaPages {
    type Event = CudaEvent;
    type Stream = UserStream;

    fn name(&self) -> &str {
        &self.name
    }

    fn record(&mut self, stream: UserStream) -> Result<CudaEvent> {
        let entered = self.context.enter()?;
        let event = self.events.take(&entered)?;
        self.stream(stream, &entered)?.record(&event, &entered)?;
        Ok(event)
    }

    fn stream_wait(&mut self, stream: UserStream, event: &CudaEvent) -> Result<()> {
        let entered = self.context.enter()?;
        self.stream(stream, &entered)?.wait(event, &entered)
    }

    fn is_done(&self, event: &CudaEvent) -> Result<bool> {
        event.is_done(&self.context.enter()?)
    }

    fn wait(&mut self, event: &CudaEvent) -> Result<()> {
        event.synchronize(&self.context.enter()?)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.context.free_bytes(&self.context.enter()?)
    }
}

impl Drop for CudaPages {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        for (at, bytes) in self.table.drain_mapped() {
            // SAFETY: by the table. Whoever owns the device has waited for its streams.
            log_failure(self.context.name(), unsafe { hide(at, bytes) });
        }
        for (start, bytes) in self.table.drain_reserved() {
            // SAFETY: by the table; what was mapped is unmapped.
            let freed = unsafe { free(start, self.guarded(bytes)) };
            log_failure(self.context.name(), freed);
        }
    }
}
