//! Operations on policies and pools, in any order that a session could call them in; everything is recounted after
//! each of them.

use std::collections::BTreeMap;

use super::bytes::Choices;
use weightstream::device::{Device, DevicePtr, HostBytes};
use weightstream::residency::{Action, Arena, Lru, Policy, Pool, Served, StreamOrdered};
use weightstream::schedule::{Event, Trace, WeightIndex, WeightKind, WeightSpec};
use weightstream::Result;

/// Plays passes of a program made of the bytes through the policy `lru`. Panics if a rule is broken.
pub fn policy(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let Some(mut model) = Model::new(&mut choices) else {
        return;
    };
    for _ in 0..bytes.len().min(300) {
        model.step(&mut choices);
        model.check();
    }
    model.policy.abort();
    model.window.clear();
    model.check();
}

/// A policy, and what a session knows beside it.
struct Model {
    policy: Lru,
    sizes: Vec<u64>,
    probes: Vec<WeightIndex>,
    order: Vec<u32>,
    capacity: u64,
    position: usize,
    present: Vec<bool>,
    /// Open leases: probe ids.
    open: Vec<u32>,
    /// The weights of the coming reads that the policy has claimed.
    window: Vec<WeightIndex>,
    actions: Vec<Action>,
}

impl Model {
    fn new(choices: &mut Choices) -> Option<Model> {
        let weights: Vec<_> = (0..1 + choices.below(8))
            .map(|index| WeightSpec {
                fqn: index.to_string(),
                bytes: 64 * choices.below(9) as u64,
                kind: WeightKind::Weight,
            })
            .collect();
        let count = 1 + choices.below(12);
        let probes: Vec<_> = (0..count)
            .map(|_| choices.below(weights.len()) as u32)
            .collect();
        let events = (0..count as u32).map(Event::Probe).collect();
        let trace = Trace::new(events, probes.clone(), weights.len()).ok()?;
        let sizes: Vec<u64> = weights.iter().map(|w| w.bytes).collect();
        let capacity = 64 * choices.below(40) as u64;
        Some(Model {
            policy: Lru::new(&trace, &weights, 64, capacity),
            present: sizes.iter().map(|size| *size == 0).collect(),
            order: trace.order().to_vec(),
            sizes,
            probes,
            capacity,
            position: 0,
            open: Vec::new(),
            window: Vec::new(),
            actions: Vec::new(),
        })
    }

    fn leased(&self, weight: WeightIndex) -> bool {
        self.open
            .iter()
            .any(|id| self.probes[*id as usize] == weight)
    }

    fn step(&mut self, choices: &mut Choices) {
        match choices.below(8) {
            0..=2 => self.read(choices),
            3 | 4 if !self.open.is_empty() => self.release(choices),
            5 => self.look_ahead(choices),
            6 => {
                let made = self.policy.make_room(&mut self.actions);
                assert_eq!(made, !self.actions.is_empty());
                self.carry_out(choices, None);
            }
            7 if choices.below(4) == 0 => {
                self.policy.abort();
                self.position = 0;
                self.window.clear();
            }
            _ => {}
        }
    }

    fn read(&mut self, choices: &mut Choices) {
        let id = self.order[self.position];
        let weight = self.probes[id as usize];
        // A second lease of one probe cannot be: it happens once per pass, and passes do not overlap.
        if self.open.contains(&id) {
            return;
        }
        match self.policy.demand(id, &mut self.actions) {
            Ok(Served::Hit) => assert!(self.present[weight as usize] && self.actions.is_empty()),
            Ok(Served::Miss) => {
                assert!(!self.present[weight as usize]);
                self.carry_out(choices, Some(weight));
            }
            Err(_) => {
                assert!(self.actions.is_empty(), "something was planned in vain");
                let leased: u64 = (0..self.sizes.len())
                    .filter(|w| self.leased(*w as u32) || self.window.contains(&(*w as u32)))
                    .map(|w| self.sizes[w])
                    .sum();
                assert!(leased + self.sizes[weight as usize] > self.capacity);
            }
        }
        if !self.present[weight as usize] {
            return;
        }
        self.policy.lease(id);
        self.open.push(id);
        if !self.window.is_empty() {
            assert_eq!(
                self.window.remove(0),
                weight,
                "reads are claimed in their order"
            );
        }
        self.position = (self.position + 1) % self.order.len();
        self.look_ahead(choices);
    }

    fn release(&mut self, choices: &mut Choices) {
        let id = self.open.swap_remove(choices.below(self.open.len()));
        let weight = self.probes[id as usize];
        let may_go = self.policy.release(id);
        let free = !self.leased(weight) && self.sizes[weight as usize] > 0;
        assert_eq!(may_go, free.then_some(weight));
    }

    fn look_ahead(&mut self, choices: &mut Choices) {
        self.policy.ahead(&mut self.actions);
        self.carry_out(choices, None);
        self.window = self.claimed();
    }

    /// The reads that the policy has claimed, by its own word: the depth of its window is the last number but one.
    fn claimed(&self) -> Vec<WeightIndex> {
        let print = self.policy.fingerprint();
        let depth = print[print.len() - 2] as usize;
        (0..depth)
            .map(|ahead| self.order[(self.position + ahead) % self.order.len()])
            .map(|id| self.probes[id as usize])
            .collect()
    }

