//! Blocks of activations, which grow where they are. Each has addresses of its own, that are used once.

use super::clock::{Actor, What};
use super::space::Space;
use super::{stray, Sim, BLOCKS};
use crate::device::DevicePtr;
use crate::error::{Error, Result};

/// Bytes of addresses of a block.
const BLOCK: u64 = 1 << 36;

impl Sim {
    pub(super) fn new_block(&mut self) -> Option<DevicePtr> {
        self.page?;
        let at = BLOCKS + self.blocks.len() as u64 * BLOCK;
        self.blocks.push(Space::new(at));
        Some(DevicePtr(at))
    }

    pub(super) fn block_grows(&mut self, block: DevicePtr, bytes: u64) -> Result<()> {
        if bytes > BLOCK {
            return Err(Error::OutOfMemory {
                what: "a block of activations".to_owned(),
                bytes,
            });
        }
        let space = self.block_at(block, bytes)?;
        if bytes < space.live_bytes() {
            return Err(stray(block, bytes));
        }
        space.grow(bytes);
        Ok(())
    }

    pub(super) fn block_goes(&mut self, block: DevicePtr) -> Result<()> {
        let space = self.block_at(block, 0)?;
        let bytes = space.live_bytes();
        if bytes > 0 {
            let range = space.give(block, bytes)?;
            self.lose(Actor::Compute, What::Free, block, vec![range]);
        }
        Ok(())
    }

    /// The block that begins there.
    fn block_at(&mut self, block: DevicePtr, bytes: u64) -> Result<&mut Space> {
        let first = block.0.is_multiple_of(BLOCK).then_some(block.0);
        let at = first.and_then(|at| self.block_of(at));
        let space = at.and_then(|at| self.blocks.get_mut(at));
        space.ok_or_else(|| stray(block, bytes))
    }

    /// Which block an address is one of.
    pub(super) fn block_of(&self, address: u64) -> Option<usize> {
        let at = address.checked_sub(BLOCKS)? / BLOCK;
        ((at as usize) < self.blocks.len()).then_some(at as usize)
    }

    /// Bytes of memory behind all of them.
    pub(super) fn block_bytes(&self) -> u64 {
        self.blocks.iter().map(Space::live_bytes).sum()
    }
}
