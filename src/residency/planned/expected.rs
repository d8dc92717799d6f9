//! How long a pass of a plan takes, where it is known how long kernels and copies do.
//!
//! Two clocks go on side by side, as the two streams of a device: that of the copies, each behind the one before it and
//! behind the last kernel that read what it overwrites; and that of the kernels, each behind the copies of what it reads.
//! Passes follow each other without a pause, until one takes as long as the one before it.

use super::plan::{Plan, Streamed};
use crate::figures::Link;
use crate::schedule::{Event, Trace};
use std::ops::Range;

/// Passes at most: the first ones find less on the device than the later ones.
const PASSES: usize = 12;

/// What a pass of a plan is expected to take, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected {
    /// From the end of one pass to the end of the next.
    pub pass: u64,
    /// Of that, kernels run. The rest of the time they wait for copies.
    pub kernels: u64,
    /// Of that, copies go on.
    pub copies: u64,
}

impl Expected {
    /// Nanoseconds of a pass in which kernels wait for copies.
    pub fn waits(&self) -> u64 {
        self.pass.saturating_sub(self.kernels)
    }
}

/// What a pass takes by `plan`. `kernels` are nanoseconds: for each event of the trace those of the kernels behind it, up to
/// the next event.
pub fn expected(plan: &Plan, trace: &Trace, kernels: &[u64], link: Link) -> Expected {
    let mut clocks = Clocks::new(plan, trace, link);
    let (mut end, mut pass) = (0, 0);
    for _ in 0..PASSES {
        let now = clocks.play(trace, kernels, end);
        let took = now - end;
        let steady = took == pass;
        (end, pass) = (now, took);
        if steady {
            break;
        }
    }
    Expected {
        pass,
        kernels: kernels.iter().sum(),
        copies: clocks.takes.iter().flatten().sum(),
    }
}

/// Whose last read a copy waits for.
struct Before {
    copy: usize,
    /// That of the pass before.
    last_pass: bool,
}

struct Clocks {
    /// The copy that serves each probe.
    copy_of: Vec<Option<usize>>,
    /// Nanoseconds of each copy; `None` where nothing is copied, which waits for nothing.
    takes: Vec<Option<u64>>,
    before: Vec<Vec<Before>>,
    /// Reads that each copy serves.
    reads: Vec<usize>,
    /// When the copies are done with what was issued.
    copied: u64,
    /// When the last read of each copy's bytes was over, in this pass and in the one before.
    over: [Vec<u64>; 2],
    ready: Vec<u64>,
}

impl Clocks {
    fn new(plan: &Plan, trace: &Trace, link: Link) -> Clocks {
        let mut copy_of = vec![None; trace.probes().len()];
        for (at, copy) in plan.streamed.iter().enumerate() {
            for &id in &copy.probes {
                copy_of[id as usize] = Some(at);
            }
        }
        let count = plan.streamed.len();
        let takes = |copy: &Streamed| {
            let bytes = copy.range.end - copy.kept;
            // Each piece of memory is written by itself.
            (bytes > 0).then(|| (link.seconds(bytes, written(copy)) * 1e9) as u64)
        };
        Clocks {
            copy_of,
            takes: plan.streamed.iter().map(takes).collect(),
            before: before(&plan.streamed),
            reads: plan.streamed.iter().map(|copy| copy.probes.len()).collect(),
            copied: 0,
            over: [vec![0; count], vec![0; count]],
            ready: vec![0; count],
        }
    }

    /// A pass whose kernels begin at `now`; when they have ended.
    fn play(&mut self, trace: &Trace, kernels: &[u64], mut now: u64) -> u64 {
        self.over.swap(0, 1);
        let mut left = self.reads.clone();
        let mut next = 0;
        for (event, &takes) in trace.events()[..trace.tail()].iter().zip(kernels) {
            match *event {
                Event::Probe(id) => {
                    if let Some(copy) = self.copy_of[id as usize] {
                        while next <= copy {
                            self.copy(next);
                            next += 1;
                        }
                        now = now.max(self.ready[copy]);
                    }
                }
                Event::Release(id) => {
                    if let Some(copy) = self.copy_of[id as usize] {
                        left[copy] -= 1;
                        if left[copy] == 0 {
                            self.over[0][copy] = now;
                        }
                    }
                }
                Event::Kernel(_) => {}
            }
            now += takes;
        }
        // What the function's return ends.
        now += kernels[trace.tail()..].iter().sum::<u64>();
        for (copy, _) in left.iter().enumerate().filter(|(_, &left)| left > 0) {
            self.over[0][copy] = now;
        }
        now
    }

    fn copy(&mut self, at: usize) {
        let free = self.before[at].iter();
        let free = free.map(|one| self.over[usize::from(one.last_pass)][one.copy]);
        let Some(takes) = self.takes[at] else {
            // Its bytes are there: those of the same weight before it were read.
            return;
        };
        self.copied = self.copied.max(free.max().unwrap_or(0)) + takes;
        self.ready[at] = self.copied;
    }
}

/// Into how many pieces of memory a copy writes.
fn written(copy: &Streamed) -> u64 {
    let mut end = copy.range.start;
    let copied = copy.memory.iter().filter(|piece| {
        end += piece.end - piece.start;
        end > copy.kept
    });
    copied.count() as u64
}

/// For each copy those whose bytes it overwrites, or whose weight it copies again, as they are found in every pass but
/// the first. What these have overwritten is older than they are.
fn before(copies: &[Streamed]) -> Vec<Vec<Before>> {
    let mut there: Vec<(Range<u64>, usize)> = Vec::new();
    let mut all: Vec<Vec<Before>> = Vec::with_capacity(copies.len());
    for number in 0..2 * copies.len() {
        let at = number % copies.len();
        let meets = |(range, other): &(Range<u64>, usize)| {
            let overlaps = |own: &Range<u64>| own.start < range.end && range.start < own.end;
            copies[*other].weight == copies[at].weight || copies[at].memory.iter().any(overlaps)
        };
        let mut gone: Vec<usize> = there
            .iter()
            .filter(|one| meets(one))
            .map(|one| one.1)
            .collect();
        gone.sort_unstable();
        gone.dedup();
        there.retain(|(_, other)| gone.binary_search(other).is_err());
        there.extend(copies[at].memory.iter().map(|range| (range.clone(), at)));
        if number >= copies.len() {
            let one = |copy| Before {
                copy,
                last_pass: copy >= at,
            };
            all.push(gone.into_iter().map(one).collect());
        }
    }
    all
}

#[cfg(test)]
#[path = "expected_tests.rs"]
mod tests;
