//! Carries a plan out.
//!
//! Copies are issued in the order of the plan, cyclic over passes, each as soon as the leases of everything whose place it
//! takes are over. So what is demanded and not there can always be copied: what has its slot was read before it, and what is
//! read at the same time has another slot. After an abort it may be otherwise; then a demand is an error as long as the
//! leases of that pass are open.
//!
//! Invariants: a slot has the tail of at most one copy; a weight's tail is in at most one slot; a copy that is leased or
//! claimed for a coming read is in its slot.

use super::super::{Action, Policy, Served};
use super::plan::{Plan, Resident};
use crate::error::{Error, Result};
use crate::schedule::{ProbeId, WeightIndex};
use std::ops::Range;

/// No copy.
const NONE: u32 = u32::MAX;

/// One copy of the plan, and how far its reads are.
#[derive(Debug, Clone)]
struct Copy {
    weight: WeightIndex,
    range: Range<u64>,
    slot: u32,
    window: u32,
    /// Each pass copies it, also where its bytes are still there.
    always: bool,
    /// Reads that it serves in a pass.
    reads: u32,
    /// Reads that it is claimed for: they come, and find it there.
    unread: u32,
    leases: u32,
}

/// The copies of one method's passes.
#[derive(Debug, Clone)]
struct Itinerary {
    copies: Range<u32>,
    /// The copy of each probe.
    copy_of: Vec<u32>,
}

/// The policy of the same name.
#[derive(Debug, Clone)]
pub struct Planned {
    resident: Vec<Resident>,
    copies: Vec<Copy>,
    methods: Vec<Itinerary>,
    /// The method that runs.
    method: usize,
    /// The copy whose tail is in each slot.
    in_slot: Vec<u32>,
    /// The copy that is there of each weight.
    of_weight: Vec<u32>,
    /// The copy of each weight that was evicted last.
    evicted: Vec<u32>,
    /// The copy that comes next.
    next: u32,
    /// The place of the next copy is in use, and no lease has ended since.
    blocked: bool,
    /// The last load failed, and no lease has ended since.
    failed: bool,
}

impl Planned {
    /// Of a plan for a program with so many constants, whose methods have so many probes.
    pub fn new(plan: &Plan, constants: usize, probes: &[usize]) -> Planned {
        let mut start = 0;
        let methods = (0..).zip(probes).map(|(method, &probes)| {
            let mut copy_of = vec![NONE; probes];
            let own = plan.streamed.iter().filter(|one| one.method == method);
            let mut end = start;
            for one in own {
                for &id in &one.probes {
                    copy_of[id as usize] = end;
                }
                end += 1;
            }
            let copies = std::mem::replace(&mut start, end)..end;
            Itinerary { copies, copy_of }
        });
        let copies = plan.streamed.iter().map(|one| Copy {
            weight: one.weight,
            range: one.range.clone(),
            slot: one.slot,
            window: one.window,
            always: one.always,
            reads: one.probes.len() as u32,
            unread: 0,
            leases: 0,
        });
        Planned {
            resident: plan.resident.clone(),
            methods: methods.collect(),
            method: 0,
            copies: copies.collect(),
            in_slot: vec![NONE; plan.slots.len()],
            of_weight: vec![NONE; constants],
            evicted: vec![NONE; constants],
            next: 0,
            blocked: false,
            failed: false,
        }
    }

    /// Its tail is in its slot.
    fn is_there(&self, at: u32) -> bool {
        self.in_slot[self.copies[at as usize].slot as usize] == at
    }

    /// Nobody reads it or is about to.
    fn is_idle(&self, at: u32) -> bool {
        let copy = &self.copies[at as usize];
        // rule: leased-tail-stays, claimed-tail-stays
        copy.leases == 0 && copy.unread == 0
    }

    /// What has to go before a copy: the tail in its slot, and its weight's in another one.
    fn before(&self, at: u32) -> impl Iterator<Item = u32> {
        let Copy { weight, slot, .. } = self.copies[at as usize];
        let both = [self.in_slot[slot as usize], self.of_weight[weight as usize]];
        both.into_iter().filter(|&other| other != NONE)
    }

    /// The next copy cannot be claimed yet: its place is in use, by itself if all copies are claimed.
    fn is_held_up(&self) -> bool {
        self.before(self.next).any(|other| !self.is_idle(other))
    }

