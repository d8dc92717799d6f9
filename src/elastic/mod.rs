//! Elastic residency: several models share the memory of one device.
//!
//! Each model is a tenant. It says what it wants, and reports when a pass begins. The arbiter answers with grants: bytes that
//! each tenant may hold. It is arithmetic only. It knows no device, no clock and no lock. Ranges, for eager code, take what the
//! grants leave.
//!
//! ```text
//!  cap  |<- a ------------------------>|<- b ---------->|<- c ->|  free |
//!       [ floor ][ more              ] [ floor ][ more ] [ floor ]
//!                                  <~~ bytes move when a tenant passes
//! ```
//!
//! Invariants, after every call:
//!
//! - The sum of grants is at most the cap.
//! - A grant is at least the tenant's floor, and at least what its open leases hold.
//! - A grant is a multiple of the unit, or the floor, or everything.
//! - A pass grows the grant of the tenant that passes, and no other. So nobody holds bytes that no pass has copied.
//! - A pass takes nothing from a tenant or a range of higher rank, and a fault of a range nothing from a tenant that is not below it.
//! - The same calls give the same grants.
//!
//! | file | what it does |
//! |---|---|
//! | `pool` | a device's tenants: they hold their grants, and shrink between passes |
//! | `membership` | a tenant's place in its pool: what its passes hold |
//! | `member` | what the pool asks of a tenant |
//! | `cap` | a number, or what is free on the device |
//! | `report` | who has what, and why |
//! | `range` | reserved addresses whose memory comes and goes by faults |
//! | `graph_pool` | captures of graphs, each with its own addresses over the same units |
//! | `segments` | memory of another allocator's segments |
//! | `range_share` | what ranges hold of a pool |
//! | `arbiter` | which rule is followed, and which change is worth it |
//! | `ledger` | who holds how much in each residency; how bytes move |
//! | `rule` | three orders of value, and what a pass may take from whom |
//! | `rank` | one order for tenants and ranges: whose memory goes last
//! | `tenant` | what one tenant wants, and how often it passed |
#![deny(unsafe_code)]

mod arbiter;
mod cap;
mod graph_pool;
mod ledger;
mod member;
mod membership;
mod pool;
pub mod range;
mod range_share;
mod rank;
mod report;
mod rule;
mod segments;
mod tenant;
#[cfg(test)]
mod test_support;
#[cfg(test)]
#[path = "trace_tests.rs"]
mod traces;

pub use arbiter::Arbiter;
pub use graph_pool::{CaptureId, CaptureReport, GraphPool, GraphPoolReport};
pub use member::{DeviceState, Tenant};
pub use membership::{Membership, PassNeeds};
pub use pool::DevicePool;
pub use range::{Range, Ranges};
pub use rank::{next_turn, Rank, Reorder};
pub use report::{Ranked, Report, TenantReport};
pub use rule::Rule;
pub use segments::Segments;
pub use tenant::{TenantId, Wants};
