//! For tests: a [`Faulty`] device under the whole of a delegate.
#![deny(unsafe_code)]

use super::delegate_device::{DelegateDevice, Scope};
use super::tensor::Memory;
use crate::device::faulty::{Faults, Faulty};
use crate::device::DevicePtr;
use crate::error::Result;

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

    fn placed_bytes(&self, memory: &Memory<'_>) -> u64 {
        self.inner.placed_bytes(memory)
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
