//! Where activations lie: in the block of the captured passes once there is one, else in memory that the device hands out. A pass
//! that is captured has its part of the block, which a replay finds again: how large that is, is measured in the pass before.

use super::block::SharedBlock;
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::figures::FreeList;
use std::collections::BTreeMap;
use std::ops::Range;

/// More than any device has, and no sum here overflows.
const ENDLESS: u64 = 1 << 60;

/// The activations of a pass, by offsets that depend on nothing but the order and the sizes in which they come and go.
#[derive(Debug)]
pub(in crate::session) struct Scratch {
    pub block: SharedBlock,
    /// The captured pass's part of the block, while one is captured.
    part: Option<Range<u64>>,
    /// Where they lie in it, or would.
    free: FreeList,
    /// Each activation, by address.
    live: BTreeMap<u64, LiveActivation>,
    /// The end of the one that lay furthest back.
    reach: u64,
}

/// An activation: where it lies in a block, or would.
#[derive(Debug)]
struct LiveActivation {
    offset: u64,
    size: u64,
    in_block: bool,
}

impl Scratch {
    pub fn new() -> Self {
        Scratch {
            block: SharedBlock::default(),
            part: None,
            free: FreeList::of(ENDLESS),
            live: BTreeMap::new(),
            reach: 0,
        }
    }

    /// A pass begins: what the last one took at most is forgotten.
    pub fn begin(&mut self) {
        self.reach = 0;
        self.live.clear();
        self.free = FreeList::of(ENDLESS);
    }

    /// What a block has to have for a pass like the last one.
    pub fn reach(&self) -> u64 {
        self.reach
    }

    /// From now on activations lie there, and nowhere else; with `None` where the store's block or the device says.
    pub fn lie_in(&mut self, part: Option<Range<u64>>) {
        self.part = part;
    }

    pub fn alloc<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<DevicePtr> {
        if bytes == 0 {
            return device.alloc_scratch(0);
        }
        let size = bytes.checked_next_multiple_of(device.granule());
        let taken = size.and_then(|size| Some((self.free.take(size)?, size)));
        let Some((offset, size)) = taken else {
            return Err(Error::OutOfMemory {
                what: "an activation, larger than any device".to_owned(),
                bytes,
            });
        };
        match self.place(device, (offset, size), bytes) {
            Ok((ptr, in_block)) => {
                self.reach = self.reach.max(offset + size);
                let live = LiveActivation {
                    offset,
                    size,
                    in_block,
                };
                self.live.insert(ptr.0, live);
                Ok(ptr)
            }
            Err(error) => {
                self.free.give(offset, size);
                Err(error)
            }
        }
    }

    /// The address of an activation at this offset, with this size there; and whether it lies in the block.
    fn place<D: Device>(
        &mut self,
        device: &mut D,
        (offset, size): (u64, u64),
        bytes: u64,
    ) -> Result<(DevicePtr, bool)> {
        // rule: captured-activations-lie-in-their-block
        if let Some(part) = &self.part {
            return match part.start + offset + size <= part.end {
                true => Ok((DevicePtr(part.start + offset), true)),
                false => Err(Error::Internal(format!(
                    "the captured pass takes other activations than the one before it: {size} bytes at {offset} of {}",
                    part.end - part.start
                ))),
            };
        }
        match self.block.place(device, offset, size)? {
            Some(ptr) => Ok((ptr, true)),
            None => Ok((device.alloc_scratch(bytes)?, false)),
        }
    }

    pub fn free<D: Device>(&mut self, device: &mut D, ptr: DevicePtr, bytes: u64) -> Result<()> {
        let live = self.live.remove(&ptr.0);
        if let Some(live) = &live {
            self.free.give(live.offset, live.size);
        }
        match live.is_some_and(|live| live.in_block) {
            true => Ok(()),
            false => device.free_scratch(ptr, bytes),
        }
    }
}
