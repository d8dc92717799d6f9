//! Blocks of host memory: owned, counted, and found again by address.

use crate::device::DevicePtr;
use crate::error::{Error, Result};
use memmap2::MmapMut;
use std::alloc::{alloc, dealloc, Layout};
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// Blocks of at least this size are mapped on their own, so that freeing them gives the memory back to
/// the system. Smaller ones would waste a page each.
const MAPPED: u64 = 64 << 10;
/// Alignment of smaller blocks; mapped ones start at a page.
const ALIGN: usize = 64;

/// One block of memory, freed when dropped.
pub(super) struct Block {
    memory: Storage,
    bytes: u64,
}

enum Storage {
    Heap(NonNull<u8>, Layout),
    Mapped(MmapMut),
}

// SAFETY: a block owns its memory; nothing in it is bound to the thread that made it.
unsafe impl Send for Block {}

impl Block {
    /// At least one byte; `None` if the system has no memory.
    pub(super) fn new(bytes: u64) -> Option<Self> {
        match bytes < MAPPED {
            true => Block::heap(bytes),
            false => {
                let map = MmapMut::map_anon(usize::try_from(bytes).ok()?).ok()?;
                Some(Block {
                    memory: Storage::Mapped(map),
                    bytes,
                })
            }
        }
    }

    /// The same from the heap, whatever its size.
    pub(super) fn heap(bytes: u64) -> Option<Self> {
        let layout = Layout::from_size_align(usize::try_from(bytes).ok()?, ALIGN).ok()?;
        assert!(layout.size() > 0, "blocks have at least one byte");
        // SAFETY: the layout's size is not 0.
        let ptr = NonNull::new(unsafe { alloc(layout) })?;
        Some(Block {
            memory: Storage::Heap(ptr, layout),
            bytes,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.memory, Storage::Mapped(_))
    }

    fn start(&self) -> *mut u8 {
        match &self.memory {
            Storage::Heap(ptr, _) => ptr.as_ptr(),
            // The memory is anonymous and private, and only this block refers to it: writing through this
            // pointer is writing through the `&mut` that the map came from.
            Storage::Mapped(map) => map.as_ptr().cast_mut(),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Storage::Heap(ptr, layout) = self.memory {
            // SAFETY: allocated in `heap` with this layout, and freed here only.
            unsafe { dealloc(ptr.as_ptr(), layout) }
        }
    }
}

/// Where a copy writes: inside a block, or a view's memory, that stays allocated until the copy is done.
pub(super) struct CopyTarget(pub(super) *mut u8);

// SAFETY: the address of a block's or a view's memory, which may be written from any one thread; only the copy thread
// dereferences it, in queue order.
unsafe impl Send for CopyTarget {}

impl CopyTarget {
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.0
    }
}

/// The blocks that are handed out, by address.
#[derive(Default)]
pub(super) struct Blocks {
    by_address: BTreeMap<u64, Block>,
    bytes: u64,
}

impl Blocks {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn insert(&mut self, block: Block) -> DevicePtr {
        let address = block.start() as u64;
        self.bytes += block.bytes;
        self.by_address.insert(address, block);
        DevicePtr(address)
    }

    /// Takes out the block of `bytes` at `ptr`. Refuses an address that was not handed out.
    pub(super) fn remove(&mut self, ptr: DevicePtr, bytes: u64) -> Result<Block> {
        match self.by_address.remove(&ptr.0) {
            Some(block) if block.bytes == bytes => {
                self.bytes -= bytes;
                Ok(block)
            }
            Some(other) => {
                let found = other.bytes;
                self.by_address.insert(ptr.0, other);
                Err(stray(
                    ptr,
                    &format!("freed with {bytes} bytes, allocated with {found}"),
                ))
            }
            None => Err(stray(ptr, "freed, but not allocated")),
        }
    }

    /// The target of a copy of `len` bytes to `ptr`, which must lie inside one block.
    pub(super) fn target(&self, ptr: DevicePtr, len: u64) -> Result<CopyTarget> {
        let inside = |(start, block): &(&u64, &Block)| {
            let offset = ptr.0 - **start;
            offset <= block.bytes && len <= block.bytes - offset
        };
        let (start, block) = self
            .by_address
            .range(..=ptr.0)
            .next_back()
            .filter(inside)
            .ok_or_else(|| stray(ptr, &format!("{len} bytes copied outside of any block")))?;
        Ok(CopyTarget(
            block.start().wrapping_add((ptr.0 - start) as usize),
        ))
    }

    /// Whether `ptr` lies in one of the blocks.
    pub(super) fn contain(&self, ptr: DevicePtr) -> bool {
        self.target(ptr, 1).is_ok()
    }

    /// Writes `src` at `ptr`. No command of the copy thread may be under way on these blocks.
    pub(super) fn write(&mut self, ptr: DevicePtr, src: &[u8]) -> Result<()> {
        let target = self.target(ptr, src.len() as u64)?;
        // SAFETY: `target` is inside a block that lives as long as it is in this list, and `src` is a slice of
        // other memory: blocks are never lent as slices. Nobody else writes it: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), target.as_ptr(), src.len()) };
        Ok(())
    }

    /// Reads `dst.len()` bytes from `ptr`. The same holds as for [`Blocks::write`].
    pub(super) fn read(&self, ptr: DevicePtr, dst: &mut [u8]) -> Result<()> {
        let target = self.target(ptr, dst.len() as u64)?;
        // SAFETY: as in `write`, with the directions exchanged. The block's address was given out, so its
        // bytes are what others have written there.
        unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }
}

fn stray(ptr: DevicePtr, what: &str) -> Error {
    Error::Internal(format!("host memory {:#x}: {what}", ptr.0))
}
