//! Least recently used, with lookahead along the access order.
//!
//! A window of coming reads, `[position, position + depth)`, cyclic over passes, holds a claim on each of
//! its weights. A weight with a claim or a lease is never evicted; all others that are present stand in
//! one list, in the order in which they were let go, and go from its head. A demand finds the window
//! empty, so nothing but leases is in its way: at budgets from the hard minimum up it always succeeds.

use super::layout::Layout;
use super::list::IndexList;
use super::offer::{Request, Residency};
use super::reads::Reads;
use super::{Action, Policy, Served};
use crate::error::{Error, Result};
use crate::schedule::{ProbeId, Trace, WeightIndex, WeightSpec};

/// One weight, as the policy sees it.
#[derive(Debug, Clone, Default)]
struct Weight {
    /// Occupied bytes. Weights without bytes are always present and never move.
    size: u64,
    /// Bytes to copy.
    bytes: u64,
    present: bool,
    /// Each pass copies it.
    streamed: bool,
    /// A lease or a claim is of its last read of a pass: a later read needs another copy.
    over: bool,
    leases: u32,
    claims: u32,
}

impl Weight {
    /// May be evicted, and so stands in the list.
    fn idle(&self) -> bool {
        // rule: lru-lease-before-evict, lru-claim-before-evict
        self.present && self.size > 0 && self.leases == 0 && self.claims == 0
    }
}

/// The policy of the same name.
#[derive(Debug, Clone)]
pub struct Lru {
    weights: Vec<Weight>,
    methods: Vec<Reads>,
    /// The one that runs.
    method: usize,
    position: usize,
    depth: usize,
    /// The read after the window found no room, and nothing has become idle or absent since.
    blocked: bool,
    /// The pool had no piece for the last copy ahead, though it had the bytes.
    holed: bool,
    /// Those that may be evicted, least recently used first.
    idle: IndexList,
    idle_bytes: u64,
    used: u64,
    capacity: u64,
}

impl Lru {
    /// A policy that keeps at most `capacity` occupied bytes of `weights` (all constants; the direct
    /// ones are not its business, and not in `capacity`).
    pub fn new(trace: &Trace, weights: &[WeightSpec], granule: u64, capacity: u64) -> Self {
        let weight = |spec: &WeightSpec| Weight {
            size: spec.occupied(granule),
            bytes: spec.bytes,
            present: spec.bytes == 0,
            streamed: spec.is_streamed(),
            ..Weight::default()
        };
        Lru {
            weights: weights.iter().map(weight).collect(),
            methods: vec![Reads::of(trace)],
            method: 0,
            position: 0,
            depth: 0,
            blocked: false,
            holed: false,
            idle: IndexList::new(weights.len()),
            idle_bytes: 0,
            used: 0,
            capacity,
        }
    }

    /// The same for several methods.
    fn of_methods(request: &Request<'_>) -> Self {
        let traces = request.methods.iter().map(|one| one.trace);
        let granule = request.model.granule;
        Lru {
            methods: traces.map(Reads::of).collect(),
            ..Lru::new(
                &Trace::default(),
                request.weights,
                granule,
                request.capacity,
            )
        }
    }

    /// The access order of the method that runs.
    #[inline]
    fn order(&self) -> &[WeightIndex] {
        &self.methods[self.method].order
    }

    #[inline]
    fn weight_of(&self, id: ProbeId) -> WeightIndex {
        self.methods[self.method].weight_of[id as usize]
    }

    /// The weight of the read that is `ahead` reads away, around the end of the pass.
    fn coming(&self, ahead: usize) -> WeightIndex {
        self.order()[self.place(ahead)]
    }

    /// The place of that read in the order.
    fn place(&self, ahead: usize) -> usize {
        let (at, count) = (self.position + ahead, self.order().len());
        if at < count {
            at
        } else {
            at - count
        }
    }

    /// Changes a weight's state, and its place in the list with it.
    fn update(&mut self, index: WeightIndex, change: impl FnOnce(&mut Weight)) {
        let weight = &mut self.weights[index as usize];
        let was = weight.idle();
        change(weight);
        let is = weight.idle();
        if was && !is {
            self.idle_bytes -= weight.size;
            self.idle.remove(index);
        } else if is && !was {
            self.idle_bytes += weight.size;
            match weight.over {
                true => self.idle.push_front(index),
                false => self.idle.push(index),
            }
            self.blocked = false;
        }
    }

