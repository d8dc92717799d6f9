//! The units of ranges on the simulated device.

use crate::device::units::UnitTable;
use crate::device::DevicePtr;
use std::ops::Range;
use std::sync::Arc;

/// First address of ranges, between those of views and of activations.
const RANGES: u64 = 3 << 42;

/// The units, and where their memory lies among the weights' addresses. It can be behind several units.
#[derive(Debug)]
pub(super) struct SimUnits {
    pub(super) table: UnitTable<Arc<DevicePtr>>,
    /// Addresses are used once, so that one of a range that is gone is found.
    pub(super) next: u64,
}

impl SimUnits {
    pub(super) fn new() -> SimUnits {
        SimUnits {
            table: UnitTable::default(),
            next: RANGES,
        }
    }

    /// The memory behind `bytes` bytes at `ptr`, in their order.
    pub(super) fn behind(&self, ptr: DevicePtr, bytes: u64) -> Option<Vec<Range<u64>>> {
        let parts = self.table.covering(ptr, bytes)?;
        let there =
            |(from, to, memory): (u64, u64, &Arc<DevicePtr>)| memory.0 + from..memory.0 + to;
        Some(parts.into_iter().map(there).collect())
    }
}
