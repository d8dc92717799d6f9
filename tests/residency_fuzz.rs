//! Operations on policies and pools at random; everything is recounted after each of them.

mod fuzz_support;
mod support;

use fuzz_support::bytes::Rng;
use fuzz_support::{memory::Counting, residency};
use std::panic::{catch_unwind, AssertUnwindSafe};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn many(run: fn(&[u8])) {
    let fresh = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for seed in [1, fresh] {
        for number in 0..3000 {
            let mut rng = Rng::new(seed, number);
            let len = rng.below(400);
            let bytes = rng.bytes(len);
            let ran = catch_unwind(AssertUnwindSafe(|| run(&bytes)));
            assert!(ran.is_ok(), "seed {seed}, number {number}");
        }
    }
}

#[test]
fn operations_on_the_policy() {
    many(residency::policy);
}

#[test]
fn operations_on_pools() {
    many(residency::pools);
}
