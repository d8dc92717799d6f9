//! How often methods run beside each other. Plans weigh their passes by it.

use super::Session;
use crate::device::Device;
use crate::error::Result;

impl<D: Device> Session<D> {
    /// Passes of each method, among so many as all are together: plans that are made from now on go by it. The present plan stays.
    pub fn set_shares(&mut self, shares: &[u32]) {
        for (pass, &share) in self.passes.iter_mut().zip(shares) {
            pass.share(share);
        }
    }

    /// Plans anew for the present shares, between passes. Whether that plan was taken: it is if a pass costs clearly less by it.
    ///
    /// Errors: as for [`Session::set_budget`].
    pub fn follow_shares(&mut self) -> Result<bool> {
        self.check_between_passes()?;
        self.check_elastic()?;
        let budget = self.store.budget();
        let floor = self.store.floor().clone();
        let next = self.next(budget, self.methods(), floor, None)?;
        if !self.is_cheaper(&next) {
            return Ok(false);
        }
        self.adopt(budget, next)?;
        self.store.stats.replans += 1;
        Ok(true)
    }
}