    /// Plans the load of an absent weight with all the evictions it needs, or nothing if they would not
    /// be enough.
    fn plan_load(&mut self, index: WeightIndex, ahead: bool, actions: &mut Vec<Action>) -> bool {
        let Weight { size, bytes, .. } = self.weights[index as usize];
        let needed = self.used.saturating_add(size);
        if needed.saturating_sub(self.idle_bytes) > self.capacity {
            return false;
        }
        while self.used + size > self.capacity {
            let Some(victim) = self.idle.first() else {
                return false;
            };
            self.evict(victim, actions);
        }
        self.used += size;
        self.update(index, |w| (w.present, w.over) = (true, false));
        self.blocked = false;
        actions.push(Action::Load {
            weight: index,
            range: 0..bytes,
            window: 0,
            ahead,
        });
        true
    }

    /// Whether the read after the window could be claimed or loaded.
    fn room_behind_window(&self) -> bool {
        let next = (self.depth < self.order().len()).then(|| self.coming(self.depth));
        next.is_some_and(|index| {
            let weight = &self.weights[index as usize];
            match weight.present {
                true => !weight.over || weight.idle(),
                false => self.used + weight.size - self.idle_bytes <= self.capacity,
            }
        })
    }

    /// Evicts a weight that is there from its last read of a pass, and that each pass copies.
    fn evict_if_over(&mut self, index: WeightIndex, actions: &mut Vec<Action>) {
        let weight = &self.weights[index as usize];
        if weight.over && weight.idle() {
            self.evict(index, actions);
        }
    }

    /// The read at this place of the order is leased or claimed.
    fn take_read(&mut self, place: usize, change: impl FnOnce(&mut Weight)) {
        let reads = &self.methods[self.method];
        let (index, last) = (reads.order[place], reads.last[place]);
        self.update(index, |w| {
            change(w);
            w.over |= last && w.streamed;
        });
    }

    fn evict(&mut self, weight: WeightIndex, actions: &mut Vec<Action>) {
        self.remove(weight);
        actions.push(Action::Evict { weight });
    }

    fn remove(&mut self, index: WeightIndex) {
        self.update(index, |w| w.present = false);
        self.used -= self.weights[index as usize].size;
        self.blocked = false;
    }

    /// Claims of the whole window are given back; nearest reads last, as they are wanted soonest.
    fn drop_window(&mut self) {
        while self.depth > 0 {
            self.drop_claim();
        }
    }

    /// The claim of the last read of the window is given back.
    fn drop_claim(&mut self) {
        self.depth -= 1;
        let place = self.place(self.depth);
        let reads = &self.methods[self.method];
        let (index, last) = (reads.order[place], reads.last[place]);
        self.update(index, |w| {
            w.claims -= 1;
            w.over &= !last;
        });
    }
}

