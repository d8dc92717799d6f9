//! What a plan says.

use super::price::Price;
use crate::figures::View;
use crate::schedule::{ProbeId, WeightIndex};
use std::ops::Range;

/// Bytes that keep their memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    /// The weight.
    pub weight: WeightIndex,
    /// Which of its bytes.
    pub range: Range<u64>,
    /// Where the weight's first byte lies in the block.
    pub offset: u64,
}

/// A copy in each pass, and the reads that it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streamed {
    /// The weight.
    pub weight: WeightIndex,
    /// Which of its bytes do not stay for good: they are there for these reads, and their memory may be others' later.
    pub range: Range<u64>,
    /// The bytes of `range` below this one are taken over from the copy before this one of the same weight (around the
    /// end of the pass: its last one), whose memory they keep. `range.start`: none, all of `range` is copied in each pass.
    /// `range.end`: nothing is copied, if nothing was lost since.
    pub kept: u64,
    /// Where the weight's first byte lies in the block.
    pub offset: u64,
    /// The device memory that these bytes occupy, in their order. Without a view that is where they lie in the block.
    pub memory: Vec<Range<u64>>,
    /// The reads, in the order of the pass.
    pub probes: Vec<ProbeId>,
}

/// Who is where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of device memory, all in one block.
    pub block: u64,
    /// How that memory is seen, if it is mapped: the block's addresses are those of the view.
    pub view: Option<View>,
    /// Bytes of it that are shared.
    pub ring: u64,
    /// What is loaded once.
    pub resident: Vec<Resident>,
    /// What is copied in each pass, in the order of the first reads.
    pub streamed: Vec<Streamed>,
    /// What a pass copies at most: bytes that nobody else uses once more weights stay are not copied again.
    pub price: Price,
}
