//! One trait for every device, and the ordering contract that everything above relies on.
//!
//! # Ordering contract
//! A device has two ordered streams: *compute*, on which the compiled kernels run, and *copy*, on which
//! weight bytes arrive. Nothing is ordered between them but by events.
//! - [`Device::record_compute`] marks all compute work issued so far; [`Device::copy_wait`] makes every
//!   later copy wait for it. This orders a copy behind the last reader of the bytes it overwrites.
//! - [`Device::record_copy`] marks all copies issued so far; [`Device::compute_wait`] makes every later
//!   kernel wait for it. This orders a kernel behind the copy of the bytes it reads.
//! - [`Device::alloc`] and [`Device::free`] act in copy-stream order: memory freed here may be handed out
//!   again at once, but only to copies issued later.
//! - An event may be queried or waited for any number of times, and lives as long as its value.
//!
//! The callers validate; a device reports only what the caller cannot foresee (memory, a lost device).

use crate::error::Result;

/// An address in device memory. On `host` it is a plain address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(pub u64);

/// Memory, copies and ordering of one device. See the module's ordering contract.
pub trait Device: Send {
    /// A point in a stream.
    type Event: Send;

    /// The device's name in messages and records: `cpu`, `cuda`.
    fn name(&self) -> &'static str;

    /// Allocation sizes are rounded up to this many bytes; the budget counts rounded sizes.
    fn granule(&self) -> u64;

    /// Reserves `bytes` (already rounded to the granule) in copy-stream order, aligned to at least 64.
    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr>;

    /// Gives back what [`Device::alloc`] returned, in copy-stream order.
    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()>;

    /// Starts copying host bytes to the device on the copy stream.
    ///
    /// # Safety
    /// `src..src+len` must stay readable and unchanged, and `dst..dst+len` allocated, until the copy is done.
    unsafe fn copy_to_device(&mut self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()>;

    /// An event behind all compute work issued so far.
    fn record_compute(&mut self) -> Result<Self::Event>;

    /// Later copies wait for `event` (a compute event).
    fn copy_wait(&mut self, event: &Self::Event) -> Result<()>;

    /// An event behind all copies issued so far.
    fn record_copy(&mut self) -> Result<Self::Event>;

    /// Later kernels wait for `event` (a copy event). On `host` the calling thread is the compute
    /// stream, so this returns when the copy is done.
    fn compute_wait(&mut self, event: &Self::Event) -> Result<()>;

    /// Whether everything before `event` has completed. Never blocks.
    fn is_done(&self, event: &Self::Event) -> Result<bool>;

    /// Blocks until both streams are idle.
    fn synchronize(&mut self) -> Result<()>;
}
