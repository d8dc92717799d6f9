//! Device memory under a cap, divided here. Written once, over any [`Device`](crate::device::Device), so that the simulated device
//! plays the very code that runs on a GPU. It decides nothing: a policy says who is on the device.
#![deny(unsafe_code)]

mod arena;
mod pool;

pub use arena::Arena;
pub use pool::{Pool, StreamOrdered};
