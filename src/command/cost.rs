//! What a pass costs at a budget.

use super::model::Model;
use crate::figures::{self, DeviceModel};
use crate::residency::planned::{lru_price, plan, refine, Plan, Price};
use crate::schedule::KernelTimes;
use crate::{error::bytes_text, Error, Result};
use clap::Args;

#[derive(Args)]
pub struct Link {
    /// What the link from host to device carries, in GB/s of 1,000,000,000 bytes.
    #[arg(long, value_name = "GB/s", default_value_t = 55.0, value_parser = positive)]
    pub link_gbps: f64,
    /// How long a pass computes where nothing has to be copied, if known: no pass takes less.
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = not_negative)]
    compute_ms: f64,
}

fn positive(text: &str) -> std::result::Result<f64, String> {
    number(text)
        .filter(|number| *number > 0.0)
        .ok_or_else(|| format!("'{text}' is no number above 0"))
}

fn not_negative(text: &str) -> std::result::Result<f64, String> {
    number(text)
        .filter(|number| *number >= 0.0)
        .ok_or_else(|| format!("'{text}' is no number from 0 up"))
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

impl Link {
    /// What a device of these figures is on this link.
    pub fn figures(&self, figures: DeviceModel) -> DeviceModel {
        figures.on_link(self.kind())
    }

    fn kind(&self) -> figures::Link {
        figures::Link::of_rate((self.link_gbps * 1e9).max(1.0) as u64)
    }

    /// How long a pass takes that copies beside its kernels, in milliseconds.
    fn ms(&self, price: Price, model: &Model) -> f64 {
        // Where a copy costs nothing of its own there is no link to speak of.
        let copies = price.copies * u64::from(model.figures.bytes_per_copy > 0);
        let seconds = self.kind().seconds(price.bytes, copies);
        (seconds * 1e3).max(self.compute_ms(model))
    }

    /// How long it computes.
    pub fn compute_ms(&self, model: &Model) -> f64 {
        let kernels = model.times.as_ref().map_or(0, KernelTimes::total);
        self.compute_ms.max(kernels as f64 / 1e6)
    }
}

/// What a pass copies, and how long it takes.
#[derive(Clone, Copy)]
pub struct Pass {
    pub price: Price,
    pub ms: f64,
}

/// A budget, and what a pass costs under each policy.
pub struct Cost {
    pub budget: u64,
    pub lru: Pass,
    pub planned: Pass,
    /// `None`: all is resident, or the LRU is as good as any plan.
    pub plan: Option<Plan>,
    /// What no policy that streams whole passes can go below: what exceeds the budget.
    pub limit: Pass,
}

impl Cost {
    /// The same error as at load if the budget is below the floor.
    pub fn at(model: &Model, link: &Link, budget: u64) -> Result<Cost> {
        let floor = &model.floor;
        if budget < floor.bytes() {
            return Err(Error::BudgetTooSmall {
                budget,
                floor: floor.bytes(),
                parts: floor.to_string(),
            });
        }
        let pass = |price| Pass {
            price,
            ms: link.ms(price, model),
        };
        let limit = pass(Price {
            bytes: model.everything().saturating_sub(budget),
            copies: 0,
        });
        if model.everything() <= budget {
            let nothing = pass(Price::default());
            return Ok(Cost {
                budget,
                lru: nothing,
                planned: nothing,
                plan: None,
                limit,
            });
        }
        let (trace, weights) = (&model.method.trace, &model.constants.specs);
        let (figures, capacity) = (&model.figures.beside(floor.direct), budget - floor.direct);
        let lru = lru_price(trace, weights, figures.granule, capacity).ok_or_else(|| {
            Error::Internal(format!("the LRU does not run in {}", bytes_text(budget)))
        })?;
        let found = plan(trace, weights, figures, capacity);
        let plan = found.filter(|plan| plan.price.bytes <= lru.bytes);
        let lru = pass(lru);
        let (plan, planned) = match (plan, &model.times) {
            (None, _) => (None, lru),
            (Some(plan), None) => (Some(plan.clone()), pass(plan.price)),
            (Some(plan), Some(times)) => {
                let (plan, ms) = timed(model, link, (figures, capacity), plan, times);
                let price = plan.price;
                (Some(plan), Pass { price, ms })
            }
        };
        Ok(Cost {
            budget,
            lru,
            planned,
            plan,
            limit,
        })
    }
}

/// The plan that a session goes on with once it knows how long kernels run, and how long a pass takes by it.
fn timed(
    model: &Model,
    link: &Link,
    (figures, capacity): (&DeviceModel, u64),
    plan: Plan,
    times: &KernelTimes,
) -> (Plan, f64) {
    let (trace, weights) = (&model.method.trace, &model.constants.specs);
    let known = (&times.by_event(trace)[..], link.kind());
    let found = refine(trace, weights, figures, capacity, &plan, known);
    let (plan, expected) = found.better.unwrap_or((plan, found.before));
    (plan, (expected.pass as f64 / 1e6).max(link.compute_ms))
}
