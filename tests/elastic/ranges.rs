//! Ranges on the simulated device, together with stores under one cap: no kernel reads what it should not, no generation comes twice,
//! lost contents are never silent, and the cap holds. And each rule for itself; `elastic_range_shares` has those of who gets how much.

use crate::range_support::{
    contents, done, pass, range, read, touch, world, write, Draw, World, PAGE, UNIT,
};
use proptest::prelude::*;
use weightstream::device::sim::{Actor, Order, Violation};
use weightstream::device::{DevicePtr, Sim};
use weightstream::elastic::range::{Answer, Place, Refusal};
use weightstream::elastic::Range;
use weightstream::memory::Units;
use weightstream::Error;

fn run(order: Order, cap: u64, steps: &[u64]) {
    let mut world = World::new(order, cap);
    for step in steps {
        world.step(&mut Draw(*step));
    }
    let verdict = world.ranges.with_device(|sim| sim.verdict());
    if let Err(problems) = verdict {
        panic!("{problems}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// `PROPTEST_CASES=100000` for many.
    #[test]
    fn random_programs_share_a_device(
        order in prop_oneof![Just(Order::CopiesFirst), Just(Order::KernelsFirst), any::<u64>().prop_map(Order::Random)],
        pages in 4u64..64,
        steps in prop::collection::vec(any::<u64>(), 1..160),
    ) {
        run(order, pages * PAGE, &steps);
    }
}

#[test]
fn a_range_costs_addresses_and_no_memory() {
    let world = world(4);
    let range = world.ranges.create("a", 3 * UNIT + 1).unwrap();
    assert_eq!(
        range.addresses().unwrap().1,
        3 * UNIT + PAGE,
        "rounded up to a page"
    );
    let allocs = [0; 3].map(|_| range.alloc(UNIT).unwrap());
    let last = allocs[2];
    assert_eq!(world.ranges.held(), 0);
    let refused = range.alloc(PAGE + 1).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("'a', of whose 3328 bytes 256 are left"),
        "{refused}"
    );
    assert!(matches!(range.alloc(0), Err(Error::InvalidInput(_))));
    assert!(matches!(
        range.fault(last + 1, Actor::Compute),
        Err(Error::InvalidInput(_))
    ));
    assert!(matches!(
        world.ranges.create("b", 0),
        Err(Error::InvalidInput(_))
    ));
    done(&world);
}

/// The kernel still reads: the fault is refused, waits for nobody, and takes nothing that is worth more.
#[test]
fn pages_that_kernels_use_stay() {
    let world = world(2);
    let a = range(&world, "a", 2);
    assert_eq!(pass(&world, &a, 2), "ff");
    touch(&world, &a, 1);
    let b = range(&world, "b", 1);
    assert_eq!(
        b.fault(0, Actor::Compute),
        Ok(Answer::Refused(Refusal::InUse))
    );
    let freed = a.free_bytes(UNIT, false).unwrap();
    assert_eq!((freed.bytes, freed.pending), (0, UNIT));
    assert_eq!(
        a.watermark().unwrap().why,
        None,
        "a refusal moves no watermark"
    );
    world.ranges.with_device(Sim::run);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    // With a wait it goes.
    touch(&world, &a, 0);
    assert_eq!(a.free_bytes(UNIT, true).unwrap().bytes, UNIT);
    done(&world);
}

#[test]
fn pinned_pages_stay_and_are_named() {
    let world = world(2);
    let a = range(&world, "a", 2);
    assert_eq!(pass(&world, &a, 2), "ff");
    a.fault(1, Actor::Compute).unwrap();
    let freed = a.free_bytes(2 * UNIT, true).unwrap();
    assert_eq!((freed.bytes, freed.pinned), (UNIT, UNIT));
    let b = range(&world, "b", 2);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    assert_eq!(
        b.fault(1, Actor::Compute),
        Ok(Answer::Refused(Refusal::InUse))
    );
    let error = a.destroy().unwrap_err();
    assert!(
        error.to_string().contains(
            "'a' cannot end: allocation 1 has leases or faults that were not unpinned: 1"
        ),
        "{error}"
    );
    // A pinned page above the watermark keeps its contents.
    assert!(matches!(touch(&world, &a, 1), Answer::Hit(_)));
    a.unpin(&[1], Actor::Compute).unwrap();
    let twice = a.unpin(&[1], Actor::Compute).unwrap_err();
    assert!(
        twice.to_string().contains("more often than it was faulted"),
        "{twice}"
    );
    a.destroy().unwrap();
    done(&world);
}

#[test]
fn contents_that_are_invalidated_are_written_again_after_their_readers() {
    let world = world(2);
    let a = range(&world, "a", 1);
    let Answer::Fill(first) = touch(&world, &a, 0) else {
        panic!("nothing was there");
    };
    a.invalidate(None).unwrap();
    // The kernel of `touch` has not run; the copy stream waits for it.
    let Answer::Fill(second) = a.fault(0, Actor::Copy).unwrap() else {
        panic!("invalid contents are no hit");
    };
    assert_eq!(first.at, second.at);
    assert!(second.generation > first.generation);
    world
        .ranges
        .with_device(|sim| write(sim, Actor::Copy, second, contents()));
    a.unpin(&[0], Actor::Copy).unwrap();
    // And the next reader for the copy.
    assert!(matches!(touch(&world, &a, 0), Answer::Hit(_)));
    // A fill that failed: what it wrote is worth nothing.
    a.invalidate(None).unwrap();
    assert!(matches!(a.fault(0, Actor::Compute), Ok(Answer::Fill(_))));
    a.invalidate(Some(0)).unwrap();
    a.unpin(&[0], Actor::Compute).unwrap();
    assert!(matches!(touch(&world, &a, 0), Answer::Fill(_)));
    done(&world);
}

#[test]
fn a_lease_ends_on_any_thread_and_its_page_stays_until_the_kernel_is_done() {
    let world = world(1);
    let a = range(&world, "a", 1);
    touch(&world, &a, 0);
    let (place, lease) = a.lease(0, Actor::Copy).unwrap();
    a.used_on(0, Actor::Compute).unwrap();
    world.ranges.with_device(Sim::run);
    world.ranges.with_device(|sim| read(sim, place, contents()));
    let b = range(&world, "b", 1);
    let refused = |b: &Range<Sim>| {
        assert_eq!(
            b.fault(0, Actor::Compute),
            Ok(Answer::Refused(Refusal::InUse))
        );
    };
    refused(&b);
    std::thread::spawn(move || drop(lease)).join().unwrap();
    refused(&b);
    assert!(matches!(
        a.used_on(0, Actor::Copy),
        Err(Error::InvalidInput(_))
    ));
    world.ranges.with_device(Sim::run);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    assert!(matches!(
        a.lease(0, Actor::Compute),
        Err(Error::InvalidInput(_))
    ));
    done(&world);
}

#[test]
fn a_range_whose_handle_is_gone_ends_with_its_last_lease() {
    let world = world(1);
    let a = range(&world, "a", 1);
    touch(&world, &a, 0);
    let (_, lease) = a.lease(0, Actor::Compute).unwrap();
    drop(a);
    assert_eq!(world.ranges.held(), UNIT);
    drop(lease);
    // The first try to record the end of the lease fails, the next one does not.
    world
        .ranges
        .with_device(|sim| sim.fail_call("record_compute", 0));
    assert_eq!(world.ranges.held(), UNIT);
    assert_eq!(world.ranges.held(), UNIT);
    world.ranges.with_device(Sim::run);
    let b = range(&world, "b", 1);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    assert_eq!(world.pool.report().ranges, UNIT);
    done(&world);
}

/// By the stream that wrote them, contents are found without a call of the device.
#[test]
fn a_hit_calls_no_device() {
    let world = world(2);
    let a = range(&world, "a", 2);
    pass(&world, &a, 2);
    let calls = |world: &World| world.ranges.with_device(|sim| sim.calls());
    let before = calls(&world);
    a.fault(0, Actor::Compute).unwrap();
    let mut answers = Vec::new();
    a.fault_many(&[0, 1, 1], Actor::Compute, |answer| answers.push(answer))
        .unwrap();
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Answer::Hit(_))),
        "{answers:?}"
    );
    assert_eq!(calls(&world), before);
    // One event for all of them.
    a.unpin(&[0, 0, 1, 1], Actor::Compute).unwrap();
    assert_eq!(calls(&world), before + 1);
    done(&world);
}

