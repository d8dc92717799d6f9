//! Memory that shows at several addresses.
//!
//! A view's memory is made of units, which are mapped as a whole only. No unit crosses a border of the view ([`View::borders`]). Each
//! is mapped once in the memory's own order, writable, where copies write; and once for each piece of the view that shows it, where
//! kernels read: a store there is a fault, loudly, instead of a wrong weight. All of it is mapped at once when a view is, and unmapped
//! when it goes.

use super::moved::{Mover, PlacedUnits};
use crate::device::{no_pages, pages_of, Device, DevicePtr, MemoryOf, PageAccess, Pages, Purpose};
use crate::error::{Error, Result};
use crate::figures::{KeptPages, View};
use std::ops::Range;

/// One view, mapped. [`MappedView::close`] gives everything back; what is dropped stays until the device's end.
pub struct MappedView<D: Device> {
    /// The view's addresses.
    shown: DevicePtr,
    /// The memory in its own order, writable.
    memory: DevicePtr,
    /// They leave no gap in the memory.
    units: PlacedUnits<MemoryOf<D>>,
}

impl<D: Device> MappedView<D> {
    /// Takes the memory of a view that has bytes, and shows it. On an error nothing is taken.
    pub fn open(device: &mut D, view: &View, access: PageAccess) -> Result<Self> {
        let pages = pages_of(device)?;
        view.check(pages.page())?;
        let whole = view.whole();
        let memory = pages.reserve(whole, Purpose::Weights)?;
        match fill(pages, memory, units(view, pages.unit()), whole) {
            Ok(units) => MappedView::show(device, view, access, memory, units),
            Err(error) => Err(undo(pages, &[memory], error)),
        }
    }

    /// Shows units that are mapped in their own order from `memory` on.
    fn show(
        device: &mut D,
        view: &View,
        access: PageAccess,
        memory: DevicePtr,
        units: PlacedUnits<MemoryOf<D>>,
    ) -> Result<Self> {
        let pages = pages_of(device)?;
        let shown = match pages.reserve(view.bytes, Purpose::Weights) {
            Ok(shown) => shown,
            Err(error) => return Err(undo(pages, &[memory], error)),
        };
        match show_units(pages, view, shown, &units)
            .and_then(|()| pages.allow(shown, view.bytes, access))
        {
            Ok(()) => Ok(MappedView {
                shown,
                memory,
                units,
            }),
            Err(error) => Err(undo(pages, &[shown, memory], error)),
        }
    }

    /// The first address.
    pub fn at(&self) -> DevicePtr {
        self.shown
    }

    /// Gives addresses and memory back, after everything that was issued. What failed can be tried again.
    pub fn close(&mut self, device: &mut D) -> Result<()> {
        // rule: views-go-after-their-users
        device.synchronize()?;
        let pages = pages_of(device)?;
        for start in [&mut self.shown, &mut self.memory] {
            if *start != DevicePtr::EMPTY {
                pages.release(*start)?;
                *start = DevicePtr::EMPTY;
            }
        }
        self.units.clear();
        Ok(())
    }

    /// Takes the memory away that shows nowhere in `kept`, bytes from the view's start, after everything that was issued. Nothing may use
    /// it before the view is closed. The bytes that went.
    pub fn thin(&mut self, device: &mut D, view: &View, kept: &[Range<u64>]) -> Result<u64> {
        // rule: memory-goes-from-a-pass-after-its-kernels
        device.synchronize()?;
        let pages = pages_of(device)?;
        let behind = kept.iter().filter_map(|one| view.behind(one.clone()));
        let behind: Vec<Range<u64>> = behind.flatten().collect();
        let stays = |unit: &Range<u64>| {
            let mut kept = behind.iter();
            kept.any(|kept| kept.start < unit.end && unit.start < kept.end)
        };
        let units = std::mem::take(&mut self.units);
        // rule: leased-memory-stays-in-its-pass
        let (left, gone): (Vec<_>, Vec<_>) = units.into_iter().partition(|(unit, _)| stays(unit));
        self.units = left;
        let mut bytes = 0;
        for (unit, memory) in gone {
            for piece in &view.pieces {
                let end = piece.memory + piece.bytes;
                if piece.memory <= unit.start && unit.end <= end {
                    pages.unmap(self.shown.offset(piece.at + (unit.start - piece.memory)))?;
                }
            }
            pages.unmap(self.memory.offset(unit.start))?;
            drop(memory);
            bytes += unit.end - unit.start;
        }
        Ok(bytes)
    }

