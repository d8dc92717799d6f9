//! Units of ranges: an unmap acts at once, and only the clock of the calling thread orders it.

use super::*;
use crate::device::{Device, UserStreams};
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
