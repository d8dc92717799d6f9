//! Policies and pools under random sequences of operations, with `validate()` and an oracle behind each.

use super::case::GRANULE;
use super::code::{program, Shape};
use super::draw::Draw;
use std::collections::BTreeMap;
use weightstream::device::sim::Order;
use weightstream::device::{Device, DevicePtr, Sim};
use weightstream::error::{Error, Result};
use weightstream::residency::{
    Action, AllResident, Arena, Lru, Policy, Pool, Served, StreamOrdered,
};
use weightstream::schedule::{ProbeId, Trace};

type Verdict = std::result::Result<(), String>;

/// What a session would know of its policy's decisions.
struct Played {
    policy: Box<dyn Policy>,
    trace: Trace,
    sizes: Vec<u64>,
    capacity: u64,
    present: Vec<bool>,
    leases: Vec<u32>,
    open: Vec<ProbeId>,
    position: usize,
}

/// Drives a policy over a random program. Loads and evictions fail at times; passes are aborted; leases end in any order.
pub fn play_policy(draw: &mut impl Draw, steps: usize) -> Verdict {
    let shape = Shape::ALL[draw.below(8) as usize];
    let model = program(shape, draw);
    let floor = model.floor();
    let (weights, trace) = (model.constants.specs, model.method.trace);
    let least = floor.hard_minimum - floor.direct;
    let capacity = least + draw.below(floor.everything - least + 1);
    let upfront = draw.one_in(8);
    let policy: Box<dyn Policy> = match upfront {
        true => Box::new(AllResident::new(&trace, &weights, GRANULE)),
        false => Box::new(Lru::new(&trace, &weights, GRANULE, capacity)),
    };
    let sizes: Vec<u64> = weights.iter().map(|w| w.occupied(GRANULE)).collect();
    let mut played = Played {
        policy,
        capacity: if upfront { u64::MAX } else { capacity },
        present: sizes.iter().map(|&size| size == 0).collect(),
        leases: vec![0; sizes.len()],
        sizes,
        trace,
        open: vec![],
        position: 0,
    };
    let mut actions = Vec::new();
    played.policy.start(&mut actions);
    played.carry_out(&mut actions, &mut || false)?;
    for _ in 0..steps {
        played.step(draw)?;
        played.check()?;
    }
    Ok(())
}

impl Played {
    fn step(&mut self, draw: &mut impl Draw) -> Verdict {
        let mut actions = Vec::new();
        match draw.below(16) {
            0..6 => return self.probe(draw),
            6..11 if !self.open.is_empty() => {
                let at = draw.below(self.open.len() as u64) as usize;
                self.release(at);
            }
            11 | 12 => self.policy.ahead(&mut actions),
            13 => {
                self.policy.make_room(&mut actions);
            }
            14 if draw.one_in(4) => {
                self.policy.abort();
                self.position = 0;
            }
            _ => {}
        }
        self.carry_out(&mut actions, &mut || draw.one_in(6))
    }

    fn probe(&mut self, draw: &mut impl Draw) -> Verdict {
        let Some(&id) = self.trace.order().get(self.position) else {
            return Ok(());
        };
        let weight = self.trace.weight(id) as usize;
        let mut actions = Vec::new();
        match self.policy.demand(id, &mut actions) {
            Ok(Served::Hit) if !self.present[weight] && self.capacity < u64::MAX => {
                return Err(format!("weight {weight} is a hit, but it is not there"))
            }
            Ok(_) => {}
            // Leases that end in any order, and those of an aborted pass, may need more than the hard minimum.
            Err(Error::OutOfMemory { .. }) if self.needed(weight) > self.capacity => return Ok(()),
            Err(error) => return Err(format!("weight {weight} was not served: {error}")),
        }
        let asked = actions.len();
        self.carry_out(&mut actions, &mut || draw.one_in(8))?;
        if asked > 0 && !self.present[weight] {
            // Its load failed, as the session would have seen.
            return Ok(());
        }
        self.policy.lease(id);
        self.leases[weight] += 1;
        self.open.push(id);
        self.position += 1;
        if self.position == self.trace.order().len() {
            // Each probe once per pass: what is open ends before the next one.
            while !self.open.is_empty() {
                let at = draw.below(self.open.len() as u64) as usize;
                self.release(at);
                self.check()?;
            }
            self.position = 0;
        }
        Ok(())
    }

    /// Bytes of what is leased, and of this weight.
    fn needed(&self, weight: usize) -> u64 {
        let wanted = |w: &usize| self.leases[*w] > 0 || *w == weight;
        (0..self.sizes.len())
            .filter(wanted)
            .map(|w| self.sizes[w])
            .sum()
    }

    fn release(&mut self, at: usize) {
        let id = self.open.swap_remove(at);
        self.leases[self.trace.weight(id) as usize] -= 1;
        self.policy.release(id);
    }

