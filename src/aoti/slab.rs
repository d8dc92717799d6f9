//! Tensor handles and storages of one container, kept in slabs: making and deleting a handle allocates
//! nothing once the slab has grown to the pass's size.
//!
//! A handle is a number that is never dereferenced: the slab's tag, the slot's generation and its index.
//! A handle that was deleted, or belongs to another container, is told from a live one.
#![deny(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::dtype::DType;
use super::tensor::{Dims, Owner, Storage, Tensor};
use crate::device::DevicePtr;

/// `AtenTensorHandle`: opaque to the compiled code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Handle(pub usize);

impl Handle {
    /// No tensor.
    pub const NULL: Handle = Handle(0);
}

/// Index of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageId(u32);

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;
const INDEX_MASK: usize = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: usize = (1 << GENERATION_BITS) - 1;
/// Slots of one chunk. Chunks never move: the compiled code keeps pointers to sizes and strides.
const CHUNK: usize = 64;

struct HandleSlot {
    generation: usize,
    storage: StorageId,
    constant: bool,
    live: bool,
    /// It and its storage are a probe's, also while no handle has them.
    kept: bool,
    /// Of the last handle, if none is live.
    tensor: Tensor,
}

#[derive(Clone, Copy)]
struct StorageSlot {
    storage: Storage,
    refs: u32,
    kept: bool,
}

/// For a probe that has no slot of its own yet.
const NO_SLOT: u32 = u32::MAX;

/// All handles of one container.
pub struct Slab {
    tag: usize,
    chunks: Vec<Box<[HandleSlot]>>,
    free: Vec<u32>,
    storages: Vec<StorageSlot>,
    free_storages: Vec<u32>,
    /// The slot that each probe's handle had in the pass before, with its window.
    of_probes: Vec<u32>,
    live: usize,
    constants: usize,
}

impl Slab {
    /// An empty slab with a tag of its own.
    pub fn new() -> Slab {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let tag = (NEXT.fetch_add(1, Ordering::Relaxed) % 0x7fff) as usize + 1;
        Slab {
            tag,
            chunks: Vec::new(),
            free: Vec::new(),
            storages: Vec::new(),
            free_storages: Vec::new(),
            of_probes: Vec::new(),
            live: 0,
            constants: 0,
        }
    }

    /// Handles alive, constants not counted.
    pub fn live(&self) -> usize {
        self.live - self.constants
    }

    /// A handle to `tensor` in a new storage.
    pub fn insert(&mut self, storage: Storage, tensor: Tensor) -> Result<Handle, String> {
        tensor.check_within(storage.bytes)?;
        let index = self.take()?;
        self.at(index).tensor = tensor;
        let id = self.new_storage(storage);
        Ok(self.begin(index, id))
    }

    /// A handle to a window of these sizes and strides in a new storage that ends with it: what a probe makes. They are
    /// written to where they stay: to make a tensor elsewhere and move it here took a third of a probe's time.
    pub fn insert_whole(
        &mut self,
        (owner, ptr): (Owner, DevicePtr),
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
    ) -> Result<Handle, String> {
        let index = self.take()?;
        let tensor = &mut self.at(index).tensor;
        let bytes = tensor.become_whole(dtype, sizes, strides);
        let bytes = bytes.inspect_err(|_| self.free.push(index as u32))?;
        let id = self.new_storage(Storage { owner, ptr, bytes });
        Ok(self.begin(index, id))
    }

    /// The handle of probe `id`, with its window of an earlier pass, and its storage at `ptr`. `None` if
    /// it was not kept ([`Slab::keep_for_probe`]), or if its slot or storage is still in use.
    pub fn of_probe(&mut self, id: i64, ptr: DevicePtr) -> Option<Handle> {
        let index = *self.of_probes.get(usize::try_from(id).ok()?)?;
        let slot =
            (self.chunks.get_mut(index as usize / CHUNK)?).get_mut(index as usize % CHUNK)?;
        let storage = self.storages.get_mut(slot.storage.0 as usize)?;
        // rule: storage-under-a-view-stays
        if slot.live || storage.refs > 0 {
            return None;
        }
        storage.refs = 1;
        // rule: probe-gets-its-new-address
        storage.storage.ptr = ptr;
        slot.live = true;
        let generation = slot.generation;
        self.live += 1;
        Some(self.encode(index as usize, generation))
    }

