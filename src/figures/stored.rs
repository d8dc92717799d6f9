//! Bytes that a weight has in its file, where they are fewer than those that it needs on the device.

use std::ops::Range;

/// Stored bytes of these of a weight's `bytes` bytes, of which `stored` are stored. Parts that follow each other add up.
pub fn stored_of(range: &Range<u64>, bytes: u64, stored: u64) -> u64 {
    let before = |at: u64| (u128::from(at) * u128::from(stored) / u128::from(bytes.max(1))) as u64;
    match stored == bytes {
        true => range.end - range.start,
        false => before(range.end) - before(range.start),
    }
}
