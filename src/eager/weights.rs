//! The session of a module's weights on one kind of device, and its place in the device's pool.

use super::shares::Shares;
use super::{BegunPass, Entry, EntryStats, OffloadBudget, Passes, ReadOutcome};
use crate::aoti::hooks::PassHooks;
use crate::counters::Stats;
use crate::device::WeightDevice;
use crate::elastic::{Membership, PassNeeds, Reorder, Tenant};
use crate::error::{bytes_text, Error, Result};
use crate::schedule::WeightIndex;
use crate::session::Session;
use crate::store::Methods;
use crate::tenancy::{settle_grant, take_grant};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The order of the fields is the order in which they end: the place in the pool goes once the memory is given back.
pub(super) struct Weights<D: WeightDevice> {
    state: Mutex<WeightsState<D>>,
    pub(super) membership: Option<Membership>,
    /// Of the budget, and not the session's.
    pub(super) beside: u64,
    /// By weight: no kernel can read it in place.
    pub(super) absent: Vec<bool>,
}

pub(super) struct WeightsState<D: WeightDevice> {
    /// `None` once its owner has ended it: the pool may know of it for a moment longer.
    pub(super) session: Option<Session<D>>,
    /// All weights, and the entries as they were recorded.
    pub(super) methods: Methods,
    /// What was asked for last.
    pub(super) budget: OffloadBudget,
    /// The least budget, with what lies beside the weights.
    pub(super) least: u64,
    running: CurrentPass,
    /// The weights of the last pass gave way: they come back before the next one.
    gone: bool,
    /// The entry whose pass runs, or ran last.
    entry: usize,
    /// By entry.
    pub(super) counted: Vec<EntryStats>,
    pub(super) shares: Shares,
}

/// Which pass runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CurrentPass {
    None,
    /// One that asks for each read.
    Reads,
    /// One that finds everything where it stays.
    Resident,
}

impl<D: WeightDevice> Weights<D> {
    pub(super) fn new(
        state: WeightsState<D>,
        membership: Option<Membership>,
        beside: u64,
        absent: Vec<bool>,
    ) -> Self {
        let state = Mutex::new(state);
        Weights {
            state,
            membership,
            beside,
            absent,
        }
    }
}

#[cold]
pub(super) fn ended_already() -> Error {
    Error::Internal("the weights of a module were used after their end".to_owned())
}

/// Whether a budget does.
pub(super) fn check_budget(budget: u64, least: u64, beside: u64) -> Result<()> {
    match budget >= least {
        true => Ok(()),
        false => Err(Error::BudgetTooSmall {
            budget,
            floor: least,
            parts: format!(
                "{} for weights, {} for buffers",
                bytes_text(least - beside),
                bytes_text(beside)
            ),
            option: "budget",
        }),
    }
}

impl<D: WeightDevice> Weights<D> {
    fn lock(&self) -> Result<MutexGuard<'_, WeightsState<D>>> {
        let panicked = |_| Error::Poisoned("an earlier pass panicked".to_owned());
        self.state.lock().map_err(panicked)
    }

    /// Nothing of it may run.
    pub(super) fn idle(&self) -> Result<MutexGuard<'_, WeightsState<D>>> {
        let state = self.lock()?;
        match state.running {
            CurrentPass::None => Ok(state),
            _ => Err(Error::Busy),
        }
    }

    /// Weights that gave way come back, unless a new grant has brought them.
    fn bring_back(&self, state: &mut WeightsState<D>) -> Result<()> {
        if std::mem::take(&mut state.gone) {
            let session = state.session()?;
            let budget = session.store().budget();
            let held = self.membership.as_ref().map(Membership::held);
            let budget = held.map_or(budget, |held| held.saturating_sub(self.beside));
            session.set_budget(budget)?;
        }
        Ok(())
    }

    /// Of so many bytes the session gets what does not lie beside the weights.
    fn hold(&self, session: &mut Session<D>, bytes: u64) -> Result<()> {
        session.set_budget(bytes.saturating_sub(self.beside))
    }
}

impl<D: WeightDevice> WeightsState<D> {
    /// Of one entry.
    pub(super) fn new(
        session: Session<D>,
        methods: Methods,
        budget: OffloadBudget,
        least: u64,
    ) -> Self {
        WeightsState {
            session: Some(session),
            methods,
            budget,
            least,
            running: CurrentPass::None,
            gone: false,
            entry: 0,
            counted: vec![EntryStats::default()],
            shares: Shares::new(),
        }
    }

