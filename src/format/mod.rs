//! Bytes of a `.pte`, a `.ptd` and the record → validated views. No I/O and no unsafe: the owner of the
//! bytes (a mapping, a test) lends them as a slice.
//!
//! Everything a file says is checked before it is used. The header is capped first, sums are checked, the
//! flatbuffer is verified, and segments must cover their region. What is wrong is reported as [`Error::Malformed`](crate::Error) with the file and the byte offset.
//!
//! | file | what it knows |
//! |---|---|
//! | `header` | the extended headers after the file identifiers |
//! | `flat` | verification of a flatbuffer, with limits taken from its size |
//! | `segments` | the table of segments: in order, inside, covering |
//! | `pte`, `ptd` | the two containers |
//! | `ptd_writer` | a `.ptd`, written segment by segment |
//! | `record` | what was recorded at export about one method |
//! | `wiring` | how a method's inputs and outputs belong to its delegate's |
//! | `scalar` | element types |
//! | `times` | how long kernels ran |
//! | `packed` | the lossless code for floating-point weights |
#![deny(unsafe_code)]

mod flat;
mod generated;
mod header;
pub mod packed;
pub mod ptd;
pub mod ptd_writer;
pub mod pte;
pub mod record;
pub mod scalar;
mod segments;
pub mod times;
pub mod wiring;

pub use ptd::{EntryLayout, Ptd, PtdEntry};
pub use ptd_writer::{EntryRow, PtdWriter};
pub use pte::{ConstantMethod, DelegateEntry, Pte};
pub use record::{
    Argument, BuildId, ConstantKind, Dim, Expression, Gather, InputSpec, OutputSpec, Places,
    Record, RecordedConstant, Records, Relation, Sizes, Solution, Symbol, Target, UnionConstants,
    BACKEND,
};
pub use scalar::{dtype_name, sizes_text, ScalarType};
pub use wiring::{OutputSource, Wiring};

use crate::error::Error;

/// The error for damaged bytes.
fn malformed(file: &str, offset: impl TryInto<u64>, what: impl Into<String>) -> Error {
    // An offset that does not fit 64 bits cannot come from a file that was read.
    let offset = offset.try_into().unwrap_or(u64::MAX);
    Error::Malformed {
        file: file.to_owned(),
        offset,
        what: what.into(),
    }
}
