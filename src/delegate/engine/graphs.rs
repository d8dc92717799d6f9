//! What an engine knows of graphs: its session keeps them.
#![deny(unsafe_code)]

use crate::error::Error;

/// The passes of this engine are captured.
#[derive(Default)]
pub(super) struct Graphs {
    /// Why no pass of this program can be captured.
    pub refused: Option<Error>,
}
