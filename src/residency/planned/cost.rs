//! What a plan costs: the one judge of all plans.
//!
//! Where nothing is known of kernels, a pass costs the bytes of its copies, and for each copy the bytes that the link carries
//! in the time of a copy's own cost. Where kernels were timed, a pass is played with two clocks, as a device has two streams:
//! a copy starts after the one before it and after the last kernel that read what it overwrites; a kernel starts after the
//! copies of what it reads. Passes follow each other without a pause, until one takes as long as the one before it.

use super::plan::{Plan, Streamed};
use crate::figures::Link;
use crate::schedule::{Event, MethodTrace, Trace};
use std::fmt;

/// Passes that are played at most: the first ones find less on the device than the later ones.
const PASSES: usize = 12;

/// What a pass copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// Bytes.
    pub bytes: u64,
    /// Copies. Each costs a link some time beyond that of its bytes.
    pub copies: u64,
}

impl Price {
    /// In bytes, where a copy costs the time of `per_copy` bytes beyond its own.
    pub fn in_bytes(&self, per_copy: u64) -> u64 {
        self.bytes
            .saturating_add(self.copies.saturating_mul(per_copy))
    }
}

/// How long kernels run and copies take.
#[derive(Debug, Clone, Copy)]
pub struct Clocks<'a> {
    /// For each event of the trace, nanoseconds of the kernels from it to the next event.
    pub kernels: &'a [u64],
    /// What copies cost.
    pub link: Link,
}

/// What a pass of a plan is expected to take, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected {
    /// From the end of one pass to the end of the next.
    pub pass: u64,
    /// Of that, kernels run. The rest of the time they wait for copies.
    pub kernels: u64,
    /// Of that, copies run.
    pub copies: u64,
}

impl Expected {
    /// Nanoseconds of a pass in which kernels wait for copies.
    pub fn waits(&self) -> u64 {
        self.pass.saturating_sub(self.kernels)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(
            f,
            "{:.2} ms: kernels {:.2} ms, copies {:.2} ms; kernels wait for {:.2} ms",
            ms(self.pass),
            ms(self.kernels),
            ms(self.copies),
            ms(self.waits())
        )
    }
}

/// What a pass takes by `plan`, with the clocks of each method. Of several methods it is the mean, by their shares, of what a pass
/// of each takes where passes of that method follow each other.
pub fn expected(plan: &Plan, methods: &[MethodTrace<'_>], clocks: &[Clocks<'_>]) -> Expected {
    let (mut sums, mut shares) = ([0u128; 3], 0);
    for (method, (one, clocks)) in methods.iter().zip(clocks).enumerate() {
        let Expected {
            pass,
            kernels,
            copies,
        } = of_method(plan, method, one.trace, clocks);
        shares += u128::from(one.share);
        for (sum, part) in sums.iter_mut().zip([pass, kernels, copies]) {
            *sum += u128::from(one.share) * u128::from(part);
        }
    }
    let [pass, kernels, copies] =
        sums.map(|sum| u64::try_from(sum / shares.max(1)).unwrap_or(u64::MAX));
    Expected {
        pass,
        kernels,
        copies,
    }
}

fn of_method(plan: &Plan, method: usize, trace: &Trace, clocks: &Clocks<'_>) -> Expected {
    let mut played = Played::new(plan, method, trace, clocks.link);
    let (mut end, mut pass) = (0, 0);
    for _ in 0..PASSES {
        let now = played.pass(trace, clocks.kernels, end);
        let took = now - end;
        let steady = took == pass;
        (end, pass) = (now, took);
        if steady {
            break;
        }
    }
    Expected {
        pass,
        kernels: clocks.kernels.iter().sum(),
        copies: played.copies.iter().map(|copy| copy.takes).sum(),
    }
}

/// A copy that another one waits for: for its last read, in this pass or in the one before.
#[derive(Clone, Copy)]
struct Before {
    copy: usize,
    last_pass: bool,
}

struct Copy {
    /// Nanoseconds.
    takes: u64,
    /// Those whose place it takes: in its slot, and of its weight.
    before: [Before; 2],
    reads: usize,
}

struct Played {
    copies: Vec<Copy>,
    /// The copy that serves each probe.
    copy_of: Vec<Option<usize>>,
    /// When the last copy that was issued is done.
    copied: u64,
    /// When the last read of each copy was over, in this pass and in the one before.
    over: [Vec<u64>; 2],
    ready: Vec<u64>,
}

impl Played {
    fn new(plan: &Plan, method: usize, trace: &Trace, link: Link) -> Played {
        let mut copy_of = vec![None; trace.probes().len()];
        let own = plan.streamed.iter().filter(|copy| copy.method == method);
        let own: Vec<&Streamed> = own.collect();
        for (at, copy) in own.iter().enumerate() {
            for &id in &copy.probes {
                copy_of[id as usize] = Some(at);
            }
        }
        let slots = before(own.iter().map(|copy| copy.slot));
        let weights = before(own.iter().map(|copy| copy.weight));
        let copies = own.iter().zip(slots.into_iter().zip(weights));
        let copies: Vec<Copy> = copies
            .map(|(copy, (slot, weight))| Copy {
                takes: (link.seconds(copy.takes(), 1) * 1e9) as u64,
                before: [slot, weight],
                reads: copy.probes.len(),
            })
            .collect();
        let count = copies.len();
        Played {
            copies,
            copy_of,
            copied: 0,
            over: [vec![0; count], vec![0; count]],
            ready: vec![0; count],
        }
    }

    /// A pass whose kernels start at `now`; when they have ended.
    fn pass(&mut self, trace: &Trace, kernels: &[u64], mut now: u64) -> u64 {
        self.over.swap(0, 1);
        let mut left: Vec<usize> = self.copies.iter().map(|copy| copy.reads).collect();
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
        // The end of the pass ends the other leases.
        now += kernels[trace.tail()..].iter().sum::<u64>();
        for (copy, _) in left.iter().enumerate().filter(|(_, &left)| left > 0) {
            self.over[0][copy] = now;
        }
        now
    }

    fn copy(&mut self, at: usize) {
        let Copy { takes, before, .. } = &self.copies[at];
        let over = before.map(|one| self.over[usize::from(one.last_pass)][one.copy]);
        self.copied = self.copied.max(over[0]).max(over[1]) + takes;
        self.ready[at] = self.copied;
    }
}

/// For each copy the one before it with the same key, around the end of the pass; itself if there is no other.
fn before(keys: impl ExactSizeIterator<Item = u32> + Clone) -> Vec<Before> {
    let mut last = vec![0; keys.clone().max().map_or(0, |most| most as usize + 1)];
    keys.clone()
        .enumerate()
        .for_each(|(at, key)| last[key as usize] = at);
    let one = |(at, key)| {
        let copy = std::mem::replace(&mut last[key as usize], at);
        Before {
            copy,
            last_pass: copy >= at,
        }
    };
    keys.enumerate().map(one).collect()
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
