//! Rings of ranges on the simulated device: slots for allocations whose fault was refused. No slot is filled before its bytes are
//! read for the last time, none is given twice, and the ring counts as the range's memory.

use crate::range_support::{
    contents, done, pass, range, read, touch, world, write, Draw, World, PAGE, UNIT,
};
use proptest::prelude::*;
use weightstream::device::sim::{Actor, Order};
use weightstream::device::Sim;
use weightstream::elastic::range::{AllocId, Answer, Place, Refusal};
use weightstream::elastic::Range;
use weightstream::Error;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// `PROPTEST_CASES=100000` for many.
    #[test]
    fn random_programs_with_rings_share_a_device(
        order in prop_oneof![Just(Order::CopiesFirst), Just(Order::KernelsFirst), any::<u64>().prop_map(Order::Random)],
        pages in 8u64..64,
        steps in prop::collection::vec(any::<u64>(), 1..160),
    ) {
        let mut world = World::new(order, pages * PAGE);
        for step in &steps {
            let mut draw = Draw(*step);
            let kind = draw.below(8);
            let at = draw.below(world.mine.len() as u64) as usize;
            match kind {
                0..=2 if !world.mine.is_empty() => world.slot(at, &mut draw),
                3 if !world.mine.is_empty() => world.end_slot(at, &mut draw),
                4 if !world.mine.is_empty() => world.set_ring(at, &mut draw),
                _ => world.step(&mut draw),
            }
        }
        done(&world);
    }
}

/// A range of so many units, and a ring of `ring` of them.
fn ringed(world: &World, units: u64, ring: u64) -> Range<Sim> {
    let range = range(world, "a", units);
    range.set_ring(ring * UNIT).unwrap();
    range
}

fn fill(world: &World, place: Place, stream: Actor) {
    world
        .ranges
        .with_device(|sim| write(sim, stream, place, contents()));
}

/// A slot that is filled on the compute stream, read there and unpinned. Where it lies.
fn through(world: &World, range: &Range<Sim>, alloc: AllocId) -> u64 {
    let (slot, place) = range.slot(alloc, Actor::Compute).unwrap();
    fill(world, place, Actor::Compute);
    world.ranges.with_device(|sim| read(sim, place, contents()));
    range.unpin(&[slot], Actor::Compute).unwrap();
    place.at.0
}

#[test]
fn refused_faults_take_slots_in_ring_order() {
    let world = world(4);
    let a = ringed(&world, 6, 3);
    assert_eq!(pass(&world, &a, 6), "f-----");
    assert_eq!(
        a.fault(1, Actor::Compute),
        Ok(Answer::Refused(Refusal::NothingLower))
    );
    let at: Vec<u64> = (1..6).map(|alloc| through(&world, &a, alloc)).collect();
    assert_eq!([at[1] - at[0], at[2] - at[0]], [UNIT, 2 * UNIT]);
    assert_eq!(at[3..], at[..2], "from the start again");
    let found = a.residency().unwrap();
    assert_eq!(
        (found.ring, found.ring_leased, found.counts.slots),
        (3 * UNIT, 0, 5)
    );
    let json = found.to_json();
    assert!(
        json.contains("\"ring_bytes\": 3072, \"ring_leased_bytes\": 0"),
        "{json}"
    );
    assert!(json.contains("\"slots\": 5"), "{json}");
    done(&world);
}

/// The kernel that reads the slot has not run: the copy stream waits for it.
#[test]
fn a_slot_is_filled_after_the_readers_of_its_bytes() {
    let world = world(2);
    let a = ringed(&world, 2, 1);
    through(&world, &a, 0);
    let (slot, place) = a.slot(1, Actor::Copy).unwrap();
    fill(&world, place, Actor::Copy);
    a.unpin(&[slot], Actor::Copy).unwrap();
    // And the next one, which takes a part of these bytes, for the copy; the rest of them stays known.
    let small = world.ranges.create("small", 2 * UNIT).unwrap();
    small.set_ring(UNIT).unwrap();
    for bytes in [UNIT, UNIT / 2, UNIT / 2] {
        small.alloc(bytes).unwrap();
    }
    let part = |place: Place| crate::range_support::Contents {
        from: 3,
        len: place.bytes as usize,
    };
    for (alloc, stream) in [
        (0, Actor::Compute),
        (1, Actor::Copy),
        (2, Actor::Copy),
        (0, Actor::Compute),
    ] {
        let (slot, place) = small.slot(alloc, stream).unwrap();
        world.ranges.with_device(|sim| {
            write(sim, stream, place, part(place));
            if stream == Actor::Compute {
                read(sim, place, part(place));
            }
        });
        small.unpin(&[slot], stream).unwrap();
    }
    done(&world);
}

