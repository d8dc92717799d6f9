//! Memory that its owner holds until it gives it up: rings of ranges, graph pools, segments of another allocator.
//!
//! ```text
//! addresses, reserved:  | unit 0 | unit 1 | unit 2 | u 3 |
//! memory:                 there    there    -        -       from the start on, as far as it has grown
//! ```

use super::Units;
use crate::device::{DevicePtr, Pages};
use crate::error::Result;

/// Addresses, and memory behind the first of them. It does not go by itself: [`Holder::end`] gives it back.
#[derive(Debug)]
pub struct Holder {
    start: DevicePtr,
    bytes: u64,
    unit: u64,
    held: u64,
}

impl Holder {
    /// Addresses for `bytes` bytes, a multiple of the page, without memory.
    pub fn new<P: Pages>(units: &mut Units<P>, bytes: u64) -> Result<Holder> {
        Ok(Holder {
            start: units.reserve(bytes)?,
            bytes,
            unit: units.pages.unit(),
            held: 0,
        })
    }

    /// The first address.
    pub fn start(&self) -> DevicePtr {
        self.start
    }

    /// Bytes that are reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that have memory.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Bytes of the first units: the last one may be short.
    pub fn bytes_of(&self, units: usize) -> u64 {
        (units as u64).saturating_mul(self.unit).min(self.bytes)
    }

    /// Units that hold the first `bytes` bytes.
    pub fn units_for(&self, bytes: u64) -> usize {
        bytes.div_ceil(self.unit) as usize
    }

    /// Puts memory behind the first `count` units. After an error those before it have theirs.
    pub fn grow<P: Pages>(&mut self, units: &mut Units<P>, count: usize) -> Result<()> {
        while self.held < self.bytes_of(count) {
            let next = self.bytes_of(self.units_for(self.held) + 1);
            units.back(self.start.offset(self.held), next - self.held)?;
            self.held = next;
        }
        Ok(())
    }

    /// Takes the memory behind all but the first `count` units, which nobody uses.
    pub fn shrink<P: Pages>(&mut self, units: &mut Units<P>, count: usize) -> Result<()> {
        while self.held > self.bytes_of(count) {
            let last = self.bytes_of(self.units_for(self.held) - 1);
            units.take(self.start.offset(last), false)?;
            self.held = last;
        }
        Ok(())
    }

    /// Shows a unit at its place in further addresses as well, which begin at `start` and are as many as these.
    pub fn mirror<P: Pages>(
        &self,
        units: &mut Units<P>,
        unit: usize,
        start: DevicePtr,
    ) -> Result<()> {
        let offset = self.bytes_of(unit);
        units.mirror(start.offset(offset), self.start.offset(offset))
    }

    /// Takes the first `count` units away from further addresses, and gives these back. Nobody uses them any more.
    pub fn end_mirror<P: Pages>(
        &self,
        units: &mut Units<P>,
        start: DevicePtr,
        count: usize,
    ) -> Result<()> {
        for unit in 0..count {
            units.take(start.offset(self.bytes_of(unit)), false)?;
        }
        units.release(start)
    }

    /// Gives memory and addresses back, which nobody uses.
    pub fn end<P: Pages>(&mut self, units: &mut Units<P>) -> Result<()> {
        self.shrink(units, 0)?;
        units.release(self.start)
    }
}
