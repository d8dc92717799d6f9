//! Another budget, between two passes.
//!
//! The store plans for the new budget, and the weights move: heads grow or shrink, and pages that stay under both plans are kept
//! where the device can do that. Passes that were captured before are outdated.

use super::Session;
use crate::config::PolicyKind;
use crate::device::Device;
use crate::error::{bytes_text, Error, Result};
use crate::residency::{self, Request, Residency};
use crate::schedule::{Floor, KernelTimes, MethodTrace, WeightIndex};
use crate::store::{Constants, Methods};

impl<D: Device> Session<D> {
    /// The budget from the next pass on, in bytes. Between passes.
    ///
    /// Errors: a budget below [`Session::least_budget`] ([`Error::BudgetTooSmall`]); a store that was loaded with another policy
    /// than `planned`, for which the LRU was taken at load, or on a device without pages. Then everything is as it was.
    pub fn set_budget(&mut self, budget: u64) -> Result<()> {
        self.check_between_passes()?;
        let before = self.store.budget();
        if budget == before && !self.store.has_given_way() {
            return Ok(());
        }
        self.check_elastic()?;
        let floor = self.store.floor().clone();
        let next = self.next(budget, self.methods(), floor, None)?;
        let copied = self.stats().bytes_copied;
        self.adopt(budget, next)?;
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

    /// The bytes of these weights on the host have changed, and lie where they did: what the device has of them is copied again. Between
    /// passes. The plan stays.
    ///
    /// Errors: a store whose budget cannot change; a copy that failed, after which no pass runs any more.
    pub fn copy_again(&mut self, changed: &[WeightIndex]) -> Result<()> {
        self.check_between_passes()?;
        self.check_elastic()?;
        self.finish_replays()?;
        // rule: changed-bytes-are-copied-when-nothing-runs
        self.store.device.synchronize()?;
        let copied = self.store.copy_again(changed);
        if let Err(error) = &copied {
            self.store.poison(format!(
                "weights that changed could not be copied again: {error}"
            ));
        }
        copied
    }

    /// In a pass: memory of weights that no open lease holds goes back to the device, after everything that was issued. The pass serves no
    /// read any more, and before the next one [`Session::set_budget`] brings the weights back. The bytes that went.
    pub fn give_way(&mut self) -> Result<u64> {
        self.store.check_usable()?;
        self.check_elastic()?;
        let leased = self.pass().leased_weights();
        let gone = Error::Internal("the weights of this pass gave way".to_owned());
        // rule: a-pass-that-gave-way-reads-nothing
        self.pass_mut().fail(gone);
        self.store.give_way(&leased)
    }

    /// The least budget that [`Session::set_budget`] accepts: the floor, and what a plan on the device's pages takes at least.
    pub fn least_budget(&self) -> Result<u64> {
        self.check_elastic()?;
        let (methods, _) = self.methods().in_place_beside(self.store.tables(), false)?;
        Ok(self.least(&methods, self.store.floor()))
    }

    pub(super) fn least(&self, methods: &Methods, floor: &Floor) -> u64 {
        let traced = methods.traced();
        let request = self.request(&traced, &methods.constants, floor.bytes(), &[]);
        floor.direct + residency::least_elastic(&request)
    }

    /// Bytes of weights that passes copy by the present plan.
    fn streamed_bytes(&self) -> u64 {
        let plan = self.store.residency().plan();
        plan.map_or(0, |plan| plan.price.bytes)
    }

    pub(super) fn request<'a>(
        &'a self,
        methods: &'a [MethodTrace<'a>],
        constants: &'a Constants,
        budget: u64,
        times: &'a [Option<&'a KernelTimes>],
    ) -> Request<'a> {
        Request {
            kind: PolicyKind::Planned,
            methods,
            weights: &constants.specs,
            model: &self.timing.model,
            capacity: budget.saturating_sub(self.store.floor().direct),
            link: self.timing.link,
            times,
        }
    }

    pub(super) fn check_elastic(&self) -> Result<()> {
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

    pub(super) fn move_within(&mut self, budget: u64, residency: Residency) -> Result<()> {
        self.store.set_budget(budget)?;
        self.move_to(residency)?;
        self.store.forget_peak();
        Ok(())
    }
}
