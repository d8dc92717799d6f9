//! Arithmetic of the functions that Inductor calls instead of compiling: plain loops over views.

pub mod conv;
pub mod experts;
pub mod gemm;
pub mod index;
pub mod lines;
pub mod pool;
pub mod quantized;
