//! WeightStream: an ExecuTorch backend that runs AOTInductor-compiled models whose weights do not
//! fit in device memory. `docs/architecture.md` is the map; this page is its index.
//!
//! | module | what it owns |
//! |---|---|
//! | [`mod@format`] | bytes of `.pte`, `.ptd` and the record → validated views; no I/O |
//! | [`weights`] | the catalog of constants, and where their bytes come from (the mapping) |
//! | [`schedule`] | the trace of a pass, the floor, the divergence check; pure data |
//! | [`residency`] | which weights are on the device: policies; pure |
//! | [`memory`] | device memory under a cap: pools, one block divided |
//! | [`device`] | memory, copies and ordering of one device: `host`, `cuda`; `sim` for tests only |
//! | [`store`] | the weights of a program on a device: memory, copies, both rules of stream order |
//! | [`session`] | one loaded method: a store and a pass over it |
//! | [`tenancy`] | sessions that share a device: joining its pool, the grant of a pass |
//! | [`elastic`] | who may hold how much of a device that several models share; pure |
//! | [`figures`] | plain data about devices that plans need: sizes, costs of copies, views of memory, free pieces |
//! | [`aoti`] | tensor handles, the `aoti_torch_*` functions, the compiled container |
//! | [`counters`] | what is counted since load: one table for every interface |
//! | [`delegate`] | load, execute and destroy one delegate |
//! | [`eager`] | weights of a module that runs call by call in PyTorch, on the planner's layout |
//! | [`process`] | what a child of this process, made by `fork`, cannot use |
//! | `command` | the command `weightstream` (feature `cli`) |
//! | [`ffi`] | the C ABI and the bridge to the C++ adapter |
//! | [`system_memory`] | how much host memory this process may still take |
//!
//! The arrows go one way:
//! `ffi → {delegate, eager} → tenancy → {elastic, session → store} → {residency, memory → device} → {figures, counters, error, config}`,
//! `residency → schedule`, `{weights, format} → schedule`, and `session → aoti`.

pub mod aoti;
#[cfg(feature = "cli")]
pub mod command;
pub mod config;
pub mod counters;
pub mod delegate;
pub mod device;
pub mod eager;
pub mod elastic;
pub mod error;
pub mod ffi;
pub mod figures;
pub mod format;
pub mod memory;
pub mod process;
pub mod residency;
pub mod schedule;
pub mod session;
pub mod store;
pub mod system_memory;
pub mod tenancy;
pub mod weights;

pub use config::Options;
pub use error::{Error, Result};

#[cfg(test)]
#[path = "../tests/support/fork.rs"]
mod fork;
