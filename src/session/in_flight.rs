//! Which weights kernels may have been using when the device failed: a kernel that writes where it must not is noticed
//! later, by whatever call comes next.

use crate::schedule::ProbeId;

/// How far into a pass everything is known to have ended.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Every kernel is waited for.
    pub every_kernel: bool,
    /// Position in the access order at which the compute stream was last seen idle.
    pub(super) idle_at: usize,
    /// The leases that were open there.
    pub(super) open: Vec<ProbeId>,
    /// Position that the pass reached.
    pub(super) reached: usize,
}

impl InFlight {
    /// No kernel runs, and no lease is open.
    pub fn begin(&mut self) {
        self.idle_at = 0;
        self.open.clear();
        self.reached = 0;
    }

    /// A pass ends, at this position.
    pub fn end(&mut self, position: usize) {
        self.reached = position;
    }
}
