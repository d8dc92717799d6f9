//! Captures that share units, on the simulated device and in host memory: the memory of the largest, addresses of their own, replays
//! that do not overlap. And segments of another allocator.

use crate::elastic_support::cpu_pool;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use weightstream::device::sim::{Actor, Order};
use weightstream::device::{Device, DevicePtr, HostBytes, HostPages, Pages, Sim, UserStreams};
use weightstream::elastic::range::Answer;
use weightstream::elastic::{CaptureId, DevicePool, GraphPool, Ranges, Segments};
use weightstream::{Error, Result};

/// Pages and units of the simulated device.
const PAGE: u64 = 256;
const UNIT: u64 = 4 * PAGE;
/// Pieces begin at multiples of it.
const ALIGNMENT: u64 = 512;

struct World {
    pool: Arc<DevicePool>,
    ranges: Arc<Ranges<Sim>>,
}

fn world(order: Order, units: u64) -> World {
    let pool = Arc::new(DevicePool::new("sim"));
    pool.set_cap(Some(units * UNIT)).unwrap();
    let ranges = Ranges::new(Sim::new(order), &pool);
    World { pool, ranges }
}

impl World {
    fn graphs(&self, units: u64) -> GraphPool<Sim> {
        GraphPool::new(&self.ranges, "g", Some(units * UNIT)).unwrap()
    }

    /// Memory that the device, the ranges and the pool agree on.
    fn held(&self) -> u64 {
        let held = self.ranges.held();
        assert_eq!(self.ranges.with_device(|sim| sim.live_bytes()), held);
        assert_eq!(self.pool.report().ranges, held);
        held
    }

    fn verdict(&self) {
        if let Err(problems) = self.ranges.with_device(|sim| sim.verdict()) {
            panic!("{problems}");
        }
    }
}

/// A capture, as its graph knows it.
struct Graph {
    id: CaptureId,
    pieces: Vec<(DevicePtr, u64)>,
}

fn capture<D: UserStreams + 'static>(pool: &GraphPool<D>, sizes: &[u64]) -> Result<Graph> {
    let id = pool.begin()?;
    let got: Result<Vec<_>> = sizes
        .iter()
        .map(|&bytes| Ok((pool.alloc(bytes)?, bytes)))
        .collect();
    match got {
        Ok(pieces) => {
            pool.end(true)?;
            Ok(Graph { id, pieces })
        }
        Err(error) => {
            pool.end(false)?;
            Err(error)
        }
    }
}

fn leaked(byte: u8, bytes: u64) -> HostBytes {
    HostBytes::from_static(Box::leak(vec![byte; bytes as usize].into_boxed_slice()))
}

/// A replay writes each of its pieces and reads it.
fn replay(world: &World, pool: &GraphPool<Sim>, graph: &Graph, stream: Actor, byte: u8) {
    pool.enter(graph.id, stream).unwrap();
    world.ranges.with_device(|sim| {
        for &(at, bytes) in &graph.pieces {
            if stream == Actor::Copy {
                sim.bring(at, leaked(byte, bytes)).unwrap();
                continue;
            }
            // An upload goes to one unit.
            let mut done = 0;
            while done < bytes {
                let part = 128.min(bytes - done);
                let to = at.offset(done);
                sim.upload(to, &vec![byte; part as usize]).unwrap();
                done += part;
            }
            sim.kernel(1, &[(at, leaked(byte, bytes))]).unwrap();
        }
    });
}

