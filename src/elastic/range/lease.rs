//! Leases that end on any thread, at any time: the end is a mark, and the next call of a range sees it.

use super::state::RangesState;
use super::table::AllocId;
use crate::device::UserStreams;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

/// An allocation is in use until this is dropped. That calls no device and takes no lock.
#[derive(Debug)]
pub struct Lease {
    ended: Arc<AtomicBool>,
    /// How many have ended since they were looked for.
    count: Arc<AtomicUsize>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // rule: lease-ends-by-a-mark
        self.ended.store(true, Ordering::Release);
        self.count.fetch_add(1, Ordering::Release);
    }
}

struct Open {
    range: u64,
    alloc: AllocId,
    ended: Arc<AtomicBool>,
    /// Its end could not be recorded, and that was said.
    warned: bool,
}

/// The leases that have not been seen to end.
#[derive(Default)]
pub(super) struct Leases {
    open: Vec<Open>,
    count: Arc<AtomicUsize>,
}

impl<D: UserStreams> RangesState<D> {
    /// A lease of an allocation that is there, given to a stream.
    pub fn lease(&mut self, id: u64, at: AllocId, stream: D::Stream) -> Result<Lease> {
        let (range, device) = self.split(id)?;
        let name = range.name.clone();
        let alloc = range.get(at)?;
        if !alloc.is_valid() && alloc.pins == 0 {
            return Err(Error::InvalidInput(format!(
                "range '{name}': allocation {at} has no memory; fault it first"
            )));
        }
        alloc.order_after_fill(device, stream)?;
        alloc.pins += 1;
        alloc.leases += 1;
        if !alloc.lease_streams.contains(&stream) {
            alloc.lease_streams.push(stream);
        }
        let ended = Arc::<AtomicBool>::default();
        self.leases.open.push(Open {
            range: id,
            alloc: at,
            ended: ended.clone(),
            warned: false,
        });
        let count = self.leases.count.clone();
        Ok(Lease { ended, count })
    }

    /// The open leases of an allocation were given to this stream too.
    pub fn used_on(&mut self, id: u64, at: AllocId, stream: D::Stream) -> Result<()> {
        let (range, device) = self.split(id)?;
        let name = range.name.clone();
        let alloc = range.get(at)?;
        if alloc.leases == 0 {
            return Err(Error::InvalidInput(format!(
                "range '{name}': allocation {at} has no open lease"
            )));
        }
        alloc.order_after_fill(device, stream)?;
        if !alloc.lease_streams.contains(&stream) {
            alloc.lease_streams.push(stream);
        }
        Ok(())
    }

    /// Sees the leases that have ended: an event on each of their streams says when the last kernel is done. Where that cannot be
    /// recorded the page stays, and the next call tries again.
    pub fn see_ended_leases(&mut self) {
        if self.leases.count.load(Ordering::Acquire) == 0 {
            return;
        }
        // The marks of all that were counted are seen from here on.
        self.leases.count.swap(0, Ordering::AcqRel);
        let mut events: Vec<(D::Stream, Arc<D::Event>)> = Vec::new();
        let mut at = 0;
        while let Some(open) = self.leases.open.get(at) {
            if !open.ended.load(Ordering::Acquire) {
                at += 1;
                continue;
            }
            let (id, alloc) = (open.range, open.alloc);
            match self.end_lease(id, alloc, &mut events) {
                Ok(()) => drop(self.leases.open.swap_remove(at)),
                Err(error) => {
                    self.leases.count.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut self.leases.open[at].warned, true) {
                        log::warn!("a page stays, since the end of its lease could not be recorded: {error}");
                    }
                    at += 1;
                }
            }
        }
    }

    fn end_lease(
        &mut self,
        id: u64,
        at: AllocId,
        events: &mut Vec<(D::Stream, Arc<D::Event>)>,
    ) -> Result<()> {
        let (range, device) = self.split(id)?;
        let alloc = range.get(at)?;
        for stream in alloc.lease_streams.clone() {
            let known = events.iter().find(|(other, _)| *other == stream);
            let event = match known {
                Some((_, event)) => event.clone(),
                None => {
                    let event = Arc::new(device.pages.record(stream)?);
                    events.push((stream, event.clone()));
                    event
                }
            };
            // rule: lease-end-records-an-event
            alloc.used(stream, &event);
        }
        alloc.pins -= 1;
        alloc.leases -= 1;
        if alloc.leases == 0 {
            alloc.lease_streams.clear();
        }
        Ok(())
    }
}
