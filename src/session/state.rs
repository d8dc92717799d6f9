//! The mutable state of a program (a KV cache), and copies of it: one for each session over the same weights. The first one
//! lies in the budget, with the direct constants; the others lie beside it.

use super::Session;
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::schedule::{WeightIndex, WeightKind};

/// One copy of all mutable buffers. Give its memory back with [`Session::free_state`].
#[derive(Debug)]
pub struct State {
    /// No two of a store have the same; the first one, which is none of these, is 0.
    number: u64,
    block: DevicePtr,
    bytes: u64,
    /// Where each buffer lies.
    places: Vec<(WeightIndex, DevicePtr)>,
}

impl State {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its addresses.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.block.0..self.block.0 + self.bytes
    }

    /// Where a buffer lies in it; `None` for what is no mutable buffer.
    pub fn address(&self, index: usize) -> Option<DevicePtr> {
        let found = self.places.iter().find(|(one, _)| *one as usize == index);
        found.map(|(_, at)| *at)
    }
}

impl<D: Device> Session<D> {
    /// Device bytes that one more state takes.
    pub fn state_bytes(&self) -> u64 {
        let granule = self.device().granule();
        let buffers = self.buffers().into_iter();
        let specs = &self.store.constants().specs;
        let sizes = buffers.map(|index| specs[index as usize].occupied(granule));
        sizes.fold(0, u64::saturating_add)
    }

    pub(super) fn buffers(&self) -> Vec<WeightIndex> {
        let specs = (0..).zip(&self.store.constants().specs);
        let mutable = specs.filter(|(_, spec)| spec.kind == WeightKind::Mutable);
        mutable.map(|(index, _)| index).collect()
    }

    /// A copy of all mutable buffers with their initial bytes, between passes.
    pub fn new_state(&mut self) -> Result<State> {
        self.store.check_usable()?;
        let bytes = self.state_bytes();
        let block = self.store.device.alloc_scratch(bytes);
        let block = block.map_err(|error| error.during(|| "taking memory for a session".into()))?;
        let granule = self.device().granule();
        let mut at = block;
        let mut places = Vec::new();
        for index in self.buffers() {
            places.push((index, at));
            at = at.offset(self.store.constants().specs[index as usize].occupied(granule));
        }
        self.states += 1;
        let state = State {
            number: self.states,
            block,
            bytes,
            places,
        };
        match self.reset_state(Some(&state)) {
            Ok(()) => Ok(state),
            Err(error) => {
                // The first error says more.
                let _ = self.free_state(state);
                Err(error)
            }
        }
    }

    /// Gives its memory back; no container may be bound to it any more.
    pub fn free_state(&mut self, state: State) -> Result<()> {
        self.finish_replays()?;
        self.store.device.free_scratch(state.block, state.bytes)
    }

    /// Between passes: the buffers of a state, or of the first one, get their initial bytes back.
    pub fn reset_state(&mut self, state: Option<&State>) -> Result<()> {
        self.check_between_passes()?;
        self.finish_replays()?;
        for index in self.buffers() {
            let at = self.buffer_at(state, index)?;
            self.store.write_initial(index, at)?;
        }
        self.store.device.finish_compute()
    }

    pub(super) fn buffer_at(&self, state: Option<&State>, index: WeightIndex) -> Result<DevicePtr> {
        let at = match state {
            Some(state) => state.address(index as usize),
            None => self.store.direct_address(index as usize),
        };
        at.ok_or_else(|| {
            let name = self.store.constants().name(index);
            Error::Internal(format!("{name} has no memory in a state"))
        })
    }
}
