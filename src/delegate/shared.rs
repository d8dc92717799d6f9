//! A program that is loaded on one device: what its methods and sessions share. They find it by the program that they come from.
#![deny(unsafe_code)]

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use super::code::MethodCode;
use super::delegate_device::DelegateDevice;
use super::place::ProgramPlace;
use super::request::{Beside, Data};
use crate::config::{Concurrent, Options};
use crate::counters::Stats;
use crate::device::CallerStream;
use crate::elastic::Membership;
use crate::error::{bytes_text, Error, Result};
use crate::format::{BuildId, Record, UnionConstants};
use crate::session::{Session, State};

/// A loaded program. Passes over it run one at a time. The order of the fields is the order in which they end: the compiled code
/// points into the session's memory.
pub(super) struct Shared<D: DelegateDevice> {
    /// Compiled code of sessions that have ended, with its method, for the next ones: on a GPU each loads its kernels, and never
    /// unloads them.
    spare: Mutex<Vec<(usize, MethodCode<D>)>>,
    running: Mutex<ProgramState<D>>,
    /// The counters after the last pass, so that asking for them never waits for a running one.
    pub stats: Arc<Mutex<Stats>>,
    pub union: UnionConstants,
    /// Those of the first load.
    pub options: Options,
    /// The address of the caller's stream, if there is one.
    stream: Option<usize>,
    /// Its place in the device's pool, if the budget is shared. It leaves once the session has given its memory back.
    pub membership: Option<Arc<Membership>>,
}

/// What a pass has for itself. The order of the fields is the order in which they end: the session's copies read the data.
pub(super) struct ProgramState<D: DelegateDevice> {
    pub session: Session<D>,
    pub data: Data,
    pub poisoned: Option<String>,
    /// Most device memory that the inputs of a call took.
    pub io_bytes: u64,
    /// Inputs that the engine copied.
    pub inputs_copied: u64,
    /// Of sessions beyond the first.
    session_bytes: u64,
}

impl<D: DelegateDevice> ProgramState<D> {
    pub fn stats(&self) -> Stats {
        let (host_pinned_bytes, host_mapped_bytes) = self.session.device().host_bytes();
        Stats {
            host_pinned_bytes,
            host_mapped_bytes,
            activation_peak_bytes: self.session.activation_peak_bytes(),
            io_bytes: self.io_bytes,
            inputs_copied: self.inputs_copied,
            session_bytes: self.session_bytes,
            ..self.session.stats()
        }
    }
}

impl<D: DelegateDevice> Shared<D> {
    pub fn new(
        session: Session<D>,
        data: Data,
        union: UnionConstants,
        options: &Options,
        stream: Option<CallerStream>,
    ) -> Shared<D> {
        let running = ProgramState {
            session,
            data,
            poisoned: None,
            io_bytes: 0,
            inputs_copied: 0,
            session_bytes: 0,
        };
        Shared {
            spare: Mutex::default(),
            stats: Arc::new(Mutex::new(running.stats())),
            running: Mutex::new(running),
            union,
            options: options.clone(),
            stream: stream.map(|stream| stream.raw().addr()),
            membership: None,
        }
    }

    pub fn in_pool(self, membership: Option<Membership>) -> Shared<D> {
        let membership = membership.map(Arc::new);
        Shared { membership, ..self }
    }

    /// The turn of something that does not wait for a pass.
    pub fn turn_now(&self) -> Option<MutexGuard<'_, ProgramState<D>>> {
        self.running.try_lock().ok()
    }

    /// The turn of one pass: after those that run, or an error where that was asked for.
    pub fn turn(&self) -> Result<MutexGuard<'_, ProgramState<D>>> {
        let panicked = || Error::Poisoned("an earlier pass panicked".to_owned());
        match self.options.concurrent {
            Concurrent::Turns => self.running.lock().map_err(|_| panicked()),
            Concurrent::Refuse => match self.running.try_lock() {
                Ok(running) => Ok(running),
                Err(TryLockError::WouldBlock) => Err(Error::Busy),
                Err(TryLockError::Poisoned(_)) => Err(panicked()),
            },
        }
    }

    /// Compiled code of this method that nobody uses, whatever it is bound to.
    pub fn take_code(&self, method: usize) -> Option<MethodCode<D>> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let found = spare.iter().position(|(other, _)| *other == method)?;
        Some(spare.swap_remove(found).1)
    }

    /// Keeps the compiled code of a session that ends.
    pub fn keep_code(&self, method: usize, code: MethodCode<D>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.push((method, code));
    }

    /// The turn of what ends, which always waits; `None` after a panic.
    pub fn last_turn(&self) -> Option<MutexGuard<'_, ProgramState<D>>> {
        self.running.lock().ok()
    }

    /// Nothing of a later load may say something else than the first one did.
    pub fn check_options(&self, options: &Options, stream: Option<CallerStream>) -> Result<()> {
        options.check_like(&self.options)?;
        match stream.map(|stream| stream.raw().addr()) == self.stream {
            true => Ok(()),
            false => Err(Error::InvalidInput(
                "another method of this program was loaded on another stream: its methods share one".to_owned(),
            )),
        }
    }
}

