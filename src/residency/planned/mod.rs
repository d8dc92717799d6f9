//! Planned residency: the schedule of a pass is known, so who streams, and through which bytes, is decided once.
//!
//! A pass reads weights in a cycle, the worst case for least-recently-used. A plan keeps a set of weights and streams
//! the others, in each pass, through a *ring* of shared bytes: `W - budget + ring` bytes are copied, where an LRU
//! copies up to all of `W`. What streams has a fixed place for each of its *tenancies*, a run of reads that a copy
//! serves; two tenancies share bytes only if the one can be copied after the last kernel of the other without
//! holding up a kernel in between. Nothing is allocated in a pass, and addresses never change.
//!
//! | file | what it does |
//! |---|---|
//! | `tenancies` | which reads one copy serves, and when its bytes have to be there |
//! | `conflicts` | which tenancies may not share bytes |
//! | `layout` | a place for each |
//! | `choice` | which weights stream |
//! | `draft` | the places that follow from that, and what they cost |
//! | `paged` | the same where memory can be mapped: weights that stream keep a part of themselves |
//! | `ends` | the same with long tails beside short ones |
//! | `filled` | the same with tails that differ |
//! | `tails` | how long they are |
//! | `scatter` | their places in several pieces |
//! | `by_gap` | the same with parts of weights that stay from one read to the next |
//! | `gaps` | how much stays over which gap |
//! | `steady` | the most that can stay |
//! | `arcs` | places for what stays over some of them |
//! | `takings` | which pages are free when |
//! | `shown` | where a plan on pages puts everything, and the view that shows it |
//! | `plan` | what a plan says |
//! | `expected` | how long a pass takes by it |
//! | `refine` | a better one, once it is known how long kernels run |
//! | `timed` | tails that go by these times |
//! | `price` | what the LRU would copy |
//! | `reuse` | what the LRU cannot help copying |
//! | `policy` | carries the plan out |
//! | `slots` | what it knows of each copy |

mod arcs;
mod by_gap;
mod choice;
mod conflicts;
mod draft;
mod ends;
mod expected;
mod filled;
mod gaps;
mod layout;
mod paged;
mod plan;
mod policy;
mod price;
mod refine;
mod reuse;
mod scatter;
mod shown;
mod slots;
mod steady;
mod tails;
mod takings;
mod tenancies;
#[cfg(test)]
mod test_support;
mod timed;

pub use choice::plan;
pub use expected::{expected, Expected};
pub use plan::{Plan, Resident, Streamed};
pub use policy::Planned;
pub use price::{cheaper_lru, lru_passes, lru_price, LruPasses, Price};
pub use refine::{refine, Refined};
pub use reuse::lru_copies_at_least;
