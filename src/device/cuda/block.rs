//! Blocks of activations that grow where they are: addresses for as much as the device has, and pages behind the first of
//! them.
//!
//! ```text
//!  addresses  |========|============|..................|
//!               pages    pages of     reserved, nothing
//!               first    a growth     mapped
//! ```
//! Each growth is one allocation of physical memory behind the next addresses. Nothing that is mapped changes, so graphs that
//! use the block stay right.

use super::context::{Context, Entered};
use super::physical::{Addresses, Physical};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use cudarc::driver::sys::CUmemAccess_flags as Access;
use std::sync::Arc;

/// What the memory is for, in messages.
const WHAT: &str = "activations of captured passes";

struct Block {
    /// Dropped, it unmaps what is mapped: the owner has waited for the streams.
    addresses: Addresses,
    /// Bytes of addresses, a multiple of the page.
    reserved: u64,
    /// Bytes from the start with memory behind them, in whole pages.
    mapped: u64,
    /// Bytes that were asked for.
    bytes: u64,
}

impl Block {
    fn reserve(context: &Arc<Context>, bytes: u64, _entered: &Entered<'_>) -> Result<Block> {
        Ok(Block {
            addresses: Addresses::reserve(context, bytes, WHAT)?,
            reserved: bytes,
            mapped: 0,
            bytes: 0,
        })
    }

    /// Memory behind the first `bytes` bytes. On an error the block is as it was.
    fn grow(&mut self, bytes: u64, page: u64, entered: &Entered<'_>) -> Result<()> {
        let whole = bytes.next_multiple_of(page);
        if whole > self.reserved {
            return Err(Error::OutOfMemory {
                what: format!("{WHAT} on {}", self.addresses.name()),
                bytes,
            });
        }
        if whole > self.mapped {
            let (at, more) = (self.mapped, whole - self.mapped);
            let before = self.addresses.context().free_bytes(entered)?;
            let physical = Physical::new(self.addresses.context(), more, || WHAT.to_owned())?;
            self.addresses.map(at, &physical)?;
            let access = Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            if let Err(error) = self.addresses.allow(at..whole, access) {
                return self.addresses.unmap(at).and(Err(error));
            }
            self.mapped = whole;
            let after = self.addresses.context().free_bytes(entered)?;
            log::debug!("the block of activations grew to {whole} bytes: free memory {before}, then {after} bytes");
        }
        self.bytes = self.bytes.max(bytes);
        Ok(())
    }
}

/// All of a device's. Few: one for each store on it.
#[derive(Default)]
pub(super) struct Blocks(Vec<Block>);

impl Blocks {
    /// Whether `len` bytes at `ptr` lie in one of them.
    pub(super) fn cover(&self, ptr: DevicePtr, len: u64) -> bool {
        self.0.iter().any(|block| {
            let offset = ptr.0.checked_sub(block.addresses.start);
            offset.is_some_and(|at| at <= block.bytes && len <= block.bytes - at)
        })
    }

    /// Addresses of a block: as many as the device has bytes.
    pub(super) fn reserve(
        &mut self,
        context: &Arc<Context>,
        page: u64,
        entered: &Entered<'_>,
    ) -> Result<DevicePtr> {
        let bytes = context.total_bytes()?.next_multiple_of(page);
        let block = Block::reserve(context, bytes, entered)?;
        let start = block.addresses.start;
        self.0.push(block);
        Ok(DevicePtr(start))
    }

    /// Memory behind the first `bytes` bytes of a block, in pages of `page` bytes.
    pub(super) fn grow(
        &mut self,
        block: DevicePtr,
        bytes: u64,
        page: u64,
        entered: &Entered<'_>,
    ) -> Result<()> {
        let at = self.find(block)?;
        self.0[at].grow(bytes, page, entered)
    }

    /// Gives a block back. The caller has waited for both streams.
    pub(super) fn free(&mut self, block: DevicePtr) -> Result<()> {
        let at = self.find(block)?;
        self.0.swap_remove(at);
        Ok(())
    }

    fn find(&mut self, block: DevicePtr) -> Result<usize> {
        let found = self.0.iter().position(|one| one.addresses.start == block.0);
        found.ok_or_else(|| Error::Internal(format!("no block begins at {:#x}", block.0)))
    }
}
