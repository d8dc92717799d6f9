//! Outputs on their way to the caller: copied after the kernels into pinned memory of our own, and from there to where the
//! caller wants them once the stream was waited for anyway.
//!
//! A copy to pageable memory waits for the kernels inside of the driver's call, and whatever a pass has to do after it is
//! done while the device has nothing to do. So the copy is only queued, and the end of the pass is gone through while the
//! kernels run.

use super::context::{Entered, PrimaryContext};
use super::pinned::Pinned;
use super::stream::Stream;
use crate::device::{DevicePtr, HostRoom};
use crate::error::Result;
use std::sync::Arc;

/// All that a pass may return this way, bytes. What does not fit is downloaded at once, after a wait of its own.
const MOST: usize = 1 << 20;

/// Each output begins at a multiple of this.
const ALIGN: usize = 64;

/// The outputs of a pass that are on their way.
#[derive(Default)]
pub(super) struct OutputStaging {
    /// Made for the first output.
    memory: Option<Pinned>,
    /// No memory could be pinned.
    refused: bool,
    used: usize,
    /// Where each one is to go, and where in the memory it comes to.
    due: Vec<(usize, HostRoom)>,
}

impl OutputStaging {
    /// Queues the copy of what `room` is for; gives the room back if that cannot be done.
    ///
    /// # Safety
    /// `src` is device memory of at least as many bytes as the room, until the copy is done.
    pub(super) unsafe fn queue(
        &mut self,
        src: DevicePtr,
        room: HostRoom,
        stream: &Stream,
        entered: &Entered<'_>,
    ) -> Result<Option<HostRoom>> {
        let at = self.used.next_multiple_of(ALIGN);
        if self.refused || room.len() > MOST.saturating_sub(at) {
            return Ok(Some(room));
        }
        let Some(memory) = self.memory(stream.context(), entered) else {
            return Ok(Some(room));
        };
        let to = memory.as_mut_ptr().wrapping_add(at);
        // SAFETY: the pinned memory has `MOST` bytes, and is used for nothing else until the stream was waited for; the
        // source by the caller's promise.
        unsafe { stream.copy_out(to, src, room.len(), entered) }?;
        self.used = at + room.len();
        self.due.push((at, room));
        Ok(None)
    }

    /// The memory, if there is any to be had.
    fn memory(
        &mut self,
        context: &Arc<PrimaryContext>,
        entered: &Entered<'_>,
    ) -> Option<&mut Pinned> {
        if self.memory.is_none() {
            match Pinned::zeroed(context, MOST as u64, "outputs on their way", entered) {
                Ok(memory) => self.memory = Some(memory),
                Err(error) => {
                    self.refused = true;
                    log::warn!(
                        "{}: outputs are copied to pageable memory, which takes longer: {error}",
                        context.name()
                    );
                }
            }
        }
        self.memory.as_mut()
    }

    /// The stream was waited for: all that was queued is brought to its room.
    pub(super) fn deliver(&mut self) {
        let Some(memory) = &self.memory else { return };
        for (at, mut room) in self.due.drain(..) {
            let end = at + room.len();
            room.bytes().copy_from_slice(&memory.as_slice()[at..end]);
        }
        self.used = 0;
    }

    /// The device is lost: nothing that was queued will come.
    pub(super) fn forget(&mut self) {
        self.due.clear();
        self.used = 0;
    }

    /// Bytes pinned.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, Pinned::bytes)
    }
}
