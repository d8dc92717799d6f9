//! Tensor handles, the `aoti_torch_*` functions, and the compiled container.
//!
//! | module | what it owns |
//! |---|---|
//! | [`hooks`] | what the compiled code's calls need from the pass |
//! | [`registry`] | compiled libraries: opened once per content, table filled |
//! | [`container`] | one compiled program: constants, runs |
//! | `inputs`, [`outputs`] | the inputs and outputs of a run, while they live |
//! | `interface` | the functions that a compiled library exports |
//! | `context` | the pass that runs on this thread, and its first error |
//! | [`slab`], [`tensor`] | handles and storages; a lease ends with its storage's last handle |
//! | [`shims`] | the functions themselves, by topic |
//! | [`view`], [`dtype`], [`kernels`] | their arithmetic |

pub mod container;
mod context;
pub mod dtype;
pub mod hooks;
mod inputs;
mod interface;
pub mod kernels;
#[doc(hidden)]
pub mod measure;
pub mod outputs;
pub mod placed;
pub mod registry;
pub mod shims;
pub mod slab;
pub mod tensor;
pub mod view;

pub use context::{calls_of_last_pass, fail_call};
