//! How the ring of `staged` is divided, and copies into pieces.

use crate::error::{Error, Result};
use std::ops::Range;

pub(super) const MB: u64 = 1 << 20;

/// The largest slot: the link is full long before, and small slots let several threads share one weight.
const LARGEST_SLOT: u64 = 8 * MB;

/// The fewest slots, so that each reader has one.
pub(super) const FEWEST_SLOTS: u64 = 8;

/// The least size of a ring, bytes: smaller slots would leave a tenth of the link unused and more.
pub const RING_LEAST: u64 = FEWEST_SLOTS * MB;

/// The size of a ring where none is given, bytes: five milliseconds of a fast link.
pub const RING_DEFAULT: u64 = 256 * MB;

/// How a ring is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) slots: u64,
    pub(super) slot_bytes: u64,
}

impl Shape {
    /// As many slots as fit into `total` bytes.
    pub(super) fn of(total: u64) -> Result<Shape> {
        if total < RING_LEAST {
            return Err(Error::Option {
                key: crate::config::STAGING_MB.to_owned(),
                what: format!(
                    "a ring of {total} bytes is too small; it takes at least {} MB ({RING_LEAST} bytes)",
                    RING_LEAST / MB
                ),
            });
        }
        let slot_bytes = (total / FEWEST_SLOTS / MB * MB).min(LARGEST_SLOT);
        Ok(Shape {
            slots: total / slot_bytes,
            slot_bytes,
        })
    }

    /// Bytes of all slots.
    pub(super) fn bytes(&self) -> u64 {
        self.slots * self.slot_bytes
    }

    /// Marks: `done`, one for trying the device, and one for each slot.
    pub(super) fn marks(&self) -> u64 {
        2 + self.slots
    }
}

/// Cuts `len` bytes into pieces of at most `most`.
pub(super) fn pieces(len: u64, most: u64) -> impl Iterator<Item = Range<u64>> {
    (0..len)
        .step_by(most as usize)
        .map(move |start| start..len.min(start + most))
}
