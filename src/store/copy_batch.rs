//! Copies of small weights that lie next to each other, in the file and on the device, are one copy: each costs
//! some microseconds beyond its bytes, as much as 200 kB take on a fast link.

use crate::device::{Device, DevicePtr, Source};
use crate::schedule::WeightIndex;

/// A joined copy has at most so many bytes: its first weight is not there before its last one is.
const LONGEST: u64 = 1 << 20;

/// Loads that have their memory, and whose copy is not issued yet.
#[derive(Default)]
pub(super) struct CopyBatch {
    pub(super) weights: Vec<WeightIndex>,
    /// How many of them are for later reads.
    pub(super) ahead: u64,
    /// Index of the first one's action.
    pub(super) first: usize,
    /// Where to and where from.
    pub(super) copy: Option<(DevicePtr, Source)>,
}

impl CopyBatch {
    /// Index of the first action that a failure undoes, if the action `at` fails.
    pub(super) fn undo_from(&self, at: usize) -> usize {
        match self.weights.is_empty() {
            true => at,
            false => self.first,
        }
    }

    /// Nothing is queued any more.
    pub(super) fn stop(&mut self) {
        self.weights.clear();
        self.ahead = 0;
        self.copy = None;
    }

    /// The copy with `src` after it, if that is to go where this one ends.
    pub(super) fn joined<D: Device>(
        &self,
        device: &D,
        at: DevicePtr,
        src: &Source,
    ) -> Option<Source> {
        let (start, bytes) = self.copy.as_ref()?;
        let fits = start.offset(bytes.len()) == at && bytes.len() + src.len() <= LONGEST;
        let joined = bytes.followed_by(src).filter(|_| fits)?;
        device.copies_across(src.stored()).then_some(joined)
    }
}
