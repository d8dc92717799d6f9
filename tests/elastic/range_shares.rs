//! Which range keeps its pages where not all fit: the newest one and low addresses first, within limits, below stores, under the cap.

use crate::range_support::{done, join, pass, range, touch, world, World, UNIT};
use std::sync::atomic::Ordering::SeqCst;
use weightstream::device::sim::{Actor, Order};
use weightstream::device::Sim;
use weightstream::elastic::range::{Answer, Cause, Refusal};
use weightstream::elastic::{PassNeeds, Reorder};
use weightstream::Error;

/// The pass of an eager model that does not fit: low addresses stay, and nothing is faulted in and out.
#[test]
fn low_addresses_stay_and_the_rest_is_refused() {
    let world = world(2);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ff--");
    assert_eq!(pass(&world, &a, 4), "hh--");
    assert_eq!(
        a.fault(3, Actor::Compute),
        Ok(Answer::Refused(Refusal::NothingLower))
    );
    // A low address that comes late takes from the top.
    let b = range(&world, "b", 4);
    assert_eq!(pass(&world, &b, 4), "ff--");
    b.free_bytes(2 * UNIT, true).unwrap();
    b.prioritize().unwrap();
    assert!(matches!(touch(&world, &b, 2), Answer::Fill(_)));
    assert!(matches!(touch(&world, &b, 3), Answer::Fill(_)));
    world.ranges.with_device(Sim::run);
    assert!(matches!(touch(&world, &b, 0), Answer::Fill(_)));
    assert_eq!(b.watermark().unwrap().bytes, 3 * UNIT);
    assert_eq!(
        b.fault(3, Actor::Compute),
        Ok(Answer::Refused(Refusal::AboveWatermark))
    );
    let evicted = b.residency().unwrap().counts.evicted_bytes;
    assert_eq!(evicted[Cause::LowerAddress as usize], UNIT);
    done(&world);
}

#[test]
fn the_newest_range_takes_from_older_ones_and_sets_their_watermark() {
    let world = world(4);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ffff");
    let b = range(&world, "b", 2);
    assert_eq!(pass(&world, &b, 2), "ff");
    let watermark = a.watermark().unwrap();
    assert_eq!(watermark.bytes, 2 * UNIT);
    assert_eq!(
        watermark.why.unwrap(),
        "a fault of range 'b', which has a higher priority"
    );
    // Without prioritize nothing moves any more.
    assert_eq!(pass(&world, &a, 4), "hh--");
    assert_eq!(pass(&world, &b, 2), "hh");
    a.prioritize().unwrap();
    assert_eq!(a.watermark().unwrap().why, None);
    assert_eq!(pass(&world, &a, 4), "hhff");
    assert_eq!(pass(&world, &b, 2), "--");
    // b comes last either way: it takes nothing from a.
    assert_eq!(b.watermark().unwrap().bytes, 0);
    a.deprioritize().unwrap();
    b.prioritize().unwrap();
    assert_eq!(pass(&world, &b, 2), "ff");
    done(&world);
}

#[test]
fn the_lowest_range_gives_first() {
    let world = world(3);
    let [a, b, c] = ["a", "b", "c"].map(|name| range(&world, name, 1));
    for one in [&a, &b, &c] {
        assert_eq!(pass(&world, one, 1), "f");
    }
    a.prioritize().unwrap();
    let d = range(&world, "d", 1);
    // Now d, a, c, b.
    assert_eq!(pass(&world, &d, 1), "f");
    assert_eq!(pass(&world, &a, 1), "h");
    assert_eq!(pass(&world, &c, 1), "h");
    assert_eq!(pass(&world, &b, 1), "-");
    done(&world);
}

