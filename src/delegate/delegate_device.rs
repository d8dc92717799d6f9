//! What the kinds of devices do differently in a load and a call: where inputs lie, what has to be current
//! while compiled code runs.
#![deny(unsafe_code)]

use super::tensor::Memory;
use crate::config::{LinkRate, Options, DEVICE};
use crate::device::{
    cuda::CudaContext, not_here, CallerStream, CudaDevice, Device, DevicePtr, HostDevice,
    WeightDevice,
};
use crate::error::{Error, Result};
use crate::figures::Link;
use crate::format::Record;

/// Index of the GPU that programs run on where no other was asked for.
const FIRST: u32 = 0;

/// A device as the delegate uses it.
pub trait DelegateDevice: WeightDevice {
    /// What surrounds calls into compiled code.
    type Scope: Scope;

    /// What surrounds calls into compiled code.
    fn scope(&self) -> Self::Scope;

    /// Device memory that an input takes during a call, beside its own.
    fn placed_bytes(&self, memory: &Memory<'_>) -> u64;

    /// Where kernels find an input whose bytes these are, until [`DelegateDevice::end_input`].
    fn place_input(&mut self, memory: &Memory<'_>) -> Result<DevicePtr>;

    /// The pass that reads the input at `ptr` was issued.
    fn end_input(&mut self, ptr: DevicePtr, memory: &Memory<'_>) -> Result<()>;
}

/// What has to hold while compiled code is called.
pub trait Scope: Send {
    /// Calls `body` with it.
    fn within<R>(&self, body: impl FnOnce() -> R) -> Result<R>;
}

/// Nothing.
pub struct Anywhere;

impl Scope for Anywhere {
    fn within<R>(&self, body: impl FnOnce() -> R) -> Result<R> {
        Ok(body())
    }
}

impl DelegateDevice for HostDevice {
    type Scope = Anywhere;

    fn scope(&self) -> Anywhere {
        Anywhere
    }

    /// None: inputs are read where they are.
    fn placed_bytes(&self, _memory: &Memory<'_>) -> u64 {
        0
    }

    fn place_input(&mut self, memory: &Memory<'_>) -> Result<DevicePtr> {
        match memory {
            Memory::Host(bytes) => Ok(DevicePtr(bytes.as_ptr().expose_provenance() as u64)),
            Memory::Device(bytes) => Err(not_here(self.name(), *bytes)),
        }
    }

    fn end_input(&mut self, _ptr: DevicePtr, _memory: &Memory<'_>) -> Result<()> {
        Ok(())
    }
}

impl Scope for CudaContext {
    fn within<R>(&self, body: impl FnOnce() -> R) -> Result<R> {
        self.with_current(body)
    }
}

impl DelegateDevice for CudaDevice {
    type Scope = CudaContext;

    fn scope(&self) -> CudaContext {
        self.context()
    }

    fn placed_bytes(&self, memory: &Memory<'_>) -> u64 {
        match memory {
            Memory::Host(bytes) => (bytes.len() as u64).next_multiple_of(self.granule()),
            Memory::Device(_) => 0,
        }
    }

    fn place_input(&mut self, memory: &Memory<'_>) -> Result<DevicePtr> {
        let bytes = match memory {
            Memory::Host(bytes) => *bytes,
            Memory::Device(bytes) => return self.lend(*bytes),
        };
        let ptr = self.alloc_scratch(bytes.len() as u64)?;
        match self.upload(ptr, bytes) {
            Ok(()) => Ok(ptr),
            Err(error) => {
                // The upload's error says more than that of a device that is lost.
                let _ = self.free_scratch(ptr, bytes.len() as u64);
                Err(error)
            }
        }
    }

    fn end_input(&mut self, ptr: DevicePtr, memory: &Memory<'_>) -> Result<()> {
        match memory {
            Memory::Host(bytes) => self.free_scratch(ptr, bytes.len() as u64),
            Memory::Device(bytes) => self.end_lending(*bytes, ptr),
        }
    }
}

/// What only a GPU can do, asked of a method for the CPU, is an error: it could only be ignored.
pub fn open_host(
    record: &Record,
    options: &Options,
    stream: Option<CallerStream>,
) -> Result<HostDevice> {
    if options.device.is_some() {
        return Err(Error::Option {
            key: DEVICE.to_owned(),
            what: format!(
                "method '{}' was exported for the device '{}', so there is no GPU to choose; leave the option out",
                record.method, record.device
            ),
        });
    }
    if stream.is_some() {
        return Err(Error::Unsupported(format!(
            "method '{}' was exported for the device '{}', which has no streams; load it without one",
            record.method, record.device
        )));
    }
    HostDevice::new()
}

/// The GPU that `record` is to run on, with the caller's stream or one of its own.
pub fn open_cuda(
    record: &Record,
    options: &Options,
    stream: Option<CallerStream>,
) -> Result<CudaDevice> {
    let index = options.device.unwrap_or(FIRST);
    let device = match stream {
        Some(stream) => CudaDevice::on_stream(index, stream),
        None => CudaDevice::new(index),
    };
    let mut device = device.map_err(|error| match error {
        Error::Missing { name, place } => Error::Unsupported(format!(
            "method '{}' was exported for the device 'cuda': '{name}' is missing in {place}",
            record.method
        )),
        other => other,
    })?;
    check_sm(record, device.sm()?, device.full_name())?;
    match options.link {
        LinkRate::Unsaid | LinkRate::Timed => device.time_link(),
        LinkRate::Given(rate) => device.set_link(Link::of_rate(rate)),
    }
    Ok(device)
}

/// Embedded kernels are machine code, and run on the version that they were compiled for.
fn check_sm(record: &Record, found: u32, device: &str) -> Result<()> {
    if record.target.sms.contains(&found) {
        return Ok(());
    }
    let names: Vec<_> = record
        .target
        .sms
        .iter()
        .map(|sm| format!("sm_{sm}"))
        .collect();
    Err(Error::Unsupported(format!(
        "method '{}' has kernels for {}, and {device} is sm_{found}; export it for that kind of GPU",
        record.method,
        names.join(", ")
    )))
}
