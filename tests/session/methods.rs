//! Programs of several methods over one store: whatever the order of their passes, each kernel finds its weights' bytes, the
//! budget holds, and a switch costs no more than the ring.

use crate::session_support::case::GRANULE;
use crate::session_support::code::{other, program, Shape};
use crate::session_support::draw::{Draw, Seeded};
use crate::session_support::{chain, play, Kernels, Model, Pass};
use proptest::prelude::*;
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{HostDevice, Sim};
use weightstream::schedule::{Event, Trace, WeightKind};
use weightstream::session::Session;
use weightstream::store::{Method, Methods, StoreOptions};
use weightstream::{Error, Result};

/// A program of one to three methods: each as a model of its own over the same constants.
#[derive(Debug, Clone)]
struct Program {
    methods: Vec<Model>,
    shares: Vec<u32>,
}

impl Program {
    fn of(methods: Vec<Model>) -> Program {
        let shares = vec![1; methods.len()];
        Program { methods, shares }
    }

    fn drawn(draw: &mut Seeded) -> Program {
        let shape = Shape::ALL[draw.below(Shape::ALL.len() as u64) as usize];
        let first = program(shape, draw);
        let count = draw.between(1, 3);
        let others: Vec<Model> = (1..count).map(|_| other(&first, draw)).collect();
        let methods: Vec<Model> = std::iter::once(first).chain(others).collect();
        let shares = methods.iter().map(|_| draw.between(1, 100) as u32);
        let mut program = Program {
            shares: shares.collect(),
            methods,
        };
        program.mark_some(draw);
        program
    }

    /// In every fourth program some weights always stay, and some never do.
    fn mark_some(&mut self, draw: &mut Seeded) {
        let some = draw.one_in(4);
        let specs = self.methods[0].constants.specs.iter_mut();
        for spec in specs.filter(|spec| some && spec.kind == WeightKind::Weight) {
            spec.kind = match draw.below(4) {
                0 => WeightKind::Pinned,
                1 => WeightKind::Streamed,
                _ => WeightKind::Weight,
            };
        }
    }

    fn all(&self) -> Methods {
        let methods = self.methods.iter().zip(&self.shares);
        let methods = methods.map(|(model, &share)| Method {
            share,
            ..model.method.clone()
        });
        Methods {
            constants: self.methods[0].constants.clone(),
            all: methods.collect(),
        }
    }

    /// `share` 0 is the floor, 1000 everything.
    fn budget(&self, share: u64) -> u64 {
        let all = self.all();
        let least = all.floor(GRANULE).unwrap().bytes();
        least + all.everything(GRANULE).saturating_sub(least) * share / 1000
    }

    fn session<D: Kernels>(&self, device: D, policy: PolicyKind, budget: u64) -> Session<D> {
        self.try_session(device, policy, budget).unwrap()
    }

    fn try_session<D: Kernels>(
        &self,
        device: D,
        policy: PolicyKind,
        budget: u64,
    ) -> Result<Session<D>> {
        let options = StoreOptions {
            budget: Some(budget),
            policy,
            times: None,
            ..StoreOptions::default()
        };
        Session::new(device, self.all(), self.methods[0].host_bytes(), options)
    }

    fn play<D: Kernels>(&self, session: &mut Session<D>, method: usize, pass: Pass) {
        session.turn_to(method).unwrap();
        play(&self.methods[method], session, pass).unwrap();
        session.validate().unwrap();
        let stats = session.stats();
        assert!(stats.peak_bytes <= stats.budget_bytes, "{stats:?}");
    }
}

/// Which method runs, and how.
fn passes(draw: &mut Seeded, program: &Program) -> Vec<(usize, Pass)> {
    let pass = |draw: &mut Seeded| {
        let method = draw.below(program.methods.len() as u64) as usize;
        let events = program.methods[method].method.trace.events().len() as u64;
        let at = draw.below(events + 1) as usize;
        let pass = match draw.below(8) {
            0..5 => Pass::Complete,
            5 => Pass::CompleteIn(draw.next()),
            6 => Pass::AbortAt(at),
            _ => Pass::DivergeAt(at),
        };
        (method, pass)
    };
    (0..draw.between(4, 12)).map(|_| pass(draw)).collect()
}

