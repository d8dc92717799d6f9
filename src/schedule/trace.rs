//! The validated trace: every probe once, every lease after its probe.

use super::{Event, ProbeId, WeightIndex};
use crate::error::{Error, Result};

/// The events of one pass, checked, with the weight of each probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    events: Vec<Event>,
    weight_of: Vec<WeightIndex>,
    order: Vec<ProbeId>,
    tail: usize,
}

/// A method of a program, as residency sees it: what a pass of it reads, and how often it runs beside the others.
#[derive(Debug, Clone, Copy)]
pub struct MethodTrace<'a> {
    /// The events of a pass.
    pub trace: &'a Trace,
    /// Passes of this method among so many as all shares are together.
    pub share: u32,
}

impl<'a> From<&'a Trace> for MethodTrace<'a> {
    fn from(trace: &'a Trace) -> Self {
        MethodTrace { trace, share: 1 }
    }
}

impl Trace {
    /// Checks `events` against `probes` (the weight of each probe id) and the number of constants.
    ///
    /// A lease without a release is accepted: the compiler drops frees after the last kernel, and such a
    /// lease ends when the compiled function returns.
    pub fn new(events: Vec<Event>, probes: Vec<WeightIndex>, constants: usize) -> Result<Self> {
        check_probes(&probes, constants)?;
        let order = check_events(&events, probes.len())?;
        let last = events.iter().rposition(|e| !matches!(e, Event::Release(_)));
        let tail = last.map_or(0, |at| at + 1);
        Ok(Trace {
            events,
            weight_of: probes,
            order,
            tail,
        })
    }

    /// All events, in host issue order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The probes in host issue order: the access order, as probe ids.
    pub fn order(&self) -> &[ProbeId] {
        &self.order
    }

    /// The weight of each probe id.
    pub fn probes(&self) -> &[WeightIndex] {
        &self.weight_of
    }

    /// The weight of probe `id`, which must be one of this trace.
    pub fn weight(&self, id: ProbeId) -> WeightIndex {
        self.weight_of[id as usize]
    }

    /// Index of the first event after the last probe and the last kernel. From there on only leases end, in
    /// an order that the compiler does not fix.
    pub fn tail(&self) -> usize {
        self.tail
    }
}

fn check_probes(probes: &[WeightIndex], constants: usize) -> Result<()> {
    match probes.iter().position(|&w| w as usize >= constants) {
        Some(at) => Err(malformed(
            "probes",
            at,
            format!(
                "probe {at} reads constant {}, but there are {constants}",
                probes[at]
            ),
        )),
        None => Ok(()),
    }
}

/// Returns the probes in issue order, after checking that each occurs once and each release has its lease.
fn check_events(events: &[Event], probes: usize) -> Result<Vec<ProbeId>> {
    let mut order = Vec::with_capacity(probes);
    let mut state = vec![Lease::Unseen; probes];
    for (at, event) in events.iter().enumerate() {
        let (id, from, to) = match *event {
            Event::Kernel(_) => continue,
            Event::Probe(id) => (id, Lease::Unseen, Lease::Open),
            // rule: release-needs-an-open-lease
            Event::Release(id) => (id, Lease::Open, Lease::Ended),
        };
        let slot = state.get_mut(id as usize).ok_or_else(|| {
            malformed(
                "trace",
                at,
                format!("{event:?}, but there are {probes} probes"),
            )
        })?;
        if *slot != from {
            return Err(malformed(
                "trace",
                at,
                format!("{event:?} while its lease is {slot:?}"),
            ));
        }
        *slot = to;
        if to == Lease::Open {
            order.push(id);
        }
    }
    match state.iter().position(|&s| s == Lease::Unseen) {
        Some(id) => Err(malformed(
            "trace",
            events.len(),
            format!("probe {id} does not occur in the trace"),
        )),
        None => Ok(order),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lease {
    Unseen,
    Open,
    Ended,
}

/// Both fields are lists of 8-byte integers, so an index gives the byte offset within the field.
fn malformed(field: &str, index: usize, what: String) -> Error {
    Error::Malformed {
        file: format!("record field '{field}'"),
        offset: index as u64 * 8,
        what,
    }
}

#[cfg(test)]
mod tests {
    use super::Event::{Kernel, Probe, Release};
    use super::*;

    fn refusal(events: &[Event], probes: &[u32], constants: usize) -> (u64, String) {
        match Trace::new(events.to_vec(), probes.to_vec(), constants) {
            Err(Error::Malformed { offset, what, .. }) => (offset, what),
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn order_and_tail() {
        let events = vec![
            Probe(1),
            Kernel(0),
            Release(1),
            Probe(0),
            Probe(2),
            Kernel(1),
            Release(2),
            Release(0),
        ];
        let trace = Trace::new(events, vec![7, 3, 7], 8).unwrap();
        assert_eq!(trace.order(), [1, 0, 2]);
        assert_eq!(trace.tail(), 6);
        assert_eq!(trace.weight(2), 7);
    }

    #[test]
    fn lease_without_release_is_accepted() {
        assert_eq!(
            Trace::new(vec![Probe(0), Kernel(0)], vec![0], 1)
                .unwrap()
                .tail(),
            2
        );
        assert_eq!(Trace::new(vec![], vec![], 0).unwrap().tail(), 0);
    }

    #[test]
    fn every_defect_is_named() {
        let (_, what) = refusal(&[], &[4], 4);
        assert!(what.contains("probe 0 reads constant 4"), "{what}");
        let (offset, what) = refusal(&[Probe(0), Kernel(0), Probe(0)], &[0], 1);
        assert_eq!(offset, 16);
        assert!(what.contains("Probe(0)"), "{what}");
        assert!(refusal(&[Release(0), Probe(0)], &[0], 1)
            .1
            .contains("Unseen"));
        assert!(refusal(&[Probe(0), Release(0), Release(0)], &[0], 1)
            .1
            .contains("Ended"));
        assert!(refusal(&[Probe(1)], &[0], 1)
            .1
            .contains("there are 1 probes"));
        assert!(refusal(&[Kernel(0)], &[0], 1)
            .1
            .contains("probe 0 does not occur"));
    }
}