    /// Plans a copy that is not there, with the evictions that it needs; or nothing, if one of these may not be.
    fn load(&mut self, at: u32, ahead: bool, actions: &mut Vec<Action>) -> bool {
        // rule: evict-only-what-is-idle
        if self.before(at).any(|other| !self.is_idle(other)) {
            return false;
        }
        while let Some(other) = self.before(at).next() {
            self.evict(other, actions);
        }
        self.put(at);
        self.claim(at);
        let copy = &self.copies[at as usize];
        actions.push(Action::Load {
            weight: copy.weight,
            range: copy.range.clone(),
            window: copy.window,
            ahead,
        });
        true
    }

    fn evict(&mut self, at: u32, actions: &mut Vec<Action>) {
        let weight = self.copies[at as usize].weight;
        self.remove(at);
        self.evicted[weight as usize] = at;
        (self.blocked, self.failed) = (false, false);
        actions.push(Action::Evict { weight });
    }

    fn put(&mut self, at: u32) {
        let Copy { weight, slot, .. } = self.copies[at as usize];
        self.in_slot[slot as usize] = at;
        self.of_weight[weight as usize] = at;
    }

    fn remove(&mut self, at: u32) {
        let Copy { weight, slot, .. } = self.copies[at as usize];
        self.in_slot[slot as usize] = NONE;
        self.of_weight[weight as usize] = NONE;
    }

    /// The coming reads of a copy count on it; the next copy is that after it.
    fn claim(&mut self, at: u32) {
        let copy = &mut self.copies[at as usize];
        copy.unread = copy.reads;
        self.next = self.after(at);
        self.blocked = false;
    }

    fn after(&self, at: u32) -> u32 {
        let Range { start, end } = self.itinerary().copies;
        match at + 1 < end {
            true => at + 1,
            false => start,
        }
    }

    #[inline]
    fn itinerary(&self) -> &Itinerary {
        &self.methods[self.method]
    }

    #[inline]
    fn copy_of(&self, id: ProbeId) -> u32 {
        self.itinerary().copy_of[id as usize]
    }

    /// The copy of the current method that brings the same bytes to the same place, if there is one.
    fn twin(&self, at: u32) -> Option<u32> {
        let Copy { weight, slot, .. } = self.copies[at as usize];
        let same = |&other: &u32| {
            let other = &self.copies[other as usize];
            // rule: twin-is-of-the-same-slot
            (other.weight, other.slot) == (weight, slot)
        };
        self.itinerary().copies.clone().find(same)
    }
}