#[test]
fn a_limit_holds_and_may_rise_again() {
    let world = world(8);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ffff");
    assert_eq!(a.set_limit(Some(2 * UNIT)).unwrap().bytes, 2 * UNIT);
    assert_eq!(pass(&world, &a, 4), "hh--");
    assert_eq!(
        a.fault(3, Actor::Compute),
        Ok(Answer::Refused(Refusal::OverLimit))
    );
    assert_eq!(a.watermark().unwrap().why, None);
    a.set_limit(None).unwrap();
    assert_eq!(pass(&world, &a, 4), "hhff");
    // A low address has the range give a high one.
    a.invalidate(Some(0)).unwrap();
    a.free_bytes(4 * UNIT, true).unwrap();
    a.prioritize().unwrap();
    a.set_limit(Some(UNIT)).unwrap();
    assert!(matches!(touch(&world, &a, 2), Answer::Fill(_)));
    world.ranges.with_device(Sim::run);
    assert!(matches!(touch(&world, &a, 0), Answer::Fill(_)));
    assert_eq!(a.residency().unwrap().resident, UNIT);
    done(&world);
}

#[test]
fn stores_come_first_and_ranges_take_what_they_leave() {
    let world = world(4);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ffff");
    // The floor of a store that joins.
    let (store, _tenant) = join(&world.pool, UNIT, 2 * UNIT).unwrap();
    assert_eq!(world.ranges.held(), 3 * UNIT);
    // Its grant, in its first pass.
    store
        .begin_pass(PassNeeds::default(), || Ok(0), |_| Ok(()))
        .unwrap();
    store.end_pass(|_| Ok(())).unwrap();
    assert_eq!((store.held(), world.ranges.held()), (2 * UNIT, 2 * UNIT));
    let why = a.watermark().unwrap().why.unwrap();
    assert!(why.contains("cap"), "{why}");
    // Among equals the store comes first, whatever happens to it.
    a.reorder(Reorder::To(0)).unwrap();
    assert_eq!(pass(&world, &a, 4), "hh--");
    drop(store);
    assert_eq!(pass(&world, &a, 4), "hhff");
    let counts = a.residency().unwrap().counts;
    assert_eq!(counts.evicted_bytes[Cause::Cap as usize], 2 * UNIT);
    assert_eq!(counts.refused[Refusal::NothingLower as usize], 2);
    done(&world);
}

/// A fault of a range above a store takes what the store holds beyond its floor, between its passes; and its passes get nothing back.
#[test]
fn a_range_above_a_store_presses_it_to_its_floor() {
    for to in [Reorder::First, Reorder::To(1)] {
        let world = world(4);
        let (store, tenant) = join(&world.pool, UNIT, 3 * UNIT).unwrap();
        let a = range(&world, "a", 4);
        let run = || store.begin_pass(PassNeeds::default(), || Ok(0), |_| Ok(()));
        run().unwrap();
        a.reorder(to).unwrap();
        // A pass of it runs: it keeps its memory.
        assert_eq!(pass(&world, &a, 4), "f---");
        store.end_pass(|_| Ok(())).unwrap();
        assert_eq!(pass(&world, &a, 4), "hff-");
        assert_eq!((store.held(), tenant.0.load(SeqCst)), (UNIT, UNIT));
        run().unwrap();
        store.end_pass(|_| Ok(())).unwrap();
        assert_eq!((store.held(), world.ranges.held()), (UNIT, 3 * UNIT));
        let report = world.pool.report();
        let names: Vec<_> = report.order.iter().map(|place| place.kind).collect();
        assert_eq!(names, ["range", "model"]);
        // Now the store is above.
        store.reorder(Reorder::To(2));
        run().unwrap();
        store.end_pass(|_| Ok(())).unwrap();
        assert_eq!((store.held(), world.ranges.held()), (3 * UNIT, UNIT));
        done(&world);
    }
}

