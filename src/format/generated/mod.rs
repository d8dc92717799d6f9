//! Code that `flatc` wrote from `schema/`; never edited by hand. `schema/README.md` has the command.
//! Nothing outside `format` names this module.
#![allow(
    warnings,
    missing_docs,
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    clippy::all
)]
#![allow(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]

#[rustfmt::skip]
#[path = "flat_tensor_generated.rs"]
pub mod flat_tensor;
#[rustfmt::skip]
#[path = "program_generated.rs"]
pub mod program;
#[rustfmt::skip]
#[path = "record_generated.rs"]
pub mod record;
