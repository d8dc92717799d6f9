//! The store replans once, when kernels were timed and a longer ring is worth it; and whatever fails on the way, no pass
//! reads a wrong byte.

use crate::session_support::draw::{Draw, Seeded};
use crate::session_support::{chain, model as model_of, play, Model, Pass};
use weightstream::config::PolicyKind;
use weightstream::device::sim::{Order, SimFault};
use weightstream::device::Sim;
use weightstream::figures::Link;
use weightstream::schedule::{Event, KernelTimes, Trace};
use weightstream::session::Session;
use weightstream::store::StoreOptions;
use weightstream::Error;

const WEIGHTS: usize = 24;
/// Bytes of each.
/// Weights are a few pages, as they are on a GPU.
const PAGE: u64 = 16 << 10;
const SIZE: u64 = 128 << 10;
/// A byte takes a nanosecond.
const LINK: Link = Link {
    bytes_per_second: 1_000_000_000,
    ns_per_copy: 10,
};

fn model() -> Model {
    chain(&[SIZE; WEIGHTS])
}

/// Between the marks of each read: its wait, its kernel, and what runs behind it without a weight. Behind every fourth read
/// that takes as long as to copy half of the four weights.
fn with_pauses() -> Vec<u64> {
    let read = |at: usize| [0, 100, if at.is_multiple_of(4) { 2 * SIZE } else { 0 }];
    (0..WEIGHTS).flat_map(read).collect()
}

fn sim(order: Order, times: Option<Vec<u64>>) -> Sim {
    let mut sim = Sim::new(order);
    sim.set_page(Some(PAGE));
    sim.set_link(LINK);
    if let Some(times) = times {
        sim.set_times(times);
    }
    sim
}

/// At half of the weights.
fn session(model: &Model, sim: Sim) -> Session<Sim> {
    let floor = model.floor();
    let budget = floor.everything / 2;
    model
        .session_by(PolicyKind::Planned, sim, Some(budget))
        .unwrap()
}

/// Bytes that each of some passes copies; every byte that a kernel reads is compared.
fn passes(model: &Model, session: &mut Session<Sim>, count: usize) -> Vec<u64> {
    let one = |_| {
        play(model, session, Pass::Complete).unwrap();
        session.validate().unwrap();
        session.stats().bytes_copied_last_pass
    };
    let copied = (0..count).map(one).collect();
    session.device_mut().verdict().unwrap();
    copied
}

#[test]
fn behind_the_second_pass_the_ring_gets_longer_and_everything_stays_right() {
    for order in [Order::CopiesFirst, Order::KernelsFirst, Order::Random(7)] {
        let model = model();
        let mut session = session(&model, sim(order, Some(with_pauses())));
        let budget = session.stats().budget_bytes;
        let before = passes(&model, &mut session, 2)[1];
        assert_eq!(session.stats().replans, 1);
        let mut other = self::session(&model, sim(order, None));
        passes(&model, &mut other, 2);
        assert_eq!(session.stats().prefetches, other.stats().prefetches);
        let after = passes(&model, &mut session, 4);
        // Its first pass fills the ring.
        assert!(
            before < after[2] && after[1..] == [after[2]; 3],
            "{before}, {after:?}"
        );
        assert_eq!(session.stats().replans, 1);
        assert!(session.stats().peak_bytes <= budget);
        let memory = session.device_mut().live_bytes();
        assert!(memory <= budget, "{memory} of {budget}");
    }
}

/// The same with times of kernels that are known.
fn session_with_times(model: &Model, sim: Sim, budget: u64, times: &KernelTimes) -> Session<Sim> {
    let options = StoreOptions {
        budget: Some(budget),
        policy: PolicyKind::Planned,
        times: Some(times.clone()),
        ..StoreOptions::default()
    };
    Session::new(sim, model.program(), model.host_bytes(), options).unwrap()
}