/// Who needs memory takes it from the lowest, be that a range or a store.
#[test]
fn the_lowest_gives_first_whatever_it_is() {
    for (of_store, of_range) in [(-1, 0), (0, -1)] {
        let world = world(4);
        let (store, _tenant) = join(&world.pool, UNIT, 2 * UNIT).unwrap();
        let low = range(&world, "low", 2);
        store.reorder(Reorder::To(of_store));
        low.reorder(Reorder::To(of_range)).unwrap();
        store
            .begin_pass(PassNeeds::default(), || Ok(0), |_| Ok(()))
            .unwrap();
        store.end_pass(|_| Ok(())).unwrap();
        assert_eq!(pass(&world, &low, 2), "ff");
        let high = range(&world, "high", 1);
        high.reorder(Reorder::To(1)).unwrap();
        assert_eq!(pass(&world, &high, 1), "f");
        let store_gave = of_store < of_range;
        assert_eq!(store.held(), if store_gave { UNIT } else { 2 * UNIT });
        assert_eq!(pass(&world, &low, 2), if store_gave { "hh" } else { "h-" });
        done(&world);
    }
}

/// A device that is full: what is left under the cap counts for nothing, and the lowest gives first.
#[test]
fn room_is_made_up_the_order() {
    for (of_store, of_range) in [(-1, 0), (0, -1)] {
        let world = world(6);
        let (store, tenant) = join(&world.pool, UNIT, 2 * UNIT).unwrap();
        let low = range(&world, "range", 2);
        store.reorder(Reorder::To(of_store));
        low.reorder(Reorder::To(of_range)).unwrap();
        let run = || store.begin_pass(PassNeeds::default(), || Ok(0), |_| Ok(()));
        run().unwrap();
        store.end_pass(|_| Ok(())).unwrap();
        assert_eq!(pass(&world, &low, 2), "ff");
        world.ranges.with_device(Sim::run);
        assert_eq!(world.pool.make_room(UNIT), UNIT);
        let store_gave = of_store < of_range;
        let held = || (tenant.0.load(SeqCst), world.ranges.held());
        let least = if store_gave { UNIT } else { 2 * UNIT };
        assert_eq!(
            (store.held(), world.ranges.held()),
            (least, 4 * UNIT - UNIT - least)
        );
        // What is left of both, down to the floor; and then nothing more.
        assert_eq!(world.pool.make_room(9 * UNIT), 2 * UNIT);
        assert_eq!(held(), (UNIT, 0));
        assert_eq!(world.pool.make_room(1), 0);
        // A store whose pass runs keeps what it has.
        run().unwrap();
        assert_eq!((store.held(), world.pool.make_room(UNIT)), (2 * UNIT, 0));
        store.end_pass(|_| Ok(())).unwrap();
        done(&world);
    }
}

#[test]
fn a_smaller_cap_takes_pages_and_is_refused_where_they_are_leased() {
    let world = world(4);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ffff");
    touch(&world, &a, 3);
    // It waits for the kernel.
    world.pool.set_cap(Some(3 * UNIT)).unwrap();
    assert_eq!(world.ranges.held(), 3 * UNIT);
    a.fault(0, Actor::Compute).unwrap();
    a.fault(1, Actor::Compute).unwrap();
    let Err(Error::CapTooSmall { cap, least, floors }) = world.pool.set_cap(Some(UNIT)) else {
        panic!("leased pages were taken");
    };
    assert_eq!((cap, least), (UNIT, 2 * UNIT));
    assert!(
        floors.contains("ranges, graph pools and activations 2048"),
        "{floors}"
    );
    assert_eq!(world.pool.report().cap, 3 * UNIT);
    a.unpin(&[0, 1], Actor::Compute).unwrap();
    world.pool.set_cap(Some(UNIT)).unwrap();
    assert_eq!(world.ranges.held(), UNIT);
    done(&world);
}

/// Of free memory: a cap that sinks takes pages at the next miss.
#[test]
fn a_cap_that_follows_free_memory_leaves_a_reserve() {
    use weightstream::device::Device;
    const MB: u64 = 1 << 20;
    let world = World::new(Order::KernelsFirst, 0);
    world.pool.set_cap(None).unwrap();
    let free = |bytes: u64| {
        world
            .ranges
            .with_device(|sim| sim.set_budget(bytes).unwrap())
    };
    free(256 * MB + 2 * UNIT);
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "ff--");
    // Another program took a unit.
    free(256 * MB + UNIT);
    assert!(matches!(a.fault(2, Actor::Compute), Ok(Answer::Refused(_))));
    assert_eq!(world.ranges.held(), UNIT);
    done(&world);
}

