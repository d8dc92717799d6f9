//! Memory of a device, byte by byte, in which the decisions of the policy are carried out as a session does it.

use super::{copied, Model};
use std::ops::Range;
use weightstream::residency::planned::{Plan, Planned, Streamed};
use weightstream::residency::{Action, Place, Policy, Served};
use weightstream::schedule::ProbeId;

/// Carries out what the policy decides, and panics where a rule is broken.
pub struct Bed {
    pub policy: Planned,
    pub plan: Plan,
    reads: usize,
    /// Which byte of which weight each byte holds.
    memory: Vec<Option<(u32, u64)>>,
    /// Bytes that loads brought, for each weight.
    there: Vec<Range<u64>>,
    /// The copy whose place each weight has.
    place: Vec<usize>,
    pub open: Vec<ProbeId>,
    pub position: usize,
    pub copied: u64,
}

/// What the policy says of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    pub copy: usize,
    pub unread: u32,
    pub there: u64,
}

impl Bed {
    pub fn new(model: &Model, plan: &Plan) -> Bed {
        let (weights, reads) = (
            model.program.weights.len(),
            model.program.trace.probes().len(),
        );
        Bed {
            policy: Planned::new(plan.clone(), weights, reads),
            reads,
            memory: vec![None; plan.block as usize],
            there: vec![0..0; weights],
            place: vec![usize::MAX; weights],
            plan: plan.clone(),
            open: Vec::new(),
            position: 0,
            copied: 0,
        }
    }

    /// By its fingerprint: what is there, in part or as a whole.
    pub fn said(&self) -> Vec<Said> {
        let print = self.policy.fingerprint();
        let mut said: Vec<_> = print[2..]
            .chunks(5)
            .map(|one| Said {
                copy: one[0] as usize,
                unread: one[1],
                there: u64::from(one[3]) | u64::from(one[4]) << 32,
            })
            .collect();
        said.sort_by_key(|one| one.copy);
        said.dedup();
        said
    }

    fn copy_of(&self, id: ProbeId) -> usize {
        let mut copies = self.plan.streamed.iter();
        copies.position(|one| one.probes.contains(&id)).unwrap()
    }

    /// The next read, if nothing fails: `None` if something did.
    pub fn probe(
        &mut self,
        fails: &mut dyn FnMut(&[Action]) -> Option<Range<usize>>,
    ) -> Option<Served> {
        let id = self.position as ProbeId;
        let mut actions = Vec::new();
        let before = self.said();
        let Ok(served) = self.policy.demand(id, &mut actions) else {
            assert_eq!(actions, [], "something was planned in vain");
            assert!(
                !self.open.is_empty(),
                "read {id} was refused, and nothing is leased"
            );
            return None;
        };
        let (before_bytes, loads) = (self.copied, !actions.is_empty());
        if !self.carry_out(&before, actions, fails) {
            return None;
        }
        let miss = loads && self.copied > before_bytes;
        assert_eq!(served, if miss { Served::Miss } else { Served::Hit });
        self.policy.lease(id);
        self.open.push(id);
        self.position = (self.position + 1) % self.reads;
        let copy = self.copy_of(id);
        assert!(
            self.holds(copy, self.plan.streamed[copy].range.end),
            "read {id} finds other bytes"
        );
        Some(served)
    }

    pub fn release(&mut self, at: usize) {
        let id = self.open.swap_remove(at);
        let copy = self.copy_of(id);
        let weight = self.policy.release(id);
        let last = !self.open.iter().any(|&other| self.copy_of(other) == copy);
        assert_eq!(weight, last.then_some(self.plan.streamed[copy].weight));
    }

    pub fn ahead(&mut self, fails: &mut dyn FnMut(&[Action]) -> Option<Range<usize>>) {
        let (before, mut actions) = (self.said(), Vec::new());
        self.policy.ahead(&mut actions);
        self.carry_out(&before, actions, fails);
    }

    pub fn make_room(&mut self, fails: &mut dyn FnMut(&[Action]) -> Option<Range<usize>>) -> bool {
        let (before, mut actions) = (self.said(), Vec::new());
        let made = self.policy.make_room(&mut actions);
        self.carry_out(&before, actions, fails);
        made
    }

    pub fn abort(&mut self) {
        self.policy.abort();
        self.position = 0;
    }

    /// One pass whose kernels wait for nothing. Returns the reads that found bytes missing.
    pub fn pass(&mut self) -> usize {
        let mut misses = 0;
        for _ in 0..self.reads {
            let served = self.probe(&mut |_| None).expect("nothing fails");
            misses += usize::from(served == Served::Miss);
            self.ahead(&mut |_| None);
            self.check();
            self.release(0);
            self.ahead(&mut |_| None);
            self.check();
        }
        misses
    }

