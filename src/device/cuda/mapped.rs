//! Memory that shows at several addresses.
//!
//! A view's memory is made of units: allocations of physical memory that the driver maps as a whole only. No unit crosses a
//! border of the view ([`View::borders`]). Each is mapped once in the memory's own order, writable, where the copy engine writes;
//! and once for each piece of the view that shows it, read-only, where kernels read: a store there is a fault that loses the
//! context, loudly, instead of a wrong weight. Everything is mapped at once when a view is, and unmapped when it goes.

use super::context::{Context, Entered};
use super::moved::Mover;
use super::physical::{Addresses, Physical, PAGES};
use super::stream::Stream;
use crate::device::{DevicePtr, HostBytes, Remapped};
use crate::error::{Error, Result};
use crate::figures::{KeptPages, View};
use cudarc::driver::sys::CUmemAccess_flags as Access;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The most bytes of a unit: mapping costs by the unit, and a move copies units that it cannot keep whole.
const UNIT: u64 = 32 << 20;

/// The units of a view's memory, in bytes from its start.
fn units(view: &View) -> Vec<Range<u64>> {
    let borders = view.borders();
    let parts = borders.windows(2).flat_map(|pair| {
        let end = pair[1];
        let starts = (pair[0]..end).step_by(UNIT as usize);
        starts.map(move |start| start..end.min(start + UNIT))
    });
    parts.collect()
}

/// One view, mapped. Its memory is freed when both mappings are gone.
struct Mapped {
    view: View,
    /// The view's addresses.
    shown: Addresses,
    /// The memory in its own order, writable.
    memory: Addresses,
    /// By their place in the memory, without a gap.
    units: Vec<(Range<u64>, Physical)>,
}

impl Mapped {
    /// `view` was checked, and has bytes. What was done before a failure is undone by the values' ends.
    fn new(
        context: &Arc<Context>,
        view: &View,
        access: Access,
        _entered: &Entered<'_>,
    ) -> Result<Mapped> {
        let whole = view.whole();
        let mut memory = Addresses::reserve(context, whole, PAGES)?;
        let mut all = Vec::new();
        for range in units(view) {
            let left = || {
                let left = whole - range.start;
                format!("{PAGES}, of which {left} of {whole} bytes are left to find,")
            };
            let physical = Physical::new(context, range.end - range.start, left)?;
            memory.map(range.start, &physical)?;
            all.push((range, physical));
        }
        memory.allow(0..whole, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        Mapped::show(view, access, memory, all)
    }

    /// Shows units that are mapped in their own order.
    fn show(
        view: &View,
        access: Access,
        memory: Addresses,
        units: Vec<(Range<u64>, Physical)>,
    ) -> Result<Mapped> {
        let mut shown = Addresses::reserve(memory.context(), view.bytes, PAGES)?;
        for piece in &view.pieces {
            let end = piece.memory + piece.bytes;
            let from = units.partition_point(|(range, _)| range.start < piece.memory);
            let inside = units[from..]
                .iter()
                .take_while(|(range, _)| range.end <= end);
            for (range, physical) in inside {
                shown.map(piece.at + (range.start - piece.memory), physical)?;
            }
        }
        shown.allow(0..view.bytes, access)?;
        Ok(Mapped {
            view: view.clone(),
            shown,
            memory,
            units,
        })
    }

    /// The memory is seen as `view` says, with `kept` pages in it but for those that are returned. The streams are idle.
    fn moved(
        self,
        view: &View,
        access: Access,
        kept: &[KeptPages],
        stream: &Stream,
        entered: &Entered<'_>,
    ) -> Result<(Mapped, Vec<Range<u64>>)> {
        let Mapped {
            shown,
            memory,
            units: old,
            ..
        } = self;
        drop(shown);
        let mut mover = Mover::new(memory, old, view.whole())?;
        let moved = mover.fill(&units(view), kept, stream, entered);
        // Copies may be under way, whatever went wrong.
        stream.synchronize(entered)?;
        moved?;
        let (memory, all, lost) = mover.finish()?;
        Ok((Mapped::show(view, access, memory, all)?, lost))
    }
}

/// The views of a device, by address.
#[derive(Default)]
pub(super) struct Views {
    by_address: BTreeMap<u64, Mapped>,
    bytes: u64,
    /// Kernels may write to views that are mapped from now on.
    pub(super) writable: bool,
}

impl Views {
    /// What kernels may do at the addresses of a view.
    fn access(&self) -> Access {
        match self.writable {
            true => Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            false => Access::CU_MEM_ACCESS_FLAGS_PROT_READ,
        }
    }

