//! The CUDA device by itself, and sessions on it. Runs where `WEIGHTSTREAM_TEST_DEVICE=cuda` is set.

#[macro_use]
#[path = "../device_support/mod.rs"]
mod device_support;
#[path = "../session_support/mod.rs"]
mod session_support;

mod device;
mod host_memory;
mod io;
mod link;
mod packed;
mod session;
mod units;