/// Pieces of one group keep each other's memory, and groups share theirs.
#[test]
fn a_capture_that_goes_on_keeps_what_it_has() {
    let world = world(Order::KernelsFirst, 8);
    let pool = world.graphs(6);
    let group = |units: &[u64]| {
        let mut group = capture(&pool, &[units[0] * UNIT]).unwrap();
        for more in &units[1..] {
            pool.resume(group.id).unwrap();
            assert!(pool.begin().is_err() && pool.resume(group.id).is_err());
            group
                .pieces
                .push((pool.alloc(more * UNIT).unwrap(), more * UNIT));
            pool.end(true).unwrap();
        }
        group
    };
    let groups = [group(&[1, 2]), group(&[2, 1, 1])];
    assert_eq!(world.held(), 4 * UNIT);
    let used: Vec<u64> = pool.report().captures.iter().map(|one| one.bytes).collect();
    assert_eq!(used, [3 * UNIT, 4 * UNIT]);
    for (number, group) in groups.iter().cycle().take(6).enumerate() {
        // Each piece has other bytes, and all are there at the end.
        pool.enter(group.id, Actor::Compute).unwrap();
        world.ranges.with_device(|sim| {
            let byte = |at: usize| (number * 8 + at) as u8;
            for (at, &(piece, bytes)) in group.pieces.iter().enumerate() {
                let mut done = 0;
                while done < bytes {
                    let part = 128.min(bytes - done);
                    sim.upload(piece.offset(done), &vec![byte(at); part as usize])
                        .unwrap();
                    done += part;
                }
            }
            let there = group.pieces.iter().enumerate();
            let there: Vec<_> = there
                .map(|(at, &(piece, bytes))| (piece, leaked(byte(at), bytes)))
                .collect();
            sim.kernel(1, &there).unwrap();
        });
    }
    // A piece that fails leaves the others.
    pool.resume(groups[0].id).unwrap();
    assert!(pool.alloc(9 * UNIT).is_err());
    pool.end(false).unwrap();
    pool.enter(groups[0].id, Actor::Compute).unwrap();
    for group in groups {
        group
            .pieces
            .iter()
            .for_each(|(at, _)| assert!(pool.free(*at)));
        pool.release(group.id).unwrap();
        assert!(pool.resume(group.id).is_err());
    }
    assert_eq!(world.held(), 0);
    world.verdict();
}

#[test]
fn captures_take_the_memory_of_the_largest() {
    for sizes in [[1, 3, 5], [5, 3, 1]] {
        let world = world(Order::KernelsFirst, 8);
        let pool = world.graphs(6);
        assert_eq!(world.held(), 0, "a pool costs nothing");
        let mut most = 0;
        let mut graphs = Vec::new();
        for units in sizes {
            graphs.push(capture(&pool, &[UNIT; 8][..units]).unwrap());
            most = most.max(units as u64 * UNIT);
            assert_eq!(world.held(), most);
        }
        for (at, graph) in graphs.iter().enumerate() {
            replay(&world, &pool, graph, Actor::Compute, at as u8);
        }
        let report = pool.report();
        assert_eq!(report.bytes, 5 * UNIT);
        assert_eq!(
            report.captures.iter().map(|one| one.bytes).sum::<u64>(),
            9 * UNIT
        );
        world.verdict();
    }
}

#[test]
fn each_capture_has_its_own_addresses_over_the_same_bytes() {
    let pool = Arc::new(DevicePool::new("cpu"));
    let ranges = Ranges::new(HostPages::new().unwrap(), &pool);
    let unit = HostPages::new().unwrap().unit();
    pool.set_cap(Some(4 * unit)).unwrap();
    let graphs = GraphPool::new(&ranges, "g", Some(4 * unit)).unwrap();
    let sizes = [unit / 2, unit, 3 * unit / 2];
    let all = [&sizes[..1], &sizes, &sizes[..2]].map(|sizes| capture(&graphs, sizes).unwrap());
    assert_eq!(ranges.held(), 3 * unit);
    let at = |ptr: DevicePtr| std::ptr::with_exposed_provenance_mut::<u8>(ptr.0 as usize);
    let places: Vec<_> = all.iter().flat_map(|graph| &graph.pieces).collect();
    for (one, first) in places.iter().enumerate() {
        for second in &places[one + 1..] {
            let apart = first.0.offset(first.1) <= second.0 || second.0.offset(second.1) <= first.0;
            assert!(apart, "{first:?} {second:?}");
        }
    }
    for (writer, byte) in all.iter().zip(1..) {
        // SAFETY: pieces of captures of this test, with memory.
        unsafe { at(writer.pieces[0].0).write(byte) };
        // SAFETY: the same.
        let seen = all
            .each_ref()
            .map(|graph| unsafe { at(graph.pieces[0].0).read() });
        assert_eq!(seen, [byte; 3]);
    }
    for graph in all {
        graphs.release(graph.id).unwrap();
        graph
            .pieces
            .iter()
            .for_each(|&(at, _)| assert!(graphs.free(at)));
    }
    graphs.close().unwrap();
    assert_eq!(ranges.held(), 0);
}

