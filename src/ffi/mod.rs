//! The doors to other languages, by object. Nothing is decided here: each function checks its
//! arguments, calls the delegate, and turns a [`crate::Error`] into a status and a text.
//!
//! | file | what it exports |
//! |---|---|
//! | [`capi`] | the C interface of `weightstream.h` |
//! | [`bridge`] | what the C++ adapter of ExecuTorch calls |
//! | [`types`] | the types of that bridge |
//! | `named_data` | weights that ExecuTorch has read |
//! | `specs` | runtime specs as options, and the defaults of the process |
//! | `allocator` | memory of a GPU for ExecuTorch's own tensors |
//! | [`status`] | status codes, the last error of a thread, the boundary that no panic crosses |
//! | [`log`] | where log lines go |

mod allocator;
pub mod bridge;
pub mod capi;
pub mod log;
mod named_data;
mod specs;
pub mod status;
pub mod types;
