//! Another budget, between two passes.
//!
//! The store plans for the new budget, and the weights move: heads grow or shrink, and pages that stay under both plans are kept
//! where the device can do that. Passes that were captured before are outdated.

use super::Session;
use crate::config::PolicyKind;
use crate::device::Device;
use crate::error::{bytes_text, Error, Result};
use crate::residency::{self, Request, Residency};
use crate::schedule::MethodTrace;

impl<D: Device> Session<D> {
    /// The budget from the next pass on, in bytes. Between passes.
    ///
    /// Errors: a budget below [`Session::least_budget`] ([`Error::BudgetTooSmall`]); a store that was loaded with another policy
    /// than `planned`, for which the LRU was taken at load, or on a device without pages. Then everything is as it was.
    pub fn set_budget(&mut self, budget: u64) -> Result<()> {
        self.store.check_usable()?;
        self.pass.check_may_begin(self.store.constants())?;
        let before = self.stats().budget_bytes;
        if budget == before {
            return Ok(());
        }
        let residency = self.residency_at(budget)?;
        let old = self.store.residency().clone();
        let copied = self.stats().bytes_copied;
        if let Err(error) = self.move_within(budget, residency) {
            let back = self.move_within(before, old);
            self.poison_if_lost(&error, back);
            return Err(error);
        }
        self.store.stats.budget_changes += 1;
        log::debug!(
            "the budget is {} now, after {}: {} were copied for it, {} stream in a pass",
            bytes_text(budget),
            bytes_text(before),
            bytes_text(self.stats().bytes_copied - copied),
            bytes_text(self.streamed_bytes())
        );
        Ok(())
    }

    /// The least budget that [`Session::set_budget`] accepts: the floor, and what a plan on the device's pages takes at least.
    pub fn least_budget(&self) -> Result<u64> {
        self.check_elastic()?;
        let floor = self.store.floor().bytes();
        let methods = self.methods();
        let least = residency::least_elastic(&self.request(&methods, floor));
        Ok(self.store.floor().direct + least)
    }

    /// Bytes of weights that passes copy by the present plan.
    fn streamed_bytes(&self) -> u64 {
        let plan = self.store.residency().plan();
        plan.map_or(0, |plan| plan.price.bytes)
    }

    fn residency_at(&self, budget: u64) -> Result<Residency> {
        self.check_elastic()?;
        let methods = self.methods();
        let floor = self.store.floor();
        // rule: changed-budget-covers-the-floor
        let found = match budget < floor.bytes() {
            true => None,
            false => residency::choose_elastic(&self.request(&methods, budget)).ok(),
        };
        match found {
            Some(residency) => Ok(residency),
            None => Err(Error::BudgetTooSmall {
                budget,
                floor: self.least_budget()?,
                parts: floor.to_string(),
            }),
        }
    }

    fn request<'a>(&'a self, methods: &'a [MethodTrace<'a>], budget: u64) -> Request<'a> {
        Request {
            kind: PolicyKind::Planned,
            methods,
            weights: &self.store.constants().specs,
            model: &self.model,
            capacity: budget.saturating_sub(self.store.floor().direct),
            link: self.link,
            times: self.times.as_ref().or(self.given_times.as_ref()),
        }
    }

    fn methods(&self) -> Vec<MethodTrace<'_>> {
        let parked = self.parked.iter().enumerate();
        let all = parked.map(|(at, pass)| match at == self.method {
            true => &self.pass,
            false => pass,
        });
        all.map(|pass| pass.method().traced()).collect()
    }

    fn check_elastic(&self) -> Result<()> {
        let why = if self.store.device.page().is_none() {
            format!("the device '{}' maps no memory", self.store.device.name())
        } else if self.store.layout().is_per_weight() {
            format!(
                "the policy at work is '{}', and the budget of a plan only can change: load the program with 'planned', or with \
                 another budget",
                self.policy()
            )
        } else {
            return Ok(());
        };
        Err(Error::Unsupported(format!(
            "the budget cannot change: {why}"
        )))
    }

    fn move_within(&mut self, budget: u64, residency: Residency) -> Result<()> {
        self.store.set_budget(budget)?;
        self.move_to(residency)?;
        self.store.forget_peak();
        Ok(())
    }
}
