//! Passes that are captured as graphs, on a device that keeps the driver's rules and plays a graph call by call: replays
//! are right, count as the pass that was captured, and never happen where that pass could not have begun.

use crate::graph_support::{with_buffer, Call, Rig};
use crate::session_support::code::{other, programs};
use crate::session_support::draw::Seeded;
use crate::session_support::{chain, kernel, play, Model, Pass};
use proptest::prelude::*;
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::sim::{Order, SimFault};
use weightstream::device::{DevicePtr, Sim};
use weightstream::schedule::Event;
use weightstream::session::{ByGraph, CapturedPass, Session};
use weightstream::{Error, Result};

/// Pages of one granule to sixteen, and none.
const PAGES: [Option<u64>; 4] = [None, Some(64), Some(256), Some(1024)];

fn session(model: &Model, order: Order, share: u64, page: Option<u64>) -> Session<Sim> {
    let floor = model.floor();
    let least = floor.bytes();
    let budget = least + (floor.direct + floor.everything).saturating_sub(least) * share / 1000;
    let mut sim = Sim::in_one_block(order);
    sim.set_page(page);
    model
        .session_by(PolicyKind::Planned, sim, Some(budget))
        .unwrap()
}

/// A pass of compiled code: kernels take activations, each of which lives until the next kernel but one.
#[derive(Default)]
struct Code {
    open: Vec<(u32, DevicePtr)>,
    live: Vec<(DevicePtr, u64)>,
    /// Where all activations lay.
    all: Vec<DevicePtr>,
}

impl Code {
    fn run(&mut self, model: &Model, session: &mut Session<Sim>) -> Result<()> {
        for event in model.method.trace.events() {
            match *event {
                Event::Probe(id) => self.open.push((id, session.probe(i64::from(id))?)),
                Event::Kernel(number) => {
                    let bytes = 64 + u64::from(number) % 5 * 100;
                    let ptr = session.alloc_activation(bytes)?;
                    self.live.push((ptr, bytes));
                    self.all.push(ptr);
                    session.zero_on_device(ptr, bytes)?;
                    kernel(model, session, number, &self.open);
                    if self.live.len() > 1 {
                        let (ptr, bytes) = self.live.remove(0);
                        session.free_activation(ptr, bytes);
                    }
                }
                Event::Release(id) => {
                    self.open.retain(|(other, _)| *other != id);
                    session.release(i64::from(id));
                }
            }
        }
        Ok(())
    }

    /// Whether it ended well or not, its handles are deleted.
    fn unwind(&mut self, session: &mut Session<Sim>) {
        for (id, _) in self.open.drain(..).rev() {
            session.release(i64::from(id));
        }
        for (ptr, bytes) in self.live.drain(..) {
            session.free_activation(ptr, bytes);
        }
    }
}

/// One pass, as the delegate runs it. Where the activations lay.
fn computed(model: &Model, session: &mut Session<Sim>) -> Result<Vec<DevicePtr>> {
    let mut code = Code::default();
    session.begin_pass()?;
    let ran = code.run(model, session);
    code.unwind(session);
    let ended = session.end_pass(ran.is_ok());
    ran.and(ended).map(|()| code.all)
}

/// As the delegate does it: on an error nothing is left of the capture.
fn capture(
    model: &Model,
    session: &mut Session<Sim>,
) -> Result<(CapturedPass<Sim>, Vec<DevicePtr>)> {
    session.begin_capture()?;
    match computed(model, session) {
        Ok(all) => Ok((session.end_capture()?, all)),
        Err(error) => {
            // The first error says more.
            let _ = session.abandon_capture();
            Err(error)
        }
    }
}

/// Two passes, and a third one that is captured.
fn captured(model: &Model, session: &mut Session<Sim>) -> Result<CapturedPass<Sim>> {
    session.allow_capture()?;
    for _ in 0..2 {
        computed(model, session)?;
    }
    capture(model, session).map(|(graph, _)| graph)
}

/// What a pass counts.
fn counted(session: &mut Session<Sim>, pass: impl FnOnce(&mut Session<Sim>)) -> [u64; 6] {
    let count = |session: &Session<Sim>| {
        let stats = session.stats();
        let (hits, misses) = (stats.hits, stats.misses);
        [
            stats.passes,
            hits,
            misses,
            stats.evictions,
            stats.prefetches,
            stats.bytes_copied,
        ]
    };
    let before = count(session);
    pass(session);
    let after = count(session);
    std::array::from_fn(|at| after[at] - before[at])
}

