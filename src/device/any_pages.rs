//! Pages of either kind of device, for callers that learn at run time which one is meant.
#![deny(unsafe_code)]

use super::{CudaPages, DevicePtr, HostPages, PageAccess, Pages, Purpose, UserStream, UserStreams};
use crate::error::{Error, Result};
use crate::figures::DeviceId;

/// Pages of the CPU, or on a GPU.
pub enum AnyPages {
    /// In host memory.
    Host(HostPages),
    /// In the memory of a GPU.
    Cuda(CudaPages),
}

/// A point in a stream of one of them.
pub enum AnyEvent {
    /// All work is done when it is recorded.
    Host,
    /// An event of the driver.
    Cuda(super::cuda::CudaEvent),
}

impl AnyPages {
    /// Those of a device.
    pub fn of(device: DeviceId) -> Result<AnyPages> {
        match device {
            DeviceId::Cpu => HostPages::new().map(AnyPages::Host),
            DeviceId::Cuda(index) => CudaPages::new(index).map(AnyPages::Cuda),
        }
    }
}

/// Runs calls of a device's pages while streams of the process may be captured. Units of the device exist.
pub fn while_captured<R>(device: DeviceId, work: impl FnOnce() -> R) -> Result<R> {
    match device {
        DeviceId::Cpu => Ok(work()),
        DeviceId::Cuda(_) => super::cuda::relaxed(work),
    }
}

/// Makes a call of whichever device it is.
macro_rules! either {
    ($self:expr, $pages:ident => $call:expr) => {
        match $self {
            AnyPages::Host($pages) => $call,
            AnyPages::Cuda($pages) => $call,
        }
    };
}

#[cold]
fn of_another_device(what: &str) -> Error {
    Error::Internal(format!("{what} of another device"))
}

/// Memory of one of them.
#[derive(Clone)]
pub enum AnyMemory {
    /// Host memory.
    Host(MemoryOfPages<HostPages>),
    /// Memory of a GPU.
    Cuda(MemoryOfPages<CudaPages>),
}

type MemoryOfPages<P> = <P as Pages>::Memory;

impl Pages for AnyPages {
    type Memory = AnyMemory;

    fn page(&self) -> u64 {
        either!(self, pages => pages.page())
    }

    fn unit(&self) -> u64 {
        either!(self, pages => pages.unit())
    }

    fn total_bytes(&mut self) -> Result<u64> {
        either!(self, pages => pages.total_bytes())
    }

    fn reserve(&mut self, bytes: u64, purpose: Purpose) -> Result<DevicePtr> {
        either!(self, pages => pages.reserve(bytes, purpose))
    }

    fn release(&mut self, start: DevicePtr) -> Result<()> {
        either!(self, pages => pages.release(start))
    }

    fn create(&mut self, sizes: &[u64], purpose: Purpose) -> Result<Vec<AnyMemory>> {
        Ok(match self {
            AnyPages::Host(pages) => {
                let all = pages.create(sizes, purpose)?.into_iter();
                all.map(AnyMemory::Host).collect()
            }
            AnyPages::Cuda(pages) => {
                let all = pages.create(sizes, purpose)?.into_iter();
                all.map(AnyMemory::Cuda).collect()
            }
        })
    }

    fn map(&mut self, at: DevicePtr, memory: &AnyMemory) -> Result<()> {
        match (self, memory) {
            (AnyPages::Host(pages), AnyMemory::Host(memory)) => pages.map(at, memory),
            (AnyPages::Cuda(pages), AnyMemory::Cuda(memory)) => pages.map(at, memory),
            _ => Err(of_another_device("memory")),
        }
    }

    fn allow(&mut self, at: DevicePtr, bytes: u64, access: PageAccess) -> Result<()> {
        either!(self, pages => pages.allow(at, bytes, access))
    }

    fn unmap(&mut self, at: DevicePtr) -> Result<()> {
        either!(self, pages => pages.unmap(at))
    }
}

impl UserStreams for AnyPages {
    type Event = AnyEvent;
    type Stream = UserStream;

    fn name(&self) -> &str {
        either!(self, pages => UserStreams::name(pages))
    }

    fn record(&mut self, stream: UserStream) -> Result<AnyEvent> {
        match self {
            AnyPages::Host(pages) => pages.record(stream).map(|()| AnyEvent::Host),
            AnyPages::Cuda(pages) => pages.record(stream).map(AnyEvent::Cuda),
        }
    }

    fn stream_wait(&mut self, stream: UserStream, event: &AnyEvent) -> Result<()> {
        match (self, event) {
            (AnyPages::Host(pages), AnyEvent::Host) => pages.stream_wait(stream, &()),
            (AnyPages::Cuda(pages), AnyEvent::Cuda(event)) => pages.stream_wait(stream, event),
            _ => Err(of_another_device("an event")),
        }
    }

    fn is_done(&self, event: &AnyEvent) -> Result<bool> {
        match (self, event) {
            (AnyPages::Host(pages), AnyEvent::Host) => pages.is_done(&()),
            (AnyPages::Cuda(pages), AnyEvent::Cuda(event)) => pages.is_done(event),
            _ => Err(of_another_device("an event")),
        }
    }

    fn wait(&mut self, event: &AnyEvent) -> Result<()> {
        match (self, event) {
            (AnyPages::Host(pages), AnyEvent::Host) => pages.wait(&()),
            (AnyPages::Cuda(pages), AnyEvent::Cuda(event)) => pages.wait(event),
            _ => Err(of_another_device("an event")),
        }
    }

    fn free_bytes(&self) -> Result<u64> {
        either!(self, pages => pages.free_bytes())
    }
}
