//! Units of ranges: an unmap acts at once, and only the clock of the calling thread orders it.

use super::*;
use crate::device::{Device, Units};

const UNIT: u64 = 4 * PAGE;

fn leaked(byte: u8, len: u64) -> HostBytes {
    HostBytes::from_static(Box::leak(vec![byte; len as usize].into_boxed_slice()))
}

/// A unit with a copy that is done.
fn filled(sim: &mut Sim, bytes: HostBytes) -> DevicePtr {
    let at = sim.reserve(UNIT).unwrap();
    sim.back(at, UNIT).unwrap();
    sim.copy_to_device(at, bytes).unwrap();
    sim.synchronize().unwrap();
    at
}

#[test]
fn a_unit_that_goes_before_its_reader_is_done_is_a_race() {
    let bytes = leaked(7, UNIT);
    for early in [true, false] {
        let mut sim = Sim::new(Order::KernelsFirst);
        let at = filled(&mut sim, bytes);
        sim.kernel(1, &[(at, bytes)]).unwrap();
        let event = Units::record(&mut sim, Actor::Compute).unwrap();
        assert_eq!(Units::is_done(&sim, &event), Ok(false));
        if !early {
            Units::wait(&mut sim, &event).unwrap();
            assert_eq!(Units::is_done(&sim, &event), Ok(true));
        }
        Units::take(&mut sim, at, false).unwrap();
        let found = sim.take_problems();
        let race = |problem: &Violation| matches!(problem, Violation::Race { second, .. } if second.what == What::Unmapped);
        assert_eq!(found.iter().any(race), early, "{found:?}");
        assert_eq!(found.is_empty(), !early, "{found:?}");
    }
}

/// That the kernel has run is not enough: the thread has to have seen it.
#[test]
fn a_reader_that_nobody_asked_for_is_not_ordered() {
    let bytes = leaked(7, UNIT);
    let mut sim = Sim::new(Order::KernelsFirst);
    let at = filled(&mut sim, bytes);
    sim.kernel(1, &[(at, bytes)]).unwrap();
    sim.run();
    Units::take(&mut sim, at, false).unwrap();
    assert!(matches!(sim.take_problems()[..], [Violation::Race { .. }]));
}

#[test]
fn new_memory_holds_nothing_and_addresses_without_memory_are_refused() {
    let bytes = leaked(7, UNIT);
    let mut sim = Sim::new(Order::CopiesFirst);
    let at = filled(&mut sim, bytes);
    Units::take(&mut sim, at, true).unwrap();
    assert!(sim.kernel(1, &[(at, bytes)]).is_err());
    assert!(Units::take(&mut sim, at, false).is_err());
    assert!(sim.back(at, 2 * UNIT).is_err());
    sim.back(at, UNIT).unwrap();
    assert!(sim.back(at, UNIT).is_err());
    sim.kernel(2, &[(at, bytes)]).unwrap();
    let found = sim.take_problems();
    assert!(matches!(found[0], Violation::Worthless { .. }), "{found:?}");
    sim.synchronize().unwrap();
    assert!(sim.release(at).is_err());
    Units::take(&mut sim, at, false).unwrap();
    sim.release(at).unwrap();
    assert!(sim.back(at, UNIT).is_err());
}
