//! Which reads of a weight one copy serves, and when its bytes have to be there.

use crate::schedule::{Event, ProbeId, Trace, WeightIndex};

/// Reads of one weight that one copy serves, on the axis of the trace's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tenancy {
    pub weight: WeightIndex,
    /// The probes, in the order in which they are called.
    pub probes: Vec<ProbeId>,
    /// Event of the first probe.
    pub first: usize,
    /// Event behind which the last lease has ended; the number of events if only the function's return ends it.
    pub last: usize,
    /// From this event on the bytes should be there or on their way: the last kernel in front of the first probe that
    /// reads weights, so that the copy can go on beside it. Negative: of the pass before.
    pub wanted: i64,
}

/// One read.
struct Read {
    id: ProbeId,
    first: usize,
    last: usize,
    wanted: i64,
}

/// The tenancies of each weight, should it stream, by index; each weight's in order.
pub(super) fn tenancies(trace: &Trace, weights: usize) -> Vec<Vec<Tenancy>> {
    let mut all: Vec<Vec<Tenancy>> = vec![Vec::new(); weights];
    for read in reads(trace) {
        let weight = trace.weight(read.id);
        let list = &mut all[weight as usize];
        match list.last_mut() {
            // There is no time to copy it anew.
            Some(before) if read.wanted <= before.last as i64 => {
                before.probes.push(read.id);
                before.last = before.last.max(read.last);
            }
            _ => list.push(Tenancy {
                weight,
                probes: vec![read.id],
                first: read.first,
                last: read.last,
                wanted: read.wanted,
            }),
        }
    }
    all
}

/// All reads, in the order of their probes.
fn reads(trace: &Trace) -> Vec<Read> {
    let events = trace.events();
    let ends = lease_ends(trace);
    let mut open = 0;
    let mut wanted = last_reading_kernel(trace);
    let mut reads = Vec::with_capacity(trace.probes().len());
    for (at, event) in events.iter().enumerate() {
        match *event {
            Event::Probe(id) => {
                open += 1;
                reads.push(Read {
                    id,
                    first: at,
                    last: ends[id as usize],
                    wanted: wanted.unwrap_or(at as i64),
                });
            }
            Event::Release(_) => open -= 1,
            Event::Kernel(_) if open > 0 => wanted = Some(at as i64),
            Event::Kernel(_) => {}
        }
    }
    reads
}

/// The last kernel of the pass before that reads weights.
fn last_reading_kernel(trace: &Trace) -> Option<i64> {
    let mut open = 0;
    let mut last = None;
    for (at, event) in trace.events().iter().enumerate() {
        match event {
            Event::Probe(_) => open += 1,
            Event::Release(_) => open -= 1,
            Event::Kernel(_) if open > 0 => last = Some(at as i64),
            Event::Kernel(_) => {}
        }
    }
    last.map(|at| at - trace.events().len() as i64)
}

/// The event that ends each probe's lease. Those behind the last kernel end in no fixed order: all with the pass.
fn lease_ends(trace: &Trace) -> Vec<usize> {
    let events = trace.events();
    let mut ends = vec![events.len(); trace.probes().len()];
    for (at, event) in events[..trace.tail()].iter().enumerate() {
        if let Event::Release(id) = *event {
            ends[id as usize] = at;
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use Event::{Kernel, Probe, Release};

    fn spans(events: Vec<Event>, probes: Vec<u32>) -> Vec<Vec<(usize, usize, i64)>> {
        let weights = probes.iter().max().map_or(0, |w| w + 1) as usize;
        let trace = Trace::new(events, probes, weights).unwrap();
        let all = tenancies(&trace, weights);
        let span = |t: &Tenancy| (t.first, t.last, t.wanted);
        all.iter()
            .map(|list| list.iter().map(span).collect())
            .collect()
    }

    #[test]
    fn bytes_are_wanted_beside_the_kernel_before() {
        let events = vec![
            Probe(0),
            Kernel(0),
            Release(0),
            Kernel(1),
            Probe(1),
            Kernel(2),
            Release(1),
        ];
        // Kernel 1 reads nothing, so the copy for probe 1 has the time of kernel 0 as well. Probe 0's copy has that of
        // kernel 2 of the pass before. The last release is in the tail.
        let found = spans(events, vec![0, 1]);
        assert_eq!(found, [vec![(0, 2, 5 - 7)], vec![(4, 7, 1)]]);
    }

    #[test]
    fn reads_close_together_are_served_by_one_copy() {
        let read = |id, number| vec![Probe(id), Kernel(number), Release(id)];
        // Weight 0 is read by kernels 0, 1 and 3, weight 1 by kernel 2.
        let events = [read(0, 0), read(1, 1), read(2, 2), read(3, 3)].concat();
        let found = spans(events, vec![0, 0, 1, 0]);
        assert_eq!(
            found[0].iter().map(|s| (s.0, s.1)).collect::<Vec<_>>(),
            [(0, 5), (9, 12)]
        );
        assert_eq!(found[1].len(), 1);
    }

    #[test]
    fn a_lease_until_the_return_lasts_to_the_end() {
        let found = spans(vec![Probe(0), Kernel(0), Probe(1), Kernel(1)], vec![0, 1]);
        assert_eq!(found, [vec![(0, 4, -1)], vec![(2, 4, 1)]]);
        // Without a kernel there is nothing to copy beside.
        assert_eq!(spans(vec![Probe(0)], vec![0]), [vec![(0, 1, 0)]]);
    }
}