#[test]
fn leased_slots_are_given_to_nobody_and_are_named() {
    let world = world(2);
    let a = ringed(&world, 3, 2);
    let (first, one) = a.slot(0, Actor::Compute).unwrap();
    let (second, two) = a.slot(1, Actor::Compute).unwrap();
    assert_ne!(one.at, two.at);
    assert_ne!(one.generation, two.generation);
    assert_eq!(a.residency().unwrap().ring_leased, 2 * UNIT);
    let refused = a.slot(2, Actor::Compute).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { bytes: UNIT, .. }));
    let text = refused.to_string();
    for part in [
        "1024 bytes for a slot for allocation 2",
        "'a', which has 2048 bytes",
        "allocation 0: 1024 bytes, allocation 1: 1024 bytes",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let fixed = a.set_ring(0).unwrap_err().to_string();
    assert!(
        fixed.contains("a slot of allocation 0 is leased"),
        "{fixed}"
    );
    let ended = a.destroy().unwrap_err().to_string();
    assert!(
        ended.contains("the slot of allocation 0 has leases or faults that were not unpinned: 1"),
        "{ended}"
    );
    // The first slot is the next in the order, and is passed over while it is leased.
    fill(&world, two, Actor::Compute);
    a.unpin(&[second], Actor::Compute).unwrap();
    let (third, again) = a.slot(2, Actor::Compute).unwrap();
    assert_eq!(again.at, two.at);
    let twice = a.unpin(&[second], Actor::Compute).unwrap_err().to_string();
    assert!(twice.contains("no slot of number"), "{twice}");
    a.unpin(&[first, third], Actor::Compute).unwrap();
    a.destroy().unwrap();
    assert_eq!(world.pool.report().ranges, 0);
    done(&world);
}

#[test]
fn a_tensor_keeps_its_slot() {
    let world = world(1);
    let a = ringed(&world, 1, 1);
    let (slot, place) = a.slot(0, Actor::Compute).unwrap();
    let (same, lease) = a.lease(slot, Actor::Compute).unwrap();
    assert_eq!(place, same);
    fill(&world, place, Actor::Compute);
    a.unpin(&[slot], Actor::Compute).unwrap();
    assert!(matches!(
        a.slot(0, Actor::Copy),
        Err(Error::OutOfMemory { .. })
    ));
    world.ranges.with_device(|sim| read(sim, place, contents()));
    drop(lease);
    // The reader under the lease is waited for.
    let (slot, place) = a.slot(0, Actor::Copy).unwrap();
    fill(&world, place, Actor::Copy);
    a.unpin(&[slot], Actor::Copy).unwrap();
    // A range whose handle is gone while a tensor lives keeps the ring until then.
    let (slot, _) = a.slot(0, Actor::Compute).unwrap();
    let (_, lease) = a.lease(slot, Actor::Compute).unwrap();
    a.unpin(&[slot], Actor::Compute).unwrap();
    drop(a);
    assert_eq!(world.ranges.held(), UNIT);
    drop(lease);
    world.ranges.with_device(Sim::run);
    let b = range(&world, "b", 1);
    b.fault(0, Actor::Compute).unwrap();
    world.ranges.with_device(Sim::run);
    b.fault(0, Actor::Compute).unwrap();
    assert_eq!(world.pool.report().ranges, world.ranges.held());
    done(&world);
}

/// It is counted like pages, is taken from them, and does not go while it is there.
#[test]
fn a_ring_counts_under_the_cap() {
    let world = world(4);
    let a = range(&world, "a", 3);
    assert_eq!(pass(&world, &a, 3), "fff");
    touch(&world, &a, 2);
    // One unit is free; another one comes from the range, after its kernel.
    a.set_ring(2 * UNIT - 1).unwrap();
    assert_eq!(
        (world.ranges.held(), world.pool.report().ranges),
        (4 * UNIT, 4 * UNIT)
    );
    assert_eq!(a.residency().unwrap().resident, 2 * UNIT);
    a.set_limit(Some(0)).unwrap();
    assert_eq!(
        world.pool.report().ranges,
        2 * UNIT,
        "the limit is that of pages"
    );
    let small = world.pool.set_cap(Some(UNIT)).unwrap_err().to_string();
    assert!(
        small.contains("ranges, graph pools and activations 2048"),
        "{small}"
    );
    let large = a.set_ring(5 * UNIT).unwrap_err().to_string();
    assert!(
        large.contains("5120 bytes for the ring of range 'a'"),
        "{large}"
    );
    assert_eq!(
        world.pool.report().ranges,
        0,
        "the ring that was there is gone"
    );
    let none = a.slot(0, Actor::Compute).unwrap_err().to_string();
    assert!(none.contains("'a' has no ring"), "{none}");
    a.set_ring(1).unwrap();
    let b = world.ranges.create("b", 4 * UNIT).unwrap();
    b.alloc(2 * UNIT).unwrap();
    b.set_ring(UNIT).unwrap();
    let larger = b.slot(0, Actor::Compute).unwrap_err().to_string();
    assert!(
        larger.contains("has 2048 bytes, and the range's ring 1024 bytes"),
        "{larger}"
    );
    drop((a, b));
    assert_eq!(world.pool.report().ranges, 0);
    done(&world);
}

/// Each call of the device fails once: an error, and what is counted is what is there.
#[test]
fn a_ring_that_fails_is_not_there() {
    for call in [
        "reserve_units",
        "back_unit",
        "take_unit",
        "record_compute",
        "is_done",
        "release_units",
    ] {
        for after in 0..3 {
            let world = world(3);
            let a = range(&world, "a", 1);
            world.ranges.with_device(|sim| sim.fail_call(call, after));
            let _ = a.set_ring(2 * UNIT);
            if let Ok((slot, place)) = a.slot(0, Actor::Compute) {
                fill(&world, place, Actor::Compute);
                if a.unpin(&[slot], Actor::Compute).is_err() {
                    a.unpin(&[slot], Actor::Compute).unwrap();
                }
            }
            let live = world.ranges.with_device(|sim| sim.live_bytes());
            assert_eq!(
                (world.ranges.held(), world.pool.report().ranges),
                (live, live),
                "{call}"
            );
            if a.destroy().is_err() {
                a.destroy().unwrap();
            }
            assert_eq!(world.pool.report().ranges, 0, "{call}");
            world.ranges.with_device(|sim| sim.fail(None));
            done(&world);
        }
    }
}