    /// Complete passes come to copy what the plan says, and no read waits for its demand.
    pub fn comes_back(&mut self) {
        for _ in 0..2 {
            self.pass();
        }
        for _ in 0..2 {
            let before = self.copied;
            assert_eq!(self.pass(), 0);
            assert_eq!(self.copied - before, copied(&self.plan), "bytes of a pass");
        }
    }

    /// As a session does: in order. `fails` may say that from the end of a range on nothing is carried out, and that
    /// from its start on everything is taken back, since the copies in it were to be one.
    fn carry_out(
        &mut self,
        before: &[Said],
        actions: Vec<Action>,
        fails: &mut dyn FnMut(&[Action]) -> Option<Range<usize>>,
    ) -> bool {
        let failed = fails(&actions).unwrap_or(actions.len()..actions.len());
        let mut loaded = Vec::new();
        for action in &actions[..failed.end] {
            match action.clone() {
                Action::Evict { weight, range } => {
                    assert!(!loaded.contains(&weight), "loaded for a read, and evicted");
                    self.evict(before, weight, range);
                }
                Action::Load {
                    weight,
                    range,
                    place,
                    ..
                } => {
                    self.load(weight, range, place);
                    loaded.push(weight);
                }
            }
        }
        for action in actions[failed.start..].iter().rev() {
            match action.clone() {
                Action::Evict { weight, range } => self.policy.evict_failed(weight, range),
                Action::Load { weight, .. } => {
                    self.memory
                        .iter_mut()
                        .filter(|byte| byte.is_some_and(|(w, _)| w == weight))
                        .for_each(|byte| *byte = None);
                    self.there[weight as usize] = 0..0;
                    self.policy.load_failed(weight);
                }
            }
        }
        failed.start == actions.len()
    }

    fn evict(&mut self, before: &[Said], weight: u32, range: Range<u64>) {
        let copy = self.place[weight as usize];
        let wanted = before
            .iter()
            .any(|said| said.copy == copy && said.unread > 0);
        let leased = self.open.iter().any(|&id| self.copy_of(id) == copy);
        assert!(
            !wanted && !leased,
            "copy {copy} is evicted, wanted: {wanted}, leased: {leased}"
        );
        let there = &mut self.there[weight as usize];
        assert!(
            there.start <= range.start && range.start < range.end && range.end == there.end,
            "{range:?} of {there:?}"
        );
        there.end = range.start;
        for byte in range {
            let at = at(&self.plan.streamed[copy], byte);
            assert_eq!(self.memory[at].take(), Some((weight, byte)));
        }
    }

    fn load(&mut self, weight: u32, range: Range<u64>, place: Place) {
        let here =
            |one: &Streamed| one.weight == weight && Place::Block { offset: one.offset } == place;
        let copy = self.plan.streamed.iter().position(here).unwrap();
        self.place[weight as usize] = copy;
        let there = &mut self.there[weight as usize];
        assert!(
            there.is_empty() || there.end == range.start,
            "{there:?}, {range:?}"
        );
        *there = if there.is_empty() {
            range.start
        } else {
            there.start
        }..range.end;
        self.copied += range.end - range.start;
        for byte in range {
            let at = at(&self.plan.streamed[copy], byte);
            assert_eq!(
                self.memory[at].replace((weight, byte)),
                None,
                "a copy over what is there"
            );
        }
    }

    /// Whether the memory of a copy has its bytes below `end`.
    pub fn holds(&self, copy: usize, end: u64) -> bool {
        let one = &self.plan.streamed[copy];
        let mut bytes = one.range.start..end;
        bytes.all(|byte| self.memory[at(one, byte)] == Some((one.weight, byte)))
    }

    /// The policy adds up, and says what is there.
    pub fn check(&self) {
        self.policy.validate().unwrap();
        let said = self.said();
        let mut bytes = 0;
        for one in &said {
            bytes += one.there - self.plan.streamed[one.copy].range.start;
            assert!(self.holds(one.copy, one.there), "{one:?}");
        }
        let there = self.memory.iter().filter(|byte| byte.is_some()).count();
        assert_eq!(there as u64, bytes, "{said:?}");
    }
}

/// Where a byte of a weight is in the memory of a copy.
fn at(copy: &Streamed, byte: u64) -> usize {
    let mut left = byte - copy.range.start;
    let mut pieces = copy.memory.iter();
    let piece = pieces.find(|piece| {
        let inside = left < piece.end - piece.start;
        left -= if inside { 0 } else { piece.end - piece.start };
        inside
    });
    (piece.unwrap().start + left) as usize
}
