//! The targets of `tests/fuzz_support`, for programs of their own.
#[path = "../../tests/fuzz_support/mod.rs"]
pub mod fuzz_support;
#[path = "../../tests/policy_support/mod.rs"]
pub mod policy_support;
#[path = "../../tests/support/mod.rs"]
pub mod support;

use fuzz_support::memory::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
