//! What a bed does with the actions of its policy: in order, on the copy stream, as the store does.

use super::bed::PolicyBed;
use super::played::Played;
use std::ops::Range;
use std::sync::Arc;
use weightstream::device::{DevicePtr, HostBytes};
use weightstream::residency::{Action, Backing};
use weightstream::schedule::WeightIndex;

impl<D: Played> PolicyBed<D> {
    /// In order, up to the action that fails: it and those after it are taken back, last one first.
    pub(super) fn carry_out(
        &mut self,
        actions: &[Action],
        fails: &mut dyn FnMut(usize) -> usize,
    ) -> bool {
        let failed = match actions {
            [] => 0,
            _ => fails(actions.len()),
        };
        for action in &actions[..failed] {
            self.perform(action, false);
        }
        for action in actions[failed..].iter().rev() {
            match *action {
                Action::Evict { weight } => self.policy.evict_failed(weight),
                Action::Load { weight, .. } => self.policy.load_failed(weight),
            }
        }
        failed == actions.len()
    }

    pub(super) fn perform(&mut self, action: &Action, start: bool) {
        match action.clone() {
            Action::Evict { weight } => self.evict(weight),
            Action::Load {
                weight,
                range,
                window,
                ..
            } => {
                self.oracle.load(weight, range.clone(), window, start);
                self.held[weight as usize].claimed = !start;
                self.copied += range.end - range.start;
                self.copy(weight, range);
            }
        }
    }

    fn copy(&mut self, weight: WeightIndex, range: Range<u64>) {
        if self.layout().memory == Backing::PerWeight {
            let bytes = self.occupied(weight);
            self.held[weight as usize].own = self.device.alloc(bytes).unwrap();
        }
        let at = self.address(weight).offset(range.start);
        let source = self.bytes(weight).slice(range);
        self.device.bring(at, source).unwrap();
        let event = self.device.record_copy().unwrap();
        self.held[weight as usize].ready = Some(Arc::new(event));
    }

    fn evict(&mut self, weight: WeightIndex) {
        assert!(
            !self.is_leased(weight),
            "weight {weight} is evicted while it is read"
        );
        let (at, copied) = (self.address(weight), self.oracle.copied(weight));
        self.oracle.evict(weight);
        let own = self.occupied(weight);
        let per_weight = self.layout().memory == Backing::PerWeight;
        let held = &mut self.held[weight as usize];
        assert!(!held.claimed, "weight {weight} is evicted before its read");
        if let Some(event) = held.last_read.take() {
            self.device.copy_wait(&event).unwrap();
        }
        held.ready = None;
        let given = match per_weight {
            true => self.device.free(at, own),
            false => {
                let bytes = copied.end - copied.start;
                self.device.discard(at.offset(copied.start), bytes)
            }
        };
        given.unwrap();
    }

    pub(super) fn occupied(&self, weight: WeightIndex) -> u64 {
        self.program.weights[weight as usize].occupied(self.device.granule())
    }

    /// Where a weight begins.
    pub(super) fn address(&self, weight: WeightIndex) -> DevicePtr {
        match (&self.layout().memory, self.oracle.window(weight)) {
            (Backing::PerWeight, _) | (_, None) => self.held[weight as usize].own,
            (_, Some(window)) => self.block.offset(self.layout().windows[window as usize]),
        }
    }

    pub(super) fn bytes(&self, weight: WeightIndex) -> HostBytes {
        let content = &self.program.contents[weight as usize];
        // SAFETY: nobody writes the contents, and the bed drops its device before them.
        unsafe { HostBytes::new(content.as_ptr(), content.len() as u64) }
    }
}
