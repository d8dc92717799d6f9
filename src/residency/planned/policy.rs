//! Carries a plan out.
//!
//! Copies are issued in the order of the plan, cyclic over passes, each as soon as the leases of everything that has
//! its bytes are over. So what is demanded and not there can always be copied: what still has its bytes was read before
//! it, and the plan gave other bytes to what is read at the same time. After an abort it may be otherwise; then a demand
//! is an error as long as the leases of that pass are open.

use super::super::{Action, Place, Policy, Served};
use super::plan::{Plan, Resident};
use crate::device::View;
use crate::error::{Error, Result};
use crate::schedule::{ProbeId, WeightIndex};
use std::ops::Range;

/// Not streamed.
const NONE: u32 = u32::MAX;

/// One copy of the plan, and how far its reads are.
#[derive(Debug)]
struct Slot {
    weight: WeightIndex,
    /// Bytes of the weight that are copied.
    range: Range<u64>,
    /// Where the weight's first byte lies.
    offset: u64,
    /// Device memory that the copied part occupies.
    pieces: Vec<Range<u64>>,
    /// Reads that the copy serves.
    reads: u32,
    /// Its bytes are there, or on their way.
    present: bool,
    /// Reads that it is still wanted for. 0: its bytes may be given to others once no lease is open.
    unread: u32,
    leases: u32,
}

impl Slot {
    fn idle(&self) -> bool {
        self.present && self.unread == 0 && self.leases == 0
    }
}

/// The policy of the same name.
#[derive(Debug)]
pub struct Planned {
    block: u64,
    view: Option<View>,
    resident: Vec<Resident>,
    slots: Vec<Slot>,
    /// The slot of each probe.
    slot_of: Vec<u32>,
    /// Which slot holds each weight, if one does.
    held: Vec<u32>,
    /// The slot that each weight was evicted from last.
    evicted: Vec<u32>,
    /// The pieces of slots that are present, by where they begin, each with its slot. They never overlap.
    present: Vec<(Range<u64>, u32)>,
    /// The slot whose copy comes next.
    next: u32,
    /// The next copy's bytes are in use, and nothing has ended since.
    blocked: bool,
}

impl Planned {
    /// Of a plan for a program with so many constants and probes.
    pub fn new(plan: Plan, constants: usize, probes: usize) -> Planned {
        let mut slot_of = vec![NONE; probes];
        let mut slots = Vec::with_capacity(plan.streamed.len());
        for (at, one) in (0..).zip(plan.streamed) {
            for &id in &one.probes {
                slot_of[id as usize] = at;
            }
            slots.push(Slot {
                weight: one.weight,
                pieces: one.memory,
                range: one.range,
                offset: one.offset,
                reads: one.probes.len() as u32,
                present: false,
                unread: 0,
                leases: 0,
            });
        }
        Planned {
            block: plan.block,
            view: plan.view,
            resident: plan.resident,
            present: Vec::with_capacity(slots.iter().map(|slot: &Slot| slot.pieces.len()).sum()),
            slots,
            slot_of,
            held: vec![NONE; constants],
            evicted: vec![NONE; constants],
            next: 0,
            blocked: false,
        }
    }

    /// Plans the copy for slot `at`, which is not present, with the evictions that it needs; or nothing, if some of
    /// these may not go.
    fn load(&mut self, at: u32, ahead: bool, actions: &mut Vec<Action>) -> bool {
        let weight = self.slots[at as usize].weight;
        let held = self.held[weight as usize];
        let mut all = self.overlapping(at);
        if held != NONE && !self.slots[held as usize].idle()
            || !all.all(|victim| self.slots[victim as usize].idle())
        {
            return false;
        }
        drop(all);
        while let Some(victim) = self.first_overlapping(at) {
            self.evict(victim, actions);
        }
        // The same weight for an earlier read, elsewhere; if it was not among those.
        if held != NONE && self.slots[held as usize].present {
            self.evict(held, actions);
        }
        self.arrive(at);
        let slot = &self.slots[at as usize];
        actions.push(Action::Load {
            weight,
            range: slot.range.clone(),
            place: Place::Block {
                offset: slot.offset,
            },
            ahead,
        });
        true
    }

    fn evict(&mut self, at: u32, actions: &mut Vec<Action>) {
        let weight = self.slots[at as usize].weight;
        self.leave(at);
        self.evicted[weight as usize] = at;
        actions.push(Action::Evict { weight });
    }

    /// Those present whose bytes slot `at` needs; one may come more than once.
    fn overlapping(&self, at: u32) -> impl Iterator<Item = u32> + '_ {
        let wanted = self.slots[at as usize].pieces.iter();
        wanted.flat_map(|wanted| {
            let from = self
                .present
                .partition_point(|(piece, _)| piece.end <= wanted.start);
            let there = self.present[from..].iter();
            there
                .take_while(|(piece, _)| piece.start < wanted.end)
                .map(|&(_, slot)| slot)
        })
    }

    fn first_overlapping(&self, at: u32) -> Option<u32> {
        self.overlapping(at).next()
    }

    fn arrive(&mut self, at: u32) {
        for number in 0..self.slots[at as usize].pieces.len() {
            let piece = self.slots[at as usize].pieces[number].clone();
            let place = self
                .present
                .partition_point(|(other, _)| other.start < piece.start);
            self.present.insert(place, (piece, at));
        }
        let slot = &mut self.slots[at as usize];
        slot.present = true;
        slot.unread = slot.reads;
        self.held[slot.weight as usize] = at;
    }

    fn leave(&mut self, at: u32) {
        self.present.retain(|(_, other)| *other != at);
        let slot = &mut self.slots[at as usize];
        slot.present = false;
        slot.unread = 0;
        self.held[slot.weight as usize] = NONE;
        self.blocked = false;
    }

    /// Slot `at` is served for the reads that come now; the next copy is that of the slot behind it.
    fn go_on_behind(&mut self, at: u32) {
        self.next = if at as usize + 1 < self.slots.len() {
            at + 1
        } else {
            0
        };
    }
}