    /// Keeps slot, window and storage of a handle that was just made for probe `id`. The next pass then
    /// only has to say where its storage lies. Does nothing if the probe keeps another handle, which is
    /// still in use.
    pub fn keep_for_probe(&mut self, id: i64, handle: Handle) -> Result<(), String> {
        let (chunk, at) = self.locate(handle)?;
        let id = usize::try_from(id).map_err(|_| format!("there is no probe {id}"))?;
        if self.of_probes.len() <= id {
            self.of_probes.resize(id + 1, NO_SLOT);
        }
        if self.of_probes[id] != NO_SLOT {
            return Ok(());
        }
        let slot = &mut self.chunks[chunk][at];
        slot.kept = true;
        self.storages[slot.storage.0 as usize].kept = true;
        self.of_probes[id] = (chunk * CHUNK + at) as u32;
        Ok(())
    }

    /// Another handle into the storage of `of`.
    pub fn share(&mut self, of: Handle, tensor: Tensor) -> Result<Handle, String> {
        let id = self.slot(of)?.storage;
        tensor.check_within(self.storages[id.0 as usize].storage.bytes)?;
        let index = self.take()?;
        self.at(index).tensor = tensor;
        Ok(self.begin(index, id))
    }

    /// Marks a handle as a constant of the container: it outlives passes.
    pub fn keep(&mut self, handle: Handle) -> Result<(), String> {
        let (chunk, at) = self.locate(handle)?;
        let slot = &mut self.chunks[chunk][at];
        self.constants += usize::from(!slot.constant);
        slot.constant = true;
        Ok(())
    }

    /// Whether a handle was not deleted yet.
    pub fn is_live(&self, handle: Handle) -> bool {
        self.locate(handle).is_ok()
    }

    /// The tensor of a handle.
    pub fn tensor(&self, handle: Handle) -> Result<&Tensor, String> {
        Ok(&self.slot(handle)?.tensor)
    }

    /// The storage of a handle.
    pub fn storage(&self, handle: Handle) -> Result<Storage, String> {
        Ok(self.storages[self.slot(handle)?.storage.0 as usize].storage)
    }

    /// Address of a tensor's first element. Compiled code asks for that of each argument of each kernel.
    pub fn address(&self, handle: Handle) -> Result<DevicePtr, String> {
        let slot = self.slot(handle)?;
        let item = slot.tensor.dtype.itemsize().unwrap_or(1) as u64;
        let start = self.storages[slot.storage.0 as usize].storage.ptr;
        // The window was checked to lie within the storage, so this does not overflow.
        Ok(DevicePtr(start.0 + slot.tensor.offset as u64 * item))
    }

    /// Deletes a handle. Returns the storage if this was its last one.
    pub fn delete(&mut self, handle: Handle) -> Result<Option<Storage>, String> {
        let (chunk, at) = self.locate(handle)?;
        let slot = &mut self.chunks[chunk][at];
        slot.live = false;
        slot.generation = next_generation(slot.generation);
        let (id, constant) = (slot.storage, std::mem::take(&mut slot.constant));
        if !slot.kept {
            self.free.push((chunk * CHUNK + at) as u32);
        }
        self.live -= 1;
        self.constants -= usize::from(constant);
        let storage = &mut self.storages[id.0 as usize];
        storage.refs -= 1;
        // rule: last-handle-ends-the-lease
        if storage.refs > 0 {
            return Ok(None);
        }
        let ended = storage.storage;
        if !storage.kept {
            self.free_storages.push(id.0);
        }
        Ok(Some(ended))
    }

    /// Every live handle that is not a constant.
    pub fn leftovers(&self) -> Vec<Handle> {
        let slots = self
            .chunks
            .iter()
            .flat_map(|chunk| chunk.iter())
            .enumerate();
        slots
            .filter(|(_, slot)| slot.live && !slot.constant)
            .map(|(index, slot)| self.encode(index, slot.generation))
            .collect()
    }

    /// Checks the counts against the slots. For tests, after each operation.
    pub fn validate(&self) -> Result<(), String> {
        let slots = || self.chunks.iter().flat_map(|chunk| chunk.iter());
        let mut refs = vec![0u32; self.storages.len()];
        for slot in slots().filter(|slot| slot.live) {
            refs[slot.storage.0 as usize] += 1;
        }
        for free in &self.free_storages {
            if refs[*free as usize] != 0 {
                return Err(format!("storage {free} is free and used"));
            }
        }
        let used = refs.iter().zip(&self.storages);
        let used = used.filter(|(n, s)| **n > 0 || s.kept).count();
        if used + self.free_storages.len() != self.storages.len() {
            return Err(format!(
                "{used} of {} storages are used, the others not free",
                self.storages.len()
            ));
        }
        let live = slots().filter(|slot| slot.live).count();
        let idle = slots().filter(|slot| slot.kept && !slot.live).count();
        let constants = slots().filter(|slot| slot.constant).count();
        if live != self.live
            || constants != self.constants
            || live + idle + self.free.len() != slots().count()
        {
            return Err(format!("{live} live handles, {} counted", self.live));
        }
        match self
            .storages
            .iter()
            .zip(&refs)
            .position(|(s, n)| *n > 0 && s.refs != *n)
        {
            Some(bad) => Err(format!("storage {bad} has a wrong count of handles")),
            None => Ok(()),
        }
    }

