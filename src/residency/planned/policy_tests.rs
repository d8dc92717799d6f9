use super::super::cost::Price;
use super::super::plan::Streamed;
use super::*;
use crate::figures::View;
use proptest::prelude::*;

#[path = "policy_failure_tests.rs"]
mod failures;

fn window(weight: u32, slot: u32) -> u32 {
    100 * weight + slot
}

/// Copies of 64 bytes each, as weight and slot, which serve so many reads; the reads come in this order.
fn plan(copies: &[(u32, u32, u32)]) -> Plan {
    let mut probe = 0..;
    let streamed = copies.iter().map(|&(weight, slot, reads)| Streamed {
        weight,
        method: 0,
        range: 0..64,
        stored: 64,
        slot,
        window: window(weight, slot),
        probes: probe.by_ref().take(reads as usize).collect(),
        always: false,
    });
    let streamed: Vec<Streamed> = streamed.collect();
    let slots = copies.iter().map(|copy| copy.1 + 1).max().unwrap_or(0);
    let slot = |slot: u32| 64 * u64::from(slot)..64 * u64::from(slot + 1);
    Plan {
        kept: Vec::new(),
        view: View::default(),
        windows: Vec::new(),
        slots: (0..slots).map(slot).collect(),
        resident: Vec::new(),
        streamed,
        ahead: 1,
        price: Price::default(),
    }
}

/// A policy, and what a store knows beside it.
struct Bed {
    policy: Planned,
    plan: Plan,
    /// The copy of each probe, in the order of the pass.
    copies: Vec<u32>,
    position: usize,
    open: Vec<ProbeId>,
    /// The window through which each weight was loaded, while it is there.
    there: Vec<Option<u32>>,
    actions: Vec<Action>,
}

impl Bed {
    fn new(copies: &[(u32, u32, u32)]) -> Bed {
        let plan = plan(copies);
        let weights = copies.iter().map(|copy| copy.0 + 1).max().unwrap() as usize;
        let copies = (0..)
            .zip(copies)
            .flat_map(|(at, copy)| (0..copy.2).map(move |_| at));
        let copies: Vec<u32> = copies.collect();
        Bed {
            policy: Planned::new(&plan, weights, &[copies.len()]),
            plan,
            copies,
            position: 0,
            open: Vec::new(),
            there: vec![None; weights],
            actions: Vec::new(),
        }
    }

    fn weight(&self, id: ProbeId) -> WeightIndex {
        self.plan.streamed[self.copies[id as usize] as usize].weight
    }

    /// Carries actions out up to the one that fails, and tells the policy of the others from the last one back. Whether all
    /// were carried out.
    fn carry_out(&mut self, fails: Option<usize>) -> bool {
        let actions = std::mem::take(&mut self.actions);
        let until = fails.unwrap_or(actions.len()).min(actions.len());
        for action in &actions[..until] {
            match *action {
                Action::Evict { weight } => {
                    let leased = self.open.iter().any(|&id| self.weight(id) == weight);
                    assert!(!leased, "weight {weight} is evicted under its lease");
                    let was = self.there[weight as usize].take();
                    assert!(was.is_some(), "weight {weight} is evicted and not there");
                }
                Action::Load { weight, window, .. } => {
                    let was = self.there[weight as usize].replace(window);
                    assert_eq!(was, None, "weight {weight} is loaded and there");
                }
            }
        }
        for action in actions[until..].iter().rev() {
            match *action {
                Action::Evict { weight } => self.policy.evict_failed(weight),
                Action::Load { weight, .. } => self.policy.load_failed(weight),
            }
        }
        self.check();
        until == actions.len()
    }

    /// The policy has there what is there, and no two of them in one slot.
    fn check(&self) {
        self.policy.validate().unwrap();
        let said: Vec<bool> = self.policy.of_weight.iter().map(|&at| at != NONE).collect();
        let there: Vec<bool> = self.there.iter().map(Option::is_some).collect();
        assert_eq!(said, there);
    }

    fn probe(&mut self, fails: Option<usize>) -> Result<Served> {
        let id = self.position as ProbeId;
        let served = self.policy.demand(id, &mut self.actions)?;
        assert_eq!(served == Served::Miss, !self.actions.is_empty());
        // A read that is not served has no lease.
        if self.carry_out(fails) {
            let copy = &self.plan.streamed[self.copies[id as usize] as usize];
            assert_eq!(self.there[copy.weight as usize], Some(copy.window));
            self.policy.lease(id);
            self.open.push(id);
            self.position = (self.position + 1) % self.copies.len();
        }
        self.check();
        Ok(served)
    }

    fn ahead(&mut self, fails: Option<usize>) -> Vec<Action> {
        self.policy.ahead(&mut self.actions);
        let asked = self.actions.clone();
        self.carry_out(fails);
        asked
    }

    fn release(&mut self, at: usize) {
        let id = self.open.remove(at);
        let weight = self.weight(id);
        let last = !self.open.iter().any(|&other| self.weight(other) == weight);
        assert_eq!(self.policy.release(id), last.then_some(weight));
        self.check();
    }

    fn release_all(&mut self) {
        while !self.open.is_empty() {
            self.release(0);
        }
    }

    fn abort(&mut self) {
        self.policy.abort();
        self.position = 0;
        self.check();
    }

    /// A read, its lease, and copies for later ones after each.
    fn read(&mut self) -> (Served, Vec<Action>) {
        let served = self.probe(None).unwrap();
        let mut asked = self.ahead(None);
        self.release_all();
        asked.extend(self.ahead(None));
        (served, asked)
    }

