//! In which process something was made: memory of devices does not survive a fork.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;

use crate::error::Error;
use crate::ffi::status::Failure;

/// The process in which something was made.
#[derive(Clone, Copy)]
pub struct MakerProcess {
    process: u32,
    forks: u32,
}

impl MakerProcess {
    /// This one.
    pub fn here() -> MakerProcess {
        watch_forks();
        MakerProcess {
            process: std::process::id(),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }

    /// Whether this process was forked from it since.
    pub fn is_parent(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Refuses what was made in another process. `what` names it.
    pub fn check(&self, what: &str) -> Result<(), Failure> {
        match self.is_parent() {
            false => Ok(()),
            true => Err(Failure::Work(Error::Poisoned(format!(
                "the {what} was made in process {}, and this is process {}, forked from it: memory of ranges does not survive fork",
                self.process,
                std::process::id()
            )))),
        }
    }
}

/// How often this process was forked from one that had ranges. The system is not asked for its number: that would take most of the
/// time of a hit.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Counts from now on.
fn watch_forks() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler is a function that is there as long as the library, and only counts.
        if unsafe { libc::pthread_atfork(None, None, Some(forked)) } != 0 {
            log::warn!("forks of this process are not seen: do not use its ranges in a child");
        }
    });
}