    /// Index of a slot that no handle has. It is to be given to one, or back.
    fn take(&mut self) -> Result<usize, String> {
        if self.free.is_empty() {
            self.grow()?;
        }
        Ok(self.free.pop().unwrap_or_default() as usize)
    }

    fn at(&mut self, index: usize) -> &mut HandleSlot {
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }

    fn new_storage(&mut self, storage: Storage) -> StorageId {
        let slot = StorageSlot {
            storage,
            refs: 0,
            kept: false,
        };
        match self.free_storages.pop() {
            Some(id) => {
                self.storages[id as usize] = slot;
                StorageId(id)
            }
            None => {
                self.storages.push(slot);
                StorageId(self.storages.len() as u32 - 1)
            }
        }
    }

    /// The handle of a slot that was taken, and has its tensor.
    fn begin(&mut self, index: usize, storage: StorageId) -> Handle {
        let slot = self.at(index);
        slot.storage = storage;
        slot.constant = false;
        slot.live = true;
        let generation = slot.generation;
        self.storages[storage.0 as usize].refs += 1;
        self.live += 1;
        self.encode(index, generation)
    }

    fn grow(&mut self) -> Result<(), String> {
        let start = self.chunks.len() * CHUNK;
        if start + CHUNK > INDEX_MASK {
            return Err(format!("{start} tensor handles are alive: the limit"));
        }
        let slot = || HandleSlot {
            generation: 1,
            storage: StorageId(0),
            constant: false,
            live: false,
            kept: false,
            tensor: Tensor {
                dtype: DType::U8,
                offset: 0,
                dims: Dims::NONE,
            },
        };
        self.chunks.push((0..CHUNK).map(|_| slot()).collect());
        self.free
            .extend((start..start + CHUNK).rev().map(|i| i as u32));
        // So that deleting never allocates.
        let slots = self.chunks.len() * CHUNK;
        self.free.reserve(slots);
        self.storages
            .reserve(slots.saturating_sub(self.storages.len()));
        self.free_storages.reserve(slots);
        Ok(())
    }

    fn encode(&self, index: usize, generation: usize) -> Handle {
        Handle((self.tag << (INDEX_BITS + GENERATION_BITS)) | (generation << INDEX_BITS) | index)
    }

    /// Checks that a handle was one of this slab's at some time, without a look at its slot.
    pub fn check_tag(&self, handle: Handle) -> Result<(), String> {
        match handle.0 >> (INDEX_BITS + GENERATION_BITS) == self.tag {
            true => Ok(()),
            false => Err(format!(
                "{:#x} is not a tensor handle of this program",
                handle.0
            )),
        }
    }

    fn locate(&self, handle: Handle) -> Result<(usize, usize), String> {
        let index = handle.0 & INDEX_MASK;
        let generation = (handle.0 >> INDEX_BITS) & GENERATION_MASK;
        self.check_tag(handle)?;
        let slot = self
            .chunks
            .get(index / CHUNK)
            .map(|chunk| &chunk[index % CHUNK]);
        match slot {
            // rule: deleted-handle-is-stale
            Some(slot) if slot.generation == generation && slot.live => {
                Ok((index / CHUNK, index % CHUNK))
            }
            _ => Err(stale(handle)),
        }
    }

    fn slot(&self, handle: Handle) -> Result<&HandleSlot, String> {
        let (chunk, at) = self.locate(handle)?;
        Ok(&self.chunks[chunk][at])
    }
}

impl Default for Slab {
    fn default() -> Slab {
        Slab::new()
    }
}

fn stale(handle: Handle) -> String {
    format!("tensor handle {:#x} was deleted before", handle.0)
}

fn next_generation(generation: usize) -> usize {
    // Zero is left out so that no handle is null.
    match (generation + 1) & GENERATION_MASK {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
#[path = "slab_tests.rs"]
mod tests;
