//! Compiled code: its containers, and the kernels that stand in for PyTorch's.

#[path = "../aoti_support/mod.rs"]
mod aoti_support;

mod container;
mod kernels;
