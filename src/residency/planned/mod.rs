//! Planned residency: the trace of a pass is known, so what streams, and through which bytes, is decided once.
//!
//! A pass is a circle of live ranges. A plan chooses which weights stream and one tail length. Each of these keeps its head
//! and copies its tail, in each pass, into a slot of a ring that has room for `k` copies ahead.
//!
//! ```text
//! weight   [ head | tail ]  [ head | tail ]  [ head | tail ]     heads stay
//!                     |               |               |
//! ring             slot 0          slot 1          slot 0        tails take turns
//! ```
//!
//! An LRU copies up to all of `W` in a pass that goes around; a plan copies `W - budget + ring`. Nothing is allocated or
//! mapped in a pass, and addresses never change.
//!
//! | file | what it does |
//! |---|---|
//! | `timeline` | from the trace to live ranges; merges close reads |
//! | `problem` | sizes, the room for them, what a copy costs |
//! | `candidates` | which weights may stream |
//! | `slots` | which live ranges share a slot |
//! | `ring` | how long tails are: the seam `RingShape` |
//! | `cost` | what a pass costs: bytes and copies, or two clocks |
//! | `search` | sets × merge distances × copies ahead |
//! | `kept` | packed weights that stay as they are stored |
//! | `plan`, `view` | what a plan says, and where it puts everything |
//! | `lru_price` | what the LRU would copy |
//! | `policy` | carries a plan out |
//! | `offer` | what the table of policies has of all this |

mod candidates;
mod cost;
mod kept;
mod lru_price;
mod offer;
mod plan;
mod policy;
mod problem;
mod ring;
mod search;
mod slots;
#[cfg(test)]
mod test_support;
mod timeline;
mod view;

pub use cost::{expected, Clocks, Expected, Price};
pub use lru_price::{lru_mean, lru_passes, lru_price, LruPasses};
pub(super) use offer::{better, elastic, is_cheaper, offer};
pub use plan::{KeptPacked, Plan, Resident, Streamed};
pub use policy::Planned;
pub use search::{plan, quickest};
