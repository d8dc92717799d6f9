//! Units of ranges: an unmap acts at once, and only the clock of the calling thread orders it.

use super::*;
use crate::device::{Device, PageAccess, Pages, Purpose, UserStreams};
use crate::memory::Units;

const UNIT: u64 = 4 * PAGE;

fn leaked(byte: u8, len: u64) -> HostBytes {
    HostBytes::from_static(Box::leak(vec![byte; len as usize].into_boxed_slice()))
}

/// A unit with a copy that is done.
fn filled(order: Order, bytes: HostBytes) -> (Units<Sim>, DevicePtr) {
    let mut units = Units::new(Sim::new(order));
    let at = units.reserve(UNIT).unwrap();
    units.back(at, UNIT).unwrap();
    let sim = &mut units.pages;
    sim.bring(at, bytes).unwrap();
    sim.synchronize().unwrap();
    (units, at)
}

#[test]
fn a_unit_that_goes_before_its_reader_is_done_is_a_race() {
    let bytes = leaked(7, UNIT);
    for early in [true, false] {
        let (mut units, at) = filled(Order::KernelsFirst, bytes);
        let sim = &mut units.pages;
        sim.kernel(1, &[(at, bytes)]).unwrap();
        let event = UserStreams::record(sim, Actor::Compute).unwrap();
        assert_eq!(UserStreams::is_done(sim, &event), Ok(false));
        if !early {
            UserStreams::wait(sim, &event).unwrap();
            assert_eq!(UserStreams::is_done(sim, &event), Ok(true));
        }
        units.take(at, false).unwrap();
        let found = units.pages.take_problems();
        let race = |problem: &Violation| matches!(problem, Violation::Race { second, .. } if second.what == What::Unmapped);
        assert_eq!(found.iter().any(race), early, "{found:?}");
        assert_eq!(found.is_empty(), !early, "{found:?}");
    }
}

/// That the kernel has run is not enough: the thread has to have seen it.
#[test]
fn a_reader_that_nobody_asked_for_is_not_ordered() {
    let bytes = leaked(7, UNIT);
    let (mut units, at) = filled(Order::KernelsFirst, bytes);
    let sim = &mut units.pages;
    sim.kernel(1, &[(at, bytes)]).unwrap();
    sim.run();
    units.take(at, false).unwrap();
    assert!(matches!(
        units.pages.take_problems()[..],
        [Violation::Race { .. }]
    ));
}

#[test]
fn new_memory_holds_nothing_and_addresses_without_memory_are_refused() {
    let bytes = leaked(7, UNIT);
    let (mut units, at) = filled(Order::CopiesFirst, bytes);
    units.take(at, true).unwrap();
    assert!(units.pages.kernel(1, &[(at, bytes)]).is_err());
    assert!(units.take(at, false).is_err());
    assert!(units.back(at, 2 * UNIT).is_err());
    units.back(at, UNIT).unwrap();
    assert!(units.back(at, UNIT).is_err());
    let sim = &mut units.pages;
    sim.bring(at, bytes).unwrap();
    sim.synchronize().unwrap();
    units.take(at, false).unwrap();
    // Other memory.
    units.back(at, UNIT).unwrap();
    let sim = &mut units.pages;
    sim.kernel(2, &[(at, bytes)]).unwrap();
    let found = sim.take_problems();
    assert!(matches!(found[0], Violation::Worthless { .. }), "{found:?}");
    sim.synchronize().unwrap();
    assert!(units.release(at).is_err());
    units.take(at, false).unwrap();
    units.release(at).unwrap();
    assert!(units.back(at, UNIT).is_err());
}

/// Access is allowed for as many bytes as have memory, and no page is mapped twice or beyond what was reserved.
#[test]
fn what_is_not_reserved_or_not_mapped_is_refused() {
    let mut sim = Sim::new(Order::CopiesFirst);
    let at = Pages::reserve(&mut sim, 2 * PAGE, Purpose::Weights).unwrap();
    let memory = sim.create_one(PAGE, Purpose::Weights).unwrap();
    let read = PageAccess::Read;
    for stray in [
        DevicePtr(at.0 - PAGE),
        at.offset(2 * PAGE),
        at.offset(PAGE + 64),
    ] {
        assert!(sim.map(stray, &memory).is_err());
    }
    sim.map(at, &memory).unwrap();
    assert!(sim.map(at, &memory).is_err());
    assert!(sim.allow(at, 2 * PAGE, read).is_err());
    let bytes = leaked(7, PAGE);
    assert!(
        sim.kernel(0, &[(at, bytes)]).is_err(),
        "nobody may read yet"
    );
    sim.allow(at, PAGE, read).unwrap();
    assert!(sim.bring(at, bytes).is_err(), "it shows nowhere writable");
    sim.map(at.offset(PAGE), &memory).unwrap();
    sim.allow(at.offset(PAGE), PAGE, PageAccess::ReadWrite)
        .unwrap();
    sim.bring(at, bytes).unwrap();
    sim.synchronize().unwrap();
    sim.kernel(1, &[(at.offset(PAGE), bytes)]).unwrap();
    assert!(sim.unmap(at.offset(64)).is_err());
    sim.synchronize().unwrap();
    Pages::release(&mut sim, at).unwrap();
    assert!(Pages::release(&mut sim, at).is_err());
    assert_eq!(sim.live_bytes(), PAGE, "it has a handle");
    drop(memory);
    assert_eq!(sim.live_bytes(), 0);
}
