//! Most recently used: the example of an eviction policy that somebody adds (`docs/architecture.md`).
//!
//! What was read last goes first. In a pass that goes around that is better than the opposite: what stays is read again
//! before what was just read. Nothing is loaded ahead. Only for tests: it has a row in the table with feature `sim`.

use super::layout::Layout;
use super::offer::{Request, Residency};
use super::{Action, Policy, Served};
use crate::error::{Error, Result};
use crate::schedule::{ProbeId, WeightIndex, WeightSpec};

/// The policy of the same name.
#[derive(Debug, Clone)]
pub struct MostRecent {
    /// Occupied bytes of each weight, and bytes to copy.
    sizes: Vec<(u64, u64)>,
    /// Whether each weight is copied for each of its reads.
    streamed: Vec<bool>,
    /// By method and probe id.
    probes: Vec<Vec<WeightIndex>>,
    /// The method that runs.
    method: usize,
    leases: Vec<u32>,
    /// What is there and takes memory, by the last read.
    there: Vec<WeightIndex>,
    used: u64,
    capacity: u64,
}

/// For the table of policies.
pub(super) fn offer(request: &Request<'_>) -> Residency {
    Residency::new(MostRecent::new(request), Layout::per_weight())
}

impl MostRecent {
    fn new(request: &Request<'_>) -> Self {
        let (weights, granule) = (request.weights, request.model.granule);
        let sizes = weights.iter().map(|one| (one.occupied(granule), one.bytes));
        let probes = request.methods.iter();
        let probes = probes.map(|one| one.trace.probes().to_vec());
        MostRecent {
            sizes: sizes.collect(),
            streamed: weights.iter().map(WeightSpec::is_streamed).collect(),
            probes: probes.collect(),
            method: 0,
            leases: vec![0; weights.len()],
            there: Vec::with_capacity(weights.len()),
            used: 0,
            capacity: request.capacity,
        }
    }

    fn weight(&self, id: ProbeId) -> WeightIndex {
        self.probes[self.method][id as usize]
    }

    fn size(&self, weight: WeightIndex) -> u64 {
        self.sizes[weight as usize].0
    }

    fn is_there(&self, weight: WeightIndex) -> bool {
        self.size(weight) == 0 || self.there.contains(&weight)
    }

    /// The one that goes next.
    fn victim(&self) -> Option<WeightIndex> {
        let mut idle = self.there.iter().rev().copied();
        idle.find(|&weight| self.leases[weight as usize] == 0)
    }

    fn remove(&mut self, weight: WeightIndex) {
        self.there.retain(|&other| other != weight);
        self.used -= self.size(weight);
    }

    fn put(&mut self, weight: WeightIndex) {
        self.there.push(weight);
        self.used += self.size(weight);
    }
}

impl Policy for MostRecent {
    fn name(&self) -> &'static str {
        "most_recent"
    }

    fn demand(&mut self, id: ProbeId, actions: &mut Vec<Action>) -> Result<Served> {
        let weight = self.weight(id);
        if self.is_there(weight) {
            if !self.streamed[weight as usize] || self.leases[weight as usize] > 0 {
                return Ok(Served::Hit);
            }
            self.remove(weight);
            actions.push(Action::Evict { weight });
        }
        let (size, bytes) = self.sizes[weight as usize];
        let leased = self
            .there
            .iter()
            .filter(|&&other| self.leases[other as usize] > 0);
        let leased: u64 = leased.map(|&other| self.size(other)).sum();
        if leased + size > self.capacity {
            return Err(Error::OutOfMemory {
                what: "a weight, beside the weights that are being read".to_owned(),
                bytes: size,
            });
        }
        while self.used + size > self.capacity && self.make_room(actions) {}
        self.put(weight);
        actions.push(Action::Load {
            weight,
            range: 0..bytes,
            window: 0,
            ahead: false,
        });
        Ok(Served::Miss)
    }

    fn lease(&mut self, id: ProbeId) {
        let weight = self.weight(id);
        self.leases[weight as usize] += 1;
        if let Some(at) = self.there.iter().position(|&other| other == weight) {
            self.there[at..].rotate_left(1);
        }
    }

    fn release(&mut self, id: ProbeId) -> Option<WeightIndex> {
        let weight = self.weight(id);
        self.leases[weight as usize] -= 1;
        (self.leases[weight as usize] == 0 && self.size(weight) > 0).then_some(weight)
    }

    fn ahead(&mut self, _actions: &mut Vec<Action>) {}

    fn turn_to(&mut self, method: usize) {
        self.method = method;
    }

    fn abort(&mut self) {}

    fn make_room(&mut self, actions: &mut Vec<Action>) -> bool {
        let Some(weight) = self.victim() else {
            return false;
        };
        self.remove(weight);
        actions.push(Action::Evict { weight });
        true
    }

    fn load_failed(&mut self, weight: WeightIndex) {
        self.remove(weight);
    }

    fn evict_failed(&mut self, weight: WeightIndex) {
        self.put(weight);
    }

    fn fingerprint(&self) -> Vec<u32> {
        self.there.clone()
    }

    fn pool_bytes(&self) -> u64 {
        self.used
    }

    fn validate(&self) -> std::result::Result<(), String> {
        let used: u64 = self.there.iter().map(|&weight| self.size(weight)).sum();
        let absent = (0..).zip(&self.leases);
        let mut absent = absent.filter(|&(weight, &leases)| leases > 0 && !self.is_there(weight));
        match used == self.used && used <= self.capacity && absent.next().is_none() {
            true => Ok(()),
            false => Err(format!("{used} bytes are there: {self:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PolicyKind;
    use crate::figures::DeviceModel;
    use crate::schedule::{Event, Trace, WeightKind};

    /// Reads of four weights of one size go around, and two of them fit.
    #[test]
    fn what_was_read_last_goes_first() {
        let weight = |at: u32| WeightSpec {
            fqn: at.to_string(),
            bytes: 64,
            stored: 64,
            kind: WeightKind::Weight,
        };
        let weights: Vec<_> = (0..4).map(weight).collect();
        let events =
            (0..4).flat_map(|id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)]);
        let trace = Trace::new(events.collect(), (0..4).collect(), 4).unwrap();
        let model = DeviceModel {
            granule: 64,
            bytes_per_copy: 0,
            page: None,
            apart: 0,
            whole_pages: false,
            packed: Default::default(),
        };
        let mut policy = MostRecent::new(&Request {
            kind: PolicyKind::MostRecent,
            methods: &[(&trace).into()],
            weights: &weights,
            model: &model,
            capacity: 128,
            link: None,
            times: &[],
        });
        let mut pass = || {
            let mut evicted = Vec::new();
            for id in 0..4 {
                let mut actions = Vec::new();
                policy.demand(id, &mut actions).unwrap();
                policy.lease(id);
                policy.validate().unwrap();
                assert_eq!(policy.release(id), Some(id));
                evicted.extend(actions.iter().filter_map(|action| match action {
                    Action::Evict { weight } => Some(*weight),
                    Action::Load { .. } => None,
                }));
            }
            evicted
        };
        assert_eq!(pass(), [1, 2]);
        // Two or three of four are copied from here on. The LRU would copy all of them.
        assert_eq!(pass(), [0, 1]);
        assert_eq!(pass(), [3, 0, 2]);
    }
}
