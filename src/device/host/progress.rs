//! How far the copy thread has come, and waiting for it.
//!
//! Nothing here knows what a command is. `tests/loom_progress.rs` compiles this file with loom's types for `sync`, and tries
//! every order in which two threads can run it.

use super::sync::atomic::{AtomicU64, Ordering};
use super::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;

/// What both threads see.
pub(super) struct Progress {
    /// Number of commands done. Written under the lock, read without it.
    done: AtomicU64,
    /// Why the thread ended before its time.
    failed: Mutex<Option<String>>,
    changed: Condvar,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress {
            done: AtomicU64::new(0),
            failed: Mutex::new(None),
            changed: Condvar::new(),
        }
    }

    /// One more command is done.
    pub(super) fn step(&self) {
        // Under the lock, or a waiter could check, miss this, and then sleep.
        // rule: progress-changes-under-the-lock
        let _guard = self.failed();
        // rule: progress-publishes-what-was-copied
        self.done.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// The thread has ended: no more commands will be done.
    pub(super) fn fail(&self, why: String) {
        *self.failed() = Some(why);
        // rule: failed-copier-wakes-waiters
        self.changed.notify_all();
    }

    /// Why the thread ended before its time, if it did.
    pub(super) fn failure(&self) -> Option<String> {
        self.failed().clone()
    }

    /// Whether the first `commands` commands are done.
    pub(super) fn reached(&self, commands: u64) -> bool {
        // Pairs with the store in `step`: what the commands wrote is visible after this load.
        self.done.load(Ordering::Acquire) >= commands
    }

    /// Returns once the first `commands` commands are done; `false` if they never will be.
    pub(super) fn wait(&self, commands: u64) -> bool {
        if self.reached(commands) {
            return true;
        }
        let mut failed = self.failed();
        while failed.is_none() && !self.reached(commands) {
            let woken = self.changed.wait(failed);
            failed = woken.unwrap_or_else(PoisonError::into_inner);
        }
        self.reached(commands)
    }

    fn failed(&self) -> MutexGuard<'_, Option<String>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