    /// The memory is seen as `view` says, which has bytes, with `kept` pages in it, but for those that are returned. On an error nothing
    /// is mapped any more.
    pub fn moved(
        mut self,
        device: &mut D,
        view: &View,
        access: PageAccess,
        kept: &[KeptPages],
    ) -> Result<(Self, Vec<Range<u64>>)> {
        let page = device.page().ok_or_else(|| no_pages(device.name()))?;
        // rule: pages-move-when-nothing-runs
        if let Err(error) = view.check(page).and_then(|()| device.synchronize()) {
            return self.close(device).and(Err(error));
        }
        let pages = pages_of(device)?;
        if let Err(error) = pages.release(self.shown) {
            return Err(undo(pages, &[self.shown, self.memory], error));
        }
        let unit = pages.unit();
        let to = match pages.reserve(view.whole(), Purpose::Weights) {
            Ok(to) => to,
            Err(error) => return Err(undo(pages, &[self.memory], error)),
        };
        let mut mover = Mover::new((self.memory, self.units), to, view.whole());
        let from = self.memory;
        let moved = mover.run(device, units(view, unit), kept);
        match moved.and_then(|()| pages_of(device)?.release(from)) {
            Ok(()) => {
                let (units, lost) = mover.finish();
                Ok((MappedView::show(device, view, access, to, units)?, lost))
            }
            Err(error) => {
                // Copies may be under way. What cannot be waited for stays mapped.
                // rule: a-failed-move-waits-for-its-copies
                device.synchronize()?;
                Err(undo(pages_of(device)?, &[from, to], error))
            }
        }
    }
}

/// The units of a view's memory, in bytes from its start, of at most `most` bytes.
fn units(view: &View, most: u64) -> Vec<Range<u64>> {
    let borders = view.borders();
    let parts = borders.windows(2).flat_map(|pair| {
        let end = pair[1];
        let starts = (pair[0]..end).step_by(most as usize);
        starts.map(move |start| start..end.min(start + most))
    });
    parts.collect()
}

/// New memory in its own order from `memory` on, writable.
fn fill<P: Pages>(
    pages: &mut P,
    memory: DevicePtr,
    units: Vec<Range<u64>>,
    whole: u64,
) -> Result<PlacedUnits<P::Memory>> {
    let sizes: Vec<u64> = units.iter().map(|range| range.end - range.start).collect();
    let made = pages.create(&sizes, Purpose::Weights)?;
    let all: PlacedUnits<P::Memory> = units.into_iter().zip(made).collect();
    for (range, made) in &all {
        pages.map(memory.offset(range.start), made)?;
    }
    pages.allow(memory, whole, PageAccess::ReadWrite)?;
    Ok(all)
}

/// Maps each unit wherever the view shows it.
fn show_units<P: Pages>(
    pages: &mut P,
    view: &View,
    shown: DevicePtr,
    units: &PlacedUnits<P::Memory>,
) -> Result<()> {
    for piece in &view.pieces {
        let end = piece.memory + piece.bytes;
        let from = units.partition_point(|(range, _)| range.start < piece.memory);
        let inside = units[from..]
            .iter()
            .take_while(|(range, _)| range.end <= end);
        for (range, memory) in inside {
            pages.map(
                shown.offset(piece.at + (range.start - piece.memory)),
                memory,
            )?;
        }
    }
    Ok(())
}

/// Gives back what was taken before `error`, which says more than what fails now.
fn undo<P: Pages>(pages: &mut P, starts: &[DevicePtr], error: Error) -> Error {
    for start in starts {
        if let Err(second) = pages.release(*start) {
            log::warn!("after '{error}': {second}");
        }
    }
    error
}
