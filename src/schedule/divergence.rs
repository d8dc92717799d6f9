//! Follows a pass along its trace and says where the compiled code left it.

use super::{Event, ProbeId, Trace};
use crate::error::{Error, Result};

/// Where a running pass stands in its trace.
///
/// A wrong probe is an error at once: the address it would get is another weight's. Releases are noted,
/// and compared at the end of a complete pass. An error in the middle unwinds the compiled code, and with
/// it the leases, in another order. Kernels cannot be seen from here. Leases that end after the last
/// kernel end in any order.
#[derive(Debug, Default)]
pub struct Follower {
    /// The events that can be seen: probes and releases, each with its index in the trace.
    seen: Vec<(Event, usize)>,
    /// Index in `seen` after the last probe and after every release that precedes the last kernel.
    tail: usize,
    /// Index in `seen` of each position of the access order.
    at_position: Vec<usize>,
    order: Vec<ProbeId>,
    position: usize,
    cursor: usize,
    /// First release that differed: index in `seen` of what was expected, and what came.
    differed: Option<(usize, Event)>,
}

impl Follower {
    /// A follower at the start of a pass along `trace`.
    pub fn new(trace: &Trace) -> Self {
        let events = trace.events().iter().copied().zip(0..);
        let seen: Vec<_> = events
            .filter(|(e, _)| !matches!(e, Event::Kernel(_)))
            .collect();
        let tail = seen.iter().take_while(|(_, at)| *at < trace.tail()).count();
        let is_probe = |at: &usize| matches!(seen[*at].0, Event::Probe(_));
        let at_position = (0..seen.len()).filter(is_probe).collect();
        let order = trace.order().to_vec();
        Follower {
            seen,
            tail,
            at_position,
            order,
            position: 0,
            cursor: 0,
            differed: None,
        }
    }

    /// Back to the start, for the next pass.
    pub fn restart(&mut self) {
        self.position = 0;
        self.cursor = 0;
        self.differed = None;
    }

    /// Number of probes served in this pass.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Whether the last probe and the last kernel are over: from here on leases end in any order.
    pub fn in_tail(&self) -> bool {
        self.position == self.order.len() && self.cursor >= self.tail
    }

    /// The compiled code calls probe `id`. An error names the probe of the trace and the one that came;
    /// `name` gives a probe's text.
    pub fn probe(&mut self, id: i64, name: impl Fn(i64) -> String) -> Result<ProbeId> {
        match self.order.get(self.position) {
            // rule: only-the-next-probe-is-served
            Some(&expected) if i64::from(expected) == id => {
                self.step(Event::Probe(expected), self.at_position[self.position]);
                self.position += 1;
                Ok(expected)
            }
            _ => Err(self.wrong_probe(id, name)),
        }
    }

    /// The lease of probe `id` ends.
    pub fn release(&mut self, id: ProbeId) {
        if self.cursor < self.tail {
            self.step(Event::Release(id), self.cursor);
        }
    }

    /// The pass ended without an error: all of the trace must have happened.
    pub fn finish(&self, name: impl Fn(i64) -> String) -> Result<()> {
        let (expected, found) = match self.differed {
            Some((at, found)) => (at, text(found, &name)),
            // rule: pass-reaches-the-last-kernel
            None if self.cursor < self.tail => (self.cursor, "the end of the pass".to_string()),
            None => return Ok(()),
        };
        let (event, position) = self.seen[expected];
        Err(Error::Divergence {
            position,
            expected: text(event, &name),
            found,
        })
    }

    /// Compares what came with the trace; after a difference goes on after `came_at`.
    fn step(&mut self, came: Event, came_at: usize) {
        if self.seen[self.cursor].0 == came {
            self.cursor += 1;
            return;
        }
        // rule: difference-is-kept
        self.differed.get_or_insert((self.cursor, came));
        self.cursor = came_at + 1;
    }

    #[cold]
    fn wrong_probe(&self, id: i64, name: impl Fn(i64) -> String) -> Error {
        let end = self.seen.last().map_or(0, |(_, at)| at + 1);
        let found = format!("probe {}", name(id));
        match self.at_position.get(self.position) {
            Some(&at) => Error::Divergence {
                position: self.seen[at].1,
                expected: text(self.seen[at].0, &name),
                found,
            },
            None => Error::Divergence {
                position: end,
                expected: "no more probes in this pass".to_string(),
                found,
            },
        }
    }
}

