//! Graphs captured before anybody asks for them: the first call over each shape is a replay, and nothing else has changed.

use crate::graph_support::{budget, drawn, regular, with_buffer, Call, Rig, Rows};
use crate::session_support::draw::{Draw, Seeded};
use proptest::prelude::*;
use weightstream::device::sim::Order;
use weightstream::device::Sim;
use weightstream::figures::Link;
use weightstream::session::ByGraph;
use weightstream::Error;

fn calls(method: usize, session: usize, rows: &[Rows]) -> Vec<Call> {
    let call = |&rows: &Rows| Call {
        method,
        session,
        rows,
    };
    rows.iter().map(call).collect()
}

#[test]
fn the_first_call_over_each_shape_is_a_replay_and_the_state_is_as_before() {
    let mut rig = Rig::regular(2, 500);
    rig.add_session();
    for (method, session) in [(0, 0), (1, 1), (0, 1)] {
        rig.by_calls(calls(method, session, &[3])[0], None);
    }
    rig.check_states();
    let all = [(0, 0), (1, 0), (0, 1)].map(|(method, session)| calls(method, session, &[1, 4, 2]));
    for calls in &all {
        rig.up_front(calls, None).unwrap();
        rig.check_states();
    }
    let stats = rig.session.stats();
    assert_eq!((stats.graphs, stats.captures, stats.replays), (9, 9, 0));
    for call in all.iter().flatten() {
        assert_eq!(rig.run(*call, None), ByGraph::Replay, "{call:?}");
    }
    // Another session has none.
    assert_eq!(rig.run(calls(1, 1, &[1])[0], None), ByGraph::Calls);
    rig.check_states();
    rig.check();
}

/// Where a block cannot grow, a larger shape would outdate the graphs of those before it.
#[test]
fn the_largest_shape_is_captured_first() {
    let mut rig = Rig::new(regular(1), None, 1000, 3);
    rig.session.allow_capture().unwrap();
    let calls = calls(0, 0, &[2, 1, 5, 3]);
    rig.up_front(&calls, None).unwrap();
    for call in calls {
        assert_eq!(rig.run(call, None), ByGraph::Replay, "{call:?}");
    }
    assert_eq!(rig.session.stats().graphs_evicted, 0);
    rig.check();
}

/// Kernels are timed first: a graph of the plan before would be given up again.
#[test]
fn graphs_are_of_the_plan_that_kernel_times_bring() {
    const SIZE: u64 = 128 << 10;
    for shapes in [&[2][..], &[1, 2], &[3, 1, 2]] {
        let read = |at: u64| [0, 100, if at.is_multiple_of(4) { 2 * SIZE } else { 0 }];
        let mut sim = Sim::new(Order::Random(5));
        sim.set_link(Link {
            bytes_per_second: 1_000_000_000,
            ns_per_copy: 10,
        });
        sim.set_times((0..24).flat_map(read).collect());
        let mut rig = Rig::on(sim, vec![with_buffer(&[SIZE; 24])], 450, 5);
        rig.session.allow_capture().unwrap();
        let calls = calls(0, 0, shapes);
        rig.up_front(&calls, None).unwrap();
        let stats = rig.session.stats();
        assert_eq!((stats.replans, stats.captures), (1, shapes.len() as u64));
        for call in calls {
            assert_eq!(rig.run(call, None), ByGraph::Replay, "{call:?}");
        }
        rig.check_states();
        rig.check();
    }
}

#[test]
fn graphs_that_do_not_fit_together_are_refused() {
    let mut rig = Rig::regular(1, 500);
    let shapes = calls(0, 0, &[3, 2, 1]);
    rig.up_front(&shapes[..1], None).unwrap();
    let one = rig.session.stats().graph_bytes;
    for (cap, fit) in [(one - 1, 0), (2 * one, 2)] {
        let mut rig = Rig::regular(1, 500);
        rig.session.raise_graph_cap(Some(cap)).unwrap();
        let refused = rig.up_front(&shapes, None).unwrap_err();
        let Error::Option { key, what } = &refused else {
            panic!("{refused}");
        };
        assert_eq!(key, "weight_offload_graph_shapes");
        let told = format!("{fit} of them fit into the {cap} bytes of weight_offload_graph_mb");
        assert!(what.contains(&told) && what.contains("rows="), "{what}");
        rig.check_states();
        rig.run(shapes[0], None);
        rig.check();
    }
}

