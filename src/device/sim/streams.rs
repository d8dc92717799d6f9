//! The two queues, and the order in which they run.

use super::clock::{Access, Actor, Clock};
use super::problem::Violation;
use super::space::{fill, read, POISON};
use super::Sim;
use crate::device::{HostBytes, Source};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Which stream runs ahead of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Copies run as early as their waits allow: a copy that fails to wait for a reader destroys its bytes.
    CopiesFirst,
    /// Kernels run as early as their waits allow: one that fails to wait for its copy reads garbage.
    KernelsFirst,
    /// By this seed.
    Random(u64),
}

impl Order {
    fn copies_next(&mut self) -> bool {
        match self {
            Order::CopiesFirst => true,
            Order::KernelsFirst => false,
            Order::Random(state) => {
                *state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                *state >> 63 == 0
            }
        }
    }
}

/// What a stream does when it gets there.
#[derive(Debug)]
pub(super) enum Op {
    /// Compares what lies at each range.
    Kernel(Access, Vec<(Range<u64>, HostBytes)>),
    /// Bytes that outlive the device; the first of the stored ones may be there already.
    Copy(Range<u64>, Source, Vec<Range<u64>>),
    Upload(Vec<Range<u64>>, Vec<u8>),
    /// Keeps the bytes for their reader.
    Download(Vec<Range<u64>>),
    /// The same for the output of this number among those that are due.
    Return(Vec<Range<u64>>, usize),
    Across(Vec<Range<u64>>, Vec<Range<u64>>),
    Zero(Vec<Range<u64>>),
    Poison(Range<u64>),
    /// The other stream must have done so many.
    Wait(u64),
    /// Until it is open.
    Gate(Arc<AtomicBool>),
}

/// One queue.
#[derive(Debug)]
pub(super) struct SimStream {
    pub(super) actor: Actor,
    pub(super) clock: Clock,
    pub(super) issued: u64,
    pub(super) done: u64,
    waiting: VecDeque<Op>,
}

impl SimStream {
    pub(super) fn new(actor: Actor) -> SimStream {
        SimStream {
            actor,
            clock: Clock::default(),
            issued: 0,
            done: 0,
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn push(&mut self, op: Op) {
        self.waiting.push_back(op);
        self.issued += 1;
    }

    pub(super) fn waiting(&self) -> u64 {
        self.issued - self.done
    }

    /// Takes the next operation if it may run; `other` is how far the other stream is.
    fn next(&mut self, other: u64) -> Option<Op> {
        match self.waiting.front()? {
            Op::Wait(count) if *count > other => None,
            Op::Gate(open) if !open.load(Ordering::Acquire) => None,
            _ => {
                self.done += 1;
                self.waiting.pop_front()
            }
        }
    }

    fn is_held(&self) -> bool {
        matches!(self.waiting.front(), Some(Op::Gate(_)))
    }
}

impl Sim {
    /// Runs what may run, in the order of the device, until `enough`. Where a gate is in the way and `patient` is
    /// set, waits for it to open, as a blocking call does. `false` if it got stuck before.
    pub(super) fn run_until(&mut self, patient: bool, enough: impl Fn(&Sim) -> bool) -> bool {
        while !enough(self) {
            let copies = self.order.copies_next();
            if self.step(copies) || self.step(!copies) {
                continue;
            }
            let held = self.copy.is_held() || self.compute.is_held();
            let idle = self.copy_idle() && self.compute_idle();
            if !held && !idle {
                self.report(Violation::Deadlock);
            }
            if !held || !patient {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn step(&mut self, copies: bool) -> bool {
        let next = match copies {
            true => self.copy.next(self.compute.done),
            false => self.compute.next(self.copy.done),
        };
        let moved = next.is_some();
        if let Some(op) = next {
            self.perform(op);
        }
        moved
    }

    fn perform(&mut self, op: Op) {
        match op {
            Op::Kernel(access, reads) => reads
                .into_iter()
                .for_each(|(range, expected)| self.compare(access, range, &expected)),
            Op::Copy(to, src, kept) => {
                let kept = self.joined(&kept);
                fill(&src, &kept, self.bytes_mut(&to));
            }
            Op::Upload(to, src) => self.scatter(&to, &src),
            Op::Download(from) => self.fetched = self.joined(&from),
            Op::Return(from, at) => self.due[at].0 = self.joined(&from),
            Op::Across(to, from) => {
                let through = self.joined(&from);
                self.scatter(&to, &through);
            }
            Op::Zero(memory) => memory
                .iter()
                .for_each(|range| self.bytes_mut(range).fill(0)),
            Op::Poison(range) => self.bytes_mut(&range).fill(POISON),
            Op::Wait(_) | Op::Gate(_) => {}
        }
    }

    fn joined(&self, parts: &[Range<u64>]) -> Vec<u8> {
        let all: Vec<&[u8]> = parts.iter().map(|part| self.bytes(part)).collect();
        all.concat()
    }

    fn scatter(&mut self, parts: &[Range<u64>], mut bytes: &[u8]) {
        for part in parts {
            let (now, later) = bytes.split_at((part.end - part.start) as usize);
            self.bytes_mut(part).copy_from_slice(now);
            bytes = later;
        }
    }

    fn compare(&mut self, access: Access, range: Range<u64>, expected: &HostBytes) {
        let (found, expected) = (self.bytes(&range), read(expected));
        if found != expected {
            let at = found.iter().zip(expected).position(|(a, b)| a != b);
            self.report(Violation::WrongBytes {
                read: access,
                range,
                at: at.unwrap_or(0),
            });
        }
    }
}
