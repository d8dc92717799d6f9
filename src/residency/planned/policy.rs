//! Carries a plan out.
//!
//! Copies are issued in the order of the plan, cyclic over passes, each as soon as the leases of everything that has
//! its bytes are over. So what is demanded and not there can always be copied: what still has its bytes was read before
//! it, and the plan gave other bytes to what is read at the same time. After an abort it may be otherwise; then a demand
//! is an error as long as the leases of that pass are open.
//!
//! A copy may take bytes over from the one before it of the same weight: these keep their memory and are not copied. What
//! that one has beyond the bytes that its successor takes over, others may have once its reads are over; so a weight may
//! be there in part, for nobody to read until its next copy.

use super::super::{Action, Place, Policy, Served};
use super::plan::{Plan, Resident};
use super::slots::{slots_of, Slot, NONE};
use crate::error::{Error, Result};
use crate::figures::View;
use crate::schedule::{ProbeId, WeightIndex};
use std::ops::Range;

/// The policy of the same name.
#[derive(Debug)]
pub struct Planned {
    block: u64,
    view: Option<View>,
    resident: Vec<Resident>,
    slots: Vec<Slot>,
    /// The slot of each probe.
    slot_of: Vec<u32>,
    /// Which slot holds each weight, or a part of it, if one does.
    held: Vec<u32>,
    /// The slot that each weight was evicted from last, unless that cannot be taken back any more.
    evicted: Vec<u32>,
    /// The memory of what is there of slots, by where it begins, each piece with its slot. They never overlap.
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
        for (at, one) in (0..).zip(&plan.streamed) {
            for &id in &one.probes {
                slot_of[id as usize] = at;
            }
        }
        let slots = slots_of(plan.streamed, constants);
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

    /// Plans the copy for slot `at`, which is not there as a whole, with the evictions that it needs; or nothing, if some
    /// of these may not go. Bytes that need no copy are a hit.
    fn load(&mut self, at: u32, ahead: bool, actions: &mut Vec<Action>) -> Option<Served> {
        let weight = self.slots[at as usize].weight;
        let held = self.held[weight as usize];
        let mut all = self.overlapping(at);
        if held != NONE && !self.slots[held as usize].idle()
            || !all.all(|victim| self.slots[victim as usize].idle())
        {
            return None;
        }
        drop(all);
        let from = self.take_over(at, held, actions);
        while let Some(victim) = self.first_overlapping(at) {
            let to = self.slots[victim as usize].left_by(&self.slots[at as usize]);
            self.evict(victim, to, actions);
        }
        self.arrive(at);
        let slot = &self.slots[at as usize];
        actions.push(Action::Load {
            weight,
            range: from..slot.range.end,
            place: Place::Block {
                offset: slot.offset,
            },
            ahead,
        });
        Some(match from == slot.range.end {
            true => Served::Hit,
            false => Served::Miss,
        })
    }

    /// Slot `held` gives up the weight for slot `at`. Returns from which byte on the weight has to be copied: those below
    /// it are in the memory of slot `at` already.
    fn take_over(&mut self, at: u32, held: u32, actions: &mut Vec<Action>) -> u64 {
        let slot = &self.slots[at as usize];
        let start = slot.range.start;
        let Some(holds) = self.slots.get(held as usize) else {
            return start;
        };
        let from = match held {
            // What others left of it.
            _ if held == at => holds.there,
            // It has at least these: nobody leaves less of it, but for nothing.
            _ if held == slot.before => slot.kept,
            _ => start,
        };
        if from < holds.there {
            self.evict(held, from, actions);
        }
        self.set(held, start);
        from
    }

    /// Gives up what slot `at` has of its weight from byte `from` on.
    fn evict(&mut self, at: u32, from: u64, actions: &mut Vec<Action>) {
        let Slot { weight, there, .. } = self.slots[at as usize];
        self.set(at, from);
        self.blocked = false;
        self.evicted[weight as usize] = at;
        let range = from..there;
        actions.push(Action::Evict { weight, range });
    }

    /// Those that have bytes in memory that slot `at` needs; one may come more than once.
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
        self.set(at, self.slots[at as usize].range.end);
        let slot = &mut self.slots[at as usize];
        slot.unread = slot.reads;
    }

    /// From now on slot `at` has the bytes of its weight below `there`, for no read.
    fn set(&mut self, at: u32, there: u64) {
        let slot = &mut self.slots[at as usize];
        if slot.has_some() {
            self.present.retain(|(_, other)| *other != at);
        }
        slot.there = there;
        slot.unread = 0;
        self.held[slot.weight as usize] = if slot.has_some() { at } else { NONE };
        for piece in slot.memory(there) {
            let place = self
                .present
                .partition_point(|(other, _)| other.start < piece.start);
            self.present.insert(place, (piece, at));
        }
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
        if slot.is_whole() {
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
            Some(served) => {
                self.go_on_behind(at);
                Ok(served)
            }
            None => Err(Error::OutOfMemory {
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
            let ready = match (slot.is_whole(), slot.unread) {
                (true, 0) => {
                    slot.unread = slot.reads;
                    true
                }
                // Once around.
                (true, _) => false,
                (false, _) => self.load(at, true, actions).is_some(),
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
        let mut there = self.present.iter().map(|&(_, at)| at);
        let idle = there.find(|&at| self.slots[at as usize].idle());
        idle.inspect(|&at| self.evict(at, self.slots[at as usize].range.start, actions))
            .is_some()
    }

    fn load_failed(&mut self, weight: WeightIndex) {
        let at = self.held[weight as usize];
        if at != NONE {
            self.set(at, self.slots[at as usize].range.start);
            self.next = at;
            // Until a lease ends nothing is different.
            self.blocked = true;
        }
        // Of bytes that it was to take over nothing is left either.
        self.evicted[weight as usize] = NONE;
    }

    fn evict_failed(&mut self, weight: WeightIndex, range: Range<u64>) {
        let at = self.evicted[weight as usize];
        if at != NONE {
            self.set(at, range.end);
        }
    }

    fn fingerprint(&self) -> Vec<u32> {
        let there = self.present.iter().flat_map(|&(_, at)| {
            let slot = &self.slots[at as usize];
            let there = [slot.there as u32, (slot.there >> 32) as u32];
            [at, slot.unread, slot.leases, there[0], there[1]]
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
            if self.held[slot.weight as usize] != *at || piece.start < end {
                return Err(format!(
                    "slot {at} of weight {} is wrongly present: {slot:?}",
                    slot.weight
                ));
            }
            end = piece.end;
        }
        let mut pieces = 0;
        for (at, slot) in (0..).zip(&self.slots) {
            pieces += slot.memory(slot.there).count();
            let listed = |piece: Range<u64>| {
                let place = self.present.partition_point(|(p, _)| p.start < piece.start);
                self.present.get(place) == Some(&(piece, at))
            };
            slot.check()?;
            if !slot.memory(slot.there).all(listed) {
                return Err(format!("slot {at} is not where it should be: {slot:?}"));
            }
        }
        let some = self.slots.iter().filter(|slot| slot.has_some()).count();
        let held = self.held.iter().filter(|&&at| at != NONE).count();
        match (pieces, held) == (self.present.len(), some) && end <= self.block {
            true => Ok(()),
            false => Err(format!(
                "{some} slots hold something, {held} weights are held, listed {:?}",
                self.present
            )),
        }
    }
}