    /// Bytes of memory behind all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps a view that was checked, and has bytes.
    pub(super) fn map(
        &mut self,
        context: &Arc<Context>,
        view: &View,
        entered: &Entered<'_>,
    ) -> Result<DevicePtr> {
        let mapped = Mapped::new(context, view, self.access(), entered)?;
        Ok(self.insert(mapped))
    }

    fn insert(&mut self, mapped: Mapped) -> DevicePtr {
        let address = mapped.shown.start;
        self.bytes += mapped.view.memory;
        self.by_address.insert(address, mapped);
        DevicePtr(address)
    }

    /// Shows the memory of what [`Views::map`] returned as `view` says, which was checked, and has bytes. The streams are idle.
    /// On an error nothing is mapped.
    pub(super) fn remap(
        &mut self,
        ptr: DevicePtr,
        view: &View,
        kept: &[KeptPages],
        stream: &Stream,
        entered: &Entered<'_>,
    ) -> Result<Remapped> {
        let access = self.access();
        let (mapped, lost) = self.take(ptr)?.moved(view, access, kept, stream, entered)?;
        let at = self.insert(mapped);
        Ok(Remapped { at, lost })
    }

    /// Unmaps what [`Views::map`] returned, after everything on both streams, which the caller has waited for. Bytes of
    /// memory that were behind it.
    pub(super) fn unmap(&mut self, ptr: DevicePtr) -> Result<u64> {
        self.take(ptr).map(|mapped| mapped.view.memory)
    }

    /// Bytes of memory behind the view that begins at `ptr`.
    pub(super) fn memory_at(&self, ptr: DevicePtr) -> Result<u64> {
        let mapped = self.by_address.get(&ptr.0);
        mapped
            .map(|one| one.view.memory)
            .ok_or_else(|| unknown(ptr))
    }

    fn take(&mut self, ptr: DevicePtr) -> Result<Mapped> {
        let mapped = self.by_address.remove(&ptr.0).ok_or_else(|| unknown(ptr))?;
        self.bytes -= mapped.view.memory;
        Ok(mapped)
    }

    /// Whether `len` bytes at `ptr` lie in one of them.
    pub(super) fn cover(&self, ptr: DevicePtr, len: u64) -> bool {
        self.find(ptr)
            .is_some_and(|(mapped, offset)| len <= mapped.view.bytes - offset)
    }

    /// Refuses what is written to an address of a view by anything but a copy of weights: the driver would find out
    /// in the middle of a stream, and lose the context.
    pub(super) fn check_not_written(&self, ptr: DevicePtr) -> Result<()> {
        match self.find(ptr) {
            None => Ok(()),
            Some((mapped, _)) => Err(Error::Internal(format!(
                "{} {:#x} is a view's: kernels and uploads only read there, copies of weights write",
                mapped.shown.name(),
                ptr.0
            ))),
        }
    }

    /// Where the copy engine writes a copy of `src` to `ptr`, and what goes there: where neighbouring pieces are no
    /// neighbours in memory, it is a copy for each. `None` if `ptr` is no address of a view.
    pub(super) fn targets(
        &self,
        ptr: DevicePtr,
        src: HostBytes,
    ) -> Option<Result<Vec<(DevicePtr, HostBytes)>>> {
        let (mapped, offset) = self.find(ptr)?;
        let Some(parts) = mapped.view.split(offset, src.len()) else {
            return Some(Err(Error::Internal(format!(
                "{} {:#x}: {} bytes that leave their view",
                mapped.shown.name(),
                ptr.0,
                src.len()
            ))));
        };
        let memory = DevicePtr(mapped.memory.start);
        let parts = parts
            .into_iter()
            .map(|(at, part)| (memory.offset(at), src.slice(part)));
        Some(Ok(parts.collect()))
    }

    /// The view with the address `ptr`, and the offset there.
    fn find(&self, ptr: DevicePtr) -> Option<(&Mapped, u64)> {
        let (start, mapped) = self.by_address.range(..=ptr.0).next_back()?;
        let offset = ptr.0 - start;
        (offset < mapped.view.bytes).then_some((mapped, offset))
    }
}

#[cold]
fn unknown(ptr: DevicePtr) -> Error {
    Error::Internal(format!("{:#x}: no view begins there", ptr.0))
}