fn text(event: Event, name: &impl Fn(i64) -> String) -> String {
    match event {
        Event::Probe(id) => format!("probe {}", name(i64::from(id))),
        Event::Release(id) => format!("the release of probe {}", name(i64::from(id))),
        Event::Kernel(number) => format!("kernel {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::Event::{Kernel, Probe, Release};
    use super::*;

    fn name(id: i64) -> String {
        format!("{id} (w{id})")
    }

    /// Leases of 0 and 1 overlap; 2 and 3 end after the last kernel.
    fn follower() -> Follower {
        let events = vec![
            Probe(0),
            Kernel(0),
            Probe(1),
            Kernel(1),
            Release(0),
            Release(1),
            Probe(2),
            Probe(3),
            Kernel(2),
            Release(2),
            Release(3),
        ];
        Follower::new(&Trace::new(events, vec![0, 1, 2, 3], 4).unwrap())
    }

    /// Plays events; probes must be right.
    fn play(follower: &mut Follower, events: &[Event]) {
        for event in events {
            match *event {
                Probe(id) => assert_eq!(follower.probe(i64::from(id), name), Ok(id)),
                Release(id) => follower.release(id),
                Kernel(_) => {}
            }
        }
    }

    #[track_caller]
    fn check_divergence(result: Result<()>, at: usize, want: &str, came: &str) {
        match result {
            Err(Error::Divergence {
                position,
                expected,
                found,
            }) => {
                assert_eq!(
                    (position, expected.as_str(), found.as_str()),
                    (at, want, came)
                );
            }
            other => panic!("expected a divergence, got {other:?}"),
        }
    }

    #[test]
    fn the_recorded_pass_is_right_again_and_again() {
        let mut f = follower();
        for _ in 0..3 {
            let rest = [
                Release(0),
                Release(1),
                Probe(2),
                Probe(3),
                Release(2),
                Release(3),
            ];
            play(&mut f, &[Probe(0), Probe(1)]);
            play(&mut f, &rest);
            assert_eq!(f.finish(name), Ok(()));
            f.restart();
        }
    }

    #[test]
    fn leases_behind_the_last_kernel_end_in_any_order() {
        let mut f = follower();
        play(
            &mut f,
            &[
                Probe(0),
                Probe(1),
                Release(0),
                Release(1),
                Probe(2),
                Probe(3),
            ],
        );
        play(&mut f, &[Release(3), Release(2)]);
        assert_eq!(f.finish(name), Ok(()));
    }

    #[test]
    fn the_tail_begins_behind_the_last_release_before_the_last_kernel() {
        let mut f = follower();
        for event in [
            Probe(0),
            Probe(1),
            Release(0),
            Release(1),
            Probe(2),
            Probe(3),
        ] {
            assert!(!f.in_tail(), "before {event:?}");
            play(&mut f, &[event]);
        }
        assert!(f.in_tail());
        f.restart();
        assert!(!f.in_tail());
    }

    #[test]
    fn wrong_unknown_and_surplus_probes_are_named() {
        let mut f = follower();
        check_divergence(
            f.probe(2, name).map(drop),
            0,
            "probe 0 (w0)",
            "probe 2 (w2)",
        );
        check_divergence(
            f.probe(-1, name).map(drop),
            0,
            "probe 0 (w0)",
            "probe -1 (w-1)",
        );
        play(
            &mut f,
            &[
                Probe(0),
                Probe(1),
                Release(0),
                Release(1),
                Probe(2),
                Probe(3),
            ],
        );
        check_divergence(
            f.probe(3, name).map(drop),
            11,
            "no more probes in this pass",
            "probe 3 (w3)",
        );
    }

    #[test]
    fn releases_in_another_order_are_reported_at_the_end_only() {
        let mut f = follower();
        play(
            &mut f,
            &[
                Probe(0),
                Probe(1),
                Release(1),
                Release(0),
                Probe(2),
                Probe(3),
            ],
        );
        check_divergence(
            f.finish(name),
            4,
            "the release of probe 0 (w0)",
            "the release of probe 1 (w1)",
        );
        f.restart();
        play(
            &mut f,
            &[
                Probe(0),
                Probe(1),
                Release(0),
                Release(1),
                Probe(2),
                Probe(3),
            ],
        );
        assert_eq!(f.finish(name), Ok(()));
    }

    #[test]
    fn a_lease_that_ends_early_or_late_is_reported() {
        let mut f = follower();
        play(
            &mut f,
            &[
                Probe(0),
                Release(0),
                Probe(1),
                Release(1),
                Probe(2),
                Probe(3),
            ],
        );
        check_divergence(
            f.finish(name),
            2,
            "probe 1 (w1)",
            "the release of probe 0 (w0)",
        );
        f.restart();
        play(
            &mut f,
            &[
                Probe(0),
                Probe(1),
                Release(0),
                Probe(2),
                Probe(3),
                Release(1),
            ],
        );
        check_divergence(
            f.finish(name),
            5,
            "the release of probe 1 (w1)",
            "probe 2 (w2)",
        );
    }

    #[test]
    fn a_pass_that_ends_early_is_reported() {
        let mut f = follower();
        play(&mut f, &[Probe(0), Probe(1), Release(0)]);
        check_divergence(
            f.finish(name),
            5,
            "the release of probe 1 (w1)",
            "the end of the pass",
        );
    }
}