/// The state of a session beyond the first.
pub(super) struct SessionState<D: DelegateDevice> {
    /// Taken when it ends.
    state: Option<State>,
    shared: Arc<Shared<D>>,
}

impl<D: DelegateDevice> SessionState<D> {
    fn new(shared: &Arc<Shared<D>>) -> Result<SessionState<D>> {
        let mut running = shared.turn()?;
        let needed = running.session.state_bytes();
        let free = running.session.device().free_bytes();
        let free = free.map_err(|error| error.during(|| "the memory of a session".into()))?;
        check_room(needed, free)?;
        let state = running.session.new_state()?;
        running.session_bytes += needed;
        *shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = running.stats();
        Ok(SessionState {
            state: Some(state),
            shared: shared.clone(),
        })
    }

    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }
}

/// The state of a session lies outside of the budget: it is refused where the device has no room for it.
fn check_room(needed: u64, free: u64) -> Result<()> {
    if needed > free {
        return Err(Error::OutOfMemory {
            what: format!(
                "the state of a session, where {} are free",
                bytes_text(free)
            ),
            bytes: needed,
        });
    }
    Ok(())
}

impl<D: DelegateDevice> Drop for SessionState<D> {
    fn drop(&mut self) {
        let running = self.shared.last_turn();
        let (Some(state), Some(mut running)) = (self.state.take(), running) else {
            return;
        };
        running.session_bytes -= state.bytes();
        if let Err(error) = running.session.free_state(state) {
            log::warn!("the memory of a session could not be given back: {error}");
        }
        *self
            .shared
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = running.stats();
    }
}

/// What was loaded before: the program, and the session that this load belongs to.
pub(super) type Before<D> = (Arc<Shared<D>>, Option<Arc<SessionState<D>>>);

/// The program and the session of a load beside another method.
pub(super) fn of<D: DelegateDevice + 'static>(
    beside: Beside<'_>,
    record: &Record,
) -> Result<Before<D>> {
    let (Beside::Session(other) | Beside::NewSession(other)) = beside;
    let of_it = other.records.all().iter().any(|one| one == record);
    if !of_it {
        return Err(Error::Mismatch {
            name: record.method.clone(),
            fact: "build id",
            expected: format!(
                "{}, a method of the program that is loaded",
                other.record().build_id
            ),
            found: record.build_id.to_string(),
        });
    }
    let parts = other.live.get()?.parts.clone();
    let another = || Error::Internal("a program is loaded on devices of two kinds".to_owned());
    let shared = parts
        .program
        .downcast::<Shared<D>>()
        .map_err(|_| another())?;
    let state = match (beside, parts.state) {
        (Beside::Session(_), None) => None,
        (Beside::Session(_), Some(state)) => Some(state.downcast().map_err(|_| another())?),
        (Beside::NewSession(_), _) => Some(Arc::new(SessionState::new(&shared)?)),
    };
    Ok((shared, state))
}

/// The process, the build and the place: nothing else tells loaded programs apart.
type Key = (u32, BuildId, ProgramPlace);

static LOADED: Mutex<Vec<(Key, Weak<dyn Any + Send + Sync>)>> = Mutex::new(Vec::new());

/// The loaded program of this build at this place. The first method that asks loads it, with `load`; those that come in the
/// meantime wait. `found` says what was loaded before.
pub(super) fn find_or_load<D: DelegateDevice + 'static>(
    place: ProgramPlace,
    build: BuildId,
    load: impl FnOnce() -> Result<Arc<Shared<D>>>,
) -> Result<Found<D>> {
    let key = (std::process::id(), build, place);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.retain(|(_, program)| program.strong_count() > 0);
    let known = loaded.iter().find(|(other, _)| *other == key);
    if let Some(program) = known.and_then(|(_, program)| program.upgrade()) {
        let program = program.downcast::<Shared<D>>();
        let program = program.map_err(|_| {
            Error::Internal("a program is loaded on devices of two kinds".to_owned())
        })?;
        return Ok(Found::Before(program));
    }
    let program = load()?;
    let weak: Weak<Shared<D>> = Arc::downgrade(&program);
    loaded.push((key, weak));
    Ok(Found::Now(program))
}

pub(super) enum Found<D: DelegateDevice> {
    Before(Arc<Shared<D>>),
    Now(Arc<Shared<D>>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_does_not_fit_is_refused_with_both_numbers() {
        assert_eq!(check_room(4096, 4096), Ok(()));
        let text = check_room(4097, 4096).unwrap_err().to_string();
        assert!(text.contains("4097") && text.contains("4096"), "{text}");
    }
}
