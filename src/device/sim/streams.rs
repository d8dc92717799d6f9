//! The two queues, and the order in which they run.

use super::clock::{Access, Actor, Clock};
use crate::device::HostBytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

/// A point in one stream, and what lies before it.
#[derive(Debug)]
pub struct SimEvent {
    pub(super) stream: Actor,
    /// Operations of the stream that lie before it.
    pub(super) count: u64,
    pub(super) clock: Clock,
    /// Recorded in a capture: which, and its number there.
    pub(super) captured: Option<(u64, usize)>,
    /// Counts the live ones; says whose it is, too.
    pub(super) events: Arc<AtomicUsize>,
}

impl Drop for SimEvent {
    fn drop(&mut self) {
        self.events.fetch_sub(1, Ordering::Relaxed);
    }
}

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
    pub(super) fn copies_next(&mut self) -> bool {
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
    /// Bytes that outlive the device.
    Copy(Range<u64>, HostBytes),
    Upload(Range<u64>, Vec<u8>),
    /// Keeps the bytes for whoever waits for them.
    Download(Vec<Range<u64>>),
    /// The same for the output of this number among those that are due.
    Return(Vec<Range<u64>>, usize),
    Across(u64, Vec<Range<u64>>),
    Zero(Range<u64>),
    Poison(Range<u64>),
    /// The other stream must have done so many.
    Wait(u64),
    /// Until it is open.
    Gate(Arc<AtomicBool>),
}

/// One queue.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) actor: Actor,
    pub(super) clock: Clock,
    pub(super) issued: u64,
    pub(super) done: u64,
    waiting: VecDeque<Op>,
}

impl Stream {
    pub(super) fn new(actor: Actor) -> Stream {
        Stream {
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
    pub(super) fn next(&mut self, other: u64) -> Option<Op> {
        match self.waiting.front()? {
            Op::Wait(count) if *count > other => None,
            Op::Gate(open) if !open.load(Ordering::Acquire) => None,
            _ => {
                self.done += 1;
                self.waiting.pop_front()
            }
        }
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self.waiting.front(), Some(Op::Gate(_)))
    }
}
