//! Counters of a session, under the names that every interface shows.

/// Counters since load. All sizes in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Device bytes that weights and direct constants may occupy.
    pub budget_bytes: u64,
    /// The least budget that would have been accepted.
    pub floor_bytes: u64,
    /// Below this some probe could not be served at all.
    pub hard_minimum_bytes: u64,
    /// Occupied by direct constants.
    pub direct_bytes: u64,
    /// What all weights that are read through probes would occupy together, but for those that are only read in place.
    pub total_weight_bytes: u64,
    /// Most that weights and direct constants ever occupied at one time.
    pub peak_bytes: u64,
    /// Complete passes.
    pub passes: u64,
    /// Probes that found their weight there, or on its way.
    pub hits: u64,
    /// Probes that had to wait for a copy issued on demand.
    pub misses: u64,
    /// Weights that gave up their memory.
    pub evictions: u64,
    /// Copies issued ahead of their probe in a pass.
    pub prefetches: u64,
    /// Copied to the device, with what was loaded up front and the direct constants.
    pub bytes_copied: u64,
    /// Copied during the last pass.
    pub bytes_copied_last_pass: u64,
    /// Most bytes of activations, outputs included, that the compiled code ever held at one time; not part of
    /// the budget. What operators use inside a call is not counted.
    pub activation_peak_bytes: u64,
    /// Most device memory that a call took for its inputs; not part of the budget. 0 on the CPU, where they
    /// are read in place. Outputs are activations.
    pub io_bytes: u64,
    /// Host memory that is pinned: a copy of the weights or the staging ring, and what outputs go through.
    pub host_pinned_bytes: u64,
    /// Pages of the mapped file that are registered with the device, and so stay in memory.
    pub host_mapped_bytes: u64,
    /// Tables of which kernels read rows in place, in host memory; not part of the budget.
    pub gathered_bytes: u64,
    /// How often the plan was made anew since load: once at most, when kernels had been timed.
    pub replans: u64,
    /// Inputs that did not lie in row-major order, and were copied once each so that they do.
    pub inputs_copied: u64,
}

impl Stats {
    /// What was counted since `before`: of passes.
    pub(super) fn since(&self, before: &Stats) -> Stats {
        Stats {
            passes: self.passes - before.passes,
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            evictions: self.evictions - before.evictions,
            prefetches: self.prefetches - before.prefetches,
            bytes_copied: self.bytes_copied - before.bytes_copied,
            ..Stats::default()
        }
    }

    /// Counts a pass that counted this.
    pub(super) fn add(&mut self, pass: &Stats) {
        self.passes += pass.passes;
        self.hits += pass.hits;
        self.misses += pass.misses;
        self.evictions += pass.evictions;
        self.prefetches += pass.prefetches;
        self.bytes_copied += pass.bytes_copied;
        self.bytes_copied_last_pass = pass.bytes_copied;
    }

    /// All counters by name, in the order of documentation.
    pub fn entries(&self) -> [(&'static str, u64); 20] {
        [
            ("budget_bytes", self.budget_bytes),
            ("floor_bytes", self.floor_bytes),
            ("hard_minimum_bytes", self.hard_minimum_bytes),
            ("direct_bytes", self.direct_bytes),
            ("total_weight_bytes", self.total_weight_bytes),
            ("peak_bytes", self.peak_bytes),
            ("passes", self.passes),
            ("hits", self.hits),
            ("misses", self.misses),
            ("evictions", self.evictions),
            ("prefetches", self.prefetches),
            ("bytes_copied", self.bytes_copied),
            ("bytes_copied_last_pass", self.bytes_copied_last_pass),
            ("activation_peak_bytes", self.activation_peak_bytes),
            ("io_bytes", self.io_bytes),
            ("host_pinned_bytes", self.host_pinned_bytes),
            ("host_mapped_bytes", self.host_mapped_bytes),
            ("gathered_bytes", self.gathered_bytes),
            ("replans", self.replans),
            ("inputs_copied", self.inputs_copied),
        ]
    }
}
