//! What the pool of a device asks of a tenant, and what a tenant tells when it joins.

use crate::error::Result;

/// A store that shares a device.
pub trait Tenant: Send + Sync {
    /// Holds at most so many bytes from now on. `None` if a pass of it runs: then nothing has changed. An error leaves what it
    /// holds as it was.
    fn shrink_to(&self, bytes: u64) -> Option<Result<()>>;

    /// A pass of it runs, and began as one that may give way: all memory that the pass does not hold at this moment goes to the device.
    /// `None` if that cannot be now: then nothing has changed.
    fn give_way(&self) -> Option<Result<()>> {
        None
    }

    /// What is free on its device now; `None` if that cannot be asked now.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

/// What a tenant tells of its device when it joins.
#[derive(Debug, Clone, Copy)]
pub struct DeviceState {
    /// Bytes of a page: grants move in whole ones.
    pub page: u64,
    /// What the tenant takes of the device beside its weights. It counts where the cap follows what is free.
    pub beside: u64,
    /// What is free there now.
    pub free: u64,
}