impl Policy for Planned {
    fn name(&self) -> &'static str {
        "planned"
    }

    fn block_bytes(&self) -> u64 {
        self.block
    }

    fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    fn start(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.resident.iter().map(|one| Action::Load {
            weight: one.weight,
            range: one.range.clone(),
            place: Place::Block { offset: one.offset },
            ahead: true,
        }));
    }

    fn demand(&mut self, id: ProbeId, actions: &mut Vec<Action>) -> Result<Served> {
        let at = self.slot_of[id as usize];
        let Some(slot) = self.slots.get_mut(at as usize) else {
            return Ok(Served::Hit);
        };
        if slot.present {
            if slot.unread == 0 {
                // Nobody needed its bytes since: they are those of a pass that was aborted, or nobody else's.
                slot.unread = slot.reads;
                self.go_on_behind(at);
            }
            return Ok(Served::Hit);
        }
        let bytes = slot
            .pieces
            .iter()
            .map(|piece| piece.end - piece.start)
            .sum();
        match self.load(at, false, actions) {
            true => {
                self.go_on_behind(at);
                Ok(Served::Miss)
            }
            false => Err(Error::OutOfMemory {
                what: "a weight, in the place that the plan has for it: another one there is being read".to_owned(),
                bytes,
            }),
        }
    }

    fn lease(&mut self, id: ProbeId) {
        if let Some(slot) = self.slots.get_mut(self.slot_of[id as usize] as usize) {
            slot.leases += 1;
            slot.unread -= 1;
        }
    }

    fn release(&mut self, id: ProbeId) -> Option<WeightIndex> {
        let slot = self.slots.get_mut(self.slot_of[id as usize] as usize)?;
        slot.leases -= 1;
        // Also where more reads follow: if the pass ends before them, this was the last one.
        let over = slot.leases == 0;
        self.blocked &= !over;
        over.then_some(slot.weight)
    }

    fn ahead(&mut self, actions: &mut Vec<Action>) {
        while !self.blocked && !self.slots.is_empty() {
            let at = self.next;
            let slot = &mut self.slots[at as usize];
            let ready = match (slot.present, slot.unread) {
                (true, 0) => {
                    slot.unread = slot.reads;
                    true
                }
                // Once around.
                (true, _) => false,
                (false, _) => self.load(at, true, actions),
            };
            match ready {
                true => self.go_on_behind(at),
                false => self.blocked = true,
            }
        }
    }

    fn abort(&mut self) {
        for (_, at) in &self.present {
            self.slots[*at as usize].unread = 0;
        }
        self.next = 0;
        self.blocked = false;
    }

    fn make_room(&mut self, actions: &mut Vec<Action>) -> bool {
        let idle = self
            .present
            .iter()
            .map(|&(_, at)| at)
            .find(|&at| self.slots[at as usize].idle());
        idle.inspect(|&at| self.evict(at, actions)).is_some()
    }

    fn load_failed(&mut self, weight: WeightIndex) {
        let at = self.held[weight as usize];
        if at != NONE {
            self.leave(at);
            self.next = at;
            // Until a lease ends nothing is different.
            self.blocked = true;
        }
    }

    fn evict_failed(&mut self, weight: WeightIndex) {
        let at = self.evicted[weight as usize];
        self.arrive(at);
        self.slots[at as usize].unread = 0;
    }

    fn fingerprint(&self) -> Vec<u32> {
        let there = self.present.iter().flat_map(|&(_, at)| {
            let slot = &self.slots[at as usize];
            [at, slot.unread, slot.leases]
        });
        [self.next, u32::from(self.blocked)]
            .into_iter()
            .chain(there)
            .collect()
    }

    fn pool_bytes(&self) -> u64 {
        0
    }

    fn validate(&self) -> std::result::Result<(), String> {
        let mut end = 0;
        for (piece, at) in &self.present {
            let slot = &self.slots[*at as usize];
            if !slot.present || self.held[slot.weight as usize] != *at || piece.start < end {
                return Err(format!(
                    "slot {at} of weight {} is wrongly present: {slot:?}",
                    slot.weight
                ));
            }
            end = piece.end;
        }
        let there = self.slots.iter().filter(|slot| slot.present);
        let (slots, pieces) = there.fold((0, 0), |(slots, pieces), slot| {
            (slots + 1, pieces + slot.pieces.len())
        });
        let held = self.held.iter().filter(|&&at| at != NONE).count();
        let wanted = self
            .slots
            .iter()
            .find(|slot| !slot.present && slot.unread + slot.leases > 0);
        match (wanted, (pieces, held) == (self.present.len(), slots)) {
            (None, true) if end <= self.block => Ok(()),
            _ => Err(format!(
                "{slots} slots present, {held} weights held, listed {:?}; {wanted:?}",
                self.present
            )),
        }
    }
}
