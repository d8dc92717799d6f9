//! Fuzz targets and what feeds them, for `cargo test` (short), `make fuzz` (guided by coverage, in `fuzz/`) and
//! `make fuzz RUNS=` (many executions in one process).
//!
//! | file | what it is |
//! |---|---|
//! | `files` | the parser targets: `.pte`, `.ptd`, the record, all of them as a load joins them, packed weights and their table |
//! | `mutate` | valid files at random, and damage to them that keeps headers and checksums right |
//! | `records` | valid records at random |
//! | `packed` | packed weights: what is asked of them, arrays at random, damage |
//! | `driver` | many executions, each known by seed and number, with limits on memory and time |
//! | `memory` | an allocator that counts |
//! | `capi` | calls of the C interface with hostile arguments |
//! | `bytes` | input bytes as choices; random numbers |
//!
//! A binary that uses `driver` has to install [`memory::Counting`] as its global allocator.
#![allow(dead_code, missing_docs, reason = "each binary uses a part of it")]

pub mod bytes;
pub mod capi;
pub mod driver;
pub mod files;
pub mod memory;
pub mod mutate;
pub mod packed;
pub mod records;
