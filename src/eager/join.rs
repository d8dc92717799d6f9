//! Entries join the weights of a module or take another order, and the plan follows how often each runs.

use super::entries::{Entry, EntryStats};
use super::weights::{check_budget, ended_already, Weights, WeightsState};
use super::OffloadBudget;
use crate::device::WeightDevice;
use crate::error::Result;
use crate::session::Session;
use crate::store::{ElasticBytes, Method};

impl<D: WeightDevice> Weights<D> {
    /// An entry has this order from now on: a new one, or that of this number.
    pub(super) fn put_entry(&self, at: Option<u32>, entry: Entry) -> Result<usize> {
        let mut state = self.idle()?;
        let mut method = entry.method(&state.methods.constants, &self.absent)?;
        let at = state.place(at)?;
        let mut methods = state.methods.clone();
        match methods.all.get_mut(at) {
            Some(other) => *other = method.clone(),
            None => methods.all.push(method.clone()),
        }
        // The least budget is that for equal shares.
        method.share = state.shares.of(at);
        let budget = state.budget;
        let session = state.session()?;
        let needed = ElasticBytes::of(&methods, session.device())?;
        let least = needed.least.saturating_add(self.beside);
        let present = session.store().budget();
        match (&self.membership, budget) {
            (Some(membership), _) => {
                let total = needed.everything.saturating_add(self.beside);
                let free = session.device().free_bytes();
                let put =
                    |bytes: u64| put_method(session, at, method, bytes.saturating_sub(self.beside));
                membership.change_wants((total, least), || free, put)?;
            }
            (None, OffloadBudget::Floor) => put_method(session, at, method, needed.least)?,
            (None, _) => {
                check_budget(present.saturating_add(self.beside), least, self.beside)?;
                put_method(session, at, method, present)?;
            }
        }
        state.methods = methods;
        state.least = least;
        let count = state.methods.all.len();
        state.counted.resize(count, EntryStats::default());
        state.shares.resize(count);
        Ok(at)
    }
}

fn put_method<D: WeightDevice>(
    session: &mut Session<D>,
    at: usize,
    method: Method,
    budget: u64,
) -> Result<()> {
    match at < session.methods_count() {
        true => session.replace_method_within(at, method, budget),
        false => session.add_method_within(method, budget).map(|_| ()),
    }
}

impl<D: WeightDevice> WeightsState<D> {
    /// Plans go by how often entries ran of late.
    pub(super) fn set_shares(&mut self) -> Result<()> {
        let session = self.session.as_mut().ok_or_else(ended_already)?;
        session.set_shares(self.shares.now());
        Ok(())
    }

    /// Entries may run otherwise than the plan says. A plan that cannot be changed stays.
    pub(super) fn follow_shares(&mut self) -> Result<()> {
        let session = self.session.as_mut().ok_or_else(ended_already)?;
        if !self.shares.are_off(session.store().generation()) {
            return Ok(());
        }
        match session.follow_shares() {
            Ok(taken) => {
                log::debug!("entries run otherwise than planned; another plan was taken: {taken}")
            }
            Err(error) => log::warn!("the plan stays, though entries run otherwise: {error}"),
        }
        self.shares.planned_now(session.store().generation());
        Ok(())
    }
}
