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
use crate::memory::Growing;
use std::ops::Range;

/// Memory that grows where it is, if the device can do that. Otherwise it is an activation like others.
#[derive(Debug)]
struct BlockMemory {
    at: DevicePtr,
    bytes: u64,
    growing: Option<Growing>,
}

impl BlockMemory {
    fn take<D: Device>(device: &mut D, bytes: u64) -> Result<BlockMemory> {
        let mut growing = Growing::open(device)?;
        let at = match &growing {
            None => device.alloc_scratch(bytes)?,
            Some(block) => block.at(),
        };
        if let Some(Err(error)) = growing.as_mut().map(|block| block.grow(device, bytes)) {
            // The first error says more.
            let _ = growing.map(|block| block.close(device));
            return Err(error);
        }
        Ok(BlockMemory { at, bytes, growing })
    }

    fn grow<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<()> {
        let growing = self.growing.as_mut();
        let growing =
            growing.ok_or_else(|| Error::Internal("this block cannot grow".to_owned()))?;
        // rule: block-grows-in-place
        growing.grow(device, bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    fn give_back<D: Device>(self, device: &mut D) -> Result<()> {
        match self.growing {
            Some(growing) => growing.close(device),
            None => device.free_scratch(self.at, self.bytes),
        }
    }
}

/// The block of a store, if there is one now.
#[derive(Debug, Default)]
pub(in crate::session) struct SharedBlock {
    memory: Option<BlockMemory>,
    /// How many there have been: the number of this one.
    made: u64,
    /// Captured passes that lie in it.
    users: usize,
    /// What was issued last is a replay: its kernels and copies left no events to wait for.
    pub replayed: bool,
    /// It may still run: nobody has waited for it.
    busy: bool,
}

/// What a captured pass has of a block. Give it back with [`SharedBlock::let_go`].
#[derive(Debug)]
pub(super) struct Held {
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

impl SharedBlock {
    /// The first `bytes` bytes of the block, for a pass that is about to be captured. Both streams are idle.
    pub(super) fn hold<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<Held> {
        if self.bytes() < bytes {
            // What passes that are issued call by call have kept is not held twice.
            device.trim_scratch()?;
            match &mut self.memory {
                Some(memory) if memory.growing.is_some() => memory.grow(device, bytes)?,
                _ => self.replace(device, bytes)?,
            }
        }
        let memory = self.memory.as_ref().filter(|_| bytes > 0);
        self.users += usize::from(memory.is_some());
        Ok(Held {
            number: self.made,
            at: memory.map_or(DevicePtr::EMPTY, |memory| memory.at),
            bytes,
        })
    }

    /// Another block: passes that lie in the present one are outdated.
    fn replace<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<()> {
        if let Some(old) = self.memory.take() {
            old.give_back(device)?;
            // Both streams are idle again.
            device.synchronize()?;
        }
        self.memory = Some(BlockMemory::take(device, bytes)?);
        self.made += 1;
        self.users = 0;
        Ok(())
    }

    /// Where an activation lies at this offset from the block's first byte, in a pass that is issued call by call. `None`: there is
    /// no block, or one that does not grow.
    pub fn place<D: Device>(
        &mut self,
        device: &mut D,
        offset: u64,
        size: u64,
    ) -> Result<Option<DevicePtr>> {
        let Some(memory) = self
            .memory
            .as_mut()
            .filter(|memory| memory.growing.is_some())
        else {
            return Ok(None);
        };
        let end = offset + size;
        if end > memory.bytes {
            memory.grow(device, end)?;
        }
        Ok(Some(memory.at.offset(offset)))
    }

    /// Nothing runs that uses it. The last one gives the memory back.
    pub(super) fn let_go<D: Device>(&mut self, device: &mut D, held: &Held) -> Result<()> {
        if held.bytes == 0 || self.is_gone(held) {
            return Ok(());
        }
        self.users -= 1;
        match self.memory.take_if(|_| self.users == 0) {
            Some(memory) => memory.give_back(device),
            None => Ok(()),
        }
    }

    /// The number of the block that is there.
    pub fn number(&self) -> Option<u64> {
        self.memory.as_ref().map(|_| self.made)
    }

    /// Whether the block has been replaced by a larger one since.
    pub(super) fn is_gone(&self, held: &Held) -> bool {
        let number = self.number();
        // rule: replaced-block-outdates-its-graphs
        held.bytes > 0 && number != Some(held.number)
    }

    /// Bytes of the block that is there, as they were asked for.
    // Inlined, it is read before it is known whether there is a capture: valgrind takes that for an error.
    #[inline(never)]
    pub fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.bytes)
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

    /// A pass, call by call, waits for the events of its own calls only: nothing of a replay runs after this.
    pub fn finish_replays<D: Device>(&mut self, device: &mut D) -> Result<()> {
        if self.replayed {
            // rule: pass-waits-for-the-replay-before
            device.synchronize()?;
            self.replayed = false;
            self.end_turn();
        }
        Ok(())
    }
}