    /// As the session does: in order; from the first failure on, all is taken back from its end.
    fn carry_out(
        &mut self,
        actions: &mut Vec<Action>,
        fails: &mut impl FnMut() -> bool,
    ) -> Verdict {
        let failed = (0..actions.len())
            .find(|_| fails())
            .unwrap_or(actions.len());
        for action in &actions[..failed] {
            match *action {
                Action::Load { weight, .. } => self.arrive(weight as usize)?,
                Action::Evict { weight, .. } => self.leave(weight as usize)?,
            }
        }
        for action in actions.drain(failed..).rev() {
            match action {
                Action::Load { weight, .. } => self.policy.load_failed(weight),
                Action::Evict { weight } => self.policy.evict_failed(weight),
            }
        }
        actions.clear();
        Ok(())
    }

    fn arrive(&mut self, weight: usize) -> Verdict {
        if std::mem::replace(&mut self.present[weight], true) {
            return Err(format!("weight {weight} was loaded twice"));
        }
        let used = self.used();
        match used <= self.capacity {
            true => Ok(()),
            false => Err(format!("{used} bytes are loaded, of {}", self.capacity)),
        }
    }

    fn leave(&mut self, weight: usize) -> Verdict {
        if self.leases[weight] > 0 {
            return Err(format!("weight {weight} was evicted under its lease"));
        }
        match std::mem::replace(&mut self.present[weight], false) {
            true => Ok(()),
            false => Err(format!("weight {weight} was evicted, but was not there")),
        }
    }

    fn used(&self) -> u64 {
        let there = self.sizes.iter().zip(&self.present);
        there
            .filter(|(_, present)| **present)
            .map(|(size, _)| size)
            .sum()
    }

    fn check(&self) -> Verdict {
        self.policy.validate()?;
        let (used, planned) = (self.used(), self.policy.pool_bytes());
        match used == planned || self.capacity == u64::MAX {
            true => Ok(()),
            false => Err(format!("{used} bytes are there, {planned} by the policy")),
        }
    }
}

/// Drives a pool on a simulated device whose calls fail at times.
pub fn play_pool(draw: &mut impl Draw, steps: usize) -> Verdict {
    let cap = GRANULE * draw.between(1, 64);
    let mut sim = Sim::new(Order::Random(draw.next()));
    sim.set_budget(cap).map_err(|e| e.to_string())?;
    sim.limit_addresses(cap);
    let mut pool: Box<dyn Pool<Sim>> = match draw.one_in(2) {
        true => Box::new(Arena::open(&mut sim, cap).map_err(|e| e.to_string())?),
        false => Box::new(StreamOrdered::new(cap)),
    };
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut peak = 0;
    for _ in 0..steps {
        // Whatever the last step armed and did not meet.
        sim.fail(None);
        if draw.one_in(8) {
            sim.fail_call(
                ["alloc", "free", "discard"][draw.below(3) as usize],
                draw.below(3),
            );
        }
        match draw.below(8) {
            0..4 => {
                let bytes = GRANULE * draw.below(20);
                let used: u64 = live.values().sum();
                judge_take(pool.take(&mut sim, bytes), bytes, cap - used, &mut live)?;
            }
            4..7 => {
                let pick = draw.below(live.len().max(1) as u64) as usize;
                let Some((&at, &bytes)) = live.iter().nth(pick) else {
                    continue;
                };
                match pool.give(&mut sim, DevicePtr(at), bytes) {
                    Ok(()) => {
                        live.remove(&at);
                    }
                    // Still handed out.
                    Err(Error::Device { .. }) => {}
                    Err(error) => return Err(format!("{bytes} bytes back: {error}")),
                }
            }
            _ => {
                pool.forget_peak();
                peak = 0;
            }
        }
        let used = live.values().sum();
        peak = peak.max(used);
        pool.validate()?;
        if (pool.used_bytes(), pool.peak_bytes()) != (used, peak) {
            let found = (pool.used_bytes(), pool.peak_bytes());
            return Err(format!(
                "used and peak: {found:?} instead of {:?}",
                (used, peak)
            ));
        }
    }
    sim.fail(None);
    for (at, bytes) in live {
        let given = pool.give(&mut sim, DevicePtr(at), bytes);
        given.map_err(|error| error.to_string())?;
    }
    pool.close(&mut sim).map_err(|error| error.to_string())?;
    match sim.live_bytes() {
        0 => sim.verdict(),
        left => Err(format!("{left} bytes left behind")),
    }
}

/// `room` bytes were free.
fn judge_take(
    taken: Result<DevicePtr>,
    bytes: u64,
    room: u64,
    live: &mut BTreeMap<u64, u64>,
) -> Verdict {
    match taken {
        Ok(_) if bytes > room => Err(format!("{bytes} bytes were had of {room}")),
        Ok(DevicePtr::EMPTY) if bytes == 0 => Ok(()),
        Ok(ptr) => {
            let before = live.range(..ptr.0 + bytes).next_back();
            if before.is_some_and(|(at, len)| at + len > ptr.0) {
                return Err(format!("{bytes} bytes at {:#x} overlap others", ptr.0));
            }
            live.insert(ptr.0, bytes);
            Ok(())
        }
        Err(Error::Internal(_)) if bytes > room => Ok(()),
        Err(Error::OutOfMemory { .. }) if bytes <= room && !live.is_empty() => Ok(()),
        Err(Error::Device { what, .. }) if what == "injected" => Ok(()),
        Err(error) => Err(format!("{bytes} bytes of {room}: {error}")),
    }
}
