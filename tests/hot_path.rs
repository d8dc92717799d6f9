//! A probe that hits, and its release, allocate nothing.

mod session_support;

use session_support::{chain, play, Pass};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weightstream::aoti::hooks::PassHooks;
use weightstream::aoti::measure::ProbeCalls;
use weightstream::config::PolicyKind;
use weightstream::device::{Device, HostDevice};
use weightstream::session::Session;

/// Counts the allocations of the thread that asks.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of all probes and releases of one pass.
fn allocations<D: Device>(session: &mut Session<D>, probes: i64) -> usize {
    session.begin_pass().unwrap();
    let before = COUNT.with(Cell::get);
    for id in 0..probes {
        session.probe(id).unwrap();
        session.release(id);
    }
    let count = COUNT.with(Cell::get) - before;
    session.end_pass(true).unwrap();
    count
}

#[test]
fn through_the_c_functions_nothing_allocates_either() {
    let model = chain(&[640; 16]);
    let mut session = model.host(Some(1 << 20));
    let mut calls = ProbeCalls::new(1).unwrap();
    let mut pass = |session: &mut Session<_>| {
        session.begin_pass().unwrap();
        let before = COUNT.with(Cell::get);
        calls.run(session, 0..16).unwrap();
        let count = COUNT.with(Cell::get) - before;
        session.end_pass(true).unwrap();
        count
    };
    pass(&mut session); // the slab grows to its size once
    assert_eq!(pass(&mut session), 0);
}

#[test]
fn with_everything_resident_nothing_allocates() {
    let model = chain(&[640; 16]);
    let mut session = model.host(Some(1 << 20));
    play(&model, &mut session, Pass::Complete).unwrap();
    assert_eq!(allocations(&mut session, 16), 0);
    assert_eq!(session.stats().misses, 0);
}

/// The hits of an LRU that has to evict elsewhere: at the first probe all but the last weight are
/// prefetched, and the leases that are then held leave no room to copy anything.
#[test]
fn under_lru_nothing_allocates_either() {
    let model = chain(&[640; 16]);
    let mut session = model.host(Some(16 * 640 - 64));
    session.begin_pass().unwrap();
    let served = |s: &Session<_>| (s.stats().prefetches, s.stats().misses);
    session.probe(0).unwrap();
    let loaded = served(&session);
    let before = COUNT.with(Cell::get);
    for id in 1..8 {
        session.probe(id).unwrap();
    }
    assert_eq!(COUNT.with(Cell::get) - before, 0);
    assert_eq!(
        served(&session),
        loaded,
        "these were to be hits without copies"
    );
    (0..8).for_each(|id| session.release(id));
    session.end_pass(false).unwrap();
}

/// The hits on what a plan keeps, while the copies for what streams wait for their places.
#[test]
fn by_a_plan_nothing_allocates_either() {
    let model = chain(&[640; 16]);
    let device = HostDevice::new().unwrap();
    let mut session = model
        .session_by(PolicyKind::Planned, device, Some(15 * 640))
        .unwrap();
    assert_eq!(session.policy(), "planned");
    play(&model, &mut session, Pass::Complete).unwrap();
    session.begin_pass().unwrap();
    let copied = |s: &Session<_>| s.stats().bytes_copied;
    let (mut hits, mut allocated) = (0, 0);
    for id in 0..16 {
        let (before, bytes) = (COUNT.with(Cell::get), copied(&session));
        session.probe(id).unwrap();
        if copied(&session) == bytes {
            hits += 1;
            allocated += COUNT.with(Cell::get) - before;
        }
        session.release(id);
    }
    assert_eq!(allocated, 0);
    assert!(hits >= 12, "{hits}");
    session.end_pass(true).unwrap();
}