/// For the table of policies.
pub(super) fn offer(request: &Request<'_>) -> Residency {
    Residency::new(Lru::of_methods(request), Layout::per_weight())
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn demand(&mut self, id: ProbeId, actions: &mut Vec<Action>) -> Result<Served> {
        let index = self.weight_of(id);
        self.evict_if_over(index, actions);
        if self.weights[index as usize].present {
            return Ok(Served::Hit);
        }
        match self.plan_load(index, false, actions) {
            true => Ok(Served::Miss),
            // Never at or above the hard minimum, unless leases of an earlier pass are still open.
            false => Err(Error::OutOfMemory {
                what: "a weight, beside the weights that are being read".to_string(),
                bytes: self.weights[index as usize].size,
            }),
        }
    }

    fn lease(&mut self, id: ProbeId) {
        debug_assert_eq!(self.coming(0), self.weight_of(id));
        let claimed = u32::from(self.depth > 0);
        self.take_read(self.position, |w| {
            // rule: lru-counts-every-lease
            w.leases += 1;
            w.claims -= claimed;
        });
        self.depth -= claimed as usize;
        self.position += 1;
        if self.position == self.order().len() {
            self.position = 0;
        }
    }

    fn release(&mut self, id: ProbeId) -> Option<WeightIndex> {
        let index = self.weight_of(id);
        self.update(index, |w| w.leases -= 1);
        self.holed = false;
        let weight = &self.weights[index as usize];
        (weight.leases == 0 && weight.size > 0).then_some(index)
    }

    fn ahead(&mut self, actions: &mut Vec<Action>) {
        while self.depth < self.order().len() && !self.blocked && !self.holed {
            let index = self.coming(self.depth);
            self.evict_if_over(index, actions);
            let Weight { present, over, .. } = self.weights[index as usize];
            let held = present && over;
            if held || (!present && !self.plan_load(index, true, actions)) {
                self.blocked = true;
                return;
            }
            // rule: lru-claims-coming-reads
            self.take_read(self.place(self.depth), |w| w.claims += 1);
            self.depth += 1;
        }
    }

    fn turn_to(&mut self, method: usize) {
        self.abort();
        self.method = method;
    }

    fn abort(&mut self) {
        // rule: lru-abort-drops-claims
        self.drop_window();
        // rule: lru-abort-restarts-the-trace
        self.position = 0;
        self.blocked = false;
        self.holed = false;
    }

    fn make_room(&mut self, actions: &mut Vec<Action>) -> bool {
        let Some(victim) = self.idle.first() else {
            return false;
        };
        self.evict(victim, actions);
        self.holed = false;
        true
    }

    fn load_failed(&mut self, weight: WeightIndex) {
        // The window ends before it. What lies before keeps its claims: it is there, and not yet read.
        while self.weights[weight as usize].claims > 0 {
            self.drop_claim();
        }
        // rule: lru-failed-load-is-absent
        self.remove(weight);
        // Until a lease ends nothing is different: trying again at each probe would cost and gain nothing.
        self.holed = true;
    }

    fn evict_failed(&mut self, weight: WeightIndex) {
        self.used += self.weights[weight as usize].size;
        // rule: lru-failed-eviction-is-present
        self.update(weight, |w| (w.present, w.over) = (true, w.streamed));
        // It has not been used meanwhile: the next to go is who was before, if the last eviction is taken back first.
        if self.idle.contains(weight) {
            self.idle.remove(weight);
            self.idle.push_front(weight);
        }
    }

    fn fingerprint(&self) -> Vec<u32> {
        let flags = u32::from(self.blocked) + 2 * u32::from(self.holed);
        let window = [
            self.method as u32,
            self.position as u32,
            self.depth as u32,
            flags,
        ];
        let idle = self.idle.iter();
        let idle = idle.map(|one| 2 * one + u32::from(self.weights[one as usize].over));
        idle.chain(window).collect()
    }

    fn pool_bytes(&self) -> u64 {
        self.used
    }

    fn validate(&self) -> std::result::Result<(), String> {
        let mut claims = vec![0; self.weights.len()];
        (0..self.depth).for_each(|ahead| claims[self.coming(ahead) as usize] += 1);
        let mut used = 0;
        let mut idle = 0;
        for (index, weight) in self.weights.iter().enumerate() {
            let check = |good: bool, what| match good {
                true => Ok(()),
                false => Err(format!("weight {index}: {what}: {weight:?}")),
            };
            check(
                weight.claims == claims[index],
                "claims are not those of the window",
            )?;
            check(
                weight.present || weight.claims + weight.leases == 0,
                "wanted but absent",
            )?;
            check(
                self.idle.contains(index as u32) == weight.idle(),
                "wrongly in or out of the list",
            )?;
            used += if weight.present { weight.size } else { 0 };
            idle += if weight.idle() { weight.size } else { 0 };
        }
        if self.blocked && self.room_behind_window() {
            return Err("blocked although there is room".to_string());
        }
        let listed: u64 = self
            .idle
            .iter()
            .map(|w| self.weights[w as usize].size)
            .sum();
        match (used, idle, idle) == (self.used, self.idle_bytes, listed) && used <= self.capacity {
            true => Ok(()),
            false => Err(format!(
                "counted {used} used, {idle} idle, {listed} listed: {self:?}"
            )),
        }
    }
}

#[cfg(test)]
#[path = "lru_tests.rs"]
mod tests;
