//! Verification of a flatbuffer before anything in it is believed.

use flatbuffers::{root_with_opts, Follow, InvalidFlatbuffer, Verifiable, VerifierOptions};

use super::malformed;
use crate::error::Result;

/// The schemas nest seven tables deep at most.
const MAX_DEPTH: usize = 16;
/// A table takes at least this many bytes, so a file can hold no more tables than length / this.
const MIN_TABLE_BYTES: usize = 4;
/// The verifier counts shared parts (vtables above all) once per use. Files that writers produce stay
/// below this multiple of their length; a file that folds itself up to cost us time does not.
const MAX_EXPANSION: usize = 32;

/// Verifies `bytes` and returns the root table. The identifier has been checked by then.
pub(super) fn root<'a, T>(file: &str, bytes: &'a [u8]) -> Result<T::Inner>
where
    T: 'a + Follow<'a> + Verifiable,
{
    let options = VerifierOptions {
        max_depth: MAX_DEPTH,
        max_tables: bytes.len() / MIN_TABLE_BYTES + 1,
        max_apparent_size: bytes.len().saturating_mul(MAX_EXPANSION),
        ignore_missing_null_terminator: false,
    };
    root_with_opts::<T>(&options, bytes).map_err(|error| {
        let what = format!("the tables are damaged: {}", text(&error));
        malformed(file, offset(&error), what)
    })
}

/// The verifier's words on one line; its trace would fill a screen.
fn text(error: &InvalidFlatbuffer) -> String {
    let all = error.to_string();
    all.lines()
        .next()
        .unwrap_or_default()
        .trim_end_matches('.')
        .to_owned()
}

/// Where the verifier stopped, as far as it says: the place itself, else the innermost field on the way.
fn offset(error: &InvalidFlatbuffer) -> usize {
    use flatbuffers::ErrorTraceDetail as Step;
    let trace = match error {
        InvalidFlatbuffer::Utf8Error { range, .. }
        | InvalidFlatbuffer::MissingNullTerminator { range, .. }
        | InvalidFlatbuffer::RangeOutOfBounds { range, .. } => return range.start,
        InvalidFlatbuffer::Unaligned { position, .. }
        | InvalidFlatbuffer::SignedOffsetOutOfBounds { position, .. } => return *position,
        InvalidFlatbuffer::MissingRequiredField { error_trace, .. }
        | InvalidFlatbuffer::InconsistentUnion { error_trace, .. } => error_trace,
        _ => return 0,
    };
    trace.as_ref().first().map_or(0, |step| match step {
        Step::VectorElement { position, .. }
        | Step::TableField { position, .. }
        | Step::UnionVariant { position, .. } => *position,
    })
}
