//! Policies and pools under random sequences of operations, with `validate()` and an oracle behind each.

use super::case::{floor_of, GRANULE};
use super::code::{program, Shape};
use super::draw::Draw;
use std::collections::BTreeMap;
use std::ops::Range;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{Device, DevicePtr, Sim};
use weightstream::error::Error;
use weightstream::figures::DeviceModel;
use weightstream::residency::{
    choose, Action, Arena, Layout, Memory, Policy, Pool, Request, Served, StreamOrdered,
};
use weightstream::schedule::{ProbeId, Trace};

type Verdict = Result<(), String>;

/// What a store would know of its policy's decisions.
struct Played {
    policy: Box<dyn Policy>,
    trace: Trace,
    /// Bytes of each weight, and those that it occupies.
    bytes: Vec<u64>,
    sizes: Vec<u64>,
    capacity: u64,
    memory: Lying,
    /// What copies of passes brought.
    there: Vec<bool>,
    leases: Vec<u32>,
    open: Vec<ProbeId>,
    position: usize,
}

/// Where weights lie: what a kernel would read.
struct Lying {
    layout: Layout,
    /// The weight and its granule in each granule of the memory, and whether it was loaded at the start.
    granules: Vec<Option<(usize, u64, bool)>>,
    /// The window of the last load of each weight.
    windows: Vec<Option<u32>>,
}

/// Drives a policy of the table over a random program. Loads and evictions fail at times; passes are aborted; leases end in
/// any order.
pub fn play_policy(draw: &mut impl Draw, steps: usize) -> Verdict {
    let shape = Shape::ALL[draw.below(8) as usize];
    let model = program(shape, draw);
    let floor = floor_of(&model.program);
    let (weights, trace) = (model.program.weights, model.program.trace);
    let least = floor.hard_minimum - floor.direct;
    let capacity = least + draw.below(floor.everything - least + 1);
    let page = [Some(GRANULE), Some(4 * GRANULE), None][draw.below(3) as usize];
    let device = DeviceModel {
        granule: GRANULE,
        bytes_per_copy: 0,
        page,
        apart: 0,
    };
    let residency = choose(&Request {
        kind: PolicyKind::ALL[draw.below(PolicyKind::ALL.len() as u64) as usize],
        trace: &trace,
        weights: &weights,
        model: &device,
        capacity,
        link: None,
        times: None,
    });
    let layout = residency.layout.clone();
    let sizes: Vec<u64> = weights.iter().map(|w| w.occupied(GRANULE)).collect();
    let mut played = Played {
        policy: residency.policy(),
        capacity,
        memory: Lying {
            granules: vec![None; layout.bytes().div_ceil(GRANULE) as usize],
            windows: vec![None; sizes.len()],
            layout,
        },
        bytes: weights.iter().map(|weight| weight.bytes).collect(),
        there: vec![false; sizes.len()],
        leases: vec![0; sizes.len()],
        sizes,
        trace,
        open: vec![],
        position: 0,
    };
    let mut actions = Vec::new();
    played.policy.start(&mut actions);
    for action in actions {
        if let Action::Load {
            weight,
            range,
            window,
            ..
        } = action
        {
            played.memory.load(weight as usize, &range, window, true)?;
        }
    }
    for _ in 0..steps {
        played.step(draw)?;
        played.check()?;
    }
    Ok(())
}

impl Lying {
    /// The granules of the memory behind bytes of a weight, through a window.
    fn behind(&self, range: &Range<u64>, window: u32) -> Result<Vec<usize>, String> {
        let at = self.layout.windows[window as usize];
        let seen = at + range.start..at + range.end;
        let parts = match self.layout.view() {
            Some(view) => view.behind(seen.clone()),
            None => (seen.end <= self.layout.bytes()).then(|| vec![seen.clone()]),
        };
        let parts = parts.ok_or_else(|| format!("{seen:?} is not of the memory"))?;
        let granules = parts
            .iter()
            .flat_map(|part| part.clone().step_by(GRANULE as usize));
        Ok(granules.map(|at| (at / GRANULE) as usize).collect())
    }

    /// A copy to memory that nobody has.
    fn load(&mut self, weight: usize, range: &Range<u64>, window: u32, stays: bool) -> Verdict {
        self.windows[weight] = Some(window);
        if self.layout.memory == Memory::PerWeight {
            return Ok(());
        }
        for (number, at) in (range.start / GRANULE..).zip(self.behind(range, window)?) {
            let granule = self
                .granules
                .get_mut(at)
                .ok_or("a copy leaves the memory")?;
            if let Some(other) = granule.replace((weight, number, stays)) {
                return Err(format!("weight {weight} is copied over {other:?}"));
            }
        }
        Ok(())
    }

