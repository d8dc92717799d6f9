//! Six traces of passes: what the arbiter copies, against newest first and against the best of three rules. References are
//! simulated here, on the same trace.

use super::test_support::Random;
use super::*;

/// Bytes of one unit of the table in `docs/arbiter.md`.
const SCALE: u64 = 1000;

struct Trace {
    name: &'static str,
    totals: Vec<u64>,
    cap: u64,
    passes: Vec<usize>,
    /// Models take turns after each pass.
    alternates: bool,
}

type Passes = Box<dyn Iterator<Item = usize>>;

fn trace(name: &'static str, (totals, cap): (&[u64], u64), passes: Passes) -> Trace {
    Trace {
        name,
        totals: totals.iter().map(|total| total * SCALE).collect(),
        cap: cap * SCALE,
        passes: passes.collect(),
        alternates: name.ends_with("alternate"),
    }
}

fn in_turn(models: usize, each: usize) -> Passes {
    Box::new((0..4000).map(move |pass| pass / each % models))
}

/// A draft model in each step, the target in each fourth, a reranker in each sixteenth.
fn steps() -> Passes {
    let step = |step: usize| {
        let rare = [(4, 1), (16, 2)].into_iter();
        let now = rare.filter(move |(every, _)| step % every == every - 1);
        std::iter::once(0).chain(now.map(|(_, model)| model))
    };
    Box::new((0..2000).flat_map(step))
}

fn regular() -> [Trace; 4] {
    let speculative = "draft 2, target 10, reranker 6, cap 12, 16:4:1";
    [
        trace("4 of 10, cap 30, alternate", (&[10; 4], 30), in_turn(4, 1)),
        trace("2 of 10, cap 15, alternate", (&[10; 2], 15), in_turn(2, 1)),
        trace(
            "2 of 10, cap 15, phases of 20",
            (&[10; 2], 15),
            in_turn(2, 20),
        ),
        trace(speculative, (&[2, 10, 6], 12), steps()),
    ]
}

fn random(seed: u64) -> [Trace; 2] {
    let (zipf, bursts) = (zipf(seed), bursts(seed));
    [
        trace(
            "6 of 10, cap 30, Zipf(1)",
            (&[10; 6], 30),
            Box::new(zipf.into_iter()),
        ),
        trace(
            "5 of 10, cap 25, bursts of 1 to 30",
            (&[10; 5], 25),
            Box::new(bursts.into_iter()),
        ),
    ]
}

/// Each model at random, the n-th a n-th as often as the first.
fn zipf(seed: u64) -> Vec<usize> {
    let mut random = Random::new(seed);
    let ends = [60, 90, 110, 125, 137, 147];
    let draw = |_| {
        let drawn = random.below(147);
        ends.iter().position(|&end| drawn < end).unwrap()
    };
    (0..6000).map(draw).collect()
}

fn bursts(seed: u64) -> Vec<usize> {
    let mut random = Random::new(seed);
    let mut passes = Vec::new();
    while passes.len() < 6000 {
        let (model, length) = (random.below(5) as usize, random.below(5) as usize);
        passes.extend(vec![model; [1, 1, 2, 4, 30][length]]);
    }
    passes.truncate(6000);
    passes
}

/// Bytes per pass after a quarter of the trace, in units.
fn mean(trace: &Trace, mut pass: impl FnMut(usize) -> u64) -> f64 {
    let warm = trace.passes.len() / 4;
    let mut copied = 0;
    for (number, &model) in trace.passes.iter().enumerate() {
        let bytes = pass(model);
        copied += if number >= warm { bytes } else { 0 };
    }
    copied as f64 / (trace.passes.len() - warm) as f64 / SCALE as f64
}

/// A reference of one rule, or of the best of the three: sorts all that hold anything, and fills the cap in that order.
struct Reference<'a> {
    trace: &'a Trace,
    now: f64,
    last: Vec<Option<f64>>,
    gap: Vec<Option<f64>>,
    rate: Vec<f64>,
    held: [Vec<u64>; 4],
    copied: [f64; 3],
}

