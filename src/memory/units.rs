//! Memory that comes and goes under addresses that stay: what ranges are made of.
//!
//! ```text
//! addresses, reserved:  | unit 0 | unit 1 | unit 2 | u 3 |    a whole number of pages; the last unit may be short
//! memory:                 there    there    -        -       an access without memory is a fault
//! ```
//!
//! Only the last unit of a range is smaller than [`Pages::unit`], so that a range reserves and holds no more than its rounded size.

use crate::device::{DevicePtr, PageAccess, Pages, Purpose};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Units of memory on one device's pages. The caller takes a unit away only when the events of all its users are complete.
pub struct Units<P: Pages> {
    /// The device's pages, and the streams that use them.
    pub pages: P,
    reserved: BTreeMap<DevicePtr, u64>,
    there: BTreeMap<DevicePtr, Unit<P>>,
    /// The memory of the unit that was taken last is kept for the next one. It shows nowhere.
    kept: Option<Unit<P>>,
}

struct Unit<P: Pages> {
    bytes: u64,
    memory: Arc<P::Memory>,
}

impl<P: Pages> Clone for Unit<P> {
    fn clone(&self) -> Self {
        Unit {
            bytes: self.bytes,
            memory: Arc::clone(&self.memory),
        }
    }
}

impl<P: Pages> Units<P> {
    /// None yet.
    pub fn new(pages: P) -> Units<P> {
        Units {
            pages,
            reserved: BTreeMap::new(),
            there: BTreeMap::new(),
            kept: None,
        }
    }

    /// Addresses without memory, a multiple of the page.
    pub fn reserve(&mut self, bytes: u64) -> Result<DevicePtr> {
        let start = self.pages.reserve(bytes, Purpose::Range)?;
        self.reserved.insert(start, bytes);
        Ok(start)
    }

    /// Gives back what [`Units::reserve`] returned. All memory was taken away before.
    pub fn release(&mut self, start: DevicePtr) -> Result<()> {
        let bytes = *self.reserved.get(&start).ok_or_else(|| no_unit(start))?;
        let mut left = self.there.range(start..start.offset(bytes));
        if let Some((at, _)) = left.next() {
            return Err(Error::Internal(format!(
                "addresses at {:#x} are given back while the unit at {:#x} has memory",
                start.0, at.0
            )));
        }
        self.pages.release(start)?;
        self.reserved.remove(&start);
        Ok(())
    }

    /// Puts memory behind `bytes` bytes from `at` on, which are reserved and have none: what [`Units::take`] kept if the size is the
    /// same, else new memory. It holds nothing of value.
    pub fn back(&mut self, at: DevicePtr, bytes: u64) -> Result<()> {
        // What is kept and does not fit goes before new memory comes.
        let unit = match self.kept.take().filter(|kept| kept.bytes == bytes) {
            Some(kept) => kept,
            None => Unit {
                bytes,
                memory: Arc::new(self.pages.create_one(bytes, Purpose::Range)?),
            },
        };
        self.show(at, unit)
    }

    /// Puts the memory behind `of`, a unit, behind `at` as well, whose addresses are reserved and have none. A byte that is written
    /// at one of them is seen at the other. The memory goes once it was taken from all of them.
    pub fn mirror(&mut self, at: DevicePtr, of: DevicePtr) -> Result<()> {
        let unit = self.there.get(&of).cloned();
        self.show(at, unit.ok_or_else(|| no_unit(of))?)
    }

    fn show(&mut self, at: DevicePtr, unit: Unit<P>) -> Result<()> {
        self.pages.map(at, &unit.memory)?;
        if let Err(error) = self.pages.allow(at, unit.bytes, PageAccess::ReadWrite) {
            return self.pages.unmap(at).and(Err(error));
        }
        self.there.insert(at, unit);
        Ok(())
    }

    /// Takes away what [`Units::back`] or [`Units::mirror`] put behind `at`. With `keep` the memory stays for the next
    /// [`Units::back`], unless it shows elsewhere.
    pub fn take(&mut self, at: DevicePtr, keep: bool) -> Result<()> {
        if !self.there.contains_key(&at) {
            return Err(no_unit(at));
        }
        self.pages.unmap(at)?;
        let unit = self.there.remove(&at);
        self.kept = unit.filter(|unit| keep && Arc::strong_count(&unit.memory) == 1);
        Ok(())
    }

    /// Gives memory that was kept back to the system.
    pub fn trim(&mut self) {
        self.kept = None;
    }
}

#[cold]
fn no_unit(at: DevicePtr) -> Error {
    Error::Internal(format!("{:#x} is no unit of a range that has memory", at.0))
}