#[test]
fn a_cap_is_named_and_a_failed_capture_leaves_nothing() {
    let world = world(Order::KernelsFirst, 16);
    let pool = world.graphs(3);
    let kept = capture(&pool, &[UNIT]).unwrap();
    let id = pool.begin().unwrap();
    let first = pool.alloc(2 * UNIT).unwrap();
    assert_eq!(world.held(), 2 * UNIT);
    let Err(Error::OutOfMemory { what, bytes }) = pool.alloc(UNIT + 1) else {
        panic!("more than the cap");
    };
    let (used, cap) = (2 * UNIT, 3 * UNIT);
    assert!(
        what.contains(&format!(
            "'g', which has {used} bytes of a cap of {cap} bytes"
        )),
        "{what}"
    );
    assert_eq!(bytes, UNIT + 1);
    assert!(pool.report().refused.unwrap().contains(&what));
    assert!(pool.free(first));
    pool.end(false).unwrap();
    assert_eq!((world.held(), pool.report().captures.len()), (UNIT, 1));
    assert!(pool.enter(id, Actor::Compute).is_err());
    // The pool goes on.
    let next = capture(&pool, &[3 * UNIT]).unwrap();
    assert_eq!(pool.report().refused, None);
    replay(&world, &pool, &kept, Actor::Compute, 1);
    replay(&world, &pool, &next, Actor::Compute, 2);
    world.verdict();
}

#[test]
fn the_device_refuses_with_both_numbers() {
    let world = world(Order::KernelsFirst, 2);
    let pool = world.graphs(8);
    let Err(Error::OutOfMemory { what, .. }) = capture(&pool, &[UNIT, 3 * UNIT]) else {
        panic!("more than the device's budget");
    };
    let holds = UNIT;
    assert!(
        what.contains(&format!(
            "holds {holds} bytes: the device's budget is taken"
        )),
        "{what}"
    );
    // The piece that it got was not freed: its addresses stay until it is.
    let report = pool.report();
    assert!(report.captures[0].ended);
    assert!(pool
        .close()
        .unwrap_err()
        .to_string()
        .contains("captures that were not released, or whose tensors live: 1"));
}

#[test]
fn a_capture_stays_until_its_pieces_are_free_and_its_replays_done() {
    let world = world(Order::KernelsFirst, 8);
    let pool = world.graphs(4);
    let small = capture(&pool, &[UNIT]).unwrap();
    let large = capture(&pool, &[UNIT, UNIT]).unwrap();
    replay(&world, &pool, &large, Actor::Compute, 3);
    pool.release(large.id).unwrap();
    assert!(pool.release(large.id).is_err(), "released twice");
    assert!(pool.enter(large.id, Actor::Compute).is_err());
    assert_eq!(world.held(), 2 * UNIT, "tensors live");
    let free = |graph: &Graph| graph.pieces.iter().all(|&(at, _)| pool.free(at));
    assert!(free(&large));
    assert!(!free(&large), "they are free");
    // The next call of the pool sees it, and waits for the replay.
    let again = capture(&pool, &[PAGE]).unwrap();
    assert_eq!(world.held(), UNIT);
    assert!(free(&again) && free(&small));
    replay(&world, &pool, &small, Actor::Copy, 4);
    pool.release(again.id).unwrap();
    pool.release(small.id).unwrap();
    assert_eq!(world.held(), 0);
    pool.close().unwrap();
    drop(pool);
    world.verdict();
}

