//! Which policy runs: what was asked for, unless the budget covers everything or the LRU copies less than any plan.

use super::{Program, Stats};
use crate::config::PolicyKind;
use crate::device::Figures;
use crate::error::bytes_text;
use crate::residency::planned::{self, Plan, Planned};
use crate::residency::{Lru, Policy, Upfront};

/// Who is on the device, by the budget and the policy that was asked for.
#[derive(Clone)]
pub(super) enum Residency {
    Upfront,
    Lru { capacity: u64 },
    Planned(Plan),
}

impl Residency {
    pub(super) fn of(
        program: &Program,
        stats: &Stats,
        kind: PolicyKind,
        figures: &Figures,
    ) -> Self {
        let capacity = stats.budget_bytes - stats.direct_bytes;
        if stats.total_weight_bytes <= capacity {
            return Residency::Upfront;
        }
        let plan = match kind {
            PolicyKind::Lru => None,
            PolicyKind::Planned => cheaper_plan(program, figures, capacity),
        };
        plan.map_or(Residency::Lru { capacity }, Residency::Planned)
    }

    /// A policy that has seen nothing.
    pub(super) fn policy(&self, program: &Program, granule: u64) -> Box<dyn Policy> {
        let (trace, weights) = (&program.trace, &program.weights);
        match self {
            Residency::Upfront => Box::new(Upfront::new(trace, weights, granule)),
            Residency::Lru { capacity } => Box::new(Lru::new(trace, weights, granule, *capacity)),
            Residency::Planned(plan) => Box::new(Planned::new(
                plan.clone(),
                weights.len(),
                trace.probes().len(),
            )),
        }
    }
}

/// The plan for this capacity, if a pass copies no more by it than under the LRU.
fn cheaper_plan(program: &Program, figures: &Figures, capacity: u64) -> Option<Plan> {
    let (trace, weights) = (&program.trace, &program.weights);
    let Some(plan) = planned::plan(trace, weights, figures, capacity) else {
        log::info!(
            "policy 'planned': {} leave no place for everything that is read at one time: the LRU is taken",
            bytes_text(capacity)
        );
        return None;
    };
    match planned::cheaper_lru(&plan, trace, weights, figures.granule, capacity) {
        Some(lru) => {
            log::info!(
                "policy 'planned': the LRU copies {} in a pass, the plan {}: the LRU is taken",
                bytes_text(lru.bytes),
                bytes_text(plan.price.bytes)
            );
            None
        }
        None => {
            log::info!(
                "policy 'planned': {} are copied in a pass by {} copies, {} stay, {} are shared{}",
                bytes_text(plan.price.bytes),
                plan.price.copies,
                bytes_text(plan.block - plan.ring),
                bytes_text(plan.ring),
                plan.view.as_ref().map_or("", |_| ", on mapped pages")
            );
            Some(plan)
        }
    }
}
