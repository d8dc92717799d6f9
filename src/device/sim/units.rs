//! Units of ranges: memory that is taken away on the host, at once. The clock of the calling thread says whether that is right.

use super::clock::{Access, Actor, What};
use super::{Sim, SimEvent};
use crate::device::units::Units;
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Four pages: units are whole, and the last of a range may be short.
const PAGES: u64 = 4;

impl Sim {
    fn unit_page(&self) -> u64 {
        self.page.unwrap_or(super::PAGE)
    }

    /// The calling thread takes memory away, or one of its addresses. Whatever used it has to be complete by what the thread knows.
    fn unmapped(&mut self, range: &Range<u64>, goes: bool) {
        let host = self.host.get();
        let access = Access {
            what: What::Unmapped,
            stream: Actor::Host,
            epoch: host.of(Actor::Host),
            call: self.faults.calls(),
        };
        let regions = &mut self.space_of(range.start).regions;
        let problem = match goes {
            true => regions.write(range.clone(), access, &host, false),
            false => regions.unordered(range, access, &host),
        };
        // rule: sim-sees-units-that-go-early
        problem.into_iter().for_each(|problem| self.report(problem));
        if goes {
            self.bytes_mut(range).fill(super::space::POISON);
        }
    }
}

impl Units for Sim {
    type Event = SimEvent;
    type Stream = Actor;

    fn name(&self) -> &str {
        "sim"
    }

    fn page(&self) -> u64 {
        self.unit_page()
    }

    fn unit(&self) -> u64 {
        PAGES * self.unit_page()
    }

    fn reserve(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.call("reserve_units")?;
        let start = DevicePtr(self.units.next);
        // A page that leads nowhere between two ranges.
        self.units.next += bytes + self.unit_page();
        self.units.table.add(start, bytes);
        Ok(start)
    }

    fn release(&mut self, start: DevicePtr) -> Result<()> {
        self.call("release_units")?;
        self.units.table.check_released(start)?;
        self.units.table.remove(start);
        Ok(())
    }

    fn back(&mut self, at: DevicePtr, bytes: u64) -> Result<()> {
        self.call("back_unit")?;
        self.units.table.check_back(at, bytes)?;
        let memory = Sim::take(self, "a range's unit", bytes)?;
        self.units.table.insert(at, bytes, Arc::new(memory));
        Ok(())
    }

    fn mirror(&mut self, at: DevicePtr, of: DevicePtr) -> Result<()> {
        self.call("mirror_unit")?;
        let (bytes, memory) = self.units.table.get(of)?;
        let memory = Arc::clone(memory);
        self.units.table.check_back(at, bytes)?;
        self.units.table.insert(at, bytes, memory);
        Ok(())
    }

    fn take(&mut self, at: DevicePtr, _keep: bool) -> Result<()> {
        self.call("take_unit")?;
        let (bytes, memory) = self.units.table.get(at)?;
        let (start, goes) = (**memory, Arc::strong_count(memory) == 1);
        if goes {
            self.weights.give(start, bytes)?;
        }
        self.units.table.take(at);
        self.unmapped(&(start.0..start.0 + bytes), goes);
        Ok(())
    }

    fn record(&mut self, stream: Actor) -> Result<SimEvent> {
        match stream {
            Actor::Copy => self.record_copy(),
            Actor::Compute => self.record_compute(),
            Actor::Host => Err(Error::Internal("the calling thread is no stream".into())),
        }
    }

    fn stream_wait(&mut self, stream: Actor, event: &SimEvent) -> Result<()> {
        match stream {
            Actor::Copy => self.copy_wait(event),
            _ => self.compute_wait(event),
        }
    }

    fn is_done(&self, event: &SimEvent) -> Result<bool> {
        Device::is_done(self, event)
    }

    fn wait(&mut self, event: &SimEvent) -> Result<()> {
        self.call("wait")?;
        let (stream, count) = (event.stream, event.count);
        let enough = |sim: &Sim| match stream {
            Actor::Copy => sim.copy.done >= count,
            _ => sim.compute.done >= count,
        };
        if !self.run_until(true, enough) {
            return Err(Error::Internal("the streams wait for each other".into()));
        }
        self.learn(&event.clock);
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64> {
        self.call("free_bytes")?;
        let live = self.live_bytes();
        Ok(self
            .budget
            .map_or(u64::MAX / 2, |budget| budget.saturating_sub(live)))
    }
}
