//! The budget covers everything: all weights are loaded up front, packed into one block, and stay.

use super::layout::{Backing, Layout};
use super::offer::{Request, Residency};
use super::{Action, Policy, Served};
use crate::error::Result;
use crate::schedule::{ProbeId, WeightIndex, WeightSpec};

/// Everything is resident. No eviction, so nothing to remember of the leases.
#[derive(Debug, Clone)]
pub struct AllResident {
    /// Bytes and offset of each weight that has bytes.
    placed: Vec<(WeightIndex, u64, u64)>,
    block: u64,
}

impl AllResident {
    /// Lays out all weights that are `read` one after the other, each at a multiple of the granule.
    pub fn new(read: &[bool], weights: &[WeightSpec], granule: u64) -> Self {
        let mut block = 0;
        let mut placed = Vec::new();
        for (index, spec) in (0..).zip(weights) {
            if read[index as usize] && spec.bytes > 0 {
                placed.push((index, spec.bytes, block));
                block += spec.occupied(granule);
            }
        }
        AllResident { placed, block }
    }

    /// One block.
    fn layout(&self) -> Layout {
        Layout {
            memory: Backing::Block(self.block),
            windows: self.placed.iter().map(|&(_, _, offset)| offset).collect(),
        }
    }
}

/// For the table of policies: where the capacity covers everything.
pub(super) fn offer(request: &Request<'_>) -> Residency {
    let policy = AllResident::new(&request.is_read(), request.weights, request.model.granule);
    let layout = policy.layout();
    Residency::new(policy, layout).because("everything is resident".to_owned())
}

impl Policy for AllResident {
    fn name(&self) -> &'static str {
        "all_resident"
    }

    fn everything_stays(&self) -> bool {
        true
    }

    fn is_periodic(&self) -> bool {
        true
    }

    fn start(&mut self, actions: &mut Vec<Action>) {
        let placed = (0..).zip(&self.placed);
        actions.extend(placed.map(|(window, &(weight, bytes, _))| Action::Load {
            weight,
            range: 0..bytes,
            window,
            ahead: true,
        }));
    }

    fn demand(&mut self, _id: ProbeId, _actions: &mut Vec<Action>) -> Result<Served> {
        Ok(Served::Hit)
    }

    fn lease(&mut self, _id: ProbeId) {}

    fn release(&mut self, _id: ProbeId) -> Option<WeightIndex> {
        None
    }

    fn ahead(&mut self, _actions: &mut Vec<Action>) {}

    fn abort(&mut self) {}

    fn make_room(&mut self, _actions: &mut Vec<Action>) -> bool {
        false
    }

    fn load_failed(&mut self, _weight: WeightIndex) {}

    fn evict_failed(&mut self, _weight: WeightIndex) {}

    fn pool_bytes(&self) -> u64 {
        0
    }

    fn validate(&self) -> std::result::Result<(), String> {
        let mut end = 0;
        for &(weight, bytes, offset) in &self.placed {
            if offset < end {
                return Err(format!(
                    "weight {weight} at {offset} overlaps the one before it"
                ));
            }
            end = offset + bytes;
        }
        match end <= self.block {
            true => Ok(()),
            false => Err(format!("{end} bytes in a block of {}", self.block)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::WeightKind;

    #[test]
    fn packs_weights_that_are_read_and_have_bytes() {
        let spec = |bytes, kind| WeightSpec {
            fqn: String::new(),
            bytes,
            stored: bytes,
            kind,
        };
        let weights = [
            spec(10, WeightKind::Weight),
            spec(0, WeightKind::Weight),
            spec(1000, WeightKind::Direct),
            spec(100, WeightKind::Weight),
            spec(1, WeightKind::Mutable),
            spec(500, WeightKind::Weight),
        ];
        let read = [true, true, false, true, false, false];
        let mut resident = AllResident::new(&read, &weights, 64);
        assert_eq!(resident.validate(), Ok(()));
        let layout = resident.layout();
        assert_eq!(layout.memory, Backing::Block(192));
        assert_eq!(layout.windows, [0, 64]);
        let mut actions = Vec::new();
        resident.start(&mut actions);
        let load = |weight, bytes, window| Action::Load {
            weight,
            range: 0..bytes,
            window,
            ahead: true,
        };
        assert_eq!(actions, [load(0, 10, 0), load(3, 100, 1)]);
    }
}
