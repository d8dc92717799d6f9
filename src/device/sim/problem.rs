//! What the simulator found wrong with its caller.

use super::clock::Access;
use std::fmt;
use std::ops::Range;

/// Something that must never happen on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Two accesses to the same bytes, one of them a write, with nothing that orders them.
    Race {
        /// The one that was issued first.
        first: Access,
        /// The one that may run before it, or at the same time.
        second: Access,
        /// What the second one touches.
        range: Range<u64>,
    },
    /// Bytes were read that hold nothing.
    Worthless {
        /// The read.
        read: Access,
        /// What destroyed the bytes; `None` if nobody ever wrote them.
        given_up: Option<Access>,
        /// What is read.
        range: Range<u64>,
    },
    /// A kernel found other bytes than those it should have read.
    WrongBytes {
        /// The read.
        read: Access,
        /// Where.
        range: Range<u64>,
        /// First of the wrong bytes, counted from the start of the range.
        at: usize,
    },
    /// More memory was asked for than the budget that the device was told.
    OverBudget {
        /// Bytes that would have been live.
        live: u64,
        /// The budget.
        budget: u64,
    },
    /// Neither stream can go on: they wait for each other.
    Deadlock,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |range: &Range<u64>| format!("{:#x}..{:#x}", range.start, range.end);
        match self {
            Violation::Race {
                first,
                second,
                range,
            } => write!(
                f,
                "race at {}: nothing orders {second} after {first}",
                span(range)
            ),
            Violation::Worthless {
                read,
                given_up: Some(given_up),
                range,
            } => write!(
                f,
                "{read} reads {}, whose bytes were lost by {given_up}",
                span(range)
            ),
            Violation::Worthless {
                read,
                given_up: None,
                range,
            } => write!(f, "{read} reads {}, which nobody wrote", span(range)),
            Violation::WrongBytes { read, range, at } => write!(
                f,
                "{read} reads other bytes than it should at {}, from byte {at} on",
                span(range)
            ),
            Violation::OverBudget { live, budget } => write!(
                f,
                "{live} bytes live at one time, in a budget of {budget} bytes"
            ),
            Violation::Deadlock => f.write_str("the streams wait for each other"),
        }
    }
}
