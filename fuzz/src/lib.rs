//! The targets of `tests/fuzz_support`, for programs of their own.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the tests' own lints are those of the library"
)]

#[path = "../../tests/fuzz_support/mod.rs"]
pub mod fuzz_support;
#[path = "../../tests/support/mod.rs"]
pub mod support;

use fuzz_support::memory::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