/// The device has less than the cap says: refused, and nothing is counted as held.
#[test]
fn a_device_that_is_full_refuses() {
    let world = world(4);
    let a = range(&world, "a", 4);
    assert!(matches!(touch(&world, &a, 0), Answer::Fill(_)));
    world.ranges.with_device(|sim| sim.limit_addresses(UNIT));
    assert_eq!(
        a.fault(1, Actor::Compute),
        Ok(Answer::Refused(Refusal::DeviceFull))
    );
    assert_eq!(
        (world.ranges.held(), world.pool.report().ranges),
        (UNIT, UNIT)
    );
    done(&world);
}

/// Who reads a refusal wants to know whom to ask for memory.
#[test]
fn a_refusal_says_who_holds_the_memory() {
    let world = world(4);
    let (_membership, _store) = join(&world.pool, UNIT, 4 * UNIT).unwrap();
    let a = range(&world, "a", 4);
    assert_eq!(pass(&world, &a, 4), "fff-");
    let Ok(Answer::Refused(refusal)) = a.fault(3, Actor::Compute) else {
        panic!("there is no memory");
    };
    let why = a.explain(refusal).unwrap();
    for words in [
        "nothing of lower priority holds memory".to_owned(),
        format!("of the {} bytes that", 4 * UNIT),
        format!("range 'a' holds {} bytes", 3 * UNIT),
        format!("'of {}' holds {UNIT} bytes", 4 * UNIT),
    ] {
        assert!(why.contains(&words), "'{words}' is not in: {why}");
    }
    // What others hold is not why, and is not told.
    let why = a.explain(Refusal::BeingFilled).unwrap();
    assert!(!why.contains("holds"), "{why}");
    a.set_limit(Some(UNIT)).unwrap();
    let why = a.explain(Refusal::OverLimit).unwrap();
    assert!(why.contains(&format!("allows, {UNIT} bytes")), "{why}");
    let report = world.pool.report();
    assert_eq!(report.each_range, [("a".to_owned(), UNIT)]);
    let json = report.to_json();
    let expected = format!("\"ranges\": [{{\"name\": \"a\", \"held_bytes\": {UNIT}}}]");
    assert!(json.contains(&expected), "{json}");
    done(&world);
}

#[test]
fn an_evicted_range_is_told_by_whom() {
    let world = world(2);
    let a = range(&world, "a", 2);
    assert_eq!(pass(&world, &a, 2), "ff");
    let b = range(&world, "b", 2);
    assert_eq!(pass(&world, &b, 2), "ff");
    let why = a.explain(Refusal::AboveWatermark).unwrap();
    assert!(why.contains("by a fault of range 'b'"), "{why}");
    done(&world);
}

/// Until a pass has looked at free memory the report does not go on telling the number of before.
#[test]
fn a_report_shows_no_cap_that_was_given_up() {
    use weightstream::device::Device;
    let world = world(3);
    assert_eq!(world.pool.report().cap, 3 * UNIT);
    world.pool.set_cap(None).unwrap();
    let free = 300 << 20;
    world
        .ranges
        .with_device(|sim| sim.set_budget(free).unwrap());
    let report = world.pool.report();
    assert!(report.follows_free && report.cap_is_known);
    assert_eq!(report.cap, free);
    // Nobody is there who could look.
    let alone = weightstream::elastic::DevicePool::new("alone");
    alone.set_cap(Some(7)).unwrap();
    assert!(alone.report().to_json().contains("\"cap_bytes\": 7,"));
    alone.set_cap(None).unwrap();
    let json = alone.report().to_json();
    assert!(
        json.contains("\"cap_bytes\": null, \"follows_free_memory\": true"),
        "{json}"
    );
    done(&world);
}