/// A capture that fails is an error with the shape and the reason; the state is as before, the next pass right, and nothing is left.
#[test]
fn a_failed_capture_names_its_shape_and_leaves_nothing() {
    let shapes = calls(0, 0, &[1, 3, 2]);
    for (fails, event) in [(0, 0), (1, 5), (2, 100)] {
        let mut rig = Rig::regular(1, 500);
        rig.by_calls(calls(0, 0, &[2])[0], None);
        let refused = rig.up_front(&shapes, Some((fails, event))).unwrap_err();
        let told = format!(
            "capturing the graph of rows={}: reading a value in the middle of a pass",
            shapes[fails].rows
        );
        assert_eq!(refused, Error::Unsupported(told));
        rig.check_states();
        rig.by_calls(shapes[fails], None);
        rig.session.forget_graphs_of(0, None).unwrap();
        let stats = rig.session.stats();
        assert_eq!((stats.graphs, stats.graph_bytes), (0, 0));
        assert_eq!(rig.session.device_mut().live_scratch_bytes(), 0);
        // Afterwards all is as if nobody had tried.
        rig.up_front(&shapes, None).unwrap();
        assert_eq!(rig.run(shapes[0], None), ByGraph::Replay);
        rig.check();
    }
}

/// Each device call of it fails once: an error, and the state is as before, unless it was the call that brings it back.
#[test]
fn device_calls_that_fail_leave_the_state() {
    let shapes = calls(0, 0, &[2, 3]);
    for call in [
        "alloc_scratch",
        "create",
        "begin_capture",
        "download",
        "bring",
        "zero",
    ] {
        for after in [0, 1] {
            let mut rig = Rig::regular(1, 500);
            rig.by_calls(calls(0, 0, &[2])[0], None);
            rig.session.device_mut().fail_call(call, after);
            if rig.up_front(&shapes, None).is_ok() {
                continue;
            }
            assert_eq!(rig.session.device_mut().pending_fault(), None);
            rig.check_states();
            rig.check();
        }
    }
}

/// Random programs, shapes, sessions and budgets. `PROPTEST_CASES=20000` for many.
fn sequence(seed: u64, share: u64) {
    let mut draw = Seeded(seed);
    let methods = drawn(&mut draw);
    let page = [None, Some(64), Some(256), Some(1024)][draw.below(4) as usize];
    let mut rig = Rig::new(methods, page, share, draw.next());
    if rig.session.allow_capture().is_err() {
        return;
    }
    rig.add_session();
    for _ in 0..draw.between(1, 8) {
        let method = draw.below(rig.methods.len() as u64) as usize;
        let session = draw.below(2) as usize;
        let mut rows: Vec<Rows> = (1..=6).filter(|_| draw.one_in(2)).collect();
        rows.push(7 + draw.below(3));
        let calls = calls(method, session, &rows);
        let events = rig.methods[method].method.trace.events().len() as u64;
        let fails = draw.one_in(5).then(|| {
            let shape = draw.below(rows.len() as u64) as usize;
            (shape, draw.below(events + 1) as usize)
        });
        let captured = rig.up_front(&calls, fails);
        rig.check_states();
        match captured {
            Ok(()) => {
                let order = draw.below(rows.len() as u64) as usize;
                for at in 0..rows.len() {
                    let call = calls[(at + order) % rows.len()];
                    assert_eq!(rig.run(call, None), ByGraph::Replay, "{call:?}");
                }
            }
            Err(error) => assert!(fails.is_some(), "{error}"),
        }
        match draw.below(4) {
            0 => rig.end_session(),
            1 => {
                let bytes = budget(&rig.methods, draw.below(1100));
                match rig.session.set_budget(bytes) {
                    Ok(()) | Err(Error::BudgetTooSmall { .. } | Error::Unsupported(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            _ => rig.by_calls(calls[0], None),
        }
        rig.check_states();
    }
    rig.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn graphs_up_front_change_nothing_else(seed in any::<u64>(), share in 0..1100u64) {
        sequence(seed, share);
    }
}
