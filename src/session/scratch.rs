//! Where activations lie: in memory that the device hands out, or, while a pass is captured, in one block whose addresses a
//! replay finds again. How large that block is, is measured in the pass before.

use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::residency::FreeList;
use std::collections::BTreeMap;
use std::ops::Range;

/// More than any device has, and no sum here overflows.
const ENDLESS: u64 = 1 << 60;

/// The activations of a pass, by offsets that depend on nothing but the order and the sizes in which they come and go.
#[derive(Debug)]
pub(super) struct Scratch {
    /// The block, if activations lie in it now.
    block: Option<Range<u64>>,
    /// Where they lie in it, or would.
    free: FreeList,
    /// Offset and bytes of each activation, by address.
    live: BTreeMap<u64, (u64, u64)>,
    /// The end of the one that lay furthest back.
    reach: u64,
}

impl Scratch {
    pub fn new() -> Self {
        Scratch {
            block: None,
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

    /// From now on activations lie there; with `None` where the device says.
    pub fn lie_in(&mut self, block: Option<Range<u64>>) {
        self.block = block;
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
        // rule: captured-activations-lie-in-their-block
        let placed = match &self.block {
            None => device.alloc_scratch(bytes),
            Some(block) if block.start + offset + size <= block.end => {
                Ok(DevicePtr(block.start + offset))
            }
            Some(block) => Err(Error::Internal(format!(
                "the captured pass takes other activations than the one before it: {size} bytes at {offset} of {}",
                block.end - block.start
            ))),
        };
        match placed {
            Ok(ptr) => {
                self.reach = self.reach.max(offset + size);
                self.live.insert(ptr.0, (offset, size));
                Ok(ptr)
            }
            Err(error) => {
                self.free.give(offset, size);
                Err(error)
            }
        }
    }

    pub fn free<D: Device>(&mut self, device: &mut D, ptr: DevicePtr, bytes: u64) -> Result<()> {
        if let Some((offset, size)) = self.live.remove(&ptr.0) {
            self.free.give(offset, size);
            if self
                .block
                .as_ref()
                .is_some_and(|block| block.contains(&ptr.0))
            {
                return Ok(());
            }
        }
        device.free_scratch(ptr, bytes)
    }
}
