//! The one block in which inputs and activations of captured passes lie, and activations of the passes between them.
//!
//! ```text
//!  addresses  |=======================|........................|
//!             ^ memory of the largest ^ reserved, no memory yet
//!  shape A    [in|activations]
//!  shape B    [in|activations.........]
//!  by calls   [activations....]
//! ```
//! - All graphs of a store share it: its methods, sessions and shapes. Its memory is what the largest of them needs.
//! - It grows in place, so graphs that were captured before stay right. A device that cannot do that gets a larger block, and
//!   the graphs of the one before are outdated.
//! - Passes that are issued call by call use it too, from its first byte on, if it grows: then their activations take no other
//!   memory. All kernels run in the order of the compute stream, so that what one pass frees the next one may have.
//! - One replay at a time has it: from the replay until somebody has waited for its kernels. A pass begins after that.

use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use std::ops::Range;

#[derive(Debug)]
struct Block {
    number: u64,
    at: DevicePtr,
    bytes: u64,
    /// Otherwise it is an activation like others.
    grows: bool,
    /// Captured passes that lie in it.
    users: usize,
}

impl Block {
    fn grow<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<()> {
        // rule: block-grows-in-place
        device.grow_block(self.at, bytes)?;
        self.bytes = bytes;
        Ok(())
    }
}

/// The block of a store, if there is one now.
#[derive(Debug, Default)]
pub(in crate::session) struct Blocks {
    now: Option<Block>,
    /// How many there have been.
    made: u64,
    /// A replay was issued, and nobody has waited for it.
    busy: bool,
}

/// What a captured pass has of a block. Give it back with [`Blocks::let_go`].
#[derive(Debug)]
pub(in crate::session) struct Held {
    number: u64,
    at: DevicePtr,
    bytes: u64,
}

impl Held {
    /// Its addresses, from the block's first one on.
    pub fn range(&self) -> Range<u64> {
        self.at.0..self.at.0 + self.bytes
    }
}

impl Blocks {
    /// The first `bytes` bytes of the block, for a pass that is about to be captured. Both streams are idle.
    pub fn hold<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<Held> {
        if bytes == 0 {
            return Ok(Held {
                number: 0,
                at: DevicePtr::EMPTY,
                bytes,
            });
        }
        let is_larger = self.now.as_ref().is_none_or(|block| block.bytes < bytes);
        if is_larger {
            // What passes that are issued call by call have kept is not held twice.
            device.trim_scratch()?;
        }
        match &mut self.now {
            Some(block) if block.grows && is_larger => block.grow(device, bytes)?,
            Some(block) if block.bytes >= bytes => {}
            _ => self.replace(device, bytes)?,
        }
        let block = self.now.as_mut();
        let block = block.ok_or_else(|| Error::Internal("there is no block".to_owned()))?;
        block.users += 1;
        Ok(Held {
            number: block.number,
            at: block.at,
            bytes,
        })
    }

    /// Where an activation lies at this offset from the block's first byte, in a pass that is issued call by call. `None`: there is
    /// no block, or one that does not grow.
    pub fn place<D: Device>(
        &mut self,
        device: &mut D,
        offset: u64,
        size: u64,
    ) -> Result<Option<DevicePtr>> {
        let Some(block) = self.now.as_mut().filter(|block| block.grows) else {
            return Ok(None);
        };
        let end = offset + size;
        if end > block.bytes {
            block.grow(device, end)?;
        }
        Ok(Some(block.at.offset(offset)))
    }

    /// Another block: passes that lie in the present one are outdated.
    fn replace<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<()> {
        if let Some(old) = self.now.take() {
            give_back(device, &old)?;
            // Both streams are idle again.
            device.synchronize()?;
        }
        let (at, grows) = match device.reserve_block()? {
            None => (device.alloc_scratch(bytes)?, false),
            Some(at) => {
                if let Err(error) = device.grow_block(at, bytes) {
                    // The first error says more.
                    let _ = device.free_block(at);
                    return Err(error);
                }
                (at, true)
            }
        };
        self.made += 1;
        self.now = Some(Block {
            number: self.made,
            at,
            bytes,
            grows,
            users: 0,
        });
        Ok(())
    }

    /// Nothing runs that uses it. The last one gives the memory back.
    pub fn let_go<D: Device>(&mut self, device: &mut D, held: &Held) -> Result<()> {
        if held.bytes == 0 || self.is_gone(held) {
            return Ok(());
        }
        let Some(block) = &mut self.now else {
            return Ok(());
        };
        block.users -= 1;
        match block.users {
            0 => self
                .now
                .take()
                .map_or(Ok(()), |block| give_back(device, &block)),
            _ => Ok(()),
        }
    }

    /// Whether the block has been replaced by a larger one since.
    pub fn is_gone(&self, held: &Held) -> bool {
        let number = self.now.as_ref().map(|block| block.number);
        // rule: replaced-block-outdates-its-graphs
        held.bytes > 0 && number != Some(held.number)
    }

    /// Bytes of the block that is there, as they were asked for.
    // Inlined, it is read before it is known whether there is a capture: valgrind takes that for an error.
    #[inline(never)]
    pub fn bytes(&self) -> u64 {
        self.now.as_ref().map_or(0, |block| block.bytes)
    }

    /// A replay begins.
    pub fn take_turn(&mut self) -> Result<()> {
        self.check_turn()?;
        self.busy = true;
        Ok(())
    }

    /// No replay has it.
    pub fn check_turn(&self) -> Result<()> {
        // rule: one-replay-at-a-time
        match self.busy {
            false => Ok(()),
            true => Err(Error::Internal(
                "a graph was to be replayed while another replay has the block of activations: wait for its kernels first"
                    .to_owned(),
            )),
        }
    }

    /// The kernels of all replays have ended, or none has begun.
    pub fn end_turn(&mut self) {
        self.busy = false;
    }
}

fn give_back<D: Device>(device: &mut D, block: &Block) -> Result<()> {
    match block.grows {
        true => device.free_block(block.at),
        false => device.free_scratch(block.at, block.bytes),
    }
}