/// Each call of the device fails once: an error, no panic, and what is counted is what is there.
#[test]
fn a_call_that_fails_leaves_the_count_right() {
    for call in [
        "back_unit",
        "take_unit",
        "record_compute",
        "is_done",
        "release_units",
    ] {
        for after in 0..3 {
            let world = world(2);
            let a = range(&world, "a", 2);
            pass(&world, &a, 2);
            let b = range(&world, "b", 2);
            world.ranges.with_device(|sim| sim.fail_call(call, after));
            for alloc in 0..2 {
                if let Ok(Answer::Fill(place)) = b.fault(alloc, Actor::Compute) {
                    world
                        .ranges
                        .with_device(|sim| write(sim, Actor::Compute, place, contents()));
                    if b.unpin(&[alloc], Actor::Compute).is_err() {
                        b.unpin(&[alloc], Actor::Compute).unwrap();
                    }
                }
            }
            let live = world.ranges.with_device(|sim| sim.live_bytes());
            assert_eq!(
                (world.ranges.held(), world.pool.report().ranges),
                (live, live),
                "{call}"
            );
            for one in [&a, &b] {
                if one.destroy().is_err() {
                    one.destroy().unwrap();
                }
            }
            assert_eq!(world.pool.report().ranges, 0, "{call}");
            world.ranges.with_device(|sim| sim.fail(None));
            done(&world);
        }
    }
}

/// Three threads with a range each, under a cap for one and a half of them.
#[test]
fn threads_share_a_device() {
    let world = World::new(Order::Random(3), 6 * UNIT);
    let ranges: Vec<_> = (0..3)
        .map(|at| range(&world, &format!("r{at}"), 4))
        .collect();
    std::thread::scope(|scope| {
        for range in &ranges {
            let world = &world;
            scope.spawn(move || {
                for round in 0..40 {
                    if round % 7 == 0 {
                        range.prioritize().unwrap();
                    }
                    pass(world, range, 4);
                    assert!(world.ranges.held() <= 6 * UNIT);
                }
            });
        }
    });
    done(&world);
}

/// The simulator itself: without the event the program is wrong, and it says so.
#[test]
fn a_page_that_goes_early_is_seen() {
    let mut units = Units::new(Sim::new(Order::CopiesFirst));
    let at = units.reserve(UNIT).unwrap();
    units.back(at, UNIT).unwrap();
    let sim = &mut units.pages;
    let place = Place {
        at: DevicePtr(at.0),
        bytes: UNIT,
        generation: 1,
    };
    write(sim, Actor::Compute, place, contents());
    read(sim, place, contents());
    units.take(at, false).unwrap();
    let problems = units.pages.take_problems();
    assert!(
        problems
            .iter()
            .any(|one| matches!(one, Violation::Race { .. })),
        "{problems:?}"
    );
}
