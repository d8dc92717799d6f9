//! How long kernels run.

use super::{Event, ProbeId, Trace};

/// Nanoseconds of the kernels of a pass, by what they come behind: whoever knows them can tell when copies are waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelTimes {
    reads: Vec<[u64; 2]>,
}

impl KernelTimes {
    /// None, for a program with so many probes.
    pub fn new(probes: usize) -> KernelTimes {
        KernelTimes {
            reads: vec![[0; 2]; probes],
        }
    }

    /// More of the kernels behind `event`, up to the next read or end of a lease. What comes behind a kernel comes behind
    /// the read or end before it.
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

    /// For each probe, by its id: those behind its read, and behind the end of its lease.
    pub fn reads(&self) -> impl ExactSizeIterator<Item = (ProbeId, [u64; 2])> + '_ {
        (0..self.reads.len() as ProbeId).zip(self.reads.iter().copied())
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        let all = self.reads.iter().flatten();
        all.fold(0, |sum, more| sum.saturating_add(*more))
    }

    /// For each event of `trace` those behind it.
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
