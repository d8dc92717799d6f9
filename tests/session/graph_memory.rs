//! The memory of graphs: all of them lie in one block, which grows, and together they keep to a cap.

use crate::graph_support::{capture_all, regular, Call, Rig};
use weightstream::aoti::hooks::PassHooks;
use weightstream::device::{Device, GRAPH_STEP};
use weightstream::session::ByGraph;

#[test]
fn all_shapes_take_the_memory_of_the_largest() {
    let mut alone = Rig::regular(1, 500);
    capture_all(&mut alone, 100..101);
    let largest = alone.session.device_mut().live_scratch_bytes();
    assert!(largest > 100 * 64);
    for descending in [false, true] {
        let mut rig = Rig::regular(1, 500);
        match descending {
            true => capture_all(&mut rig, (1..101).rev()),
            false => capture_all(&mut rig, 1..101),
        }
        assert_eq!(rig.session.stats().graphs, 100);
        assert_eq!(rig.session.device_mut().live_scratch_bytes(), largest);
        assert_eq!(
            rig.session.activation_peak_bytes(),
            alone.session.activation_peak_bytes()
        );
        rig.check();
    }
}

/// Graphs that were captured before the block grew lie where they lay.
#[test]
fn a_block_grows_under_its_graphs() {
    let mut rig = Rig::regular(2, 500);
    rig.add_session();
    capture_all(&mut rig, [3, 1, 50, 7, 90].into_iter());
    for rows in [1, 90, 3, 50, 7, 1] {
        let call = Call {
            method: 0,
            session: 0,
            rows,
        };
        assert_eq!(rig.run(call, None), ByGraph::Replay);
    }
    assert_eq!(rig.session.stats().graphs_evicted, 0);
    rig.check();
}

/// A pass that is issued call by call takes what the graphs have, and the block grows under it where that is not enough.
#[test]
fn passes_by_calls_take_no_memory_beside_the_block() {
    let mut rig = Rig::regular(2, 500);
    rig.add_session();
    let call = |method, session, rows| Call {
        method,
        session,
        rows,
    };
    capture_all(&mut rig, [5].into_iter());
    let block = |rig: &mut Rig| rig.session.device_mut().live_scratch_bytes();
    let held = block(&mut rig);
    for (method, session, rows) in [(0, 0, 5), (1, 0, 3), (0, 1, 4), (0, 0, 1)] {
        rig.by_calls(call(method, session, rows), None);
        assert_eq!(rig.run(call(0, 0, 5), None), ByGraph::Replay);
    }
    assert_eq!(block(&mut rig), held);
    // The largest shape grows it before its graph is there, but for the inputs.
    rig.by_calls(call(1, 1, 40), None);
    let grown = block(&mut rig);
    assert!(grown > 4 * held, "{held} to {grown} bytes");
    assert_eq!(rig.run(call(0, 0, 5), None), ByGraph::Replay);
    capture_all(&mut rig, [40].into_iter());
    assert_eq!(block(&mut rig), grown + 40 * 64);
    assert_eq!(rig.run(call(0, 0, 5), None), ByGraph::Replay);
    assert_eq!(rig.session.stats().graphs_evicted, 0);
    rig.check();
}

/// A block that cannot grow under a pass is an error of that pass.
#[test]
fn a_block_that_cannot_grow_fails_the_pass() {
    let mut rig = Rig::regular(1, 500);
    let call = |rows| Call {
        method: 0,
        session: 0,
        rows,
    };
    capture_all(&mut rig, [2].into_iter());
    rig.session.begin_pass().unwrap();
    rig.session.device_mut().fail_call("create", 0);
    let error = rig.session.alloc_activation(1 << 20).unwrap_err();
    assert!(error.to_string().contains("1048576 bytes"), "{error}");
    rig.session.end_pass(false).unwrap();
    assert_eq!(rig.run(call(2), None), ByGraph::Replay);
    rig.by_calls(call(9), None);
    rig.check();
}

/// Where memory cannot be mapped a larger block takes the place of a smaller one, and the graphs of that are captured again.
#[test]
fn without_pages_a_larger_shape_outdates_the_others() {
    let mut rig = Rig::new(regular(1), None, 1000, 3);
    rig.session.allow_capture().unwrap();
    capture_all(&mut rig, [2, 1, 5].into_iter());
    let shape = |rows| Call {
        method: 0,
        session: 0,
        rows,
    };
    assert_eq!(rig.session.stats().graphs, 3);
    for (rows, how) in [
        (5, ByGraph::Replay),
        (2, ByGraph::Capture),
        (1, ByGraph::Capture),
        (2, ByGraph::Replay),
        (5, ByGraph::Replay),
    ] {
        assert_eq!(rig.run(shape(rows), None), how, "{rows} rows");
    }
    assert_eq!(rig.session.stats().graphs_evicted, 2);
    rig.check();
}