    /// A pass from its beginning: copies that it asked for, and reads that missed.
    fn pass(&mut self) -> (usize, usize) {
        assert_eq!(self.position, 0);
        let (mut loads, mut misses) = (0, 0);
        for _ in 0..self.copies.len() {
            let (served, asked) = self.read();
            misses += usize::from(served == Served::Miss);
            loads += asked
                .iter()
                .filter(|one| matches!(one, Action::Load { .. }))
                .count();
        }
        (loads, misses)
    }
}

/// Of a weight whose slot is the parity of its number.
fn load(weight: u32, ahead: bool) -> Action {
    Action::Load {
        weight,
        range: 0..64,
        window: window(weight, weight % 2),
        ahead,
    }
}

fn evict(weight: u32) -> Action {
    Action::Evict { weight }
}

/// Four weights take turns in two slots.
const FOUR: [(u32, u32, u32); 4] = [(0, 0, 1), (1, 1, 1), (2, 0, 1), (3, 1, 1)];

#[test]
fn copies_go_as_far_ahead_as_slots_are_free() {
    let mut bed = Bed::new(&FOUR);
    assert_eq!(bed.probe(None), Ok(Served::Miss));
    // Its slot is in use, so that the third copy waits for the end of the first lease.
    assert_eq!(bed.ahead(None), [load(1, true)]);
    assert_eq!(bed.ahead(None), []);
    bed.release(0);
    assert_eq!(bed.ahead(None), [evict(0), load(2, true)]);
    assert_eq!(bed.probe(None), Ok(Served::Hit));
}

#[test]
fn passes_are_periodic() {
    let mut bed = Bed::new(&FOUR);
    assert_eq!(bed.pass(), (5, 1));
    let state = bed.policy.fingerprint();
    for _ in 0..3 {
        assert_eq!(bed.pass(), (4, 0));
        assert_eq!(bed.policy.fingerprint(), state);
    }
}

#[test]
fn what_stays_is_loaded_at_the_start_and_is_a_hit() {
    let mut made = plan(&FOUR);
    made.resident.push(Resident {
        weight: 4,
        range: 0..32,
        window: 7,
    });
    let mut policy = Planned::new(&made, 5, &[5]);
    let mut actions = Vec::new();
    policy.start(&mut actions);
    let start = Action::Load {
        weight: 4,
        range: 0..32,
        window: 7,
        ahead: true,
    };
    assert_eq!(actions, [start]);
    assert_eq!(policy.demand(4, &mut actions), Ok(Served::Hit));
    policy.lease(4);
    assert_eq!(policy.release(4), None);
    assert_eq!(actions.len(), 1);
}

#[test]
fn a_weights_two_copies_take_turns() {
    // Weight 0 has a copy in each slot.
    let mut bed = Bed::new(&[
        (0, 0, 1),
        (1, 1, 1),
        (2, 0, 1),
        (0, 1, 1),
        (3, 0, 1),
        (4, 1, 1),
    ]);
    bed.pass();
    assert_eq!(bed.pass(), (6, 0));
}

#[test]
fn a_copy_for_several_reads_stays_between_them() {
    let mut bed = Bed::new(&[(0, 0, 3), (1, 1, 1), (2, 0, 1), (3, 1, 1)]);
    for read in 0..3 {
        let (_, asked) = bed.read();
        assert_eq!(
            asked.contains(&evict(0)),
            read == 2,
            "read {read}: {asked:?}"
        );
    }
}

#[test]
fn what_is_read_in_its_slot_makes_a_demand_an_error() {
    let mut bed = Bed::new(&FOUR);
    bed.probe(None).unwrap();
    bed.probe(None).unwrap();
    let refused = bed.probe(None).unwrap_err().to_string();
    assert!(
        refused.contains("64 bytes for a weight, in the slot"),
        "{refused}"
    );
    bed.release(0);
    assert_eq!(bed.probe(None), Ok(Served::Miss));
}

/// Plans of copies in a few slots, neighbours in different ones, some weights twice.
fn plans() -> impl Strategy<Value = Vec<(u32, u32, u32)>> {
    let copy = (0..6u32, 0..3u32, 1..3u32);
    prop::collection::vec(copy, 3..12).prop_map(|mut copies| {
        for at in 1..copies.len() {
            while copies[at].1 == copies[at - 1].1 {
                copies[at].1 = (copies[at].1 + 1) % 3;
            }
            if copies[at].0 == copies[at - 1].0 {
                copies[at].0 += 6;
            }
        }
        copies
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    /// In any order that a store could call it in, with loads and evictions that fail; and afterwards passes are periodic.
    #[test]
    fn whatever_happens_the_rules_hold(copies in plans(), steps in prop::collection::vec((0..16u32, any::<prop::sample::Index>()), 0..200)) {
        let mut bed = Bed::new(&copies);
        for (what, pick) in steps {
            let fails = (what % 4 == 0).then(|| pick.index(4));
            match what {
                0..6 if bed.open.len() < 8 && !bed.open.contains(&(bed.position as u32)) => {
                    let refused = bed.probe(fails).is_err();
                    prop_assert!(!refused || !bed.open.is_empty());
                }
                6..10 if !bed.open.is_empty() => bed.release(pick.index(bed.open.len())),
                10..13 => {
                    bed.ahead(fails);
                }
                13 => {
                    let any = bed.policy.make_room(&mut bed.actions);
                    prop_assert_eq!(any, !bed.actions.is_empty());
                    bed.carry_out(fails);
                }
                14 => bed.abort(),
                _ => {}
            }
        }
        bed.abort();
        bed.release_all();
        bed.pass();
        bed.pass();
        let (state, first) = (bed.policy.fingerprint(), bed.pass());
        prop_assert_eq!(bed.policy.fingerprint(), state);
        prop_assert_eq!(bed.pass(), first);
    }
}
