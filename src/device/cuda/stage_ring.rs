//! The ring of `staged`, as far as it has nothing to do with a driver: how it is divided, which thread fills
//! which slot with what and when, what happens if a read fails, and how it ends.
//!
//! # Protocol
//! Copies are cut into *pieces* of at most one slot, numbered from 1 up in the order of the copy stream. Piece `n`
//! uses slot `(n - 1) % slots`. Marks in host memory that the device reads and writes tie the two sides
//! together; they hold the low 32 bits of piece numbers, and are compared cyclically:
//! - `ready(slot)`: the last piece that was put there. The copy stream waits until it has come to `n`, then copies.
//! - `done`: the last piece that the copy stream has copied away. A reader fills a slot for piece `n` once `done` has
//!   come to `n - slots`. One mark is enough, since the stream is in order.
//!
//! A reader waits for nothing but pieces before its own, and the stream for nothing but its readers and what was
//! issued before: so neither can wait for the other in a circle. Readers call no driver: a driver that waits for
//! the device while it holds a lock cannot stop them.
//!
//! # Failures
//! A piece whose read fails is kept as the failure, then zeros are put into its slot (so that what kernels read as
//! indices stays in bounds), and only then is it marked ready. Whoever has waited for the copy thus finds the
//! failure in [`Readers::check`].

use super::stage_shape::Shape;
pub(super) use super::stage_turns::StagePiece;
use super::stage_turns::{Job, Turns};
use crate::device::file::ReadAt;
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes between two marks: a line of the cache each.
pub(super) const MARK_STRIDE: usize = 64;

/// How long the reader whose turn it is sleeps at first, and at most, until it looks for a free slot again.
const SLEEP: Range<Duration> = Duration::from_micros(20)..Duration::from_micros(200);

/// The slots and the marks, in memory that the device sees too.
#[derive(Clone, Copy)]
pub(super) struct Area {
    slots: *mut u8,
    marks: *const u8,
    shape: Shape,
}

// SAFETY: plain addresses; who may use the memory when is the protocol's (module doc).
unsafe impl Send for Area {}
// SAFETY: as for `Send`.
unsafe impl Sync for Area {}

impl Area {
    /// # Safety
    /// Until every [`Readers`] that was started with this value is dropped, `slots` are `shape.bytes()` and `marks`
    /// are `shape.marks()` times [`MARK_STRIDE`] bytes, zeroed, at multiples of 64, and nobody but the protocol's
    /// two sides uses them.
    pub(super) unsafe fn new(slots: *mut u8, marks: *const u8, shape: Shape) -> Area {
        Area {
            slots,
            marks,
            shape,
        }
    }

    /// Byte offset of a mark. Mark 0 is `done`, 1 is for trying, the others are the slots'.
    pub(super) fn mark_offset(index: u64) -> u64 {
        index * MARK_STRIDE as u64
    }

    pub(super) fn mark(&self, index: u64) -> &AtomicU32 {
        assert!(index < self.shape.marks(), "mark {index}");
        // SAFETY: inside of the marks, by the check; aligned, and there as long as `new` demands. Nothing but
        // atomics uses it on this side.
        unsafe { &*self.marks.add(index as usize * MARK_STRIDE).cast() }
    }

    /// Address of a slot.
    pub(super) fn slot(&self, slot: u64) -> *mut u8 {
        assert!(slot < self.shape.slots, "slot {slot}");
        // Only formed here.
        self.slots
            .wrapping_add((slot * self.shape.slot_bytes) as usize)
    }

    /// # Safety
    /// It is the caller's turn to fill the slot: `done` has come to the piece before, and no other reader has
    /// this one.
    unsafe fn fill(&self, slot: u64, len: u64, fill: impl FnOnce(&mut [u8])) {
        let len = len.min(self.shape.slot_bytes) as usize;
        // SAFETY: inside of the slots; nobody else uses it, by the caller's promise.
        fill(unsafe { std::slice::from_raw_parts_mut(self.slot(slot), len) });
    }
}

impl StagePiece {
    /// The mark that says when it is there.
    pub(super) fn ready_mark(&self) -> u64 {
        2 + self.slot
    }
}

