//! What a GPU counts.
#![deny(unsafe_code)]

/// What a device counts. All sizes in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CudaCounters {
    /// Events ever made; constant once a program runs steadily.
    pub events_created: u64,
    /// How often the weights' pool had to be trimmed, after a wait for the copy stream.
    pub compactions: u64,
    /// Weights' memory handed out, by our count.
    pub weight_bytes: u64,
    /// What of it is memory behind views.
    pub mapped_bytes: u64,
    /// What of it stays beside the pool ([`Device::alloc_lasting`](crate::device::Device::alloc_lasting)).
    pub lasting_bytes: u64,
    /// The rest of it by the driver's count.
    pub pool_used_bytes: u64,
    /// What the driver holds for the weights' pool: at most the budget, rounded up to 32 MiB.
    pub pool_reserved_bytes: u64,
    /// What the driver holds for activations.
    pub activation_reserved_bytes: u64,
    /// Mapped host memory that is registered.
    pub host_mapped_bytes: u64,
    /// Host memory of our own that is pinned.
    pub host_pinned_bytes: u64,
}
