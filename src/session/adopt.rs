//! Methods and a budget, and the weights where they belong then.
//!
//! ```text
//!  next: tables in place or not, the plan ──► adopt: the weights move ──► passes read there
//!                     │ too small                     │ failed
//!                     └─► as it was                   └─► back
//! ```

use super::{Pass, Session};
use crate::config::BUDGET_MB;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::residency::{self, Request, Residency};
use crate::schedule::Floor;
use crate::store::{Method, Methods, Table};

/// Methods, and a residency for them.
pub(super) struct Next {
    /// Their reads are where this residency has them.
    methods: Methods,
    tables: Vec<Table>,
    floor: Floor,
    residency: Residency,
    /// Of this one the events are other ones than before.
    fresh: Option<usize>,
}

impl<D: Device> Session<D> {
    /// All of them, as they read now.
    pub(super) fn methods(&self) -> Methods {
        Methods {
            constants: self.store.constants().clone(),
            all: self
                .passes
                .iter()
                .map(|pass| pass.method().clone())
                .collect(),
        }
    }

    /// What these methods come to within this budget. `fresh` is one of which nothing is known yet. Where everything stays, tables are
    /// weights like all others.
    pub(super) fn next(
        &self,
        budget: u64,
        methods: Methods,
        floor: Floor,
        fresh: Option<usize>,
    ) -> Result<Next> {
        let known = self.store.tables();
        let looks_up = { methods.all.iter() }.any(|method| !method.gather.is_empty());
        if looks_up {
            let (whole, tables) = methods.in_place_beside(known, true)?;
            let enough = budget >= whole.everything(self.store.device.granule());
            let found = match enough {
                true => self.plan(budget, &whole, &floor, fresh),
                false => None,
            };
            if let Some(residency) = found.filter(|found| found.policy().everything_stays()) {
                let methods = whole;
                return Ok(Next {
                    methods,
                    tables,
                    floor,
                    residency,
                    fresh,
                });
            }
        }
        let (methods, tables) = methods.in_place_beside(known, false)?;
        match self.plan(budget, &methods, &floor, fresh) {
            Some(residency) => Ok(Next {
                methods,
                tables,
                floor,
                residency,
                fresh,
            }),
            None => Err(Error::BudgetTooSmall {
                budget,
                floor: self.least(&methods, &floor),
                parts: floor.to_string(),
                option: BUDGET_MB,
            }),
        }
    }

    fn plan(
        &self,
        budget: u64,
        methods: &Methods,
        floor: &Floor,
        fresh: Option<usize>,
    ) -> Option<Residency> {
        if budget < floor.bytes() {
            return None;
        }
        let (traced, times) = (methods.traced(), self.known_times(fresh));
        let request = self.request(&traced, &methods.constants, budget, &times);
        let planned = residency::choose_elastic(&request);
        // Which sets are tried depends on the shares, and the least budget is that of equal ones.
        let planned = planned.or_else(|_| {
            let mut equal = traced.clone();
            equal.iter_mut().for_each(|one| one.share = 1);
            residency::choose_elastic(&Request {
                methods: &equal,
                ..request
            })
        });
        planned.ok()
    }

    /// Whether a pass costs clearly less then than it does now.
    pub(super) fn is_cheaper(&self, next: &Next) -> bool {
        let (traced, times) = (next.methods.traced(), self.known_times(None));
        let (constants, budget) = (&next.methods.constants, self.store.budget());
        let request = self.request(&traced, constants, budget, &times);
        residency::is_cheaper(&request, &next.residency, self.store.residency())
    }

    /// The weights move. On an error everything is as it was, or no pass runs any more.
    pub(super) fn adopt(&mut self, budget: u64, next: Next) -> Result<()> {
        let Next {
            methods,
            tables,
            floor,
            residency,
            fresh,
        } = next;
        let (before, old) = (self.store.budget(), self.store.residency().clone());
        self.store.know_tables(methods.constants.clone(), tables)?;
        if let Err(error) = self.move_within(budget, residency) {
            let back = self.move_within(before, old);
            self.poison_if_lost(&error, back);
            return Err(error);
        }
        let told = self.store.serve(&methods, floor);
        self.run(methods.all, fresh);
        told
    }

    /// Passes are of these methods from now on.
    fn run(&mut self, methods: Vec<Method>, fresh: Option<usize>) {
        for (at, method) in methods.into_iter().enumerate() {
            match self.passes.get_mut(at) {
                None => self.passes.push(Pass::new(method)),
                Some(pass) if fresh == Some(at) => pass.begin_anew(method),
                Some(pass) => pass.read(method),
            }
        }
        self.place_weights();
    }
}
