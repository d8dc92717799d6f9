//! Whose turn it is in the ring of `staged`: which reader takes which piece, when a slot is free, and how it ends. The protocol
//! is that of `stage_ring`.
//!
//! Nothing here knows memory, files or a driver. `tests/loom_progress.rs` compiles this file with loom's types for `sync`, and
//! tries every order in which readers and a stream can run it.

use super::sync::atomic::{fence, AtomicBool, AtomicU32, Ordering};
use super::sync::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::PoisonError;

/// Whether a mark has come to `piece`.
pub(super) fn reached(mark: u32, piece: u32) -> bool {
    // rule: piece-numbers-wrap-around
    mark.wrapping_sub(piece) as i32 >= 0
}

/// A piece that was handed to the readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StagePiece {
    /// Its number, as the marks hold it.
    pub(super) number: u32,
    /// Its slot.
    pub(super) slot: u64,
}

/// A piece, its place in the source, and its bytes.
pub(super) type Job = (StagePiece, u64, u64);

/// What readers and the issuing thread share. `E` is a failure.
pub(super) struct Turns<E> {
    slots: u64,
    queue: Mutex<Queue<E>>,
    work: Condvar,
    /// Set with `Queue::failure`, so that asking takes no lock.
    failed: AtomicBool,
}

pub(super) struct Queue<E> {
    /// Pieces that no reader has taken yet, in order: place in the source, bytes.
    jobs: VecDeque<(u64, u64)>,
    /// Number of the last piece that was issued.
    issued: u64,
    /// A reader waits for a free slot, so that the others need not.
    polled: bool,
    stop: bool,
    failure: Option<E>,
}

impl<E: Clone> Turns<E> {
    /// For so many slots, with pieces numbered from after `issued`.
    pub(super) fn new(slots: u64, issued: u64) -> Turns<E> {
        Turns {
            slots,
            queue: Mutex::new(Queue {
                jobs: VecDeque::with_capacity(2 * slots as usize),
                issued,
                polled: false,
                stop: false,
                failure: None,
            }),
            work: Condvar::new(),
            failed: AtomicBool::new(false),
        }
    }

    /// Hands over the next piece.
    pub(super) fn push(&self, offset: u64, len: u64) -> StagePiece {
        let mut queue = self.queue();
        queue.jobs.push_back((offset, len));
        queue.issued += 1;
        let piece = self.piece(queue.issued);
        drop(queue);
        // rule: pushed-piece-wakes-a-reader
        self.work.notify_one();
        piece
    }

    /// The next piece, once its slot is free; `None` at the end. One of the readers looks for the slot, the others
    /// wait for it: it calls `nap`, which gives the lock up for a while, until `done` has come far enough.
    pub(super) fn take<'a>(
        &'a self,
        done: &AtomicU32,
        mut nap: impl FnMut(&'a Condvar, MutexGuard<'a, Queue<E>>) -> MutexGuard<'a, Queue<E>>,
    ) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if queue.stop {
                return None;
            }
            match self.next(&queue) {
                // rule: slot-is-filled-once-it-is-free
                Some(job) if self.is_free(job.0, done) => {
                    queue.jobs.pop_front();
                    let more = !queue.jobs.is_empty();
                    drop(queue);
                    if more {
                        self.work.notify_one();
                    }
                    return Some(job);
                }
                Some(_) if !queue.polled => {
                    queue.polled = true;
                    queue = nap(&self.work, queue);
                    queue.polled = false;
                }
                _ => {
                    let woken = self.work.wait(queue);
                    queue = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// The piece is in its slot.
    pub(super) fn mark_ready(&self, mark: &AtomicU32, piece: StagePiece) {
        // The device reads the slot next, by an access that is no atomic of ours.
        fence(Ordering::SeqCst);
        // rule: filled-piece-is-marked-ready
        mark.store(piece.number, Ordering::Release);
    }

    /// Keeps the first failure.
    pub(super) fn fail(&self, failure: E) {
        self.queue().failure.get_or_insert(failure);
        self.failed.store(true, Ordering::Release);
    }

    /// Whether there was one.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The first failure. It stays.
    pub(super) fn failure(&self) -> Option<E> {
        self.queue().failure.clone()
    }

    /// No reader gets another piece.
    pub(super) fn stop(&self) {
        self.queue().stop = true;
        // rule: end-wakes-all-readers
        self.work.notify_all();
    }

    #[cfg(test)]
    pub(super) fn is_stopped(&self) -> bool {
        self.queue().stop
    }

    /// Number of the last piece that was issued.
    pub(super) fn issued(&self) -> u32 {
        self.queue().issued as u32
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue<E>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, queue: &Queue<E>) -> Option<Job> {
        let &(offset, len) = queue.jobs.front()?;
        let number = queue.issued - (queue.jobs.len() as u64 - 1);
        Some((self.piece(number), offset, len))
    }

    fn piece(&self, number: u64) -> StagePiece {
        StagePiece {
            number: number as u32,
            slot: (number - 1) % self.slots,
        }
    }

    /// Whether the stream is done with what the slot held before.
    fn is_free(&self, piece: StagePiece, done: &AtomicU32) -> bool {
        // rule: slot-is-free-after-its-own-piece
        let before = piece.number.wrapping_sub(self.slots as u32);
        // rule: free-slot-was-read-before
        let done = done.load(Ordering::Acquire);
        reached(done, before)
    }
}