    /// What copies of passes brought is nobody's.
    fn evict(&mut self, weight: usize) {
        for granule in &mut self.granules {
            if granule.is_some_and(|(owner, _, stays)| owner == weight && !stays) {
                *granule = None;
            }
        }
    }

    /// A kernel would read this weight.
    fn is_whole(&self, weight: usize, bytes: u64) -> Verdict {
        if self.layout.memory == Memory::PerWeight || bytes == 0 {
            return Ok(());
        }
        let window = self.windows[weight].ok_or(format!("weight {weight} was never loaded"))?;
        for (number, at) in (0..).zip(self.behind(&(0..bytes), window)?) {
            match self.granules[at] {
                Some((owner, found, _)) if (owner, found) == (weight, number) => {}
                found => return Err(format!("granule {number} of weight {weight} is {found:?}")),
            }
        }
        Ok(())
    }
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
        self.carry_out(&mut actions, &mut || draw.one_in(6))?;
        Ok(())
    }

    fn probe(&mut self, draw: &mut impl Draw) -> Verdict {
        let Some(&id) = self.trace.order().get(self.position) else {
            return Ok(());
        };
        // A probe happens once in a pass, and its lease ends before the next one begins.
        if self.open.contains(&id) {
            return Ok(());
        }
        let weight = self.trace.weight(id) as usize;
        let mut actions = Vec::new();
        match self.policy.demand(id, &mut actions) {
            Ok(served) if (served == Served::Miss) != (actions.len() > 0) => {
                return Err(format!("weight {weight}: {served:?} with {actions:?}"))
            }
            Ok(_) => {}
            // Leases that end in any order, and those of an aborted pass, may need more than the hard minimum.
            Err(Error::OutOfMemory { .. }) if self.may_be_refused(weight) => return Ok(()),
            Err(error) => return Err(format!("weight {weight} was not served: {error}")),
        }
        if !self.carry_out(&mut actions, &mut || draw.one_in(8))? {
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

    /// In memory of its own: if what is leased leaves no room. In a slot: if something is leased at all.
    fn may_be_refused(&self, weight: usize) -> bool {
        let wanted = |w: &usize| self.leases[*w] > 0 || *w == weight;
        let needed: u64 = (0..self.sizes.len())
            .filter(wanted)
            .map(|w| self.sizes[w])
            .sum();
        match self.memory.layout.memory {
            Memory::PerWeight => needed > self.capacity,
            _ => !self.open.is_empty(),
        }
    }

    fn release(&mut self, at: usize) {
        let id = self.open.swap_remove(at);
        self.leases[self.trace.weight(id) as usize] -= 1;
        self.policy.release(id);
    }

    /// As a store does: in order; from the first failure on, all is taken back from its end. Whether nothing failed.
    fn carry_out(
        &mut self,
        actions: &mut Vec<Action>,
        fails: &mut impl FnMut() -> bool,
    ) -> Result<bool, String> {
        let failed = (0..actions.len()).find(|_| fails());
        let done = failed.unwrap_or(actions.len());
        for action in &actions[..done] {
            match action {
                Action::Load {
                    weight,
                    range,
                    window,
                    ..
                } => self.arrive(*weight as usize, range, *window)?,
                Action::Evict { weight } => self.leave(*weight as usize)?,
            }
        }
        for action in actions.drain(done..).rev() {
            match action {
                Action::Load { weight, .. } => self.policy.load_failed(weight),
                Action::Evict { weight } => self.policy.evict_failed(weight),
            }
        }
        actions.clear();
        Ok(failed.is_none())
    }

    fn arrive(&mut self, weight: usize, range: &Range<u64>, window: u32) -> Verdict {
        if std::mem::replace(&mut self.there[weight], true) {
            return Err(format!("weight {weight} was loaded twice"));
        }
        self.memory.load(weight, range, window, false)?;
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
        self.memory.evict(weight);
        match std::mem::replace(&mut self.there[weight], false) {
            true => Ok(()),
            false => Err(format!("weight {weight} was evicted, but was not there")),
        }
    }

    /// Bytes of memory of their own.
    fn used(&self) -> u64 {
        match self.memory.layout.memory {
            Memory::PerWeight => {
                let there = self.sizes.iter().zip(&self.there);
                there
                    .filter(|(_, there)| **there)
                    .map(|(size, _)| size)
                    .sum()
            }
            _ => 0,
        }
    }

    fn check(&self) -> Verdict {
        self.policy.validate()?;
        for &id in &self.open {
            let weight = self.trace.weight(id) as usize;
            self.memory.is_whole(weight, self.bytes[weight])?;
        }
        let (used, said) = (self.used(), self.policy.pool_bytes());
        match used == said && self.memory.layout.bytes() <= self.capacity {
            true => Ok(()),
            false => Err(format!("{used} bytes are there, {said} by the policy")),
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
    taken: weightstream::Result<DevicePtr>,
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
