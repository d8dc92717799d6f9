//! Addresses that lead to memory elsewhere. Bytes and their history belong to the memory, so that what happens through one
//! address is known through all of them; nothing else here knows of such addresses.

use crate::device::DevicePtr;
use crate::figures::View;
use std::collections::BTreeMap;
use std::ops::Range;

/// First address of views, far from that of weights and of activations; the latter's is the end.
const VIEWS: u64 = 1 << 43;

#[derive(Debug)]
struct Shown {
    view: View,
    /// Where the memory begins, in the weights' addresses.
    memory: u64,
}

impl Shown {
    fn memory(&self) -> Range<u64> {
        self.memory..self.memory + self.view.memory
    }
}

/// The views that are mapped, by address. Addresses are used once, so that one of a view that is gone is found.
#[derive(Debug)]
pub(super) struct Views {
    by_address: BTreeMap<u64, Shown>,
    next: u64,
}

impl Views {
    pub(super) fn new() -> Views {
        Views {
            by_address: BTreeMap::new(),
            next: VIEWS,
        }
    }

    /// New addresses for the memory that begins at `memory`.
    pub(super) fn map(&mut self, view: &View, memory: DevicePtr, page: u64) -> DevicePtr {
        let at = self.next;
        // A page that leads nowhere between two views.
        self.next = at + view.bytes.next_multiple_of(page) + page;
        let shown = Shown {
            view: view.clone(),
            memory: memory.0,
        };
        self.by_address.insert(at, shown);
        DevicePtr(at)
    }

    /// Forgets the view that begins at `ptr`: the memory that was behind it.
    pub(super) fn unmap(&mut self, ptr: DevicePtr) -> Option<Range<u64>> {
        self.by_address.remove(&ptr.0).map(|shown| shown.memory())
    }

    /// The memory of the view that begins at `ptr`.
    pub(super) fn memory_of(&self, ptr: DevicePtr) -> Option<Range<u64>> {
        self.by_address.get(&ptr.0).map(Shown::memory)
    }

    /// Whether `ptr` is an address of one of them.
    pub(super) fn contain(&self, ptr: DevicePtr) -> bool {
        self.find(ptr).is_some()
    }

    /// The memory behind `bytes` bytes at `ptr`, in their order. The end of a page that is used in part is nobody's.
    pub(super) fn behind(&self, ptr: DevicePtr, bytes: u64) -> Option<Vec<Range<u64>>> {
        let (shown, offset) = self.find(ptr)?;
        let parts = shown.view.behind(offset..offset.checked_add(bytes)?)?;
        if parts.iter().any(|part| part.end > shown.view.memory) {
            return None;
        }
        let there = |part: Range<u64>| shown.memory + part.start..shown.memory + part.end;
        Some(parts.into_iter().map(there).collect())
    }

    /// Bytes of memory behind all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.by_address
            .values()
            .map(|shown| shown.view.memory)
            .sum()
    }

    /// Whether the memory at `address` is behind one of them: nobody was told that address.
    pub(super) fn own(&self, address: u64) -> bool {
        let mut all = self.by_address.values();
        all.any(|shown| shown.memory().contains(&address))
    }

    fn find(&self, ptr: DevicePtr) -> Option<(&Shown, u64)> {
        let (start, shown) = self.by_address.range(..=ptr.0).next_back()?;
        let offset = ptr.0 - start;
        (offset < shown.view.bytes).then_some((shown, offset))
    }
}
