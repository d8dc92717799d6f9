//! What shows at several addresses is one memory, to the clocks as well.

use super::*;
use crate::device::{Device, PageAccess, Pages};
use crate::figures::{KeptPages, Piece, View};
use crate::memory::MappedView;

fn leaked(byte: u8, len: u64) -> HostBytes {
    HostBytes::from_static(Box::leak(vec![byte; len as usize].into_boxed_slice()))
}

/// Two addresses of one page, after a page of the first one's own.
fn alias() -> View {
    let piece = |at, memory, bytes| Piece { at, memory, bytes };
    View {
        bytes: 3 * PAGE,
        memory: 2 * PAGE,
        pieces: vec![piece(0, 0, 2 * PAGE), piece(2 * PAGE, PAGE, PAGE)],
    }
}

fn map(sim: &mut Sim, view: &View) -> Result<MappedView<Sim>> {
    MappedView::open(sim, view, PageAccess::Read)
}

fn sim() -> (Sim, [DevicePtr; 2]) {
    let (sim, _, both) = mapped();
    (sim, both)
}

fn mapped() -> (Sim, MappedView<Sim>, [DevicePtr; 2]) {
    let mut sim = Sim::new(Order::KernelsFirst);
    let view = map(&mut sim, &alias()).unwrap();
    let at = view.at();
    (sim, view, [at.offset(PAGE), at.offset(2 * PAGE)])
}

#[test]
fn right_bytes_through_all_addresses() {
    let (mut sim, [one, other]) = sim();
    for (byte, to) in [(7, one), (8, other)] {
        let bytes = leaked(byte, PAGE);
        sim.bring(to, bytes).unwrap();
        sim.synchronize().unwrap();
        sim.kernel(0, &[(one, bytes), (other, bytes)]).unwrap();
        // What follows waits for the kernel.
        sim.synchronize().unwrap();
    }
    assert_eq!(sim.verdict(), Ok(()));
    // Over both pieces at once: the shared page is the last third, too.
    let bytes = leaked(9, 2 * PAGE);
    sim.bring(DevicePtr(one.0 - PAGE), bytes).unwrap();
    sim.synchronize().unwrap();
    sim.kernel(1, &[(one, leaked(9, 2 * PAGE))]).unwrap();
    assert_eq!(sim.verdict(), Ok(()));
    // The bytes themselves are compared as well.
    sim.kernel(2, &[(other, leaked(8, PAGE))]).unwrap();
    let found = sim.take_problems();
    assert!(
        matches!(found[..], [Violation::WrongBytes { at: 0, .. }]),
        "{found:?}"
    );
}

#[test]
fn a_copy_to_one_address_races_with_a_reader_of_the_other() {
    for waits in [true, false] {
        let (mut sim, [one, other]) = sim();
        let (old, new) = (leaked(7, PAGE), leaked(8, PAGE));
        sim.bring(one, old).unwrap();
        sim.synchronize().unwrap();
        sim.kernel(5, &[(other, old)]).unwrap();
        let read = sim.record_compute().unwrap();
        if waits {
            sim.copy_wait(&read).unwrap();
        }
        sim.bring(one, new).unwrap();
        let found = sim.take_problems();
        // Kernels go first here: the bytes were right both times.
        let race = |problem: &Violation| matches!(problem, Violation::Race { .. });
        assert_eq!(found.iter().filter(|p| race(p)).count(), found.len());
        assert_eq!(found.len(), usize::from(!waits), "{found:?}");
    }
}

#[test]
fn a_kernel_that_does_not_wait_for_a_copy_to_the_other_address_is_a_race() {
    let (mut sim, [one, other]) = sim();
    let bytes = leaked(7, PAGE);
    sim.bring(one, bytes).unwrap();
    sim.kernel(5, &[(other, bytes)]).unwrap();
    let found = sim.take_problems();
    assert!(
        matches!(
            found[..],
            [Violation::Race { .. }, Violation::WrongBytes { .. }]
        ),
        "{found:?}"
    );
}

#[test]
fn discarding_one_address_discards_the_other() {
    let (mut sim, [one, other]) = sim();
    let bytes = leaked(7, PAGE);
    sim.bring(one, bytes).unwrap();
    sim.discard(other, 64).unwrap();
    sim.synchronize().unwrap();
    let rest = bytes.slice(64..PAGE);
    sim.kernel(0, &[(one.offset(64), rest), (other.offset(64), rest)])
        .unwrap();
    assert_eq!(sim.verdict(), Ok(()));
    sim.kernel(1, &[(one, bytes)]).unwrap();
    let found = sim.take_problems();
    assert!(
        matches!(
            found[..],
            [
                Violation::Worthless {
                    given_up: Some(_),
                    ..
                },
                Violation::WrongBytes { .. }
            ]
        ),
        "{found:?}"
    );
}

