//! What a thread does while it waits for a GPU.
//!
//! In a pass of which most is copies, the calling thread has nothing to do for milliseconds. What it does between that wait
//! and the next pass takes some times as long as it would behind a short one (on the host of an H200: 145 microseconds
//! behind 13 ms, 300 behind 32 ms, 60 behind 3 ms), as it seems since others have taken its core's caches meanwhile. The
//! link stands still for that time, once the ring of a plan is full. So a caller may have something done over and over while its
//! thread waits: what it will do next, without effect, which leaves its code and data where they are found at once.
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Between two calls. Five milliseconds would do for the caches; what waits for less should not be disturbed.
pub const EVERY: Duration = Duration::from_micros(400);

/// What is called.
pub type Hook = Box<dyn Fn()>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Has `hook` called about each [`EVERY`] while the calling thread waits for a GPU; `None`, as at first: the thread waits in the driver.
/// Of no effect on waits that go on.
pub fn while_waiting(hook: Option<Hook>) {
    HOOK.set(hook);
}

/// Calls the thread's hook until something is `done`; returns at once if there is no hook. One that is set by the hook
/// itself is forgotten.
pub(crate) fn call_until(mut done: impl FnMut() -> bool) {
    // Taken out: what it calls may wait as well.
    let Some(hook) = HOOK.take() else { return };
    let mut called = Instant::now();
    while !done() {
        if called.elapsed() >= EVERY {
            hook();
            called = Instant::now();
        }
        std::hint::spin_loop();
    }
    HOOK.set(Some(hook));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// How often a hook was called in a wait for so many microseconds.
    fn calls_in(micros: u64) -> u32 {
        let calls = Rc::new(Cell::new(0));
        let counted = Rc::clone(&calls);
        while_waiting(Some(Box::new(move || counted.set(counted.get() + 1))));
        let begin = Instant::now();
        call_until(|| begin.elapsed() >= Duration::from_micros(micros));
        while_waiting(None);
        assert_eq!(Rc::strong_count(&calls), 1, "the hook is gone");
        calls.get()
    }

    #[test]
    fn long_waits_call_the_hook() {
        let calls = calls_in(20_000);
        // A busy machine may stop this thread, so the number is not fixed.
        assert!((1..=50).contains(&calls), "{calls}");
    }

    #[test]
    fn what_is_done_already_calls_nothing() {
        assert_eq!(calls_in(0), 0);
    }

    #[test]
    fn a_hook_stays_from_wait_to_wait_and_a_wait_within_it_is_a_plain_one() {
        let calls = Rc::new(Cell::new(0));
        let counted = Rc::clone(&calls);
        while_waiting(Some(Box::new(move || {
            call_until(|| unreachable!("there is no hook in a hook"));
            counted.set(counted.get() + 1);
        })));
        for wait in 1..=2 {
            call_until(|| calls.get() == wait);
        }
        while_waiting(None);
        call_until(|| unreachable!("the hook was taken away"));
        assert_eq!(calls.get(), 2);
    }

    #[test]
    fn a_hook_is_its_threads_own() {
        while_waiting(Some(Box::new(|| ())));
        let other = std::thread::spawn(|| call_until(|| unreachable!("of another thread")));
        assert!(other.join().is_ok());
        while_waiting(None);
    }
}
