//! Another budget, between two passes.
//!
//! The store plans for the new budget, and the weights move: heads grow or shrink, and pages that stay under both plans are kept
//! where the device can do that. Passes that were captured before are outdated.

use super::{Pass, Session};
use crate::config::{PolicyKind, BUDGET_MB};
use crate::device::Device;
use crate::error::{bytes_text, Error, Result};
use crate::residency::{self, Request, Residency};
use crate::schedule::{MethodTrace, WeightIndex};
use crate::store::{Methods, Table};

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
        let tables = self.tables_below(budget)?;
        let (residency, old) = match &tables {
            None => (
                self.residency_at(budget, None)?,
                self.store.residency().clone(),
            ),
            Some((methods, _)) => (
                self.residency_at(budget, Some(methods))?,
                self.residency_at(before, Some(methods))?,
            ),
        };
        if let Some((methods, tables)) = tables {
            self.read_in_place(methods, tables)?;
        }
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

    /// The bytes of these weights on the host have changed, and lie where they did: what the device has of them is copied again. Between
    /// passes. The plan stays.
    ///
    /// Errors: a store whose budget cannot change; a copy that failed, after which no pass runs any more.
    pub fn copy_again(&mut self, changed: &[WeightIndex]) -> Result<()> {
        self.store.check_usable()?;
        self.pass.check_may_begin(self.store.constants())?;
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

    /// The least budget that [`Session::set_budget`] accepts: the floor, and what a plan on the device's pages takes at least.
    pub fn least_budget(&self) -> Result<u64> {
        self.check_elastic()?;
        let tables = self.tables_below(0)?;
        self.least(tables.as_ref().map(|(methods, _)| methods))
    }

    fn least(&self, methods: Option<&Methods>) -> Result<u64> {
        let floor = self.store.floor();
        let traced = self.traced(methods);
        let request = self.request(&traced, methods, floor.bytes());
        Ok(floor.direct + residency::least_elastic(&request))
    }

    /// Where the budget covered everything at load, and this one does not: the methods with their tables in place, as a load
    /// with this budget has them.
    fn tables_below(&self, budget: u64) -> Result<Option<(Methods, Vec<Table>)>> {
        let all = || self.passes().map(Pass::method);
        if all().all(|method| method.gather.is_empty()) {
            return Ok(None);
        }
        let methods = Methods {
            constants: self.store.constants().clone(),
            all: all().cloned().collect(),
        };
        match budget >= methods.everything(self.store.device.granule()) {
            true => Ok(None),
            false => methods
                .in_place_beside(self.store.tables(), false)
                .map(Some),
        }
    }

    fn read_in_place(&mut self, methods: Methods, tables: Vec<Table>) -> Result<()> {
        self.store.read_in_place(methods.constants, tables)?;
        for (at, method) in methods.all.into_iter().enumerate() {
            match at == self.method {
                true => self.pass.read(method),
                false => self.parked[at].read(method),
            }
        }
        Ok(())
    }

    /// Bytes of weights that passes copy by the present plan.
    fn streamed_bytes(&self) -> u64 {
        let plan = self.store.residency().plan();
        plan.map_or(0, |plan| plan.price.bytes)
    }

    fn residency_at(&self, budget: u64, methods: Option<&Methods>) -> Result<Residency> {
        self.check_elastic()?;
        let floor = self.store.floor();
        let found = match budget < floor.bytes() {
            true => None,
            false => {
                let traced = self.traced(methods);
                residency::choose_elastic(&self.request(&traced, methods, budget)).ok()
            }
        };
        match found {
            Some(residency) => Ok(residency),
            None => Err(Error::BudgetTooSmall {
                budget,
                floor: self.least(methods)?,
                parts: floor.to_string(),
                option: BUDGET_MB,
            }),
        }
    }

    fn request<'a>(
        &'a self,
        traced: &'a [MethodTrace<'a>],
        methods: Option<&'a Methods>,
        budget: u64,
    ) -> Request<'a> {
        let constants = methods.map_or(self.store.constants(), |methods| &methods.constants);
        Request {
            kind: PolicyKind::Planned,
            methods: traced,
            weights: &constants.specs,
            model: &self.model,
            capacity: budget.saturating_sub(self.store.floor().direct),
            link: self.link,
            times: self.times.as_ref().or(self.given_times.as_ref()),
        }
    }

    /// What residency has to know of each method: of these, or of the present ones.
    fn traced<'a>(&'a self, methods: Option<&'a Methods>) -> Vec<MethodTrace<'a>> {
        match methods {
            Some(methods) => methods.traced(),
            None => self.passes().map(|pass| pass.method().traced()).collect(),
        }
    }

    /// By method.
    fn passes(&self) -> impl Iterator<Item = &Pass> {
        let parked = self.parked.iter().enumerate();
        parked.map(|(at, pass)| match at == self.method {
            true => &self.pass,
            false => pass,
        })
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
