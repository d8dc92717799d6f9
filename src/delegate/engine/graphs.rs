//! What an engine knows of graphs: its session keeps them.
#![deny(unsafe_code)]

use crate::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

static ENGINES: AtomicU64 = AtomicU64::new(0);

/// The passes of this engine are captured.
pub(super) struct EngineGraphs {
    /// No two engines have the same.
    pub number: u64,
    /// Why no pass of this program can be captured.
    pub refused: Option<Error>,
}

impl EngineGraphs {
    pub fn new() -> EngineGraphs {
        EngineGraphs {
            number: ENGINES.fetch_add(1, Ordering::Relaxed),
            refused: None,
        }
    }
}