/// A second replay would write to what the first one computed, before anybody has read it.
#[test]
fn two_replays_on_one_block_are_an_error() {
    let mut rig = Rig::regular(1, 500);
    capture_all(&mut rig, 1..3);
    let call = |rows| Call {
        method: 0,
        session: 0,
        rows,
    };
    let (first, second) = (rig.key(call(1)), rig.key(call(2)));
    let ends = rig.session.ends_of(&first).unwrap();
    let input = rig.input(1);
    let device = rig.session.device_mut();
    device.upload(ends.inputs[0].unwrap().0, &input).unwrap();
    rig.session.replay_kept(&first).unwrap();
    for key in [&first, &second] {
        let error = rig.session.replay_kept(key).unwrap_err().to_string();
        assert!(error.contains("another replay has the block"), "{error}");
        assert!(rig.session.ends_of(key).is_err());
    }
    rig.expect(call(1), &input);
    rig.session.finish_kernels().unwrap();
    rig.replay(&second, call(2));
    rig.replay(&first, call(1));
    assert_eq!(rig.session.stats().replays, 5);
    rig.check();
}

#[test]
fn graphs_keep_to_their_cap_and_the_oldest_go() {
    let mut rig = Rig::regular(1, 500);
    let shape = |rows| Call {
        method: 0,
        session: 0,
        rows,
    };
    capture_all(&mut rig, 1..2);
    let one = rig.session.stats().graph_bytes;
    assert!(one > 0);
    rig.session.raise_graph_cap(Some(3 * one)).unwrap();
    capture_all(&mut rig, 2..4);
    assert_eq!(rig.run(shape(1), None), ByGraph::Replay);
    capture_all(&mut rig, 4..5);
    let stats = rig.session.stats();
    assert_eq!((stats.graphs, stats.graphs_evicted), (3, 1));
    assert_eq!(stats.graph_bytes, 3 * one);
    for rows in [1, 3, 4] {
        assert_eq!(rig.run(shape(rows), None), ByGraph::Replay, "{rows} rows");
    }
    // The second one went: its shape has to come twice again.
    assert_eq!(rig.run(shape(2), None), ByGraph::Calls);
    assert_eq!(rig.run(shape(2), None), ByGraph::Capture);
    assert_eq!(rig.session.stats().graph_bytes, 3 * one);
    rig.check();
}

/// A driver that takes twice what the nodes say, in steps, and gives nothing back: memory of graphs that went is for later ones.
#[test]
fn the_cap_is_one_of_what_the_driver_took() {
    let mut rig = Rig::regular(1, 500);
    let cap = 4 * GRAPH_STEP;
    rig.session.raise_graph_cap(Some(cap)).unwrap();
    rig.session.device_mut().take_for_graphs(2, GRAPH_STEP);
    let mut kept = Vec::new();
    for rows in 1..200 {
        capture_all(&mut rig, rows..rows + 1);
        let stats = rig.session.stats();
        assert!(stats.graph_bytes <= cap + GRAPH_STEP, "{stats:?}");
        kept.push(stats.graphs);
    }
    assert!(rig.session.stats().graphs_evicted > 20, "{kept:?}");
    // As many as there is memory for, also after many that went.
    let (most, late) = (*kept.iter().max().unwrap(), &kept[150..]);
    assert!(
        late.iter()
            .all(|count| count.abs_diff(late[0]) <= 1 && count * 10 >= most * 7),
        "{kept:?}"
    );
    assert_eq!(rig.session.stats().graph_bytes, cap + GRAPH_STEP);
    rig.check();
}

#[test]
fn a_graph_above_the_cap_is_not_kept() {
    let mut rig = Rig::regular(1, 500);
    rig.session.raise_graph_cap(Some(100)).unwrap();
    let call = Call {
        method: 0,
        session: 0,
        rows: 2,
    };
    let how: Vec<ByGraph> = (0..4).map(|_| rig.run(call, None)).collect();
    let calls = ByGraph::Calls;
    assert_eq!(how, [calls, ByGraph::Capture, calls, calls]);
    assert_eq!(rig.session.stats().graphs, 0);
    assert_eq!(rig.session.device_mut().live_scratch_bytes(), 0);
    rig.check();
}

/// A block that cannot grow is an error of that pass. Graphs of before stay, and the next pass over these shapes is right.
#[test]
fn a_block_that_cannot_grow_costs_one_pass() {
    let mut rig = Rig::regular(1, 500);
    let shape = |rows| Call {
        method: 0,
        session: 0,
        rows,
    };
    capture_all(&mut rig, 2..3);
    assert_eq!(rig.run(shape(9), None), ByGraph::Calls);
    let key = rig.key(shape(9));
    assert_eq!(rig.session.next_by_graph(&key), Ok(ByGraph::Capture));
    rig.session.device_mut().fail_call("create", 0);
    assert!(rig.session.begin_capture_of(&key, 9 * 64).is_err());
    rig.session.forget_shapes(&key);
    assert_eq!(rig.run(shape(2), None), ByGraph::Replay);
    for how in [ByGraph::Calls, ByGraph::Capture, ByGraph::Replay] {
        assert_eq!(rig.run(shape(9), None), how);
    }
    assert_eq!(rig.run(shape(2), None), ByGraph::Replay);
    rig.check();
}
