//! What is kept of captured passes.

use super::block::{Blocks, Held};
use super::graphs::Graphs;
use super::scratch::Scratch;
use crate::counters::Stats;
use crate::device::Device;
use crate::store::StoreState;

/// What a session that captures keeps.
pub(super) struct Capture<D: Device> {
    pub(super) graphs: Graphs<D>,
    pub(super) scratch: Scratch,
    pub(super) blocks: Blocks,
    /// The pass that is being captured.
    pub(super) now: Option<Begun>,
    /// What was issued last is a replay: its kernels and copies left no events to wait for.
    pub(super) replayed: bool,
}

/// A pass that is being captured, or was.
pub(super) struct Begun {
    /// The memory of its inputs and activations.
    pub(super) held: Held,
    /// Which weights were on the device where it began, and what the policy thought.
    pub(super) primed: StoreState,
    /// What it counted; while it is captured, what had been counted before it.
    pub(super) counted: Stats,
}

/// A captured pass. It holds device memory: give it back with [`Session::forget_graph`](super::Session::forget_graph).
pub struct CapturedPass<D: Device> {
    pub(super) graph: D::Graph,
    pub(super) pass: Begun,
}
