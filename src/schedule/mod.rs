//! The trace of one pass: what the compiled code asks for, in host issue order. Pure data.
#![deny(unsafe_code)]

mod divergence;
mod floor;
mod times;
mod trace;

pub use divergence::Follower;
pub use floor::{floor, hard_minimum, Floor, KernelPair, Part};
pub use times::KernelTimes;
pub use trace::{MethodTrace, Trace};

use crate::figures::stored_of;
use std::ops::Range;

/// Index of a weight in the catalog.
pub type WeightIndex = u32;
/// Index of a probe, 0..N-1; each is served once per pass and maps to one weight.
pub type ProbeId = u32;

/// One event of a pass, in host issue order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The compiled code asks for this probe's weight: a lease begins.
    Probe(ProbeId),
    /// A kernel is issued. It may read every weight whose lease is open.
    Kernel(u32),
    /// The lease of this probe ends.
    Release(ProbeId),
}

/// How one constant of the compiled model is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightKind {
    /// Through probes; its device memory comes and goes.
    Weight,
    /// The same, and it never stays: each pass copies it, whatever the budget.
    Streamed,
    /// It always stays: it is loaded with the direct constants, and probes find it there.
    Pinned,
    /// Around the probes; loaded once, resident.
    Direct,
    /// Direct, and written by the compiled code.
    Mutable,
}

impl WeightKind {
    /// Whether its device memory comes and goes.
    pub fn comes_and_goes(self) -> bool {
        matches!(self, WeightKind::Weight | WeightKind::Streamed)
    }
}

/// One constant of the compiled model, as far as the schedule is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSpec {
    /// Fully qualified name, for messages.
    pub fqn: String,
    /// Exact size of its bytes on the device.
    pub bytes: u64,
    /// Bytes that it has in its file, and that a copy of all of it brings over the link.
    pub stored: u64,
    /// How it is read.
    pub kind: WeightKind,
}

impl WeightSpec {
    /// Whether each pass copies it, whatever the budget.
    pub fn is_streamed(&self) -> bool {
        self.kind == WeightKind::Streamed && self.bytes > 0
    }

    /// Bytes that a copy of these of its bytes brings over the link.
    pub fn stored_of(&self, range: &Range<u64>) -> u64 {
        self.linked_of(range, 0)
    }

    /// The same where the first `kept` of its stored bytes are on the device already.
    pub fn linked_of(&self, range: &Range<u64>, kept: u64) -> u64 {
        stored_of(range, self.bytes, self.stored, kept)
    }

    /// Whether it is packed.
    pub fn is_packed(&self) -> bool {
        self.stored < self.bytes
    }

    /// Bytes of the budget it occupies while it is on the device. Saturates: sizes come from files, and a
    /// sum that overflows must end as a budget that is too small, not as a small number.
    pub fn occupied(&self, granule: u64) -> u64 {
        self.bytes
            .checked_next_multiple_of(granule.max(1))
            .unwrap_or(u64::MAX)
    }
}