#[test]
fn one_capture_at_a_time_and_only_while_it_runs() {
    let world = world(Order::KernelsFirst, 8);
    let pool = world.graphs(4);
    assert!(pool.alloc(PAGE).is_err());
    assert!(pool.end(true).is_err());
    let id = pool.begin().unwrap();
    let refused = pool.begin().unwrap_err().to_string();
    assert!(
        refused.contains("graph pool 'g': capture 1 has not ended"),
        "{refused}"
    );
    assert!(pool.enter(id, Actor::Compute).is_err());
    assert!(pool.release(id).is_err());
    pool.end(true).unwrap();
    pool.enter(id, Actor::Compute).unwrap();
    assert!(pool.alloc(PAGE).is_err());
}

#[test]
fn weights_make_room_for_captures_and_segments() {
    for order in [Order::KernelsFirst, Order::CopiesFirst] {
        let world = world(order, 4);
        let weights = world.ranges.create("weights", 4 * UNIT).unwrap();
        let touch = || {
            let mut kinds = String::new();
            for alloc in 0..4 {
                let answer = weights.fault(alloc, Actor::Compute).unwrap();
                let Some(place) = answer.place() else {
                    kinds.push('-');
                    continue;
                };
                kinds.push(if matches!(answer, Answer::Hit(_)) {
                    'h'
                } else {
                    'f'
                });
                world.ranges.with_device(|sim| {
                    for part in 0..UNIT / 128 {
                        let bytes = [alloc as u8; 128];
                        sim.upload(place.at.offset(part * 128), &bytes).unwrap();
                    }
                    sim.kernel(1, &[(place.at, leaked(alloc as u8, UNIT))])
                        .unwrap();
                });
                weights.unpin(&[alloc], Actor::Compute).unwrap();
            }
            kinds
        };
        for _ in 0..4 {
            weights.alloc(UNIT).unwrap();
        }
        assert_eq!(touch(), "ffff");
        // Their kernels have not run: they are waited for.
        let segments = Segments::new(&world.ranges);
        let segment = segments.alloc(UNIT + 1).unwrap();
        assert_eq!(world.held(), 3 * UNIT + PAGE);
        world
            .ranges
            .with_device(|sim| sim.bring(segment, leaked(9, UNIT + 1)).unwrap());
        assert_eq!(touch(), "hh--");
        let pool = world.graphs(1);
        let graph = capture(&pool, &[UNIT]).unwrap();
        assert_eq!(touch(), "h---");
        replay(&world, &pool, &graph, Actor::Compute, 7);
        assert!(segments.alloc(4 * UNIT).is_err());
        assert!(segments.free(segment, Actor::Copy));
        assert!(!segments.free(segment, Actor::Copy));
        // They stay out until they are asked for.
        assert_eq!(touch(), "h---");
        weights.prioritize().unwrap();
        assert_eq!(touch(), "hff-");
        world.verdict();
    }
}

