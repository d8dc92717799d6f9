//! Methods join a loaded program, and take each other's places: each kernel finds its weights' bytes, the budget holds, and what
//! stays is not copied again.

use crate::session_support::code::{other, programs};
use crate::session_support::draw::{Draw, Seeded};
use crate::session_support::{chain, play, Kernels, Model, Pass};
use proptest::prelude::*;
use weightstream::config::PolicyKind;
use weightstream::device::sim::{Order, SimFault};
use weightstream::device::{HostDevice, Sim};
use weightstream::figures::Link;
use weightstream::schedule::{Event, Trace};
use weightstream::session::Session;
use weightstream::store::{ElasticBytes, Method, Methods, StoreOptions, WeightLayout};
use weightstream::{Error, Result};

/// Weights of whole pages on both devices.
/// A unit of the host's pages: what stays moves as it is.
const SIZE: u64 = 1 << 20;

/// A method that reads these of the model's weights, in this order.
fn reading(model: &Model, probes: &[u32]) -> Model {
    let each = |id: u32| [Event::Probe(id), Event::Kernel(id), Event::Release(id)];
    let events = (0..probes.len() as u32).flat_map(each).collect();
    let mut other = model.clone();
    let count = model.constants.specs.len();
    other.method.trace = Trace::new(events, probes.to_vec(), count).unwrap();
    other
}

/// Its first half, its second half, and all of it backwards.
fn halves() -> [Model; 3] {
    let all = chain(&[SIZE; 20]);
    let back: Vec<u32> = (0..20).rev().collect();
    let half = |first: u32| (first..first + 10).collect::<Vec<_>>();
    [
        reading(&all, &half(0)),
        reading(&all, &half(10)),
        reading(&all, &back),
    ]
}

fn elastic<D: Kernels>(model: &Model, device: D, budget: u64) -> Session<D> {
    let options = StoreOptions {
        budget: Some(budget),
        policy: PolicyKind::Planned,
        elastic: true,
        ..StoreOptions::default()
    };
    Session::new(device, model.program(), model.host_bytes(), options).unwrap()
}

fn host(model: &Model, budget: u64) -> Session<HostDevice> {
    elastic(model, HostDevice::new().unwrap(), budget)
}

/// A pass of a method; what it copies.
fn pass<D: Kernels>(model: &Model, session: &mut Session<D>, method: usize) -> u64 {
    session.turn_to(method).unwrap();
    play(model, session, Pass::Complete).unwrap();
    session.stats().bytes_copied_last_pass
}

/// Bytes that a change copies.
fn copied<D: Kernels>(
    session: &mut Session<D>,
    change: impl FnOnce(&mut Session<D>) -> Result<()>,
) -> u64 {
    let before = session.stats().bytes_copied;
    change(session).unwrap();
    session.validate().unwrap();
    session.stats().bytes_copied - before
}

#[test]
fn what_stays_is_not_copied_again() {
    let [first, second, back] = halves();
    let mut session = host(&first, 20 * SIZE);
    assert_eq!(pass(&first, &mut session, 0), 0);
    assert_eq!(session.stats().total_weight_bytes, 10 * SIZE);
    let add = |session: &mut Session<HostDevice>, model: &Model| {
        session.add_method(model.method.clone()).map(drop)
    };
    assert_eq!(copied(&mut session, |one| add(one, &second)), 10 * SIZE);
    assert_eq!(session.stats().total_weight_bytes, 20 * SIZE);
    assert_eq!(copied(&mut session, |one| add(one, &back)), 0);
    for (method, model) in [&first, &second, &back].into_iter().enumerate() {
        assert_eq!(pass(model, &mut session, method), 0);
    }
    // Half of it: what stays under both plans.
    session.set_budget(10 * SIZE).unwrap();
    pass(&back, &mut session, 2);
    let again = copied(&mut session, |one| {
        one.replace_method(0, back.method.clone())
    });
    assert!(again < 9 * SIZE, "{again}");
    pass(&back, &mut session, 0);
    pass(&second, &mut session, 1);
    pass(&back, &mut session, 2);
}

