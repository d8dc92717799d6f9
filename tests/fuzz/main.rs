//! Fuzzing within a limit of memory: the process counts every allocation, so these tests have a binary of their own.

#[path = "../aoti_support/mod.rs"]
mod aoti_support;
#[path = "../fuzz_support/mod.rs"]
mod fuzz_support;
#[path = "../support/mod.rs"]
mod support;

mod ffi;
mod format;