    pub(super) fn session(&mut self) -> Result<&mut Session<D>> {
        self.session.as_mut().ok_or_else(ended_already)
    }

    /// Where the entry of this number stands, or the next one.
    pub(super) fn place(&self, at: Option<u32>) -> Result<usize> {
        let count = self.methods.all.len();
        match at.map(|at| at as usize) {
            None => Ok(count),
            Some(at) if at < count => Ok(at),
            Some(at) => Err(Error::InvalidInput(format!(
                "there is no entry {at}, of {count} entries"
            ))),
        }
    }

    fn begin(&mut self, by_reads: bool) -> Result<BegunPass> {
        let session = self.session()?;
        let store = session.store();
        store.check_usable()?;
        let generation = store.generation();
        let resident = store.policy().everything_stays() && !by_reads;
        if !resident {
            session.begin_pass()?;
        }
        self.running = match resident {
            true => CurrentPass::Resident,
            false => CurrentPass::Reads,
        };
        Ok(BegunPass {
            generation,
            resident,
        })
    }

    /// Of a pass that asks for its reads.
    fn reading(&mut self) -> Result<&mut Session<D>> {
        match self.running {
            CurrentPass::Reads => self.session(),
            _ => Err(Error::InvalidInput(
                "a read outside of a pass that asks for its reads".to_owned(),
            )),
        }
    }
}

impl<D: WeightDevice> Passes for Weights<D> {
    fn add_entry(&self, entry: Entry) -> Result<u32> {
        self.put_entry(None, entry).map(|at| at as u32)
    }

    fn replace_entry(&self, at: u32, entry: Entry) -> Result<()> {
        self.put_entry(Some(at), entry).map(|_| ())
    }

    fn begin(&self, entry: u32, needs: PassNeeds) -> Result<BegunPass> {
        let mut state = self.lock()?;
        // rule: eager-passes-run-one-at-a-time
        if state.running != CurrentPass::None {
            return Err(Error::Busy);
        }
        state.entry = state.place(Some(entry))?;
        let entry = state.entry;
        // Before the grant: what grows is copied in the order of this entry's reads.
        state.session()?.turn_to(entry)?;
        state.set_shares()?;
        let member = self.membership.as_ref();
        take_grant(member, state.session()?, self.beside, needs)?;
        let begun = self.bring_back(&mut state);
        let begun = begun.and_then(|()| state.follow_shares());
        let begun = begun.and_then(|()| state.begin(needs.by_reads));
        if begun.is_err() {
            settle_grant(self.membership.as_ref(), state.session()?, self.beside);
        }
        begun
    }

    fn read(&self, reads: Range<u32>, at: &mut [u64]) -> Result<ReadOutcome> {
        let mut state = self.lock()?;
        if state.gone {
            return Ok(ReadOutcome::Gone);
        }
        let session = state.reading()?;
        let (first, mut moved) = (reads.start, false);
        for (id, at) in reads.zip(at) {
            match session.probe(i64::from(id)) {
                Ok(found) => {
                    // rule: moved-weight-is-told
                    moved |= *at != found.0;
                    *at = found.0;
                }
                Err(error) => {
                    // rule: failed-read-leaves-no-lease
                    { first..id }.for_each(|id| session.release(i64::from(id)));
                    return Err(error);
                }
            }
        }
        Ok(if moved {
            ReadOutcome::Moved
        } else {
            ReadOutcome::Same
        })
    }

    fn release(&self, reads: Range<u32>) -> Result<()> {
        let mut state = self.lock()?;
        let session = state.reading()?;
        reads.for_each(|id| session.release(i64::from(id)));
        Ok(())
    }

    fn end(&self, completed: bool) -> Result<()> {
        let mut state = self.lock()?;
        // What it had read was right, and its next plan is made at the next pass.
        let completed = completed && !state.gone;
        let (mut copied, entry) = (0, state.entry);
        let ended = match std::mem::replace(&mut state.running, CurrentPass::None) {
            CurrentPass::None => return Err(Error::InvalidInput("no pass has begun".to_owned())),
            CurrentPass::Resident => Ok(()),
            CurrentPass::Reads => {
                let session = state.session()?;
                let ended = session.end_pass(completed);
                copied = session.stats().bytes_copied_last_pass;
                ended
            }
        };
        let complete = completed && ended.is_ok();
        let counted = &mut state.counted[entry];
        counted.passes += u64::from(complete);
        counted.bytes_copied += copied;
        if complete {
            state.shares.count(entry);
        }
        settle_grant(self.membership.as_ref(), state.session()?, self.beside);
        ended
    }