/// The threads that fill the ring. Dropped, they end; a thread that waits for a piece is let through.
pub(super) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    area: Area,
    source: Arc<dyn ReadAt>,
    turns: Turns<Error>,
}

impl Readers {
    /// Starts this many threads. `area` is used until this value is dropped.
    pub(super) fn start(area: Area, source: Arc<dyn ReadAt>, threads: usize) -> Result<Readers> {
        Readers::start_behind(area, source, threads, 0)
    }

    /// The same, with pieces numbered from after `issued`, which the marks must hold.
    fn start_behind(
        area: Area,
        source: Arc<dyn ReadAt>,
        threads: usize,
        issued: u64,
    ) -> Result<Readers> {
        let turns = Turns::new(area.shape.slots, issued);
        let mut readers = Readers {
            shared: Arc::new(Shared {
                area,
                source,
                turns,
            }),
            threads: Vec::with_capacity(threads),
        };
        for index in 0..threads {
            let shared = Arc::clone(&readers.shared);
            let thread = std::thread::Builder::new()
                .name(format!("ws-read-{index}"))
                .spawn(move || shared.work())
                // Those that were started end when `readers` is dropped.
                .map_err(|error| Error::Device {
                    call: "starting a reader thread",
                    what: error.to_string(),
                })?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// Hands over the next piece, which the copy stream has to wait for, copy, and mark as done, in the order of
    /// these calls. Never waits for a read.
    pub(super) fn push(&self, offset: u64, len: u64) -> StagePiece {
        self.shared.turns.push(offset, len)
    }

    /// The first failure. It stays: what is on the device may be wrong from then on.
    pub(super) fn check(&self) -> Result<()> {
        // rule: failure-is-asked-for
        if !self.shared.turns.has_failed() {
            return Ok(());
        }
        let failure = self.shared.turns.failure();
        Err(failure.unwrap_or_else(|| Error::Internal("a failure of a reader was lost".to_owned())))
    }

    /// Keeps a failure of the other side, after which the marks cannot be relied on.
    pub(super) fn fail(&self, error: Error) {
        self.shared.turns.fail(error);
    }

    /// Ends the threads, each after the read it is at, and then lets everybody through who waits for a piece: the
    /// bytes are those of some other one. May be called again.
    pub(super) fn stop(&mut self) {
        self.shared.turns.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::warn!("a reader thread panicked");
            }
        }
        // After the last reader has ended: it would set a mark back to its own piece.
        let issued = self.shared.turns.issued();
        for slot in 0..self.shared.area.shape.slots {
            let mark = self.shared.area.mark(2 + slot);
            // rule: end-lets-waiters-through
            mark.store(issued, Ordering::Release);
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// What each thread does.
    fn work(&self) {
        while let Some((piece, offset, len)) = self.take() {
            let _marked = MarkReady {
                shared: self,
                piece,
            };
            // SAFETY: `take` gives a piece to one thread only, and after its slot was done with.
            unsafe {
                self.area.fill(piece.slot, len, |into| {
                    if let Err(error) = self.source.read_at(offset, into) {
                        // rule: failed-read-is-kept
                        self.turns.fail(error);
                        // rule: failed-read-leaves-zeros
                        into.fill(0);
                    }
                });
            }
        }
    }

    /// The next piece, once its slot is free; `None` at the end.
    fn take(&self) -> Option<Job> {
        let mut sleep = SLEEP.start;
        self.turns.take(self.area.mark(0), |work, queue| {
            let woken = work.wait_timeout(queue, sleep);
            sleep = SLEEP.end.min(2 * sleep);
            woken.unwrap_or_else(PoisonError::into_inner).0
        })
    }
}

/// Marks a piece as ready when dropped, whatever happened to it: the stream must never wait for ever.
struct MarkReady<'a> {
    shared: &'a Shared,
    piece: StagePiece,
}

impl Drop for MarkReady<'_> {
    fn drop(&mut self) {
        // rule: panic-of-a-reader-is-a-failure
        if std::thread::panicking() {
            let failure = Error::Internal("a reader thread panicked".to_owned());
            self.shared.turns.fail(failure);
        }
        let mark = self.shared.area.mark(self.piece.ready_mark());
        self.shared.turns.mark_ready(mark, self.piece);
    }
}

#[cfg(test)]
#[path = "stage_ring_tests.rs"]
mod tests;