#[test]
fn memory_is_counted_once_and_addresses_are_their_own() {
    let mut sim = Sim::new(Order::CopiesFirst);
    sim.set_budget(3 * PAGE).unwrap();
    sim.limit_addresses(4 * PAGE + 64);
    let block = sim.alloc(PAGE).unwrap();
    let mut view = map(&mut sim, &alias()).unwrap();
    let at = view.at();
    let end = at.0 + alias().bytes;
    assert!(at.0 > block.0 + 4 * PAGE && end < SCRATCH);
    // The view's memory is two units: no one crosses a border of pieces.
    assert_eq!((sim.live_bytes(), sim.live_blocks()), (3 * PAGE, 3));
    assert_eq!(sim.verdict(), Ok(()));
    // Where the memory itself lies nobody was told.
    let memory = block.offset(PAGE);
    let stray = |outcome: Result<()>| assert!(matches!(outcome, Err(Error::Internal(_))));
    stray(sim.bring(memory, leaked(1, 64)));
    stray(sim.kernel(0, &[(memory, leaked(1, 64))]));
    stray(sim.free(memory, PAGE));
    // The last page may be used in part.
    sim.alloc(PAGE + 64).unwrap();
    assert_eq!(
        sim.take_problems(),
        [Violation::OverBudget {
            live: 4 * PAGE + 64,
            budget: 3 * PAGE
        }]
    );
    let none = map(&mut sim, &alias());
    assert!(matches!(none.map(drop), Err(Error::OutOfMemory { .. })));
    assert_eq!(sim.take_problems().len(), 2);
    view.close(&mut sim).unwrap();
    assert_eq!(sim.live_bytes(), 2 * PAGE + 64);
    let again = map(&mut sim, &alias());
    assert!(again.is_ok_and(|again| again.at().0 >= end));
    assert_eq!(sim.take_problems().len(), 1);
}

#[test]
fn unmapped_memory_holds_nothing() {
    let (mut sim, mut view, [one, _]) = mapped();
    let bytes = leaked(7, PAGE);
    sim.bring(one, bytes).unwrap();
    view.close(&mut sim).unwrap();
    assert!(sim.kernel(0, &[(one, bytes)]).is_err());
    let block = sim.alloc(2 * PAGE).unwrap();
    sim.synchronize().unwrap();
    sim.kernel(1, &[(block.offset(PAGE), bytes)]).unwrap();
    let found = sim.take_problems();
    assert!(
        matches!(
            found[..],
            [
                Violation::Worthless {
                    given_up: Some(_),
                    ..
                },
                Violation::WrongBytes { .. }
            ]
        ),
        "{found:?}"
    );
}

#[test]
fn a_device_may_have_no_pages_or_others() {
    let mut sim = Sim::new(Order::CopiesFirst);
    sim.set_page(None);
    let maps = |sim: &mut Sim| map(sim, &alias()).is_ok();
    assert!(Device::page(&sim).is_none() && !maps(&mut sim));
    sim.set_page(Some(64));
    assert!(maps(&mut sim));
    sim.set_page(Some(2 * PAGE));
    assert!(!maps(&mut sim));
    sim.fail_call("map", 0);
    sim.set_page(Some(PAGE));
    assert!(!maps(&mut sim) && maps(&mut sim));
}

#[test]
fn moved_pages_keep_what_they_hold_and_others_hold_nothing() {
    let (mut sim, view, [one, other]) = mapped();
    let (first, second) = (leaked(7, PAGE), leaked(8, PAGE));
    sim.bring(one, first).unwrap();
    sim.bring(other, second).unwrap();
    sim.synchronize().unwrap();
    let kept = KeptPages {
        from: PAGE,
        to: 0,
        bytes: PAGE,
    };
    let (moved, lost) = view
        .moved(&mut sim, &alias(), PageAccess::Read, &[kept])
        .unwrap();
    assert_eq!(lost, []);
    let at = moved.at();
    let memory = |offset: u64| {
        let piece = alias()
            .pieces
            .iter()
            .find(|piece| piece.memory == offset)
            .copied();
        at.offset(piece.unwrap().at)
    };
    // One page is seen through both addresses: the second copy is what it held.
    sim.kernel(0, &[(memory(0), second)]).unwrap();
    assert_eq!(sim.take_problems(), []);
    sim.kernel(1, &[(memory(PAGE), second)]).unwrap();
    assert!(!sim.take_problems().is_empty());
}

/// A driver unmaps at once, whatever reads there.
#[test]
fn pages_that_go_early_are_a_problem() {
    let (mut sim, _, [one, _]) = mapped();
    sim.bring(one, leaked(7, PAGE)).unwrap();
    Pages::release(&mut sim, DevicePtr(one.0 - PAGE)).unwrap();
    let found = sim.take_problems();
    let race = |problem: &Violation| matches!(problem, Violation::Race { .. });
    assert!(!found.is_empty() && found.iter().all(race), "{found:?}");
}

/// What keeps them from it: both wait for all that was issued.
#[test]
fn a_view_moves_and_closes_after_its_users() {
    for moves in [true, false] {
        let (mut sim, mut view, [one, other]) = mapped();
        let bytes = leaked(7, PAGE);
        sim.bring(one, bytes).unwrap();
        let copied = sim.record_copy().unwrap();
        sim.compute_wait(&copied).unwrap();
        sim.kernel(0, &[(other, bytes)]).unwrap();
        match moves {
            true => drop(
                view.moved(&mut sim, &alias(), PageAccess::Read, &[])
                    .unwrap(),
            ),
            false => view.close(&mut sim).unwrap(),
        }
        assert_eq!(sim.take_problems(), [], "{moves}");
    }
}
