//! Arithmetic of the functions that Inductor calls instead of compiling: plain loops over views.

pub mod conv;
pub mod gemm;
pub mod index;
pub mod int4;
pub mod lines;
pub mod pool;