#[test]
fn times_that_are_given_make_the_plan_that_is_made_anew_without_them() {
    let model = model();
    let mut timed = session(&model, sim(Order::CopiesFirst, Some(with_pauses())));
    assert!(timed.will_time_kernels());
    assert_eq!(passes(&model, &mut timed, 1).len(), 1);
    assert_eq!(timed.kernel_times(), None);
    let after = passes(&model, &mut timed, 4)[3];
    assert!(!timed.will_time_kernels());
    let times = timed.kernel_times().unwrap();
    // What lies in front of a read is its wait.
    let kernels: u64 = with_pauses().iter().sum();
    assert_eq!(times.total(), kernels);

    let budget = timed.stats().budget_bytes;
    let mut given = session_with_times(&model, sim(Order::Random(3), None), budget, times);
    assert!(!given.will_time_kernels());
    let copied = passes(&model, &mut given, 4);
    assert_eq!(copied[1..], [after; 3]);
    assert_eq!(given.stats().replans, 0);
    assert_eq!(given.kernel_times(), None);

    // No times are needed where everything fits, and none are of use where the link is not known.
    let everything = model.floor().everything;
    let mut whole = session_with_times(&model, sim(Order::CopiesFirst, None), everything, times);
    assert_eq!(passes(&model, &mut whole, 2)[1], 0);
    let unknown = Sim::new(Order::CopiesFirst);
    let mut unknown = session_with_times(&model, unknown, budget, times);
    let mut plain = session(&model, Sim::new(Order::CopiesFirst));
    assert_eq!(
        passes(&model, &mut unknown, 3),
        passes(&model, &mut plain, 3)
    );
}

#[test]
fn a_plan_that_fits_its_kernels_stays() {
    // No times; kernels that take no time; and those that take all of it.
    for times in [
        None,
        Some(Vec::new()),
        Some([0, 10 * SIZE, 0].repeat(WEIGHTS)),
    ] {
        let model = model();
        let mut session = session(&model, sim(Order::CopiesFirst, times));
        let copied = passes(&model, &mut session, 4);
        assert_eq!(session.stats().replans, 0);
        assert_eq!(copied[1..], [copied[1]; 3]);
    }
}

/// A pass that is not completed is timed again; and what it did before that is no part of the times.
#[test]
fn a_pass_that_fails_is_not_the_one_that_is_timed() {
    let model = model();
    let mut session = session(&model, sim(Order::CopiesFirst, Some(with_pauses())));
    passes(&model, &mut session, 1);
    play(&model, &mut session, Pass::AbortAt(20)).unwrap();
    assert_eq!(session.stats().replans, 0);
    passes(&model, &mut session, 1);
    assert_eq!(session.stats().replans, 1);
    let mut other = self::session(&model, sim(Order::CopiesFirst, Some(with_pauses())));
    passes(&model, &mut other, 2);
    assert_eq!(session.kernel_times(), other.kernel_times());
    passes(&model, &mut session, 2);
}

#[test]
fn without_times_the_plan_stays_and_passes_go_on() {
    for call in ["mark", "take_marks"] {
        let model = model();
        let mut device = sim(Order::CopiesFirst, Some(with_pauses()));
        device.fail_call(call, 0);
        let mut session = session(&model, device);
        let copied = passes(&model, &mut session, 4);
        assert!(session.device_mut().pending_fault().is_none(), "{call}");
        assert_eq!(session.stats().replans, 0);
        assert_eq!(copied[1..], [copied[1]; 3]);
    }
}

/// Each call of the second pass and of what comes behind it fails, alone or with all calls later on. If the new plan could not be
/// followed, the first one takes over again, or no pass runs any more; no byte that a kernel reads is ever a wrong one.
#[test]
fn whatever_fails_while_weights_move_no_pass_is_wrong() {
    let model = model();
    let (mut back, mut poisoned) = (0, 0);
    for lost in [false, true] {
        for after in 0.. {
            let mut session = session(&model, sim(Order::CopiesFirst, Some(with_pauses())));
            passes(&model, &mut session, 1);
            session.device_mut().fail(SimFault {
                call: None,
                after,
                lost,
            });
            let ended = play(&model, &mut session, Pass::Complete);
            if session.device_mut().pending_fault().is_some() {
                break;
            }
            if ended.is_err() {
                // Of the pass's own calls: other suites see to what comes behind that.
                continue;
            }
            let anew = session.stats().replans;
            match play(&model, &mut session, Pass::Complete) {
                Ok(()) => back += u64::from(anew == 0),
                Err(error) => {
                    let is_poisoned = matches!(error, Error::Poisoned(_));
                    assert!(lost || is_poisoned, "{after}: {error}");
                    poisoned += u64::from(is_poisoned);
                    continue;
                }
            }
            passes(&model, &mut session, 2);
        }
    }
    assert!(back > 3 && poisoned > 3, "{back}, {poisoned}");
}

