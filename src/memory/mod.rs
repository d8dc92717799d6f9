//! Device memory, divided and shown here. Written once, over any [`Device`](crate::device::Device) and its
//! [`Pages`](crate::device::Pages), so that the simulated device plays the very code that runs on a GPU. It decides nothing: a policy
//! says who is on the device.
//!
//! | file | what it has |
//! |---|---|
//! | `pool` | memory under a cap: allocations of the device, or one view |
//! | `arena` | one allocation, divided here |
//! | `view` | memory that shows at several addresses |
//! | `moved` | a view's memory that gets another order, with the pages that stay |
//! | `growing` | activations of captured passes: addresses once, memory as it is needed |
//! | `units` | memory that comes and goes under the addresses of ranges |
//! | `holder` | memory that its owner holds: rings of ranges, graph pools, segments |
#![deny(unsafe_code)]

mod arena;
mod growing;
mod holder;
mod moved;
mod pool;
mod units;
mod view;

pub use arena::Arena;
pub use growing::Growing;
pub use holder::Holder;
pub use pool::{Pool, Remapped, StreamOrdered};
pub use units::Units;
pub use view::MappedView;
