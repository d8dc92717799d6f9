//! Random programs of tenants, and what a decision costs.

use super::*;
use crate::elastic::test_support::Random;

/// What a random program knows of a tenant.
#[derive(Clone)]
struct Known {
    id: TenantId,
    total: u64,
    floor: u64,
    priority: i64,
    least: u64,
}

struct Program {
    random: Random,
    arbiter: Arbiter,
    unit: u64,
    known: Vec<Known>,
    log: Vec<u64>,
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut random = Random::new(seed);
        let unit = [1, 1, 16, 64][random.below(4) as usize];
        let cap = 200 + random.below(3000);
        Program {
            random,
            arbiter: Arbiter::new(cap, unit),
            unit,
            known: Vec::new(),
            log: Vec::new(),
        }
    }

    fn step(&mut self) {
        match (self.random.below(40), self.known.len()) {
            (0..=1, 0..=7) | (_, 0) => self.join(),
            (2, _) => {
                let at = self.random.below(self.known.len() as u64) as usize;
                self.arbiter.leave(self.known.remove(at).id);
            }
            (3..=4, _) => self.set_cap(),
            (5, _) => {
                let priority = self.random.below(3) as i64;
                let at = self.one();
                self.known[at].priority = priority;
                self.arbiter.set_rank(self.known[at].id, Rank::of(priority));
            }
            (6..=9, _) => self.set_least(),
            (10, _) => self.set_wants(),
            _ => self.pass(),
        }
        self.check();
    }

    fn one(&mut self) -> usize {
        // The first ones more often.
        let end = 1 + self.random.below(self.known.len() as u64);
        self.random.below(end) as usize
    }

    fn least_cap(&self) -> u64 {
        self.known.iter().map(|one| self.lowest(one)).sum()
    }

    fn join(&mut self) {
        let (total, floor) = (1 + self.random.below(1500), self.random.below(300));
        let priority = self.random.below(2) as i64;
        let least = self.least_cap() + floor;
        match self.arbiter.join(wants("one", total, floor, priority)) {
            Ok(id) => {
                assert!(least <= self.arbiter.cap());
                assert_eq!(self.arbiter.grant(id), floor);
                self.known.push(Known {
                    id,
                    total: total.max(floor),
                    floor,
                    priority,
                    least: 0,
                });
            }
            Err(error) => {
                assert!(matches!(error, Error::CapTooSmall { least: said, .. } if said == least));
                self.arbiter.set_cap(least).unwrap();
            }
        }
    }

    fn set_cap(&mut self) {
        let (cap, least) = (self.random.below(4000), self.least_cap());
        assert_eq!(self.arbiter.set_cap(cap).is_ok(), cap >= least);
        self.arbiter.set_cap(cap.max(least)).unwrap();
    }

    fn set_wants(&mut self) {
        let at = self.one();
        let (total, floor) = (1 + self.random.below(1500), self.random.below(300));
        // Between its passes.
        self.known[at].least = 0;
        self.arbiter.set_least(self.known[at].id, 0);
        let before = self.known[at].clone();
        (self.known[at].total, self.known[at].floor) = (total.max(floor), floor);
        let least = self.least_cap();
        let grants: Vec<_> = self.arbiter.grants().collect();
        match self.arbiter.set_wants(before.id, total, floor) {
            Ok(()) => {
                assert!(least <= self.arbiter.cap());
                assert!(self.arbiter.grant(before.id) >= floor);
            }
            Err(error) => {
                assert!(matches!(error, Error::CapTooSmall { least: said, .. } if said == least));
                self.known[at] = before;
                assert_eq!(self.arbiter.grants().collect::<Vec<_>>(), grants);
            }
        }
    }

    fn set_least(&mut self) {
        let at = self.one();
        let bytes = self.random.below(2) * self.random.below(self.known[at].total + 100);
        self.arbiter.set_least(self.known[at].id, bytes);
        let grant = self.arbiter.grant(self.known[at].id);
        let wanted = bytes.min(self.known[at].total);
        self.known[at].least = wanted.min(grant);
        let mut others = self.known.iter().filter(|one| one.id != self.known[at].id);
        let all_at_least = others.all(|one| self.arbiter.grant(one.id) == self.lowest(one));
        assert!(grant >= wanted || all_at_least);
    }

    fn pass(&mut self) {
        let at = self.one();
        let own = self.known[at].clone();
        let before: Vec<_> = self.arbiter.grants().collect();
        self.arbiter.pass(own.id);
        for (known, (id, before)) in self.known.iter().zip(before) {
            let after = self.arbiter.grant(id);
            assert!(
                id == own.id || after <= before,
                "only the one that passes grows"
            );
            assert!(
                known.priority <= own.priority || after == before,
                "a higher one gave"
            );
        }
        self.check_priority(&own);
    }

    /// What a tenant lacks after its pass, those of lower priority do not hold.
    fn check_priority(&self, own: &Known) {
        let grant = self.arbiter.grant(own.id);
        if grant == own.total {
            return;
        }
        let lower = self.known.iter().filter(|one| one.priority < own.priority);
        let spare: u64 = lower
            .map(|one| self.arbiter.grant(one.id) - self.lowest(one))
            .sum();
        let free = self.arbiter.cap() - self.sum();
        let next = ((grant / self.unit + 1) * self.unit).min(own.total);
        assert!(
            spare == 0 || free + spare < next - grant,
            "{}",
            self.arbiter.explain(own.id)
        );
    }

    fn sum(&self) -> u64 {
        self.arbiter.grants().map(|(_, bytes)| bytes).sum()
    }

    /// The least grant that covers floor and leases.
    fn lowest(&self, one: &Known) -> u64 {
        match one.least > one.floor {
            true => (one.least.div_ceil(self.unit) * self.unit).min(one.total),
            false => one.floor,
        }
    }

    fn check(&mut self) {
        assert!(self.sum() <= self.arbiter.cap(), "grants exceed the cap");
        assert_eq!(self.arbiter.grants().count(), self.known.len());
        for (one, (id, grant)) in self.known.iter().zip(self.arbiter.grants()) {
            assert_eq!(id, one.id);
            assert!(grant >= one.floor.max(one.least) && grant <= one.total);
            assert!(grant % self.unit == 0 || grant == one.floor || grant == one.total);
            self.log.push(grant);
        }
    }
}