/// The weights backwards.
fn backwards() -> Model {
    let mut back = model();
    let probes: Vec<u32> = (0..WEIGHTS as u32).rev().collect();
    let events = back.method.trace.events().to_vec();
    back.method.trace = Trace::new(events, probes, WEIGHTS).unwrap();
    back
}

/// At half of the weights, and so that methods can join.
fn elastic(sim: Sim) -> Session<Sim> {
    let model = model();
    let options = StoreOptions {
        budget: Some(model.floor().everything / 2),
        policy: PolicyKind::Planned,
        elastic: true,
        ..StoreOptions::default()
    };
    let methods = model.program();
    // The bytes live as long as the test.
    let bytes = Box::leak(Box::new(model)).host_bytes();
    Session::new(sim, methods, bytes, options).unwrap()
}

/// A complete pass of a method. Whether its kernels' times are known then.
fn timed(model: &Model, session: &mut Session<Sim>, method: usize) -> bool {
    session.turn_to(method).unwrap();
    let known = session.kernel_times().is_some();
    assert_eq!(session.will_time_kernels(), !known);
    passes(model, session, 1);
    session.kernel_times().is_some()
}

#[test]
fn each_method_is_timed_in_its_own_second_pass() {
    let (first, back) = (model(), backwards());
    let mut session = elastic(sim(Order::Random(3), Some(with_pauses())));
    assert!(!timed(&first, &mut session, 0));
    session.add_method(back.method.clone()).unwrap();
    assert!(!timed(&back, &mut session, 1));
    session.turn_to(1).unwrap();
    play(&back, &mut session, Pass::AbortAt(20)).unwrap();
    let by_bytes = session.store().residency().plan().unwrap().ring();
    assert!(timed(&first, &mut session, 0));
    assert!(timed(&back, &mut session, 1));
    assert!(timed(&first, &mut session, 0));
    let replans = session.stats().replans;
    assert!((1..=2).contains(&replans), "{replans}");
    let by_time = session.store().residency().plan().unwrap().ring();
    assert!(by_time > by_bytes, "{by_time}, {by_bytes}");
    // A plan for another budget goes by the times that are known.
    let budget = session.stats().budget_bytes;
    session.set_budget(budget + SIZE).unwrap();
    session.set_budget(budget).unwrap();
    let again = session.store().residency().plan().unwrap().ring();
    assert!(again > by_bytes, "{again}, {by_bytes}");
    // In the place of the first one comes a method of which nothing is known.
    session.replace_method(0, back.method.clone()).unwrap();
    assert!(!timed(&back, &mut session, 0));
    assert!(timed(&back, &mut session, 0));
    assert!(timed(&back, &mut session, 1));
}

/// Nothing waits for times where nothing waits for a copy; below that kernels are timed after all.
#[test]
fn where_everything_stays_no_kernels_are_timed() {
    let model = model();
    let mut session = elastic(sim(Order::CopiesFirst, Some(with_pauses())));
    let budget = session.stats().budget_bytes;
    passes(&model, &mut session, 1);
    session.set_budget(2 * budget).unwrap();
    assert!(!session.will_time_kernels());
    passes(&model, &mut session, 3);
    assert!(session.kernel_times().is_none());
    session.set_budget(budget).unwrap();
    assert!(session.will_time_kernels());
    passes(&model, &mut session, 2);
    assert!(session.kernel_times().is_some());
}

