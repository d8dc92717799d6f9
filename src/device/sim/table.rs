//! What is mapped on the simulated device, and where its memory lies.

use crate::device::{AddressTable, DevicePtr};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// First address of pages, between those of weights and of activations.
const PAGES: u64 = 1 << 43;

/// Memory that was dropped, until the device takes it back.
type Dropped = Arc<Mutex<Vec<Range<u64>>>>;

/// Where memory lies among the addresses of weights, or of activations.
#[derive(Debug)]
pub struct SimPages {
    pub(super) memory: Range<u64>,
    pub(super) dropped: Dropped,
}

impl Drop for SimPages {
    fn drop(&mut self) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.push(self.memory.clone());
    }
}

/// What is mapped. Addresses are used once, so that one of a view or a range that is gone is found.
#[derive(Debug)]
pub(super) struct SimTable {
    pub(super) table: AddressTable<SimPages>,
    pub(super) next: u64,
    /// Start and end of the memory of pages.
    pub(super) owned: BTreeMap<u64, u64>,
    pub(super) dropped: Dropped,
}

impl SimTable {
    pub(super) fn new() -> SimTable {
        SimTable {
            table: AddressTable::default(),
            next: PAGES,
            owned: BTreeMap::new(),
            dropped: Dropped::default(),
        }
    }

    /// The memory behind `bytes` bytes at `ptr`, in their order; neighbours are one range.
    pub(super) fn behind(&self, ptr: DevicePtr, bytes: u64) -> Option<Vec<Range<u64>>> {
        let mut all: Vec<Range<u64>> = Vec::new();
        for (offsets, pages) in self.table.behind(ptr, bytes)? {
            let start = pages.memory.start + offsets.start;
            let end = pages.memory.start + offsets.end;
            match all.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => all.push(start..end),
            }
        }
        Some(all)
    }

    /// Whether memory of pages lies at this address: nobody was told it.
    pub(super) fn own(&self, address: u64) -> bool {
        let found = self.owned.range(..=address).next_back();
        found.is_some_and(|(_, end)| address < *end)
    }

    pub(super) fn dropped(&self) -> Vec<Range<u64>> {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut dropped)
    }

    /// Bytes of weights' memory that was dropped.
    pub(super) fn dropped_bytes(&self, is_weights: impl Fn(&Range<u64>) -> bool) -> u64 {
        let dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = |range: &Range<u64>| range.end - range.start;
        dropped
            .iter()
            .filter(|range| is_weights(range))
            .map(bytes)
            .sum()
    }
}
