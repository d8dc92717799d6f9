//! Device memory as pages: addresses, memory that is put behind them, and what may be done there. Views, blocks and the units of
//! ranges are made of it, once for all devices, in `src/memory`.
//!
//! ```text
//! addresses, reserved:  | mapped | mapped |   -    | mapped |    an access without memory is a fault
//! memory:                 A        B                 A           a byte that is written through one address is seen at both
//! ```
//!
//! # Contract
//! - Unmapping acts at once, on the host. It waits for no stream and orders nothing. The caller unmaps an address only when the events
//!   of all its users are complete.
//! - Memory that was created holds nothing of value. It goes when the last handle is dropped and no address shows it.
//! - What would touch addresses that it did not reserve a device refuses, so that nothing above needs unsafe code.
//! - All sizes and addresses are whole pages, and no size is 0.
//! - A failed call changes nothing.

use super::DevicePtr;
use crate::error::{Error, Result};
use std::ffi::c_void;
use std::fmt::Debug;

/// What memory is for: it says so in messages, and activations do not count under a budget for weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Weights of a store.
    Weights,
    /// Activations of captured passes.
    Activations,
    /// Memory of ranges.
    Range,
}

impl Purpose {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Weights => "weights' pages",
            Purpose::Activations => "activations of captured passes",
            Purpose::Range => "a range's unit",
        }
    }
}

/// What may be done at addresses that have memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageAccess {
    /// Kernels read. Copies of weights write, through other addresses of the same memory.
    Read,
    /// Kernels read and write.
    ReadWrite,
}

/// Addresses and memory of one device. See the module's contract.
pub trait Pages: Send {
    /// Memory, which goes when it is dropped everywhere and shows nowhere.
    type Memory: Clone + Send + Sync + 'static;

    /// Bytes of a page: addresses and memory come in whole pages.
    fn page(&self) -> u64;

    /// Bytes of memory that should be created at one time, a multiple of the page: as many as are worth the calls.
    fn unit(&self) -> u64;

    /// Bytes of memory of the whole device. A block that grows reserves as many addresses.
    fn total_bytes(&mut self) -> Result<u64>;

    /// Addresses without memory, at a multiple of the page.
    fn reserve(&mut self, bytes: u64, purpose: Purpose) -> Result<DevicePtr>;

    /// Gives back what [`Pages::reserve`] returned, and unmaps what is still mapped there.
    fn release(&mut self, start: DevicePtr) -> Result<()>;

    /// New memory, a piece of each size: all of them, or an error.
    fn create(&mut self, sizes: &[u64], purpose: Purpose) -> Result<Vec<Self::Memory>>;

    /// New memory in one piece.
    fn create_one(&mut self, bytes: u64, purpose: Purpose) -> Result<Self::Memory> {
        let one = self.create(&[bytes], purpose)?.pop();
        one.ok_or_else(|| Error::Internal("no memory was created, and no error said so".to_owned()))
    }

    /// Puts all of the memory behind the addresses from `at` on, which are reserved and have none. Nobody may use them before
    /// [`Pages::allow`].
    fn map(&mut self, at: DevicePtr, memory: &Self::Memory) -> Result<()>;

    /// Allows an access to `bytes` bytes from `at` on, which all have memory, in as few calls as the device needs.
    fn allow(&mut self, at: DevicePtr, bytes: u64, access: PageAccess) -> Result<()>;

    /// Takes away what [`Pages::map`] put behind `at`.
    fn unmap(&mut self, at: DevicePtr) -> Result<()>;
}

/// For devices that map nothing.
impl Pages for std::convert::Infallible {
    type Memory = std::convert::Infallible;

    fn page(&self) -> u64 {
        match *self {}
    }

    fn unit(&self) -> u64 {
        match *self {}
    }

    fn total_bytes(&mut self) -> Result<u64> {
        match *self {}
    }

    fn reserve(&mut self, _bytes: u64, _purpose: Purpose) -> Result<DevicePtr> {
        match *self {}
    }

    fn release(&mut self, _start: DevicePtr) -> Result<()> {
        match *self {}
    }

    fn create(&mut self, _sizes: &[u64], _purpose: Purpose) -> Result<Vec<Self::Memory>> {
        match *self {}
    }

    fn map(&mut self, _at: DevicePtr, memory: &Self::Memory) -> Result<()> {
        match *memory {}
    }

    fn allow(&mut self, _at: DevicePtr, _bytes: u64, _access: PageAccess) -> Result<()> {
        match *self {}
    }

    fn unmap(&mut self, _at: DevicePtr) -> Result<()> {
        match *self {}
    }
}

/// Pages of a device on which callers have streams of their own, as those of ranges have.
pub trait UserStreams: Pages {
    /// A point in a stream.
    type Event: Send + Sync;

    /// A stream of the caller's.
    type Stream: Copy + PartialEq + Send + Debug;

    /// The device: `cpu`, `cuda:0`.
    fn name(&self) -> &str;

    /// An event after everything that was issued to the stream.
    fn record(&mut self, stream: Self::Stream) -> Result<Self::Event>;

    /// What is issued to the stream later waits for `event`.
    fn stream_wait(&mut self, stream: Self::Stream, event: &Self::Event) -> Result<()>;

    /// Whether everything before `event` is complete. Never blocks.
    fn is_done(&self, event: &Self::Event) -> Result<bool>;

    /// Blocks until it is.
    fn wait(&mut self, event: &Self::Event) -> Result<()>;

    /// Memory of the device that nobody uses now.
    fn free_bytes(&self) -> Result<u64>;
}

/// A stream of the caller's that uses units: a `CUstream` or `cudaStream_t`. On the CPU it is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserStream(usize);

impl UserStream {
    /// Null is the default stream, in its legacy meaning.
    ///
    /// # Safety
    /// `stream` is null or a stream that exists until all leases that were given to it have ended and the range was called once more.
    pub unsafe fn new(stream: *mut c_void) -> UserStream {
        // The default stream has two names.
        UserStream(match stream.addr() {
            1 => 0,
            other => other,
        })
    }

    /// The default stream.
    pub const DEFAULT: UserStream = UserStream(0);

    pub(super) fn raw(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0)
    }
}
