//! Bytes that a weight has in its file, where they are fewer than those that it needs on the device.

use std::ops::Range;

/// What a plan does with packed weights that need not be copied in each pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PackedResidents {
    /// They stay as raw bytes.
    Off,
    /// Their stored bytes stay, and are decoded at each read, where that makes passes shorter.
    #[default]
    Auto,
    /// The same wherever it can be done.
    On,
}

/// Raw bytes that a device decodes in the time in which its link carries one byte: of bf16 850 GB/s beside 55 GB/s, and room for the
/// model's kernels. fp8 is decoded at two thirds of that speed.
pub const DECODED_PER_LINKED: u64 = 12;

/// Stored bytes that a copy brings of these of a weight's `bytes` bytes, of which `stored` are stored and the first `kept` of those are on
/// the device already. Parts that follow each other add up.
pub fn stored_of(range: &Range<u64>, bytes: u64, stored: u64, kept: u64) -> u64 {
    let before = |at: u64| match stored == bytes {
        true => at,
        false => (u128::from(at) * u128::from(stored) / u128::from(bytes.max(1))) as u64,
    };
    before(range.end).max(kept) - before(range.start).max(kept)
}
