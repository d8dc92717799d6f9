//! Pages of the simulated device. Their memory is taken from that of weights or of activations, so that what happens through one
//! address is known through all of them. Unmapping acts at once, on the host: the clock of the calling thread says whether that is
//! right.

use super::clock::{Access, Actor, What};
use super::table::SimPages;
use super::{Sim, SimEvent};
use crate::device::pages::{PageAccess, Pages, Purpose, UserStreams};
use crate::device::Frame;
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of addresses for a block of activations: what the device is said to have.
const TOTAL: u64 = 1 << 36;

/// Four pages: units are whole, and the last of a range may be short.
const UNIT: u64 = 4;

impl Sim {
    fn page_bytes(&self) -> u64 {
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

    /// Takes memory back that was dropped.
    pub(super) fn take_dropped(&mut self) -> Result<()> {
        for range in self.mapped.dropped() {
            self.unmapped(&range, true);
            let bytes = range.end - range.start;
            self.mapped.owned.remove(&range.start);
            self.space_of(range.start)
                .give(DevicePtr(range.start), bytes)?;
        }
        Ok(())
    }
}

impl Pages for Sim {
    type Memory = Arc<Frame<SimPages>>;

    fn page(&self) -> u64 {
        self.page_bytes()
    }

    fn unit(&self) -> u64 {
        UNIT * self.page_bytes()
    }

    fn total_bytes(&mut self) -> Result<u64> {
        Ok(TOTAL)
    }

    fn reserve(&mut self, bytes: u64, _purpose: Purpose) -> Result<DevicePtr> {
        self.call("reserve")?;
        self.graphs.refuse("an allocation")?;
        let start = DevicePtr(self.mapped.next);
        // A page that leads nowhere between two of them.
        self.mapped.next += bytes + self.page_bytes();
        self.mapped.table.add(start, bytes);
        Ok(start)
    }

    fn release(&mut self, start: DevicePtr) -> Result<()> {
        self.call("release")?;
        self.graphs.refuse("giving memory back")?;
        let (_, mapped) = self.mapped.table.reservation(start)?;
        mapped.into_iter().try_for_each(|at| self.hide(at))?;
        self.mapped.table.remove(start);
        self.take_dropped()
    }

    fn create(&mut self, sizes: &[u64], purpose: Purpose) -> Result<Vec<Self::Memory>> {
        self.call("create")?;
        self.graphs.refuse("an allocation")?;
        self.take_dropped()?;
        sizes
            .iter()
            .map(|bytes| self.frame(*bytes, purpose))
            .collect()
    }

    fn map(&mut self, at: DevicePtr, memory: &Self::Memory) -> Result<()> {
        self.call("map")?;
        self.mapped.table.check_map(at, memory)?;
        self.mapped.table.insert(at, memory);
        Ok(())
    }

    fn allow(&mut self, at: DevicePtr, bytes: u64, access: PageAccess) -> Result<()> {
        self.call("allow")?;
        self.mapped.table.check_allow(at, bytes)?;
        self.mapped.table.allow(at, bytes, access);
        Ok(())
    }

    fn unmap(&mut self, at: DevicePtr) -> Result<()> {
        self.call("unmap")?;
        self.graphs.refuse("giving memory back")?;
        self.hide(at)
    }
}

impl Sim {
    fn frame(&mut self, bytes: u64, purpose: Purpose) -> Result<Arc<Frame<SimPages>>> {
        let memory = match purpose {
            Purpose::Activations => self.scratch.take(purpose.name(), bytes)?,
            _ if bytes > TOTAL => {
                let what = purpose.name().to_owned();
                return Err(Error::OutOfMemory { what, bytes });
            }
            _ => {
                let live = self.live_bytes().saturating_add(bytes);
                self.check_budget(live, self.allowance, true);
                let page = self.page_bytes();
                self.weights.take_in(purpose.name(), bytes, page)?
            }
        };
        self.mapped.owned.insert(memory.0, memory.0 + bytes);
        let pages = SimPages {
            memory: memory.0..memory.0 + bytes,
            dropped: Arc::clone(&self.mapped.dropped),
        };
        Ok(self.mapped.table.frame(pages, bytes, purpose))
    }

    fn hide(&mut self, at: DevicePtr) -> Result<()> {
        let bytes = self.mapped.table.mapped(at)?;
        for range in self.mapped.behind(at, bytes).unwrap_or_default() {
            self.unmapped(&range, false);
        }
        self.mapped.table.take(at);
        Ok(())
    }
}

impl UserStreams for Sim {
    type Event = SimEvent;
    type Stream = Actor;

    fn name(&self) -> &str {
        "sim"
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
