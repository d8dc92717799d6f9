//! The copy thread: performs its commands in the order of issue, and says how many it has done.

use super::block::{Block, CopyTarget};
use super::progress::Progress;
use crate::device::Source;
use crate::error::{Error, Result};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

/// What the copy thread does.
pub(super) enum Command {
    Copy {
        target: CopyTarget,
        src: Source,
    },
    /// Frees the block. A command that is never run frees it too, when the queue is dropped.
    Free(Block),
    #[cfg(test)]
    Panic,
    /// Holds the queue until the other end is dropped.
    #[cfg(test)]
    Hold(Receiver<()>),
}

/// The issuing end.
pub(super) struct Copier {
    queue: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Progress>,
    issued: u64,
}

impl Copier {
    pub(super) fn start() -> Result<Self> {
        let (queue, commands) = channel();
        let progress = Arc::new(Progress::new());
        let theirs = Arc::clone(&progress);
        let thread = std::thread::Builder::new()
            .name("weightstream-copy".to_string())
            .spawn(move || run(commands, &theirs))
            .map_err(|e| Error::Device {
                call: "starting the copy thread",
                what: e.to_string(),
            })?;
        Ok(Copier {
            queue: Some(queue),
            thread: Some(thread),
            progress,
            issued: 0,
        })
    }

    /// Number of commands issued so far.
    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    pub(super) fn issue(&mut self, command: Command) -> Result<()> {
        let sent = self
            .queue
            .as_ref()
            .is_some_and(|queue| queue.send(command).is_ok());
        if !sent {
            return Err(self.failure());
        }
        self.issued += 1;
        Ok(())
    }

    /// Whether the first `commands` commands are done; an error if they never will be.
    pub(super) fn is_done(&self, commands: u64) -> Result<bool> {
        if self.progress.reached(commands) {
            return Ok(true);
        }
        if self.progress.failure().is_some() {
            return Err(self.failure());
        }
        Ok(false)
    }

    /// Returns when the first `commands` commands are done; an error if they never will be.
    pub(super) fn wait(&self, commands: u64) -> Result<()> {
        match self.progress.wait(commands) {
            true => Ok(()),
            false => Err(self.failure()),
        }
    }

    /// Ends the thread after what was issued. Later calls fail.
    pub(super) fn stop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic in it is in `failed` already, and there is nobody left to tell.
            drop(thread.join());
        }
    }

    #[cold]
    fn failure(&self) -> Error {
        let why = self.progress.failure();
        let what = why.unwrap_or_else(|| "the copy thread has ended".to_string());
        Error::Device {
            call: "copying to the device",
            what,
        }
    }
}

/// The thread. A panic ends it and is kept, and so does a copy that failed; a waiting thread is woken and gets an error
/// instead of waiting for ever.
fn run(commands: Receiver<Command>, progress: &Progress) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for command in &commands {
            perform(command)?;
            progress.step();
        }
        Ok(())
    }));
    let outcome: std::thread::Result<Result<()>> = outcome;
    if let Ok(Err(error)) = &outcome {
        progress.fail(error.to_string());
    }
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let why = text.unwrap_or_else(|| "unknown panic".to_string());
        progress.fail(format!("the copy thread panicked: {why}"));
    }
}

fn perform(command: Command) -> Result<()> {
    match command {
        Command::Copy { target, src } => {
            // SAFETY: `src` is readable by the promise in `HostBytes::new`. `target` lies in a block that was
            // live when the copy was issued; blocks are freed by later commands of this queue, or when
            // the device is dropped, after this thread has ended. Or it lies in a view, which is unmapped behind
            // a wait for this queue, or as blocks are. Nobody else accesses the bytes: kernels that read the previous content are done, and those that read this one wait for its event.
            unsafe {
                let room = std::slice::from_raw_parts_mut(target.as_ptr(), src.len() as usize);
                src.write_to(room)?;
            }
        }
        Command::Free(block) => drop(block),
        #[cfg(test)]
        Command::Panic => panic!("told to"),
        #[cfg(test)]
        Command::Hold(gate) => drop(gate.recv()),
    }
    Ok(())
}
