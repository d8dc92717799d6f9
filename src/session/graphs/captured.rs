//! What is kept of captured passes.

use super::block::Held;
use crate::counters::Stats;
use crate::device::Device;
use crate::store::StoreState;

/// A pass that is being captured, or was.
pub(in crate::session) struct Begun {
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
