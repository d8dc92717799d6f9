//! The trace of one pass: what the compiled code asks for, in host issue order. Pure data.
#![deny(unsafe_code)]

/// Index of a weight in the catalog.
pub type WeightIndex = u32;
/// Index of a probe, 0..N-1; each is served once per pass and maps to one weight.
pub type ProbeId = u32;

/// One event of a pass, in host issue order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The compiled code asks for the weight behind this probe: a lease begins.
    Probe(ProbeId),
    /// A kernel is issued. It may read every weight whose lease is open.
    Kernel(u32),
    /// The lease of this probe ends.
    Release(ProbeId),
}
