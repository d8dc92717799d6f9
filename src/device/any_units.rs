//! Units of either kind of device, for callers that learn at run time which one is meant.
#![deny(unsafe_code)]

use super::{CudaUnits, DevicePtr, HostUnits, Units, UserStream};
use crate::error::{Error, Result};
use crate::figures::DeviceId;

/// Units on the CPU, or on a GPU.
pub enum AnyUnits {
    /// In host memory.
    Host(HostUnits),
    /// In the memory of a GPU.
    Cuda(CudaUnits),
}

/// A point in a stream of one of them.
pub enum AnyEvent {
    /// All work is done when it is recorded.
    Host,
    /// An event of the driver.
    Cuda(super::cuda::CudaEvent),
}

impl AnyUnits {
    /// Those of a device.
    pub fn of(device: DeviceId) -> Result<AnyUnits> {
        match device {
            DeviceId::Cpu => HostUnits::new().map(AnyUnits::Host),
            DeviceId::Cuda(index) => CudaUnits::new(index).map(AnyUnits::Cuda),
        }
    }
}

/// Runs calls of a device's units while streams of the process may be captured. Units of the device exist.
pub fn while_captured<R>(device: DeviceId, work: impl FnOnce() -> R) -> Result<R> {
    match device {
        DeviceId::Cpu => Ok(work()),
        DeviceId::Cuda(_) => super::cuda::relaxed(work),
    }
}

/// The same call of either device.
macro_rules! either {
    ($self:expr, $units:ident => $call:expr) => {
        match $self {
            AnyUnits::Host($units) => $call,
            AnyUnits::Cuda($units) => $call,
        }
    };
}

fn of_another_device() -> Error {
    Error::Internal("an event was recorded on another device".to_owned())
}

impl Units for AnyUnits {
    type Event = AnyEvent;
    type Stream = UserStream;

    fn name(&self) -> &str {
        either!(self, units => units.name())
    }

    fn page(&self) -> u64 {
        either!(self, units => units.page())
    }

    fn unit(&self) -> u64 {
        either!(self, units => units.unit())
    }

    fn reserve(&mut self, bytes: u64) -> Result<DevicePtr> {
        either!(self, units => units.reserve(bytes))
    }

    fn release(&mut self, start: DevicePtr) -> Result<()> {
        either!(self, units => units.release(start))
    }

    fn back(&mut self, at: DevicePtr, bytes: u64) -> Result<()> {
        either!(self, units => units.back(at, bytes))
    }

    fn mirror(&mut self, at: DevicePtr, of: DevicePtr) -> Result<()> {
        either!(self, units => units.mirror(at, of))
    }

    fn take(&mut self, at: DevicePtr, keep: bool) -> Result<()> {
        either!(self, units => units.take(at, keep))
    }

    fn trim(&mut self) -> Result<()> {
        either!(self, units => units.trim())
    }

    fn record(&mut self, stream: UserStream) -> Result<AnyEvent> {
        match self {
            AnyUnits::Host(units) => units.record(stream).map(|()| AnyEvent::Host),
            AnyUnits::Cuda(units) => units.record(stream).map(AnyEvent::Cuda),
        }
    }

    fn stream_wait(&mut self, stream: UserStream, event: &AnyEvent) -> Result<()> {
        match (self, event) {
            (AnyUnits::Host(units), AnyEvent::Host) => units.stream_wait(stream, &()),
            (AnyUnits::Cuda(units), AnyEvent::Cuda(event)) => units.stream_wait(stream, event),
            _ => Err(of_another_device()),
        }
    }

    fn is_done(&self, event: &AnyEvent) -> Result<bool> {
        match (self, event) {
            (AnyUnits::Host(units), AnyEvent::Host) => units.is_done(&()),
            (AnyUnits::Cuda(units), AnyEvent::Cuda(event)) => units.is_done(event),
            _ => Err(of_another_device()),
        }
    }

    fn wait(&mut self, event: &AnyEvent) -> Result<()> {
        match (self, event) {
            (AnyUnits::Host(units), AnyEvent::Host) => units.wait(&()),
            (AnyUnits::Cuda(units), AnyEvent::Cuda(event)) => units.wait(event),
            _ => Err(of_another_device()),
        }
    }

    fn free_bytes(&self) -> Result<u64> {
        either!(self, units => units.free_bytes())
    }
}