impl Policy for Planned {
    fn name(&self) -> &'static str {
        "planned"
    }

    fn everything_stays(&self) -> bool {
        self.copies.is_empty()
    }

    fn is_periodic(&self) -> bool {
        true
    }

    fn start(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.resident.iter().map(|one| Action::Load {
            weight: one.weight,
            range: one.range.clone(),
            window: one.window,
            ahead: true,
        }));
    }

    fn demand(&mut self, id: ProbeId, actions: &mut Vec<Action>) -> Result<Served> {
        let at = self.copy_of(id);
        let Some(copy) = self.copies.get(at as usize) else {
            return Ok(Served::Hit);
        };
        if self.is_there(at) {
            if copy.unread == 0 {
                // It is that of a pass that was aborted, and nobody has taken its place since.
                self.claim(at);
            }
            return Ok(Served::Hit);
        }
        let bytes = copy.range.end - copy.range.start;
        match self.load(at, false, actions) {
            true => Ok(Served::Miss),
            false => Err(Error::OutOfMemory {
                what: "a weight, in the slot that the plan has for it: another one there is being read".to_owned(),
                bytes,
            }),
        }
    }

    fn lease(&mut self, id: ProbeId) {
        let at = self.copy_of(id);
        if let Some(copy) = self.copies.get_mut(at as usize) {
            copy.leases += 1;
            copy.unread -= 1;
        }
    }

    fn release(&mut self, id: ProbeId) -> Option<WeightIndex> {
        let at = self.copy_of(id);
        let copy = self.copies.get_mut(at as usize)?;
        copy.leases -= 1;
        // Also where more reads follow: if the pass ends before them, this was the last one.
        // rule: every-last-lease-is-marked
        let over = (copy.leases == 0).then_some(copy.weight);
        if over.is_some() {
            (self.blocked, self.failed) = (false, false);
        }
        over
    }

    fn ahead(&mut self, actions: &mut Vec<Action>) {
        while !self.blocked && !self.failed && !self.itinerary().copies.is_empty() {
            let at = self.next;
            let stays = self.is_there(at) && !self.copies[at as usize].always;
            if self.is_held_up() {
                self.blocked = true;
            } else if stays {
                self.claim(at);
            } else {
                self.load(at, true, actions);
            }
        }
    }

    fn abort(&mut self) {
        // rule: abort-drops-claims
        self.copies.iter_mut().for_each(|copy| copy.unread = 0);
        self.next = self.itinerary().copies.start;
        (self.blocked, self.failed) = (false, false);
    }

    /// What another method's copies left in the ring is found there by the copies of this one that would bring the same, and is
    /// evicted by the others.
    fn turn_to(&mut self, method: usize) {
        self.method = method;
        self.abort();
        for slot in 0..self.in_slot.len() {
            let at = self.in_slot[slot];
            let twin = (at != NONE).then(|| self.twin(at)).flatten();
            if let Some(twin) = twin {
                self.put(twin);
            }
        }
    }

    fn return_to(&mut self, fingerprint: &[u32], actions: &mut Vec<Action>) -> bool {
        let [next, flags, there @ ..] = fingerprint else {
            return false;
        };
        self.abort();
        let wanted: Vec<&[u32]> = there.chunks_exact(3).collect();
        let leased = self.copies.iter().any(|copy| copy.leases > 0);
        if leased || wanted.len() != self.in_slot.len() || wanted.iter().any(|one| one[2] > 0) {
            return false;
        }
        for (slot, one) in wanted.iter().enumerate() {
            let at = self.in_slot[slot];
            // rule: primed-ring-holds-what-the-graph-found
            if at != NONE && at != one[0] {
                self.evict(at, actions);
            }
        }
        for one in wanted.iter().filter(|one| one[0] != NONE) {
            if !self.is_there(one[0]) {
                self.load(one[0], true, actions);
            }
            self.copies[one[0] as usize].unread = one[1];
        }
        self.next = *next;
        (self.blocked, self.failed) = (flags & 1 != 0, flags & 2 != 0);
        true
    }

    fn make_room(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut there = self.in_slot.iter().copied().filter(|&at| at != NONE);
        let idle = there.find(|&at| self.is_idle(at));
        idle.inspect(|&at| self.evict(at, actions)).is_some()
    }

    fn load_failed(&mut self, weight: WeightIndex) {
        let at = self.of_weight[weight as usize];
        if at == NONE {
            return;
        }
        // Copies after it that were there, and so needed no load, are claimed again in their turn.
        let mut other = self.after(at);
        while other != self.next {
            self.copies[other as usize].unread = 0;
            other = self.after(other);
        }
        // rule: failed-load-is-not-there
        self.remove(at);
        self.copies[at as usize].unread = 0;
        self.next = at;
        (self.blocked, self.failed) = (false, true);
    }

    fn evict_failed(&mut self, weight: WeightIndex) {
        let at = self.evicted[weight as usize];
        if at != NONE {
            // rule: failed-eviction-is-taken-back
            self.put(at);
        }
    }

    fn fingerprint(&self) -> Vec<u32> {
        let flags = u32::from(self.blocked) + 2 * u32::from(self.failed);
        let there = self.in_slot.iter().flat_map(|&at| {
            let copy = self.copies.get(at as usize);
            let (unread, leases) = copy.map_or((0, 0), |one| (one.unread, one.leases));
            [at, unread, leases]
        });
        [self.next, flags].into_iter().chain(there).collect()
    }

    fn pool_bytes(&self) -> u64 {
        0
    }

    fn validate(&self) -> std::result::Result<(), String> {
        for (at, copy) in (0..).zip(&self.copies) {
            let there = self.is_there(at);
            if there != (self.of_weight[copy.weight as usize] == at) {
                return Err(format!(
                    "copy {at} is in its slot or its weight's, not both: {copy:?}"
                ));
            }
            if !there && copy.unread + copy.leases > 0 {
                return Err(format!("copy {at} is wanted, and not there: {copy:?}"));
            }
        }
        let there = |list: &[u32]| list.iter().filter(|&&at| at != NONE).count();
        let (slots, weights) = (there(&self.in_slot), there(&self.of_weight));
        if slots != weights {
            return Err(format!(
                "{slots} slots are full, with tails of {weights} weights"
            ));
        }
        match self.blocked && !self.is_held_up() {
            true => Err(format!("copy {} waits for nothing", self.next)),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
