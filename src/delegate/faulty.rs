//! For tests: a [`Faulty`] device under the whole of a delegate.
#![deny(unsafe_code)]

use super::delegate_device::{DelegateDevice, Scope};
use super::host_storage::{Copier, HostStorage};
use super::tensor::Memory;
use crate::device::faulty::{Faults, Faulty};
use crate::device::{DevicePtr, HostBytes, HostSource};
use crate::error::Result;
use crate::figures::DeviceId;

/// A scope whose entry may fail.
pub struct FaultyScope<S> {
    inner: S,
    faults: Faults,
}

impl<S: Scope> Scope for FaultyScope<S> {
    fn within<R>(&self, body: impl FnOnce() -> R) -> Result<R> {
        self.faults.call("within")?;
        self.inner.within(body)
    }
}

impl<D: DelegateDevice> DelegateDevice for Faulty<D> {
    type Scope = FaultyScope<D::Scope>;

    fn scope(&self) -> Self::Scope {
        FaultyScope {
            inner: self.inner.scope(),
            faults: self.faults.clone(),
        }
    }

    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn full_name(&self) -> String {
        self.inner.full_name()
    }

    fn free_bytes(&self) -> Result<u64> {
        self.faults.call("free_bytes")?;
        self.inner.free_bytes()
    }

    fn placed_bytes(&self, memory: &Memory<'_>) -> u64 {
        self.inner.placed_bytes(memory)
    }

    fn copier(&self) -> Result<Option<Copier>> {
        self.faults.call("copier")?;
        self.inner.copier()
    }

    fn prepare_source(&mut self, source: HostSource, held: HostStorage) -> Result<Vec<HostBytes>> {
        self.faults.call("prepare_source")?;
        self.inner.prepare_source(source, held)
    }

    fn host_bytes(&self) -> (u64, u64) {
        self.inner.host_bytes()
    }

    fn place_input(&mut self, memory: &Memory<'_>) -> Result<DevicePtr> {
        self.faults.call("place_input")?;
        self.inner.place_input(memory)
    }

    fn end_input(&mut self, ptr: DevicePtr, memory: &Memory<'_>) -> Result<()> {
        self.faults.call("end_input")?;
        self.inner.end_input(ptr, memory)
    }
}