/// After passes that bring the ring back, one can be captured and replayed, and all of them were right.
fn captures_afresh(model: &Model, session: &mut Session<Sim>) {
    for _ in 0..2 {
        computed(model, session).unwrap();
    }
    session.device_mut().verdict().unwrap();
    let (first, _) = capture(model, session).unwrap();
    let (second, _) = capture(model, session).unwrap();
    // Two graphs of one pass: either is right, in any order.
    for graph in [&second, &first, &second] {
        session.replay(graph).unwrap();
        session.finish_kernels().unwrap();
    }
    session.device_mut().verdict().unwrap();
    session.forget_graph(first).unwrap();
    session.replay(&second).unwrap();
    session.finish_kernels().unwrap();
    session.device_mut().verdict().unwrap();
    session.forget_graph(second).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn replays_are_right_and_count_as_the_pass(
        model in programs(), share in 0..1001u64, page in 0..4usize, order in any::<u64>(), abort in 0..40usize,
    ) {
        let mut session = session(&model, Order::Random(order), share, PAGES[page]);
        if session.policy() == "lru" {
            prop_assert!(matches!(session.allow_capture(), Err(Error::Unsupported(_))));
            return Ok(());
        }
        let graph = captured(&model, &mut session).unwrap();
        let by_replay = counted(&mut session, |session| session.replay(&graph).unwrap());
        session.finish_kernels().unwrap();
        session.device_mut().verdict().unwrap();
        for _ in 0..3 {
            session.replay(&graph).unwrap();
            session.finish_kernels().unwrap();
        }
        session.device_mut().verdict().unwrap();
        session.validate().unwrap();
        // Right behind a replay whose kernels the host has not waited for.
        session.replay(&graph).unwrap();
        computed(&model, &mut session).unwrap();
        session.device_mut().verdict().unwrap();
        // One that is issued call by call counts as much, and leaves the ring as the graph expects it.
        let by_call = counted(&mut session, |session| drop(computed(&model, session).unwrap()));
        prop_assert_eq!(by_replay, by_call, "replay, call by call");
        session.replay(&graph).unwrap();
        session.finish_kernels().unwrap();
        session.device_mut().verdict().unwrap();

        // Behind a pass that was aborted there is no replay before a complete one. It came right behind a replay.
        session.replay(&graph).unwrap();
        play(&model, &mut session, Pass::AbortAt(abort)).unwrap();
        session.device_mut().verdict().unwrap();
        if !session.is_primed(&graph) {
            prop_assert!(matches!(session.replay(&graph), Err(Error::Internal(_))));
            computed(&model, &mut session).unwrap();
            computed(&model, &mut session).unwrap();
        }
        prop_assert!(session.is_primed(&graph));
        session.replay(&graph).unwrap();
        session.finish_kernels().unwrap();
        session.device_mut().verdict().unwrap();
        prop_assert_eq!(session.device_mut().live_scratch_bytes() > 0, model.method.trace.events().iter().any(|e| matches!(e, Event::Kernel(_))));
        session.forget_graph(graph).unwrap();
        prop_assert_eq!(session.device_mut().live_scratch_bytes(), 0);
    }

    /// Whatever call fails, once or from then on: an error, and what comes behind it is right.
    #[test]
    fn a_failure_leaves_nothing_of_a_capture(
        model in programs(), share in 0..1000u64, page in 0..4usize, after in 0..120u64, lost in any::<bool>(),
    ) {
        let mut session = session(&model, Order::KernelsFirst, share, PAGES[page]);
        if session.policy() == "lru" {
            return Ok(());
        }
        session.allow_capture().unwrap();
        for _ in 0..2 {
            computed(&model, &mut session).unwrap();
        }
        session.device_mut().fail(SimFault { call: None, after, lost });
        let outcome = capture(&model, &mut session).map(drop);
        let failed = session.device_mut().pending_fault().is_none();
        session.device_mut().fail(None);
        prop_assert_eq!(outcome.is_err(), failed, "{:?}", outcome);
        if lost && failed {
            // What was lost on the way cannot be given back.
            return Ok(());
        }
        captures_afresh(&model, &mut session);
    }
}

#[test]
fn activations_lie_in_the_block_once_there_is_one() {
    let model = chain(&[640; 10]);
    let mut session = session(&model, Order::CopiesFirst, 500, Some(64));
    session.allow_capture().unwrap();
    let mut first = computed(&model, &mut session).unwrap();
    first.extend(computed(&model, &mut session).unwrap());
    let peak = session.activation_peak_bytes();
    let (graph, places) = capture(&model, &mut session).unwrap();
    let block = session.lasting(&graph).remove(0);
    assert!(first.iter().all(|ptr| !block.contains(&ptr.0)));
    assert!(places.iter().all(|ptr| block.contains(&ptr.0)));
    assert!(
        block.end - block.start < 2 * peak,
        "{block:?}, {peak} at one time"
    );
    let held = session.device_mut().live_scratch_bytes();
    session.replay(&graph).unwrap();
    // Right after a replay whose kernels the host has not waited for.
    for _ in 0..2 {
        assert_eq!(computed(&model, &mut session).unwrap(), places);
        session.replay(&graph).unwrap();
    }
    session.finish_kernels().unwrap();
    assert_eq!(session.device_mut().live_scratch_bytes(), held);
    session.device_mut().verdict().unwrap();
}

