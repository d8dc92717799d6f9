//! Memory that is shown at other addresses, and moved.

use super::clock::{Actor, What};
use super::{stray, Sim};
use crate::device::{DevicePtr, Remapped};
use crate::error::{Error, Result};
use crate::figures::{KeptPages, View};
use std::ops::Range;

impl Sim {
    /// New memory, shown as `view` says.
    pub(super) fn show(&mut self, view: &View) -> Result<DevicePtr> {
        let Some(page) = self.page else {
            return Err(Error::Internal("this sim maps no memory".to_string()));
        };
        view.check(page)?;
        if view.bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        let memory = self.take("weights' pages", view.memory)?;
        Ok(self.views.map(view, memory, page))
    }

    /// Takes the memory of the view at `ptr` back: where it was.
    pub(super) fn hide(&mut self, ptr: DevicePtr) -> Result<Range<u64>> {
        let memory = self.views.unmap(ptr).ok_or_else(|| stray(ptr, 0))?;
        let range = self
            .weights
            .give(DevicePtr(memory.start), memory.end - memory.start)?;
        self.lose(Actor::Copy, What::Free, ptr, vec![range]);
        Ok(memory)
    }

    /// The view at `ptr` goes, and `view` gets the bytes of the pages that are kept. Everything else holds nothing.
    pub(super) fn move_pages(
        &mut self,
        ptr: DevicePtr,
        view: &View,
        kept: &[KeptPages],
    ) -> Result<Remapped> {
        self.finish_all()?;
        let (mut saved, mut lost) = (Vec::new(), Vec::new());
        if ptr != DevicePtr::EMPTY {
            let old = self.views.memory_of(ptr).ok_or_else(|| stray(ptr, 0))?;
            for one in kept {
                if self.loses_pages() {
                    lost.push(one.to..one.to + one.bytes);
                    continue;
                }
                // The last page of either memory may be there in part.
                let bytes = one.bytes.min(view.memory - one.to);
                let range = old.start + one.from..(old.start + one.from + bytes).min(old.end);
                saved.push((one.to, self.bytes(&range).to_vec()));
            }
            self.hide(ptr)?;
            // Before the memory is handed out again.
            self.finish_all()?;
        }
        let at = self.show(view)?;
        if let Some(memory) = self.views.memory_of(at) {
            let access = self.issue(Actor::Copy, What::Moved);
            for (to, bytes) in saved {
                let start = memory.start + to;
                let range = start..start + bytes.len() as u64;
                self.writes(range.clone(), access, true);
                self.bytes_mut(&range).copy_from_slice(&bytes);
            }
        }
        self.finish_all()?;
        Ok(Remapped { at, lost })
    }

    /// Whether the next run of pages is one that a move loses.
    fn loses_pages(&mut self) -> bool {
        self.moved_runs += 1;
        self.loses_every
            .is_some_and(|every| self.moved_runs.is_multiple_of(every))
    }
}
