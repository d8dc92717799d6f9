//! Which call goes wrong, and what is alive.
#![deny(unsafe_code)]

use crate::device::Purpose;
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What goes wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The n-th call fails, counted from 1; it is not made.
    Call(u64),
    /// From the n-th call on all fail: a device that is lost.
    From(u64),
    /// The n-th call that takes memory finds none.
    Memory(u64),
    /// The n-th copy of weights arrives with one bit flipped.
    Bit(u64),
}

/// What a test decides about a device, and what it sees of it.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<FaultState>>);

#[derive(Debug, Default)]
pub(super) struct FaultState {
    fault: Fault,
    calls: u64,
    takes: u64,
    copies: u64,
    failed: Vec<&'static str>,
    pub(super) live: LiveCounts,
}

/// What is alive on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// The device itself.
    pub devices: usize,
    /// Its events.
    pub events: usize,
    /// Bytes of weights' memory, mapped memory among them.
    pub bytes: u64,
    /// Bytes of activations and placed inputs.
    pub scratch_bytes: u64,
}

impl Faults {
    /// One fault to come.
    pub fn new(fault: Fault) -> Faults {
        let faults = Faults::default();
        faults.state().fault = fault;
        faults
    }

    /// Names of the calls that were made to fail, in order.
    pub fn failed(&self) -> Vec<&'static str> {
        self.state().failed.clone()
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// What is alive now. The memory of a device that ended is not counted.
    pub fn live(&self) -> LiveCounts {
        self.state().live
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FaultState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call is about to be made.
    pub(crate) fn call(&self, call: &'static str) -> Result<()> {
        let mut state = self.state();
        state.calls += 1;
        let fails = match state.fault {
            Fault::Call(n) => state.calls == n,
            Fault::From(n) => state.calls >= n,
            Fault::None | Fault::Memory(_) | Fault::Bit(_) => false,
        };
        if !fails {
            return Ok(());
        }
        state.failed.push(call);
        Err(Error::Device {
            call,
            what: "a test made this call fail".to_owned(),
        })
    }

    /// Whether calls fail from now on.
    pub(super) fn is_lost(&self) -> bool {
        let state = self.state();
        matches!(state.fault, Fault::From(n) if state.calls >= n)
    }

    /// A call that takes memory is about to be made.
    pub(super) fn take(&self, call: &'static str, what: &str, bytes: u64) -> Result<()> {
        self.call(call)?;
        let mut state = self.state();
        state.takes += 1;
        if state.fault != Fault::Memory(state.takes) {
            return Ok(());
        }
        state.failed.push(call);
        Err(Error::OutOfMemory {
            what: format!("{what}: a test made this call fail"),
            bytes,
        })
    }

    pub(super) fn flips_this_copy(&self) -> bool {
        let mut state = self.state();
        state.copies += 1;
        let flips = state.fault == Fault::Bit(state.copies);
        if flips {
            state.failed.push("bring");
        }
        flips
    }

    pub(super) fn memory<M>(&self, inner: M, bytes: u64, purpose: Purpose) -> FaultyMemory<M> {
        let counted = Counted {
            bytes,
            purpose,
            faults: self.clone(),
        };
        *counted.count(&mut self.state().live) += bytes;
        FaultyMemory {
            inner,
            _counted: Arc::new(counted),
        }
    }

    pub(super) fn event<E>(&self, inner: E) -> FaultyEvent<E> {
        self.state().live.events += 1;
        FaultyEvent {
            inner,
            faults: self.clone(),
        }
    }
}

/// Memory that is counted.
#[derive(Debug, Clone)]
pub struct FaultyMemory<M> {
    pub(super) inner: M,
    _counted: Arc<Counted>,
}

#[derive(Debug)]
struct Counted {
    bytes: u64,
    purpose: Purpose,
    faults: Faults,
}

impl Counted {
    /// The count that it is part of.
    fn count<'a>(&self, live: &'a mut LiveCounts) -> &'a mut u64 {
        match self.purpose {
            Purpose::Activations => &mut live.scratch_bytes,
            _ => &mut live.bytes,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // The device may have ended before, and with it all that was counted.
        let live = &mut self.faults.state().live;
        let count = self.count(live);
        *count = count.saturating_sub(self.bytes);
    }
}

/// An event that is counted.
#[derive(Debug)]
pub struct FaultyEvent<E> {
    pub(super) inner: E,
    faults: Faults,
}

impl<E> Drop for FaultyEvent<E> {
    fn drop(&mut self) {
        self.faults.state().live.events -= 1;
    }
}