/// A pass that reads something back cannot be captured: it says so, and later ones are right.
#[test]
fn what_the_host_reads_in_a_pass_cannot_be_captured() {
    let model = chain(&[640; 10]);
    let mut session = session(&model, Order::CopiesFirst, 500, Some(64));
    let graph = captured(&model, &mut session).unwrap();
    session.begin_capture().unwrap();
    session.begin_pass().unwrap();
    let at = session.probe(0).unwrap();
    let error = session.read_from_device(at, &mut [0; 8]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a read of values by the host cannot be captured"),
        "{error}"
    );
    session.release(0);
    session.end_pass(false).unwrap();
    session.abandon_capture().unwrap();
    assert!(session.replay(&graph).is_err());
    captures_afresh(&model, &mut session);
}

#[test]
fn an_activation_larger_than_any_device_is_an_error() {
    let model = chain(&[640; 10]);
    let mut session = session(&model, Order::CopiesFirst, 500, Some(64));
    session.allow_capture().unwrap();
    session.begin_pass().unwrap();
    for bytes in [u64::MAX, u64::MAX - 64, 1 << 63, (1 << 60) + 1] {
        let error = session.alloc_activation(bytes).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    }
    session.end_pass(false).unwrap();
    computed(&model, &mut session).unwrap();
    session.device_mut().verdict().unwrap();
}

/// The first pass finds an empty ring and leaves a full one. What was captured of it and thrown away has not happened.
#[test]
fn a_pass_that_leaves_another_state_cannot_be_captured() {
    let model = chain(&[640; 10]);
    let mut session = session(&model, Order::CopiesFirst, 500, Some(64));
    session.allow_capture().unwrap();
    session.begin_capture().unwrap();
    play(&model, &mut session, Pass::Complete).unwrap();
    let error = session.end_capture().err().unwrap();
    assert!(
        error
            .to_string()
            .contains("left other weights on the device"),
        "{error}"
    );
    captures_afresh(&model, &mut session);
}

/// A graph holds the addresses and the copies of its plan: another one's are elsewhere, even if nothing of it streams.
#[test]
fn a_graph_of_another_budget_is_never_replayed() {
    let model = chain(&[4096; 12]);
    let all = model.floor().everything;
    for (first, second) in [(all, all / 2), (all / 2, all), (all / 2, all / 4 * 3)] {
        let sim = Sim::in_one_block(Order::Random(first));
        let mut session = model
            .session_by(PolicyKind::Planned, sim, Some(all / 3 * 2))
            .unwrap();
        session.set_budget(first).unwrap();
        let graph = captured(&model, &mut session).unwrap();
        assert!(session.prime(&graph).unwrap() && !session.is_outdated(&graph));
        session.replay(&graph).unwrap();
        session.finish_kernels().unwrap();
        session.set_budget(second).unwrap();
        computed(&model, &mut session).unwrap();
        session.set_budget(first).unwrap();
        for _ in 0..2 {
            assert!(session.is_outdated(&graph) && !session.prime(&graph).unwrap());
            assert!(session.replay(&graph).is_err());
            computed(&model, &mut session).unwrap();
        }
        session.forget_graph(graph).unwrap();
        let (again, _) = capture(&model, &mut session).unwrap();
        session.replay(&again).unwrap();
        session.finish_kernels().unwrap();
        session.forget_graph(again).unwrap();
        session.device_mut().verdict().unwrap();
    }
}

/// The host waits for no kernel of a replay: another method's, right behind it, brings its tails once they are read.
#[test]
fn a_ring_is_brought_back_behind_the_replay_before() {
    for seed in 0..40 {
        let first = with_buffer(&[1024; 12]);
        let second = other(&first, &mut Seeded(seed));
        let mut rig = Rig::new(vec![first, second], Some(256), 500, seed);
        rig.session.allow_capture().unwrap();
        let calls = [0, 1].map(|method| Call {
            method,
            session: 0,
            rows: 3,
        });
        for how in [ByGraph::Calls, ByGraph::Capture] {
            for call in calls {
                assert_eq!(rig.run(call, None), how);
            }
        }
        for call in calls.into_iter().cycle().take(6) {
            let key = rig.key(call);
            assert_eq!(rig.session.next_by_graph(&key).unwrap(), ByGraph::Replay);
            if rig.session.replay_kept(&key).is_err() {
                // Both methods have the same ring: nobody has waited for the block of activations.
                rig.session.finish_kernels().unwrap();
                rig.session.replay_kept(&key).unwrap();
            }
        }
        rig.session.finish_kernels().unwrap();
        rig.check();
    }
}
