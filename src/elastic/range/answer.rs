//! What a fault comes to, and why.

use crate::device::DevicePtr;

/// Where an allocation lies, and which contents it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The first byte.
    pub at: DevicePtr,
    /// Number of bytes.
    pub bytes: u64,
    /// Never 0, and never the same for other contents.
    pub generation: u64,
}

/// What a fault comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The contents are there. Pinned.
    Hit(Place),
    /// The memory is there, and its contents are worth nothing: the caller writes them before the unpin. Pinned.
    Fill(Place),
    /// There is no memory for it. Not pinned.
    Refused(Refusal),
}

impl Answer {
    /// The place, unless it was refused.
    pub fn place(&self) -> Option<Place> {
        match self {
            Answer::Hit(place) | Answer::Fill(place) => Some(*place),
            Answer::Refused(_) => None,
        }
    }
}

/// Why a fault was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// It lies above the range's watermark: something there was evicted.
    AboveWatermark = 0,
    /// The range holds what its limit allows, and nothing above the allocation can go.
    OverLimit = 1,
    /// The cap is full, and nothing of lower rank holds memory.
    NothingLower = 2,
    /// Memory of lower priority is in use: it is pinned, or kernels still use it. Another time it may work.
    InUse = 3,
    /// Another caller was told to write it, and has not unpinned it.
    BeingFilled = 4,
    /// The device has no memory left, though the cap would allow it.
    DeviceFull = 5,
}

impl Refusal {
    /// All of them, by number.
    pub const ALL: [Refusal; 6] = [
        Refusal::AboveWatermark,
        Refusal::OverLimit,
        Refusal::NothingLower,
        Refusal::InUse,
        Refusal::BeingFilled,
        Refusal::DeviceFull,
    ];

    /// As a key of JSON.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::AboveWatermark => "above_watermark",
            Refusal::OverLimit => "over_limit",
            Refusal::NothingLower => "nothing_lower",
            Refusal::InUse => "in_use",
            Refusal::BeingFilled => "being_filled",
            Refusal::DeviceFull => "device_full",
        }
    }

    /// For people.
    pub(super) fn text(self) -> &'static str {
        match self {
            Refusal::AboveWatermark => {
                "it lies above the range's watermark: something at or below it was evicted, and it waits until the range is \
                 prioritized"
            }
            Refusal::OverLimit => "the range holds what its limit allows",
            Refusal::NothingLower => {
                "the device's budget is taken, and nothing of lower priority holds memory"
            }
            Refusal::InUse => {
                "memory of lower priority is pinned, or kernels still use it: another time it may work"
            }
            Refusal::BeingFilled => "another caller was told to fill it, and has not unpinned it",
            Refusal::DeviceFull => {
                "the device has no memory left, though its budget would allow it"
            }
        }
    }

    /// Whether others hold what the fault needs.
    pub(super) fn is_of_others(self) -> bool {
        match self {
            Refusal::NothingLower | Refusal::InUse | Refusal::DeviceFull => true,
            Refusal::AboveWatermark | Refusal::OverLimit | Refusal::BeingFilled => false,
        }
    }
}

/// Why memory was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A fault of a range of higher priority.
    HigherRange,
    /// A fault of a lower address of the same range.
    LowerAddress,
    /// The range's limit.
    Limit,
    /// `free_bytes`.
    Asked,
    /// The cap of the device became smaller, or stores took their grants.
    Cap,
}

impl Cause {
    /// All of them, by number.
    pub const ALL: [Cause; 5] = [
        Cause::HigherRange,
        Cause::LowerAddress,
        Cause::Limit,
        Cause::Asked,
        Cause::Cap,
    ];

    /// As a key of JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::HigherRange => "higher_range",
            Cause::LowerAddress => "lower_address",
            Cause::Limit => "limit",
            Cause::Asked => "asked",
            Cause::Cap => "cap",
        }
    }

    /// For people. `by` is the range that wanted the memory.
    pub(super) fn text(self, by: &str) -> String {
        match self {
            Cause::HigherRange => format!("a fault of range '{by}', which has a higher priority"),
            Cause::LowerAddress => "a fault of a lower address of the same range".to_owned(),
            Cause::Limit => "the range's limit".to_owned(),
            Cause::Asked => "a call of free_bytes".to_owned(),
            Cause::Cap => {
                "the device's cap, of which stores or a smaller budget left less".to_owned()
            }
        }
    }
}

/// What `free_bytes` did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Freed {
    /// Bytes that were freed.
    pub bytes: u64,
    /// Bytes that could not go: faults were not unpinned, or leases have not ended.
    pub pinned: u64,
    /// Bytes that could not go yet: kernels still use them. Only where the call does not wait.
    pub pending: u64,
}