    /// Carries the plan out, up to a failure that the bytes choose.
    fn carry_out(&mut self, choices: &mut Choices, demanded: Option<WeightIndex>) {
        let actions = std::mem::take(&mut self.actions);
        let fails = (choices.below(8) == 0).then(|| choices.below(actions.len().max(1)));
        let until = fails.unwrap_or(actions.len()).min(actions.len());
        for action in &actions[..until] {
            match *action {
                Action::Evict { weight } => {
                    assert!(self.present[weight as usize]);
                    assert!(
                        !self.leased(weight),
                        "weight {weight} is evicted under its lease"
                    );
                    assert_ne!(Some(weight), demanded);
                    self.present[weight as usize] = false;
                }
                Action::Load { weight, .. } => {
                    assert!(!self.present[weight as usize]);
                    self.present[weight as usize] = true;
                }
            }
        }
        for undone in actions[until..].iter().rev() {
            match undone.clone() {
                Action::Evict { weight } => self.policy.evict_failed(weight),
                Action::Load { weight, .. } => self.policy.load_failed(weight),
            }
        }
    }

    fn check(&mut self) {
        self.policy.validate().unwrap();
        let held: u64 = (self.sizes.iter().zip(&self.present))
            .filter(|(_, present)| **present)
            .map(|(size, _)| size)
            .sum();
        assert_eq!(self.policy.pool_bytes(), held);
        assert!(held <= self.capacity, "{held} of {}", self.capacity);
        self.window = self.claimed();
        let wanted = self
            .window
            .iter()
            .chain(self.open.iter().map(|id| &self.probes[*id as usize]));
        for weight in wanted {
            assert!(
                self.present[*weight as usize],
                "weight {weight} is wanted and not there"
            );
        }
    }
}

/// Takes and gives of memory, through both pools.
pub fn pools(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let cap = 64 * (1 + choices.below(64) as u64);
    let mut device = Ledger::default();
    if choices.chance() {
        let mut arena = Arena::open(&mut device, cap).unwrap();
        let inside = device.blocks.iter().next().map(|(at, len)| (*at, *len));
        play(&mut arena, &mut device, cap, inside, &mut choices);
    } else {
        let mut pool = StreamOrdered::new(cap);
        play(&mut pool, &mut device, cap, None, &mut choices);
    }
}

fn play<P: Pool<Ledger>>(
    pool: &mut P,
    device: &mut Ledger,
    cap: u64,
    inside: Option<(u64, u64)>,
    choices: &mut Choices,
) {
    let mut out: BTreeMap<u64, u64> = BTreeMap::new();
    let mut peak = 0;
    while !choices.is_empty() {
        let bytes = 64 * choices.below(20) as u64;
        if choices.chance() {
            let used: u64 = out.values().sum();
            match pool.take(device, bytes) {
                Ok(_) if bytes == 0 => {}
                Ok(DevicePtr(at)) => {
                    assert!(bytes <= cap - used, "more than the cap");
                    let before = out.range(..at + bytes).next_back();
                    assert!(
                        before.is_none_or(|(start, len)| start + len <= at),
                        "overlap"
                    );
                    if let Some((start, len)) = inside {
                        assert!(start <= at && at + bytes <= start + len, "outside");
                    }
                    out.insert(at, bytes);
                }
                // A block of its own always has the room that the cap leaves.
                Err(_) => assert!(bytes > cap - used || inside.is_some()),
            }
        } else if let Some((&at, &bytes)) = out.iter().nth(choices.below(out.len().max(1))) {
            pool.give(device, DevicePtr(at), bytes).unwrap();
            out.remove(&at);
        }
        let used = out.values().sum::<u64>();
        peak = peak.max(used);
        assert_eq!((pool.used_bytes(), pool.peak_bytes()), (used, peak));
    }
    while let Some((at, bytes)) = out.pop_first() {
        pool.give(device, DevicePtr(at), bytes).unwrap();
    }
    // All of it in one piece again.
    if inside.is_some() {
        let all = pool.take(device, cap).unwrap();
        pool.give(device, all, cap).unwrap();
    }
    pool.close(device).unwrap();
    assert!(device.blocks.is_empty(), "memory is left behind");
}

/// A device of addresses only.
#[derive(Default)]
struct Ledger {
    next: u64,
    blocks: BTreeMap<u64, u64>,
}

impl Device for Ledger {
    type Event = ();

    fn name(&self) -> &'static str {
        "ledger"
    }

    fn granule(&self) -> u64 {
        64
    }

    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        self.next += 4096;
        self.blocks.insert(self.next, bytes);
        let at = self.next;
        self.next += bytes;
        Ok(DevicePtr(at))
    }

    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        if bytes > 0 {
            assert_eq!(self.blocks.remove(&ptr.0), Some(bytes));
        }
        Ok(())
    }

    fn alloc_scratch(&mut self, _bytes: u64) -> Result<DevicePtr> {
        unimplemented!("pools ask for no activations")
    }

    fn free_scratch(&mut self, _ptr: DevicePtr, _bytes: u64) -> Result<()> {
        unimplemented!("pools ask for no activations")
    }

    fn upload(&mut self, _dst: DevicePtr, _src: &[u8]) -> Result<()> {
        unimplemented!("pools move no bytes")
    }

    fn download(&mut self, _src: DevicePtr, _dst: &mut [u8]) -> Result<()> {
        unimplemented!("pools move no bytes")
    }

    fn copy_to_device(&mut self, _dst: DevicePtr, _src: HostBytes) -> Result<()> {
        unimplemented!("pools move no bytes")
    }

    fn record_compute(&mut self) -> Result<()> {
        Ok(())
    }

    fn copy_wait(&mut self, _event: &()) -> Result<()> {
        Ok(())
    }

    fn record_copy(&mut self) -> Result<()> {
        Ok(())
    }

    fn compute_wait(&mut self, _event: &()) -> Result<()> {
        Ok(())
    }

    fn is_done(&self, _event: &()) -> Result<bool> {
        Ok(true)
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}
