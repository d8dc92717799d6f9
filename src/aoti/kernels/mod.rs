//! Arithmetic behind the functions that Inductor calls instead of compiling: plain loops over views.

pub mod gemm;