#[test]
fn random_programs_keep_every_rule_and_repeat() {
    for seed in 0..300 {
        let run = || {
            let mut program = Program::new(seed);
            (0..600).for_each(|_| program.step());
            program.log
        };
        let log = run();
        assert!(seed % 10 > 0 || log == run(), "seed {seed} differs");
    }
}

/// A figure to read, not a limit: run it with `--release -- --nocapture`. The quickest of some hundred passes each.
#[test]
fn time_of_a_decision() {
    for tenants in [4, 32] {
        let mut arbiter = Arbiter::new(tenants * 500, 1);
        let join = |_| arbiter.join(wants("one", 1000, 10, 0)).unwrap();
        let ids: Vec<_> = (0..tenants).map(join).collect();
        let mut random = Random::new(3);
        let in_turn: Vec<_> = (0..20_000).map(|at| ids[at % ids.len()]).collect();
        let draw = |_| ids[random.below(tenants) as usize];
        let at_random: Vec<_> = (0..20_000).map(draw).collect();
        for (how, passes) in [("in turn", in_turn), ("at random", at_random)] {
            let some = passes.chunks(400).map(|some| {
                let begun = std::time::Instant::now();
                some.iter().for_each(|&id| arbiter.pass(id));
                begun.elapsed().as_nanos() / some.len() as u128
            });
            let ns = some.min().unwrap();
            println!("{tenants} tenants {how}: {ns} ns a pass");
        }
    }
}
