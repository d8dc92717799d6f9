//! How long kernels run.

use super::{Event, ProbeId, Trace};

/// Nanoseconds of the kernels of a pass, by the read or the end of a lease that they come after. They tell
/// when kernels would wait for copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelTimes {
    reads: Vec<[u64; 2]>,
}

impl KernelTimes {
    /// No times yet, for a program with so many probes.
    pub fn new(probes: usize) -> KernelTimes {
        KernelTimes {
            reads: vec![[0; 2]; probes],
        }
    }

    /// Adds time of the kernels after `event`, up to the next read or end of a lease. A kernel's own event
    /// adds nothing.
    pub fn add(&mut self, event: Event, nanoseconds: u64) {
        let (id, of) = match event {
            Event::Probe(id) => (id, 0),
            Event::Release(id) => (id, 1),
            Event::Kernel(_) => return,
        };
        if let Some(read) = self.reads.get_mut(id as usize) {
            read[of] = read[of].saturating_add(nanoseconds);
        }
    }

    /// For each probe, by its id: the time after its read, and after the end of its lease.
    pub fn reads(&self) -> impl ExactSizeIterator<Item = (ProbeId, [u64; 2])> + '_ {
        (0..self.reads.len() as ProbeId).zip(self.reads.iter().copied())
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        let all = self.reads.iter().flatten();
        all.fold(0, |sum, more| sum.saturating_add(*more))
    }

    /// For each event of `trace`, the time after it.
    pub fn by_event(&self, trace: &Trace) -> Vec<u64> {
        let of = |event: &Event| match *event {
            Event::Probe(id) => self.reads.get(id as usize).map(|read| read[0]),
            Event::Release(id) => self.reads.get(id as usize).map(|read| read[1]),
            Event::Kernel(_) => None,
        };
        let times = trace.events().iter().map(|event| of(event).unwrap_or(0));
        times.collect()
    }
}
