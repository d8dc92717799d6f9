//! The functions that compiled code calls, by topic. Their names and signatures are PyTorch's
//! (`torch/csrc/inductor/aoti_torch/c/shim.h` and `generated/c_shim_cpu.h`), those in `cudart` CUDA's.
//!
//! None of them is exported from the process: a compiled library finds them through its own table, which
//! [`lookup`] fills (see `python/weightstream/_export/compile/trampolines.py`). Each returns 0, or 1 after
//! keeping its error in the pass's context.

// The functions' names are PyTorch's.
#![allow(non_snake_case)]

mod args;
mod conv;
mod cudart;
mod device;
mod embed;
mod gemm;
mod index;
mod memory;
mod meta;
mod misc;
mod pool;
mod probe;
mod random;
mod scalar;
mod scan;
mod sort;
mod stream;
mod table;
mod views;

use std::ffi::c_void;

type Topic = (&'static [&'static str], fn(&str) -> Option<*const c_void>);

const TOPICS: &[Topic] = &[
    (conv::NAMES, conv::lookup),
    (cudart::NAMES, cudart::lookup),
    (embed::NAMES, embed::lookup),
    (gemm::NAMES, gemm::lookup),
    (index::NAMES, index::lookup),
    (memory::NAMES, memory::lookup),
    (meta::NAMES, meta::lookup),
    (misc::NAMES, misc::lookup),
    (pool::NAMES, pool::lookup),
    (probe::NAMES, probe::lookup),
    (random::NAMES, random::lookup),
    (scalar::NAMES, scalar::lookup),
    (scan::NAMES, scan::lookup),
    (sort::NAMES, sort::lookup),
    (stream::NAMES, stream::lookup),
    (views::NAMES, views::lookup),
];

/// Address of the function called `name`; `None` if this runtime does not provide it.
pub fn lookup(name: &str) -> Option<*const c_void> {
    TOPICS.iter().find_map(|(_, topic)| topic(name))
}

/// Names of all functions, sorted. `scripts/generate` writes them for the export to
/// `python/weightstream/_export/compile/shims.txt`.
pub fn names() -> Vec<&'static str> {
    let mut all: Vec<_> = TOPICS
        .iter()
        .flat_map(|(names, _)| names.iter().copied())
        .collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests;