/// Through C: the callbacks are told a device, so one capture of it runs at a time.
#[test]
fn callbacks_find_the_capture_that_runs() {
    use std::ptr::{null, null_mut};
    use weightstream::ffi::capi::*;
    use weightstream::ffi::status::Status;
    // Others cap what a device holds meanwhile.
    let (_alone, _pool) = cpu_pool();
    let make = |name: &std::ffi::CStr| {
        let mut pool = null_mut();
        // SAFETY: texts and a place for the answer.
        let status =
            unsafe { ws_graph_pool_create(c"cpu".as_ptr(), name.as_ptr(), 4 << 20, &mut pool) };
        assert_eq!(status, Status::Ok);
        pool
    };
    let (one, other) = (make(c"one"), make(c"other"));
    let mut capture = 0;
    // SAFETY: live pools, and no stream.
    unsafe {
        assert!(ws_graph_pool_alloc(1, -1, null_mut()).is_null());
        assert_eq!(ws_graph_pool_begin(one, &mut capture), Status::Ok);
        assert_eq!(
            ws_graph_pool_begin(other, &mut capture),
            Status::InvalidInput
        );
        let at = ws_graph_pool_alloc(1 << 20, -1, null_mut());
        assert!(!at.is_null());
        at.cast::<u8>().write(1);
        assert_eq!(ws_graph_pool_destroy(other), Status::Ok);
        assert_eq!(ws_graph_pool_end(one, 1), Status::Ok);
        assert_eq!(ws_graph_pool_enter(one, capture, null_mut()), Status::Ok);
        assert_eq!(ws_graph_pool_release(one, capture), Status::Ok);
        assert_eq!(ws_graph_pool_destroy(one), Status::InvalidInput);
        ws_graph_pool_free(at, 1 << 20, -1, null_mut());
        assert_eq!(ws_graph_pool_destroy(one), Status::Ok);
        assert_eq!(
            ws_graph_pool_begin(null(), &mut capture),
            Status::InvalidArgument
        );
    }
}

/// A program of captures, replays on two streams and releases.
struct Program {
    world: World,
    pool: GraphPool<Sim>,
    graphs: BTreeMap<CaptureId, Graph>,
    ended: Vec<Graph>,
}

impl Program {
    fn step(&mut self, (kind, a, b): (u8, u64, u64)) {
        let nth = |graphs: &BTreeMap<CaptureId, Graph>| {
            graphs.keys().nth(a as usize % graphs.len().max(1)).copied()
        };
        match (kind, nth(&self.graphs)) {
            (0..=2, _) => {
                let sizes: Vec<u64> = (0..1 + a % 4)
                    .map(|at| 1 + (b >> (at * 8)) % (2 * UNIT))
                    .collect();
                let needs: u64 = sizes
                    .iter()
                    .map(|bytes| bytes.next_multiple_of(ALIGNMENT))
                    .sum();
                match capture(&self.pool, &sizes) {
                    Ok(graph) => drop(self.graphs.insert(graph.id, graph)),
                    Err(error) => assert!(needs > 6 * UNIT, "{error}"),
                }
            }
            (3..=8, Some(id)) => {
                let stream = if b % 3 == 0 {
                    Actor::Copy
                } else {
                    Actor::Compute
                };
                replay(&self.world, &self.pool, &self.graphs[&id], stream, b as u8);
            }
            (9, Some(id)) => {
                self.pool.release(id).unwrap();
                self.ended.extend(self.graphs.remove(&id));
            }
            (10, _) => {
                if let Some(graph) = self.ended.pop() {
                    assert!(graph.pieces.iter().all(|&(at, _)| self.pool.free(at)));
                }
            }
            _ => self.world.ranges.with_device(Sim::run),
        }
        // Failed captures whose pieces nobody freed count too: `capture` gives none back.
        let needs = self
            .pool
            .report()
            .captures
            .iter()
            .map(|one| one.bytes.div_ceil(UNIT))
            .max();
        let held = self.world.held();
        assert!(
            held >= needs.unwrap_or(0) * UNIT && held <= 6 * UNIT,
            "{held}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// `PROPTEST_CASES=100000` for many.
    #[test]
    fn random_replays_do_not_overlap(
        order in prop_oneof![Just(Order::CopiesFirst), Just(Order::KernelsFirst), any::<u64>().prop_map(Order::Random)],
        steps in prop::collection::vec((0..12u8, any::<u64>(), any::<u64>()), 1..60),
    ) {
        let world = world(order, 6);
        let pool = world.graphs(6);
        let mut program = Program { world, pool, graphs: BTreeMap::new(), ended: Vec::new() };
        steps.into_iter().for_each(|step| program.step(step));
        program.world.verdict();
    }
}
