//! Tenants that share a device: stores, ranges, graph pools, eager modules.

mod elastic_support;
mod range_support;
#[path = "../session_support/mod.rs"]
mod session_support;

mod eager;
mod entries;
mod graph_pool;
mod pool;
mod range_ring;
mod range_shares;
mod ranges;
mod together;
