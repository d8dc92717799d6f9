//! Tensor handles, the `aoti_torch_*` functions, and the compiled container.

pub mod hooks;
