//! Vector clocks: what is ordered after what, known when it is issued, whatever runs first in the end.

use std::fmt;

/// Who does something: one of the streams, or the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    /// Kernels, uploads and downloads.
    Compute,
    /// Copies of weights.
    Copy,
    /// The calling thread; its time is the number of the call.
    Host,
}

impl Actor {
    pub(super) fn name(self) -> &'static str {
        match self {
            Actor::Compute => "compute stream",
            Actor::Copy => "copy stream",
            Actor::Host => "calling thread",
        }
    }
}

/// How far each actor had come, as far as one of them has to know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock([u64; 3]);

impl Clock {
    /// The time of one actor.
    pub fn of(&self, actor: Actor) -> u64 {
        self.0[actor as usize]
    }

    pub(super) fn tick(&mut self, actor: Actor) -> u64 {
        self.0[actor as usize] += 1;
        self.0[actor as usize]
    }

    pub(super) fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(theirs);
        }
    }
}

/// What was done to a range of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A kernel of this number.
    Kernel(u32),
    /// The copy of this number, counted from 1, of weights to the device.
    Copy(u64),
    /// Bytes of an input arrived.
    Upload,
    /// Bytes of an output left.
    Download,
    /// A copy within the device.
    CopyAcross,
    /// Pages were moved, with what they hold.
    Moved,
    /// Bytes were set to zero.
    Zero,
    /// The memory was given back.
    Free,
    /// The bytes were said to be worth nothing any more.
    Discard,
    /// The memory was taken away from under a range.
    Unmapped,
}

/// One access, as reports name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// What was done.
    pub what: What,
    /// The stream that did it.
    pub stream: Actor,
    /// The stream's time.
    pub epoch: u64,
    /// Number of the device call that issued it, counted from 1.
    pub call: u64,
}

impl Access {
    /// Whether the owner of this clock comes after the access.
    pub(super) fn is_before(&self, clock: &Clock) -> bool {
        clock.of(self.stream) >= self.epoch
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Kernel(number) => write!(f, "kernel {number}")?,
            What::Copy(number) => write!(f, "copy {number} to the device")?,
            What::Upload => f.write_str("an upload")?,
            What::Download => f.write_str("a download")?,
            What::CopyAcross => f.write_str("a copy within the device")?,
            What::Moved => f.write_str("a move of pages")?,
            What::Zero => f.write_str("setting to zero")?,
            What::Free => f.write_str("giving the memory back")?,
            What::Discard => f.write_str("giving the bytes up")?,
            What::Unmapped => f.write_str("taking a unit away")?,
        }
        write!(f, " ({}, call {})", self.stream.name(), self.call)
    }
}
