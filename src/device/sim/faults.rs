//! Calls that fail because a test said so.

use crate::error::{Error, Result};
use std::cell::Cell;

/// Which call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimFault {
    /// Calls of this name; all of them if there is none.
    pub call: Option<&'static str>,
    /// How many of them work before one fails.
    pub after: u64,
    /// All calls after it fail too: the device is lost.
    pub lost: bool,
}

/// Counts the calls, and lets one fail. Cells, since a query counts as well.
#[derive(Debug, Default)]
pub(super) struct SimFaults {
    calls: Cell<u64>,
    pending: Cell<Option<SimFault>>,
    fired: Cell<Option<(&'static str, u64)>>,
    lost: Cell<bool>,
}

impl SimFaults {
    pub(super) fn set(&self, fault: Option<SimFault>) {
        self.pending.set(fault);
    }

    pub(super) fn pending(&self) -> Option<SimFault> {
        self.pending.get()
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.get()
    }

    pub(super) fn fired(&self) -> Option<(&'static str, u64)> {
        self.fired.get()
    }

    /// One more call.
    pub(super) fn call(&self, name: &'static str) -> Result<()> {
        let number = self.calls.get() + 1;
        self.calls.set(number);
        if self.lost.get() {
            return Err(failure(name, "the simulated device is lost"));
        }
        let Some(fault) = self.pending.get() else {
            return Ok(());
        };
        if fault.call.is_some_and(|call| call != name) {
            return Ok(());
        }
        if fault.after > 0 {
            let after = fault.after - 1;
            self.pending.set(Some(SimFault { after, ..fault }));
            return Ok(());
        }
        self.pending.set(None);
        self.fired.set(Some((name, number)));
        self.lost.set(fault.lost);
        Err(failure(name, "injected"))
    }
}

fn failure(call: &'static str, what: &str) -> Error {
    Error::Device {
        call,
        what: what.to_string(),
    }
}