    fn addresses(&self, entry: u32, at: &mut [u64]) -> Result<()> {
        let mut state = self.lock()?;
        let entry = state.place(Some(entry))?;
        let session = state.session()?;
        let (store, reads) = (session.store(), session.trace_of(entry).probes());
        if !store.policy().everything_stays() || at.len() != reads.len() {
            return Err(Error::InvalidInput(format!(
                "addresses of {} reads, of {} in a pass, while the policy is '{}'",
                at.len(),
                reads.len(),
                session.policy()
            )));
        }
        for (at, &weight) in at.iter_mut().zip(reads) {
            *at = store.lasting_address(weight).0;
        }
        Ok(())
    }

    fn set_budget(&self, bytes: u64) -> Result<()> {
        if self.membership.is_some() {
            return Err(Error::InvalidInput(
                "this module shares its device: its budget follows the device's, which set_device_budget changes".to_owned(),
            ));
        }
        let mut state = self.lock()?;
        check_budget(bytes, state.least, self.beside)?;
        if state.running != CurrentPass::None {
            return Err(Error::Busy);
        }
        self.hold(state.session()?, bytes)?;
        state.budget = OffloadBudget::Bytes(bytes);
        Ok(())
    }

    fn reorder(&self, to: Reorder) -> Result<()> {
        let membership = self.membership.as_ref().ok_or_else(|| {
            Error::InvalidInput("this module has a budget of its own, and no place in the order of its device: offload it with shared=True".to_owned())
        })?;
        membership.reorder(to);
        Ok(())
    }

    fn copy_again(&self, changed: &[WeightIndex]) -> Result<()> {
        let mut state = self.idle()?;
        let count = state.methods.constants.specs.len();
        if let Some(none) = changed.iter().find(|&&weight| weight as usize >= count) {
            return Err(Error::InvalidInput(format!(
                "weight {none} is said to have changed, of {count} weights"
            )));
        }
        let specs = &state.methods.constants.specs;
        let packed = { changed.iter() }
            .map(|&weight| &specs[weight as usize])
            .find(|spec| spec.stored != spec.bytes);
        if let Some(packed) = packed {
            return Err(Error::InvalidInput(format!(
                "'{}' is said to have changed, and has a packed copy of its bytes before: offload again without this copy",
                packed.fqn
            )));
        }
        state.session()?.copy_again(changed)
    }

    fn stats(&self) -> Result<Stats> {
        let mut state = self.lock()?;
        let least = state.least;
        let session = state.session()?;
        let (host_pinned_bytes, host_mapped_bytes) = session.device().host_bytes();
        let stats = session.stats();
        Ok(Stats {
            host_pinned_bytes,
            host_mapped_bytes,
            budget_bytes: stats.budget_bytes + self.beside,
            floor_bytes: least,
            ..stats
        })
    }

    fn entry_stats(&self) -> Result<Vec<EntryStats>> {
        Ok(self.lock()?.counted.clone())
    }

    fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // rule: ended-weights-read-no-host-bytes
        state.session = None;
    }
}

impl<D: WeightDevice> Tenant for Weights<D> {
    fn shrink_to(&self, bytes: u64) -> Option<Result<()>> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return None,
        };
        // rule: eager-pass-keeps-its-memory
        match state.running {
            CurrentPass::None => {
                let session = state.session.as_mut()?;
                Some(self.hold(session, bytes))
            }
            CurrentPass::Reads | CurrentPass::Resident => None,
        }
    }

    fn give_way(&self) -> Option<Result<()>> {
        let mut state = self.state.try_lock().ok()?;
        // rule: resident-pass-keeps-its-memory
        if state.running != CurrentPass::Reads || state.gone {
            return None;
        }
        let given = state.session.as_mut()?.give_way();
        state.gone = given.is_ok();
        let entry = state.entry;
        state.counted[entry].gave_way += u64::from(state.gone);
        Some(given.map(drop))
    }

    fn free_bytes(&self) -> Option<u64> {
        let state = self.state.try_lock().ok()?;
        state.session.as_ref()?.device().free_bytes().ok()
    }
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
