//! Many graphs over one store: for each method, session, shape and plan its own. Whatever is mixed in between, each pass gives what
//! the same pass would give call by call: from its input and from the state of its session.

use crate::graph_support::{budget, capture_all, drawn, with_buffer, Call, Rig};
use crate::session_support::draw::{Draw, Seeded};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use weightstream::device::sim::Order;
use weightstream::device::Sim;
use weightstream::figures::Link;
use weightstream::session::{ByGraph, Stats};
use weightstream::Error;

/// One random sequence. What it counted; `None` where nothing can be captured.
fn sequence(seed: u64, share: u64) -> Option<Stats> {
    let mut draw = Seeded(seed);
    let mut methods = drawn(&mut draw);
    for one in &mut methods {
        // Some reads are of tables of which rows are looked up.
        let reads = 0..one.method.trace.probes().len() as u32;
        one.method.gather = reads.filter(|_| draw.one_in(6)).collect();
    }
    let page = [None, Some(64), Some(256), Some(1024)][draw.below(4) as usize];
    let mut rig = Rig::new(methods, page, share, draw.next());
    if rig.session.allow_capture().is_err() {
        assert_eq!(rig.session.policy(), "lru");
        return None;
    }
    rig.add_session();
    let shapes = draw.between(1, 8);
    // Keys that were run to the end once, and methods that were since the plan changed.
    let (mut seen, mut steady) = (HashSet::new(), HashSet::new());
    for _ in 0..draw.between(8, 40) {
        let call = Call {
            method: draw.below(rig.methods.len() as u64) as usize,
            session: draw.below(2) as usize,
            rows: draw.between(1, shapes),
        };
        let name = (call.method, call.session, call.rows);
        let events = rig.methods[call.method].method.trace.events().len() as u64;
        let end = draw.below(events + 1) as usize;
        match draw.below(16) {
            0 => rig.by_calls(call, Some(end)),
            1 => {
                rig.by_calls(call, None);
                steady.insert(call.method);
            }
            2 => {
                let budget = budget(&rig.methods, draw.below(1100));
                let before = rig.session.stats().budget_bytes;
                match rig.session.set_budget(budget) {
                    Ok(()) if budget != before => steady.clear(),
                    Ok(()) | Err(Error::BudgetTooSmall { .. } | Error::Unsupported(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            3 => {
                rig.end_session();
                seen.retain(|(_, session, _)| *session == 0);
            }
            5 => {
                let calls: Vec<Call> = (1..=shapes).map(|rows| Call { rows, ..call }).collect();
                rig.up_front(&calls, None).unwrap();
                rig.check_states();
                seen.extend(calls.iter().map(|one| (one.method, one.session, one.rows)));
                steady.insert(call.method);
            }
            what => {
                let aborts = (what == 4).then_some(end);
                let how = rig.run(call, aborts);
                let may = seen.contains(&name) && steady.contains(&call.method);
                assert_eq!(how != ByGraph::Calls, may, "{call:?}: {how:?}");
                if how == ByGraph::Calls {
                    seen.insert(name);
                    steady.insert(call.method);
                }
                if how == ByGraph::Capture && aborts.is_some() {
                    seen.remove(&name);
                }
            }
        }
    }
    rig.check_states();
    rig.check();
    let counted = rig.session.stats();
    assert!(counted.peak_bytes <= counted.budget_bytes, "{counted:?}");
    for method in 0..rig.methods.len() {
        for state in &rig.states {
            let gone = rig.session.forget_graphs_of(method, state.as_ref());
            gone.unwrap();
        }
    }
    let stats = rig.session.stats();
    assert_eq!((stats.graphs, stats.graph_bytes), (0, 0));
    let state = rig.states.pop().flatten().unwrap();
    rig.session.free_state(state).unwrap();
    assert_eq!(rig.session.device_mut().live_scratch_bytes(), 0);
    rig.check();
    Some(counted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn graphs_calls_aborts_sessions_and_budgets_in_any_order(seed in any::<u64>(), share in 0..1100u64) {
        sequence(seed, share);
    }
}

/// The sequences above do all that they are meant to do.
#[test]
fn sequences_capture_replay_and_change_plans() {
    let all = (0..60).filter_map(|seed| sequence(seed, seed * 17));
    let all: Vec<Stats> = all.collect();
    let sum = |counter: fn(&Stats) -> u64| all.iter().map(counter).sum::<u64>();
    assert!(all.len() > 20, "{} of 60 plan", all.len());
    assert!(sum(|stats| stats.captures) > 100);
    assert!(sum(|stats| stats.replays) > 200);
    assert!(sum(|stats| stats.graphs_evicted) > 20);
    assert!(sum(|stats| stats.budget_changes) > 20);
}

#[test]
fn sixty_four_shapes_in_random_order_are_replayed() {
    let mut rig = Rig::regular(1, 500);
    let (mut calls, mut replays) = (HashMap::new(), (0, 0));
    let mut draw = Seeded(64);
    for _ in 0..1000 {
        let call = Call {
            method: 0,
            session: 0,
            rows: draw.between(1, 64),
        };
        let how = rig.run(call, None);
        let before = calls.entry(call.rows).or_insert(0);
        *before += 1;
        if *before > 2 {
            replays.0 += u64::from(how == ByGraph::Replay);
            replays.1 += 1;
        }
    }
    rig.check();
    assert!(
        replays.1 > 800 && replays.0 * 100 >= replays.1 * 99,
        "{replays:?}"
    );
    let stats = rig.session.stats();
    assert_eq!((stats.graphs, stats.captures), (64, 64));
    assert_eq!((stats.replays, stats.graphs_evicted), (1000 - 64, 0));
}

/// Each session's graphs write to its own buffers, and go with it.
#[test]
fn sessions_and_methods_have_graphs_of_their_own() {
    let mut rig = Rig::regular(2, 500);
    rig.add_session();
    let call = |method, session| Call {
        method,
        session,
        rows: 3,
    };
    let all = [(0, 0), (0, 1), (1, 0), (1, 1)];
    for how in [ByGraph::Calls, ByGraph::Capture, ByGraph::Replay] {
        for (method, session) in all {
            assert_eq!(rig.run(call(method, session), None), how);
        }
    }
    assert_eq!(rig.session.stats().graphs, 4);
    rig.end_session();
    assert_eq!(rig.session.stats().graphs, 2);
    assert_eq!(rig.session.stats().graphs_evicted, 0);
    assert_eq!(rig.run(call(0, 1), None), ByGraph::Calls);
    assert_eq!(rig.run(call(0, 0), None), ByGraph::Replay);
    rig.check();
}

/// After a change of the budget no graph of before is replayed, and the memory of all of them is given back.
#[test]
fn another_plan_has_other_graphs() {
    let mut rig = Rig::regular(1, 500);
    capture_all(&mut rig, 1..5);
    let more = budget(&rig.methods, 700);
    rig.session.set_budget(more).unwrap();
    let call = Call {
        method: 0,
        session: 0,
        rows: 2,
    };
    assert_eq!(rig.run(call, None), ByGraph::Calls);
    let stats = rig.session.stats();
    assert_eq!((stats.graphs, stats.graphs_evicted), (0, 4));
    assert_eq!(rig.session.device_mut().live_scratch_bytes(), 0);
    assert_eq!(rig.run(call, None), ByGraph::Capture);
    assert_eq!(rig.run(call, None), ByGraph::Replay);
    rig.check();
}

/// A plan that is replaced once kernels were timed outdates the ring: the pass after it fills the new one, and none is captured
/// before.
#[test]
fn nothing_is_captured_before_the_plan_is_the_last_one() {
    const SIZE: u64 = 128 << 10;
    let read = |at: u64| [0, 100, if at.is_multiple_of(4) { 2 * SIZE } else { 0 }];
    let mut sim = Sim::new(Order::Random(5));
    sim.set_link(Link {
        bytes_per_second: 1_000_000_000,
        ns_per_copy: 10,
    });
    sim.set_times((0..24).flat_map(read).collect());
    let mut rig = Rig::on(sim, vec![with_buffer(&[SIZE; 24])], 450, 5);
    rig.session.allow_capture().unwrap();
    let call = Call {
        method: 0,
        session: 0,
        rows: 2,
    };
    let (calls, replay) = (ByGraph::Calls, ByGraph::Replay);
    for how in [calls, calls, calls, ByGraph::Capture, replay, replay] {
        assert_eq!(rig.run(call, None), how);
    }
    assert_eq!(rig.session.stats().replans, 1);
    rig.check();
}