impl Reference<'_> {
    fn new(trace: &Trace) -> Reference<'_> {
        let n = trace.totals.len();
        Reference {
            trace,
            now: 0.0,
            last: vec![None; n],
            gap: vec![None; n],
            rate: vec![0.0; n],
            held: [(); 4].map(|()| vec![0; n]),
            copied: [0.0; 3],
        }
    }

    /// What the pass copies under each of the three rules, and under the best of them.
    fn pass(&mut self, model: usize) -> [u64; 4] {
        let total = self.trace.totals[model];
        let copies = [0, 1, 2, 3].map(|of: usize| total - self.held[of][model]);
        if let Some(last) = self.last[model] {
            let gap = self.now - last;
            self.gap[model] = Some(self.gap[model].map_or(gap, |before| (before + gap) / 2.0));
        }
        self.last[model] = Some(self.now);
        self.rate.iter_mut().for_each(|rate| *rate *= 0.98);
        self.rate[model] += 1.0;
        for (copied, &bytes) in self.copied.iter_mut().zip(&copies) {
            *copied = 0.97 * *copied + bytes as f64;
        }
        let best = (0..3).min_by(|&a, &b| self.copied[a].total_cmp(&self.copied[b]));
        for (of, rule) in [(0, 0), (1, 1), (2, 2), (3, best.unwrap())] {
            self.fill(model, of, rule);
        }
        self.now += 1.0;
        copies
    }

    fn fill(&mut self, model: usize, of: usize, rule: usize) {
        let holds = |&one: &usize| one == model || self.held[of][one] > 0;
        let mut order: Vec<usize> = (0..self.last.len()).filter(holds).collect();
        let key = |one: usize| (self.key(rule, one), one != model);
        order.sort_by(|&a, &b| {
            let (a, b) = (key(a), key(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        });
        let mut left = self.trace.cap;
        for one in order {
            let has = match one == model {
                true => self.trace.totals[one],
                false => self.held[of][one],
            };
            self.held[of][one] = has.min(left);
            left -= self.held[of][one];
        }
    }

    /// The lower, the longer it stays.
    fn key(&self, rule: usize, one: usize) -> f64 {
        let age = self.last[one].map_or(1e9, |last| self.now - last);
        match rule {
            0 => age,
            1 => -self.rate[one],
            _ => match self.gap[one] {
                Some(gap) if gap > age => gap - age,
                _ => age.max(1.0),
            },
        }
    }
}

/// Newest first, by rate, by the predicted pass, the best of these, and the arbiter.
fn costs(trace: &Trace) -> [f64; 5] {
    let of = |which: usize| {
        let mut reference = Reference::new(trace);
        mean(trace, |model| reference.pass(model)[which])
    };
    [of(0), of(1), of(2), of(3), arbiter(trace)]
}

fn arbiter(trace: &Trace) -> f64 {
    let mut arbiter = Arbiter::new(trace.cap, 1);
    let join = |(number, &total): (usize, &u64)| {
        let wants = Wants {
            name: format!("model {number}"),
            total,
            floor: 0,
            priority: 0,
        };
        arbiter.join(wants).unwrap()
    };
    let ids: Vec<TenantId> = trace.totals.iter().enumerate().map(join).collect();
    mean(trace, |model| {
        let copies = trace.totals[model] - arbiter.grant(ids[model]);
        arbiter.pass(ids[model]);
        copies
    })
}

fn check(trace: &Trace) {
    let [newest, rate, predicted, best, ours] = costs(trace);
    let name = trace.name;
    println!("| {name} | {newest:.2} | {rate:.2} | {predicted:.2} | {best:.2} | {ours:.2} |");
    assert!(ours <= 1.10 * newest, "{name}");
    assert!(ours <= 1.10 * best, "{name}");
    assert!(!trace.alternates || ours <= 0.6 * newest, "{name}");
}

/// `cargo test --lib elastic::traces::near -- --nocapture` prints the table of `docs/arbiter.md`.
#[test]
fn near_the_best_rule_on_each_trace() {
    println!("| trace | newest first | by rate | by prediction | best of three | arbiter |");
    println!("|---|---|---|---|---|---|");
    regular().iter().chain(&random(1)).for_each(check);
}

#[test]
fn other_random_traces_are_no_worse() {
    (2..10).flat_map(random).for_each(|trace| check(&trace));
}

/// Models of one size take turns, under a cap for half of them: newest first copies everything, whatever their number.
#[test]
fn turns_of_many_models_cost_what_exceeds_the_cap() {
    for models in [2, 3, 5, 8, 16, 32] {
        let turns = trace(
            "turns",
            (&vec![10; models], 5 * models as u64),
            in_turn(models, 1),
        );
        let ours = arbiter(&turns);
        assert!((4.9..=5.1).contains(&ours), "{models} models: {ours}");
    }
}
