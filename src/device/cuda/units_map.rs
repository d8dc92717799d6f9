//! Units of ranges on a GPU: physical memory that is mapped, writable, and unmapped under reserved addresses.
//!
//! Creating, mapping and unmapping a handle costs about the same for 2 and for 32 MiB, 50 to 80 µs. A unit of 32 MiB takes
//! 600 µs to fill at 55 GB/s. With units of 2 MiB moving them would take longer than filling them. Only the last unit of a
//! range is smaller, in pages of the device, so that a range reserves and holds no more than its rounded size.

use super::context::{Context, Entered};
use super::library::{check, log_failure};
use super::physical::{self, allow, Physical};
use super::stream::{CudaEvent, Events, Stream};
use super::PER_THREAD;
use crate::device::units::{UnitTable, Units, UserStream};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use crate::figures::DeviceId;
use cudarc::driver::sys::{self, CUmemAccess_flags as Access, CUresult};
use std::sync::Arc;

const UNIT: u64 = 32 << 20;

/// Units in the memory of a GPU.
pub struct CudaUnits {
    name: String,
    page: u64,
    table: UnitTable<Arc<Physical>>,
    /// Of the unit that was taken last, for the next one. It shows nowhere.
    kept: Option<Arc<Physical>>,
    events: Arc<Events>,
    context: Arc<Context>,
}

impl CudaUnits {
    /// Takes no memory.
    ///
    /// Errors: a GPU without virtual memory management.
    pub fn new(index: u32) -> Result<CudaUnits> {
        let context = Context::retain(index)?;
        let page = physical::page(&context, &context.enter()?)?.ok_or_else(|| {
            Error::Unsupported(format!(
                "ranges need memory that can be mapped, and {} has none \
                 (CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED is 0)",
                context.name()
            ))
        })?;
        Ok(CudaUnits {
            name: DeviceId::Cuda(index).to_string(),
            page,
            table: UnitTable::default(),
            kept: None,
            events: Events::new(&context),
            context,
        })
    }

    /// The stream, which the driver is asked about.
    fn stream(&self, stream: UserStream, entered: &Entered<'_>) -> Result<Stream> {
        if stream.raw().addr() == PER_THREAD {
            return Err(Error::InvalidInput(
                "the per-thread default stream is another stream on each thread; give a stream of your own, or null for \
                 the default stream of all threads"
                    .to_owned(),
            ));
        }
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

    /// Maps physical memory at `at`, writable.
    fn show(&self, at: DevicePtr, memory: &Physical) -> Result<()> {
        // SAFETY: the addresses are reserved and have no memory, by the check in `back` and in `mirror`.
        unsafe { memory.map(at.0) }?;
        let writable = Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        allow(&self.context, at.0, memory.bytes(), writable)
            .inspect_err(|_| log_failure(self.context.name(), hide(at, memory.bytes())))
    }
}

/// Unmaps a unit.
fn hide(at: DevicePtr, bytes: u64) -> Result<()> {
    // SAFETY: mapped as a whole by `show`. Nobody uses it: the promise of the caller of `take`, or it was never handed out.
    check("cuMemUnmap", unsafe {
        sys::cuMemUnmap(at.0, bytes as usize)
    })
}

impl Units for CudaUnits {
    type Event = CudaEvent;
    type Stream = UserStream;

    fn name(&self) -> &str {
        &self.name
    }

    fn page(&self) -> u64 {
        self.page
    }

    fn unit(&self) -> u64 {
        UNIT.next_multiple_of(self.page)
    }

    fn reserve(&mut self, bytes: u64) -> Result<DevicePtr> {
        let _entered = self.context.enter()?;
        let mut start = 0;
        // SAFETY: the driver chooses the addresses, and writes the first one.
        match unsafe { sys::cuMemAddressReserve(&mut start, bytes as usize, 0, 0, 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory {
                what: format!("addresses of a range on {}", self.context.name()),
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
        let bytes = self.table.check_released(start)?;
        let _entered = self.context.enter()?;
        // SAFETY: reserved in `reserve` with this size; nothing is mapped there, by the check.
        check("cuMemAddressFree", unsafe {
            sys::cuMemAddressFree(start.0, bytes as usize)
        })?;
        self.table.remove(start);
        Ok(())
    }

    fn back(&mut self, at: DevicePtr, bytes: u64) -> Result<()> {
        self.table.check_back(at, bytes)?;
        let _entered = self.context.enter()?;
        // What is kept and does not fit goes before new memory comes.
        let memory = match self.kept.take().filter(|kept| kept.bytes() == bytes) {
            Some(kept) => kept,
            None => Arc::new(Physical::new(&self.context, bytes, || {
                "a range's unit".to_owned()
            })?),
        };
        self.show(at, &memory)?;
        self.table.insert(at, bytes, memory);
        Ok(())
    }

    fn mirror(&mut self, at: DevicePtr, of: DevicePtr) -> Result<()> {
        let (bytes, memory) = self.table.get(of)?;
        let memory = Arc::clone(memory);
        self.table.check_back(at, bytes)?;
        let _entered = self.context.enter()?;
        self.show(at, &memory)?;
        self.table.insert(at, bytes, memory);
        Ok(())
    }

    fn take(&mut self, at: DevicePtr, keep: bool) -> Result<()> {
        let (bytes, _) = self.table.get(at)?;
        let _entered = self.context.enter()?;
        hide(at, bytes)?;
        let memory = self.table.take(at).map(|(_, memory)| memory);
        self.kept = memory.filter(|memory| keep && Arc::strong_count(memory) == 1);
        Ok(())
    }

    fn trim(&mut self) -> Result<()> {
        self.kept = None;
        Ok(())
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

impl Drop for CudaUnits {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        let name = self.context.name();
        for (at, bytes, _memory) in self.table.drain() {
            log_failure(name, hide(at, bytes));
        }
        for (start, bytes) in self.table.drain_reserved() {
            // SAFETY: reserved in `reserve` with this size; what was mapped there is unmapped.
            let code = unsafe { sys::cuMemAddressFree(start.0, bytes as usize) };
            log_failure(name, check("cuMemAddressFree", code));
        }
    }
}