/// One method cannot be timed any more; the times of the other one alone would make a plan that is wrong for it.
#[test]
fn without_the_times_of_one_method_plans_go_by_bytes() {
    let (first, back) = (model(), backwards());
    let mut session = elastic(sim(Order::CopiesFirst, Some(with_pauses())));
    timed(&first, &mut session, 0);
    session.add_method(back.method.clone()).unwrap();
    assert!(timed(&first, &mut session, 0));
    timed(&back, &mut session, 1);
    session.device_mut().fail_call("take_marks", 0);
    passes(&back, &mut session, 2);
    assert!(session.device_mut().pending_fault().is_none());
    assert!(session.kernel_times().is_none() && !session.will_time_kernels());
    let mut plain = elastic(sim(Order::CopiesFirst, None));
    plain.add_method(back.method.clone()).unwrap();
    let budget = session.stats().budget_bytes + SIZE;
    session.set_budget(budget).unwrap();
    plain.set_budget(budget).unwrap();
    let plan = |session: &Session<Sim>| session.store().residency().plan().cloned();
    assert_eq!(plan(&session), plan(&plain));
    passes(&back, &mut session, 2);
}

/// Somebody else took the memory in between: there is no place for either plan.
#[test]
fn weights_that_have_no_memory_any_more_are_not_read() {
    let model = model();
    let mut session = session(&model, sim(Order::CopiesFirst, Some(with_pauses())));
    passes(&model, &mut session, 1);
    session.device_mut().limit_addresses(0);
    // The pass itself is right; behind it nothing adds up any more.
    play(&model, &mut session, Pass::Complete).unwrap_err();
    assert_eq!(session.stats().passes, 2);
    let refused = play(&model, &mut session, Pass::Complete).unwrap_err();
    assert!(matches!(refused, Error::Poisoned(_)), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("could not be moved for a new plan"), "{text}");
    assert!(
        text.contains("nor back: ") && text.contains("taking memory for all weights"),
        "{text}"
    );
}

/// Weights of some pages, each read once and some again, and a direct constant.
fn drawn(draw: &mut Seeded) -> Model {
    let count = 6 + draw.below(14) as u32;
    let weights: Vec<u64> = (0..count).map(|_| (8 + draw.below(100)) << 10).collect();
    let mut probes: Vec<u32> = (0..count).collect();
    let again = (0..draw.below(4)).map(|_| draw.below(u64::from(count)) as u32);
    probes.extend(again.collect::<Vec<_>>());
    draw.shuffle(&mut probes);
    let one = |id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)];
    let events: Vec<_> = (0..probes.len() as u32).flat_map(one).collect();
    model_of(&weights, &[640], &probes, &events)
}

/// Programs, budgets and times as they come, in any order of the streams; and the same with a fault somewhere.
#[test]
fn any_program_is_right_under_any_times() {
    let mut anew = 0;
    for seed in 0..250 {
        let mut draw = Seeded(seed);
        let model = drawn(&mut draw);
        let floor = model.floor();
        let least = floor.bytes();
        let more = (floor.direct + floor.everything).saturating_sub(least);
        let budget = least + more * draw.below(1000) / 1000;
        let longest = 1 + draw.below(400_000);
        let one = |draw: &mut Seeded| match draw.one_in(6) {
            true => draw.below(longest),
            false => 0,
        };
        let times: Vec<u64> = (0..90).map(|_| one(&mut draw)).collect();
        let start = || {
            let device = sim(Order::Random(seed), Some(times.clone()));
            model
                .session_by(PolicyKind::Planned, device, Some(budget))
                .unwrap()
        };
        let mut session = start();
        for _ in 0..4 {
            play(&model, &mut session, Pass::Complete).unwrap();
            let live = session.device_mut().live_bytes();
            assert!(live <= budget + PAGE);
            assert_eq!(session.device_mut().verdict(), Ok(()), "{seed}");
        }
        anew += session.stats().replans;
        let mut session = start();
        session.device_mut().fail(SimFault {
            call: None,
            after: draw.below(600),
            lost: draw.below(2) == 0,
        });
        for _ in 0..4 {
            // What a kernel reads is compared wherever it runs.
            let _ = play(&model, &mut session, Pass::Complete);
        }
    }
    assert!(anew > 40, "{anew} of 250 stores replanned");
}
