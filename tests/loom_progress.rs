//! Waits between threads, in every order in which they can run: of the copy thread (`device/host/progress.rs`) and of the ring
//! of `staged` (`device/cuda/stage_turns.rs`). These files take their atomics and locks from `sync`, which is loom's here.
#![allow(dead_code)]

#[path = "../src/device/host/progress.rs"]
mod progress;
#[path = "../src/device/cuda/stage_turns.rs"]
mod stage_turns;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{self, Arc};
use loom::thread::{spawn, yield_now, JoinHandle};
use progress::Progress;
use stage_turns::{reached, Turns};

#[test]
fn what_a_command_wrote_is_there_once_it_is_done() {
    loom::model(|| {
        let progress = Arc::new(Progress::new());
        let bytes = Arc::new(UnsafeCell::new(0));
        let (theirs, target) = (Arc::clone(&progress), Arc::clone(&bytes));
        let copier = spawn(move || {
            // SAFETY: `progress` keeps the reader away; loom ends the test if it does not.
            target.with_mut(|bytes| unsafe { *bytes = 7 });
            theirs.step();
            theirs.step();
        });
        assert!(progress.wait(1));
        // SAFETY: the command that writes it is done.
        assert_eq!(bytes.with(|bytes| unsafe { *bytes }), 7);
        assert!(progress.wait(2));
        copier.join().unwrap();
    });
}

#[test]
fn nobody_waits_for_a_copy_thread_that_has_ended() {
    loom::model(|| {
        let progress = Arc::new(Progress::new());
        let theirs = Arc::clone(&progress);
        let copier = spawn(move || {
            theirs.step();
            theirs.fail("why".to_owned());
        });
        assert!(!progress.wait(2));
        assert!(progress.reached(1));
        assert_eq!(progress.failure().as_deref(), Some("why"));
        copier.join().unwrap();
    });
}

/// A ring of slots that hold a number each, and its marks.
struct Ring {
    turns: Turns<&'static str>,
    slots: Vec<UnsafeCell<u64>>,
    ready: Vec<AtomicU32>,
    done: AtomicU32,
}

impl Ring {
    fn new(slots: u64) -> Arc<Ring> {
        Arc::new(Ring {
            turns: Turns::new(slots, 0),
            slots: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
            ready: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            done: AtomicU32::new(0),
        })
    }

    fn take(&self) -> Option<stage_turns::Job> {
        // Loom knows no time: a nap ends when the other threads have done something.
        self.turns.take(&self.done, |_, queue| {
            drop(queue);
            yield_now();
            self.turns.queue()
        })
    }

    /// Copies the next piece away, as the stream does.
    fn copy(&self, number: u32) -> u64 {
        let slot = (number - 1) as usize % self.slots.len();
        while !reached(self.ready[slot].load(Ordering::Acquire), number) {
            yield_now();
        }
        // SAFETY: the piece is ready, and not yet done with.
        let found = self.slots[slot].with(|slot| unsafe { *slot });
        self.done.store(number, Ordering::Release);
        found
    }
}

/// A thread that fills slots with where their pieces come from.
fn reader(ring: &Arc<Ring>) -> JoinHandle<()> {
    let ring = Arc::clone(ring);
    spawn(move || {
        while let Some((piece, offset, _)) = ring.take() {
            let slot = piece.slot as usize;
            // SAFETY: it is this reader's turn; loom ends the test if another thread uses the slot.
            ring.slots[slot].with_mut(|slot| unsafe { *slot = offset });
            ring.turns.mark_ready(&ring.ready[slot], piece);
        }
    })
}

/// Tries all orders with at most so many switches away from a thread that could go on.
fn tried(switches: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(body);
}

#[test]
fn a_slot_is_filled_again_once_it_was_read() {
    tried(3, || {
        let ring = Ring::new(1);
        let reader = reader(&ring);
        ring.turns.push(10, 1);
        ring.turns.push(20, 1);
        assert_eq!([ring.copy(1), ring.copy(2)], [10, 20]);
        ring.turns.stop();
        reader.join().unwrap();
    });
}

/// No reader waits for a slot here: two threads that wait for each other's marks are more than loom can try.
#[test]
fn each_piece_is_read_once_and_comes_in_its_turn() {
    tried(2, || {
        let ring = Ring::new(2);
        let readers = [reader(&ring), reader(&ring)];
        ring.turns.push(10, 1);
        ring.turns.push(20, 1);
        assert_eq!([ring.copy(1), ring.copy(2)], [10, 20]);
        ring.turns.stop();
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn the_end_wakes_readers_that_wait_for_work_or_for_a_slot() {
    tried(3, || {
        let ring = Ring::new(1);
        let readers = [reader(&ring), reader(&ring)];
        // Nobody copies the first one away.
        ring.turns.push(10, 1);
        ring.turns.push(20, 1);
        ring.turns.stop();
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
        assert_eq!(ring.turns.issued(), 2);
    });
}

#[test]
fn a_failure_is_known_once_its_piece_is_ready() {
    loom::model(|| {
        let ring = Ring::new(1);
        let theirs = Arc::clone(&ring);
        let reader = spawn(move || {
            let (piece, ..) = theirs.take().unwrap();
            theirs.turns.fail("damaged");
            theirs.turns.mark_ready(&theirs.ready[0], piece);
        });
        ring.turns.push(10, 1);
        ring.copy(1);
        assert!(ring.turns.has_failed());
        assert_eq!(ring.turns.failure(), Some("damaged"));
        reader.join().unwrap();
    });
}