fn sim(draw: &mut Seeded) -> Sim {
    let order = match draw.below(4) {
        0 => Order::CopiesFirst,
        1 => Order::KernelsFirst,
        _ => Order::Random(draw.next()),
    };
    let mut sim = match draw.one_in(2) {
        true => Sim::in_one_block(order),
        false => Sim::new(order),
    };
    sim.set_page([None, Some(64), Some(256), Some(1024)][draw.below(4) as usize]);
    sim
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Kernels compare all bytes that they read; the simulator finds every race.
    #[test]
    fn methods_in_any_order_read_their_own_weights(seed in any::<u64>(), share in 0..1100u64) {
        let mut draw = Seeded(seed);
        let program = Program::drawn(&mut draw);
        let policy = [PolicyKind::Lru, PolicyKind::Planned][draw.below(2) as usize];
        let (mut device, budget) = (sim(&mut draw), program.budget(share));
        if draw.one_in(2) {
            device.limit_addresses(budget - budget % GRANULE);
        }
        let mut session = match program.try_session(device, policy, budget) {
            Ok(session) => session,
            Err(error) => {
                prop_assert!(error.to_string().contains("fall into pieces"), "{error}");
                return Ok(());
            }
        };
        for (method, pass) in passes(&mut draw, &program) {
            program.play(&mut session, method, pass);
        }
        session.device_mut().verdict().unwrap();
    }

    /// The same while the budget changes; and the method that runs after a change may be the one that ran before it.
    #[test]
    fn methods_read_their_own_weights_under_changing_budgets(seed in any::<u64>(), share in 0..1100u64) {
        let mut draw = Seeded(seed);
        let program = Program::drawn(&mut draw);
        let mut device = Sim::in_one_block(Order::Random(draw.next()));
        device.set_page(Some([64, 256, 1024][draw.below(3) as usize]));
        let mut session = program.session(device, PolicyKind::Planned, program.budget(share));
        for (method, pass) in passes(&mut draw, &program) {
            program.play(&mut session, method, pass);
            let budget = program.budget(draw.below(1100));
            match session.set_budget(budget) {
                Ok(()) => prop_assert_eq!(session.stats().budget_bytes, budget),
                Err(Error::BudgetTooSmall { .. } | Error::Unsupported(_)) => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
            program.play(&mut session, method, Pass::Complete);
        }
        session.device_mut().verdict().unwrap();
    }

    /// A pass copies what its method's plan says; the one after a switch no more than that and the ring.
    #[test]
    fn a_switch_costs_at_most_the_ring(seed in any::<u64>(), share in 0..1000u64) {
        let mut draw = Seeded(seed);
        let program = Program::drawn(&mut draw);
        let mut device = Sim::in_one_block(Order::Random(draw.next()));
        device.set_page(Some(64));
        let mut session = program.session(device, PolicyKind::Planned, program.budget(share));
        let Some(plan) = session.store().residency().plan().cloned() else { return Ok(()) };
        let mut last = None;
        for _ in 0..12 {
            let method = draw.below(program.methods.len() as u64) as usize;
            let before = session.stats().bytes_copied;
            program.play(&mut session, method, Pass::Complete);
            let copied = session.stats().bytes_copied - before;
            let own = plan.streamed.iter().filter(|one| one.method == method);
            let most: u64 = own.map(|one| one.range.end - one.range.start).sum();
            prop_assert!(copied <= most + plan.ring(), "{copied} of at most {most} and {}", plan.ring());
            if last == Some(method) {
                prop_assert_eq!(copied, plan.copied(method));
            }
            // The first pass of a method fills the ring, the second one is what all others are.
            last = match last == Some(method) || plan.ring() == 0 {
                true => Some(method),
                false => { program.play(&mut session, method, Pass::Complete); Some(method) }
            };
        }
        session.device_mut().verdict().unwrap();
    }

    #[test]
    fn the_host_reads_the_same(seed in any::<u64>(), share in 0..1100u64) {
        let mut draw = Seeded(seed);
        let program = Program::drawn(&mut draw);
        let policy = [PolicyKind::Lru, PolicyKind::Planned][draw.below(2) as usize];
        let device = HostDevice::new().unwrap();
        let mut session = program.session(device, policy, program.budget(share));
        for (method, pass) in passes(&mut draw, &program) {
            program.play(&mut session, method, pass);
        }
    }
}

/// Twelve weights of one size; the second method reads them backwards, the third one none.
fn there_and_back() -> Program {
    let first = chain(&[4096; 12]);
    let mut back = first.clone();
    let probes: Vec<u32> = (0..12).rev().collect();
    let events = first.method.trace.events().to_vec();
    back.method.trace = Trace::new(events, probes, 12).unwrap();
    let mut idle = first.clone();
    idle.method.trace = Trace::default();
    Program::of(vec![first, back, idle])
}

fn planned(program: &Program) -> Session<Sim> {
    let mut device = Sim::in_one_block(Order::Random(7));
    device.set_page(Some(1024));
    let session = program.session(device, PolicyKind::Planned, program.budget(500));
    assert_eq!(session.policy(), "planned");
    session
}

#[test]
fn weights_are_one_for_all_methods() {
    let program = there_and_back();
    let mut session = planned(&program);
    for method in [0, 1, 2, 1, 0, 2, 0] {
        program.play(&mut session, method, Pass::Complete);
    }
    let stats = session.stats();
    assert_eq!(stats.total_weight_bytes, 12 * 4096);
    assert!(stats.peak_bytes <= stats.budget_bytes);
    session.device_mut().verdict().unwrap();
}

/// A method that runs rarely may copy more: what the other one reads stays.
#[test]
fn shares_decide_what_stays() {
    let first = chain(&[4096; 16]);
    let reading = |probes: Vec<u32>| {
        let each = |id: u32| [Event::Probe(id), Event::Kernel(id), Event::Release(id)];
        let events = (0..probes.len() as u32).flat_map(each).collect();
        let mut model = first.clone();
        model.method.trace = Trace::new(events, probes, 16).unwrap();
        model
    };
    let mut program = Program::of(vec![reading((0..8).collect()), reading((8..16).collect())]);
    let copied = |program: &Program| {
        let session = planned(program);
        let plan = session.store().residency().plan().cloned().unwrap();
        [plan.copied(0), plan.copied(1)]
    };
    for (shares, rare) in [([1, 50], 0), ([50, 1], 1)] {
        program.shares = shares.to_vec();
        let copied = copied(&program);
        assert_eq!(copied[1 - rare], 0, "{shares:?}: {copied:?}");
        assert!(copied[rare] > 0, "{shares:?}: {copied:?}");
    }
}

/// A graph of one method is replayed after passes of another: priming brings the ring back, and copies no more than it holds.
#[test]
fn a_graph_is_replayed_after_another_method_once_the_ring_is_primed() {
    let program = there_and_back();
    let mut session = planned(&program);
    let ring = session.store().residency().plan().unwrap().ring();
    session.allow_capture().unwrap();
    let pass = |session: &mut Session<Sim>, method: usize| {
        program.play(session, method, Pass::Complete);
    };
    pass(&mut session, 0);
    pass(&mut session, 0);
    session.begin_capture().unwrap();
    pass(&mut session, 0);
    let graph = session.end_capture().unwrap();
    for other in [1, 1, 0, 2, 1] {
        pass(&mut session, other);
        session.turn_to(0).unwrap();
        let before = session.stats().bytes_copied;
        assert!(session.prime(&graph).unwrap(), "after method {other}");
        assert!(session.stats().bytes_copied - before <= ring);
        let primed = session.stats().bytes_copied;
        for _ in 0..3 {
            assert!(session.is_primed(&graph));
            session.replay(&graph).unwrap();
            session.finish_kernels().unwrap();
        }
        let each = session.store().residency().plan().unwrap().copied(0);
        assert_eq!(session.stats().bytes_copied - primed, 3 * each);
        session.validate().unwrap();
    }
    session.device_mut().verdict().unwrap();
    session.forget_graph(graph).unwrap();
}

#[test]
fn a_switch_in_the_middle_of_a_pass_is_refused() {
    let program = there_and_back();
    let mut session = planned(&program);
    session.begin_pass().unwrap();
    session.probe(0).unwrap();
    let error = session.turn_to(1).unwrap_err().to_string();
    assert!(error.contains("before the last one was ended"), "{error}");
    session.release(0);
    session.end_pass(false).unwrap();
    session.turn_to(1).unwrap();
    let error = session.turn_to(3).unwrap_err().to_string();
    assert!(error.contains("no method 3"), "{error}");
    program.play(&mut session, 1, Pass::Complete);
}