/// A pass at the end is that of a program that was loaded with all of its methods.
#[test]
fn methods_that_joined_run_as_those_that_were_loaded() {
    let [first, second, back] = halves();
    let budget = 8 * SIZE;
    let mut session = host(&first, budget);
    session.add_method(second.method.clone()).unwrap();
    session.add_method(back.method.clone()).unwrap();
    let mut methods = Methods::from(first.program());
    methods
        .all
        .extend([second.method.clone(), back.method.clone()]);
    let options = StoreOptions {
        budget: Some(budget),
        policy: PolicyKind::Planned,
        elastic: true,
        ..StoreOptions::default()
    };
    let device = HostDevice::new().unwrap();
    let mut whole = Session::new(device, methods, first.host_bytes(), options).unwrap();
    assert_eq!(
        session.store().residency().plan(),
        whole.store().residency().plan()
    );
    for (method, model) in [
        (0, &first),
        (1, &second),
        (1, &second),
        (2, &back),
        (2, &back),
    ] {
        let steady = pass(model, &mut session, method);
        assert_eq!(steady, pass(model, &mut whole, method));
    }
}

#[test]
fn too_small_a_budget_names_the_least_one_and_changes_nothing() {
    let [first, ..] = halves();
    // Four weights at one time, and one more.
    let mut wide = first.clone();
    let events = (0..4).map(Event::Probe).chain([Event::Kernel(0)]);
    let events = events.chain((0..4).map(Event::Release));
    let last = [Event::Probe(4), Event::Kernel(1), Event::Release(4)];
    let trace = Trace::new(events.chain(last).collect(), vec![12, 15, 13, 0, 1], 20);
    wide.method.trace = trace.unwrap();
    let (least, more) = (first.floor().bytes(), wide.floor().bytes());
    assert!(least < more);
    let mut session = host(&first, least);
    assert_eq!(session.least_budget().unwrap(), least);
    pass(&first, &mut session, 0);
    let steady = pass(&first, &mut session, 0);
    let plan = session.store().residency().plan().cloned();
    match session.add_method(wide.method.clone()) {
        Err(Error::BudgetTooSmall { budget, floor, .. }) => {
            assert_eq!((budget, floor), (least, more));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(session.methods_count(), 1);
    assert_eq!(session.store().residency().plan().cloned(), plan);
    assert_eq!(session.stats().floor_bytes, least);
    assert_eq!(pass(&first, &mut session, 0), steady);
    let joined = session.add_method_within(wide.method.clone(), more);
    assert_eq!(joined, Ok(1));
    assert_eq!(session.stats().floor_bytes, more);
    assert_eq!(session.least_budget().unwrap(), more);
    pass(&wide, &mut session, 1);
    pass(&first, &mut session, 0);
    // Without it the floor is what it was.
    session.replace_method(1, first.method.clone()).unwrap();
    assert_eq!(session.least_budget().unwrap(), least);
    session.set_budget(least).unwrap();
    pass(&first, &mut session, 1);
}

#[test]
fn what_cannot_join_is_refused() {
    let [first, second, _] = halves();
    let method = || second.method.clone();
    let mut session = host(&first, 4 * SIZE);
    session.begin_pass().unwrap();
    assert!(session.add_method(method()).is_err());
    session.end_pass(false).unwrap();
    assert!(session.replace_method(1, method()).is_err());
    let stands = Method {
        trace: Trace::new(vec![Event::Probe(0)], vec![20], 21).unwrap(),
        ..method()
    };
    assert!(matches!(
        session.add_method(stands),
        Err(Error::Malformed { .. })
    ));
    let many = Method {
        layouts: vec![WeightLayout::default(); 21],
        ..method()
    };
    assert!(session.add_method(many).is_err());
    let mut lru = first.sim(Order::CopiesFirst, Some(4 * SIZE));
    assert!(matches!(
        lru.add_method(method()),
        Err(Error::Unsupported(_))
    ));
    let mut graphs = elastic(&first, Sim::new(Order::CopiesFirst), 4 * SIZE);
    graphs.allow_capture().unwrap();
    let refused = graphs.add_method(method()).unwrap_err().to_string();
    assert!(refused.contains("captured as graphs"), "{refused}");
}

/// Read where it lies below everything, and on the device where all of it stays; also by methods that join in between.
#[test]
fn rows_of_a_table_are_read_where_it_lies() {
    let [mut first, second, mut back] = halves();
    first.method.gather = vec![2];
    back.method.gather = vec![0, 17];
    let mut session = host(&first, 20 * SIZE);
    let gathered = |session: &Session<HostDevice>| session.stats().gathered_bytes;
    pass(&first, &mut session, 0);
    assert_eq!(gathered(&session), 0);
    session.set_budget(9 * SIZE).unwrap();
    // All other weights stay.
    pass(&first, &mut session, 0);
    assert_eq!(pass(&first, &mut session, 0), 0);
    assert_eq!(gathered(&session), SIZE);
    session.add_method(second.method.clone()).unwrap();
    session.add_method(back.method.clone()).unwrap();
    // Weight 19 is a weight for the second method.
    assert_eq!(gathered(&session), 2 * SIZE);
    for (method, model) in [&first, &second, &back].into_iter().enumerate() {
        pass(model, &mut session, method);
    }
    session.set_budget(20 * SIZE).unwrap();
    assert_eq!(gathered(&session), 0);
    for (method, model) in [&first, &second, &back].into_iter().enumerate() {
        pass(model, &mut session, method);
        assert_eq!(pass(model, &mut session, method), 0);
    }
    session.set_budget(10 * SIZE).unwrap();
    assert_eq!(gathered(&session), 2 * SIZE);
    pass(&back, &mut session, 2);
}

/// A random sequence of passes, budgets, shares, and methods that join or take another one's place.
fn walk(first: Model, mut sim: Sim, seed: u64) -> Session<Sim> {
    let mut draw = Seeded(seed);
    sim.set_page(Some([64, 256, 1024][draw.below(3) as usize]));
    if draw.one_in(2) {
        sim.set_link(Link {
            bytes_per_second: 1_000_000_000,
            ns_per_copy: 10,
        });
        sim.set_times((0..60).map(|_| draw.below(2000)).collect());
    }
    let floor = first.floor();
    let all = floor.direct + floor.everything;
    let budget = |draw: &mut Seeded| floor.bytes() + draw.below(2 * all + 1);
    let least = ElasticBytes::of(&Methods::from(first.program()), &sim);
    let start = budget(&mut draw).max(least.unwrap().least);
    // Kernels compare their bytes when they run, which may be late.
    let keep = |model: Model| -> &'static Model { Box::leak(Box::new(model)) };
    let mut models = vec![keep(first)];
    let mut session = elastic(models[0], sim, start);
    for _ in 0..12 {
        let at = draw.below(models.len() as u64) as usize;
        let events = models[at].method.trace.events().len() as u64;
        let changed = match draw.below(7) {
            6 => {
                let shares: Vec<u32> = { models.iter() }.map(|_| draw.below(50) as u32).collect();
                session.set_shares(&shares);
                session.follow_shares().map(|_| ())
            }
            0 => session.set_budget(budget(&mut draw)),
            1 | 2 => {
                let mut next = other(models[0], &mut draw);
                let reads = 0..next.method.trace.probes().len() as u32;
                next.method.gather = reads.filter(|_| draw.one_in(5)).collect();
                let method = next.method.clone();
                match draw.one_in(3) {
                    true => session
                        .replace_method(at, method)
                        .map(|()| models[at] = keep(next)),
                    false => session.add_method(method).map(|_| models.push(keep(next))),
                }
            }
            3 => {
                session.turn_to(at).unwrap();
                let end = draw.below(events + 1) as usize;
                play(models[at], &mut session, Pass::AbortAt(end))
            }
            _ => {
                session.turn_to(at).unwrap();
                play(models[at], &mut session, Pass::CompleteIn(draw.next()))
            }
        };
        match changed {
            Ok(()) => {}
            Err(Error::BudgetTooSmall { budget, floor, .. }) => assert!(floor > budget),
            Err(error) => panic!("seed {seed}: {error}"),
        }
        let stats = session.stats();
        assert_eq!(session.methods_count(), models.len());
        assert!(stats.floor_bytes <= stats.budget_bytes, "seed {seed}");
        assert!(stats.peak_bytes <= stats.budget_bytes, "seed {seed}");
        assert!(
            session.device().live_bytes() <= stats.budget_bytes + 1024,
            "seed {seed}"
        );
        session.validate().unwrap();
    }
    session
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn methods_that_join_at_any_time_read_their_own_weights(
        model in programs(),
        order in prop_oneof![Just(Order::CopiesFirst), Just(Order::KernelsFirst), any::<u64>().prop_map(Order::Random)],
        seed in any::<u64>(),
    ) {
        let mut model = model;
        let reads = 0..model.method.trace.probes().len() as u32;
        model.method.gather = reads.filter(|id| seed >> (id % 64) & 3 == 3).collect();
        let mut session = walk(model, Sim::in_one_block(order), seed);
        session.device_mut().check();
    }
}

/// A plan for other shares is taken where it copies clearly less by them, and no other one is.
#[test]
fn the_plan_follows_the_shares() {
    let [first, second, _] = halves();
    let mut session = host(&first, 12 * SIZE);
    session.add_method(second.method.clone()).unwrap();
    let steady = |session: &mut Session<HostDevice>| {
        [(&first, 0), (&second, 1)].map(|(model, method)| {
            pass(model, session, method);
            pass(model, session, method)
        })
    };
    assert_eq!(session.follow_shares(), Ok(false));
    for (shares, often) in [([9, 1], 0), ([1, 9], 1)] {
        session.set_shares(&shares);
        assert_eq!(session.follow_shares(), Ok(true));
        assert_eq!(session.follow_shares(), Ok(false));
        let copied = steady(&mut session);
        assert_eq!(copied[often], 0, "{copied:?}");
        assert!(copied[1 - often] >= 7 * SIZE, "{copied:?}");
    }
    assert_eq!(session.stats().replans, 2);
    // Any other change goes by them too.
    session.set_shares(&[9, 1]);
    session.set_budget(13 * SIZE).unwrap();
    assert_eq!(steady(&mut session)[0], 0);
}

/// Whatever call fails on the way, later passes are right or refused, and the methods are those of before.
#[test]
fn a_join_that_fails_leaves_the_store_right_or_poisoned() {
    let [mut first, second, _] = halves();
    first.method.gather = vec![2];
    let (mut kept, mut poisoned) = (0, 0);
    for call in [
        None,
        Some("bring"),
        Some("create"),
        Some("release"),
        Some("copy_across"),
    ] {
        for after in 0..40 {
            let mut sim = Sim::new(Order::Random(after));
            sim.set_page(Some(SIZE / 4));
            let mut session = elastic(&first, sim, 12 * SIZE);
            pass(&first, &mut session, 0);
            session.device_mut().fail(SimFault {
                call,
                after,
                lost: false,
            });
            let joined = session.add_method_within(second.method.clone(), 7 * SIZE);
            let fired = session.device().pending_fault().is_none();
            session.device_mut().fail(None);
            assert_eq!(joined.is_err(), fired);
            let methods = 1 + usize::from(!fired);
            assert_eq!(session.methods_count(), methods);
            match session.begin_pass() {
                Ok(()) => {
                    session.end_pass(false).unwrap();
                    kept += u64::from(fired);
                    for method in 0..methods {
                        pass([&first, &second][method], &mut session, method);
                    }
                }
                Err(Error::Poisoned(_)) => poisoned += 1,
                Err(error) => panic!("{error}"),
            }
            session.device_mut().check();
        }
    }
    assert!(kept > 0, "{kept} kept, {poisoned} poisoned");
}
