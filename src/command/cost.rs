//! What a pass costs at a budget.

use super::model::Model;
use crate::config::{PolicyKind, BUDGET_MB};
use crate::figures::{self, DeviceModel, PackedResidents};
use crate::residency::planned::{expected, lru_mean, Clocks, Plan, Price};
use crate::residency::{choose, Request, Residency};
use crate::schedule::KernelTimes;
use crate::{error::bytes_text, Error, Result};
use clap::Args;

#[derive(Args)]
pub struct LinkArguments {
    /// What the link from host to device carries, in GB/s of 1,000,000,000 bytes.
    #[arg(long, value_name = "GB/s", default_value_t = 55.0, value_parser = positive)]
    pub link_gbps: f64,
    /// How long a pass computes where nothing has to be copied, if known: no pass takes less.
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = not_negative)]
    compute_ms: f64,
}

pub(super) fn positive(text: &str) -> std::result::Result<f64, String> {
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

impl LinkArguments {
    /// What a device of these figures is on this link.
    pub fn figures(&self, figures: DeviceModel) -> DeviceModel {
        figures.on_link(self.kind())
    }

    fn kind(&self) -> figures::Link {
        figures::Link::of_rate((self.link_gbps * 1e9).max(1.0) as u64)
    }

    /// How long a pass takes that copies beside its kernels, in milliseconds. What kernels read in place takes its share of the link, and
    /// they wait for it.
    fn ms(&self, price: Price, model: &Model) -> f64 {
        // Where a copy costs nothing of its own there is no link to speak of.
        let copies = price.copies * u64::from(model.figures.bytes_per_copy > 0);
        let in_place = self.in_place_ms(model);
        let copying = self.kind().seconds(price.bytes, copies) * 1e3;
        (copying + in_place).max(self.compute_ms(model) + in_place)
    }

    /// How long the link takes for what a pass reads in place at the most.
    pub fn in_place_ms(&self, model: &Model) -> f64 {
        self.kind().seconds(in_place(model), 0) * 1e3
    }

    /// How long it computes.
    pub fn compute_ms(&self, model: &Model) -> f64 {
        let kernels = model.times.as_ref().map_or(0, KernelTimes::total);
        self.compute_ms.max(kernels as f64 / 1e6)
    }
}

/// What a pass copies, and how long it takes.
#[derive(Clone, Copy)]
pub struct PassCost {
    pub price: Price,
    pub ms: f64,
}

/// A budget, and what a pass costs under each policy.
pub struct Cost {
    pub budget: u64,
    pub lru: PassCost,
    pub planned: PassCost,
    /// What the policy `planned` chooses: a plan, everything resident, or the LRU.
    pub residency: Residency,
    /// What no policy that streams whole passes can go below: what of a method's weights exceeds the budget, or what never
    /// stays.
    pub limit: PassCost,
}

/// Bytes that a pass reads in place at the most, in the mean.
pub fn in_place(model: &Model) -> u64 {
    let bytes = |at: usize| model.read_in_place(at);
    let price = |at| Price {
        bytes: bytes(at),
        copies: 0,
    };
    mean(model, price).bytes
}

/// The mean over passes of the methods that figures are of, by their shares.
fn mean(model: &Model, of: impl Fn(usize) -> Price) -> Price {
    let share = |at: usize| u128::from(model.methods.all[at].share);
    let shares: u128 = model.picked().map(share).sum();
    let mean = |part: fn(Price) -> u64| {
        let parts = model
            .picked()
            .map(|at| share(at) * u128::from(part(of(at))));
        u64::try_from(parts.sum::<u128>() / shares.max(1)).unwrap_or(u64::MAX)
    };
    Price {
        bytes: mean(|price| price.bytes),
        copies: mean(|price| price.copies),
    }
}

impl Cost {
    /// The same error as at load if the budget is below the floor.
    pub fn at(model: &Model, link: &LinkArguments, budget: u64) -> Result<Cost> {
        let floor = &model.floor;
        if budget < floor.bytes() {
            return Err(Error::BudgetTooSmall {
                budget,
                floor: floor.bytes(),
                parts: floor.to_string(),
                option: BUDGET_MB,
            });
        }
        let (methods, weights) = (&model.methods.traced(), &model.methods.constants.specs);
        let figures = model.figures.beside(floor.direct);
        let figures = figures.with_packed(model.packed);
        let capacity = budget - floor.direct;
        let residency = choose(&Request {
            kind: PolicyKind::Planned,
            methods,
            weights,
            model: &figures,
            capacity,
            link: Some(link.kind()),
            times: &[model.times.as_ref()],
        });
        let pass = |price| PassCost {
            price,
            ms: link.ms(price, model),
        };
        let lru = match residency.policy().everything_stays() {
            true => Some(Price::default()),
            false => lru_mean(&methods[model.picked()], weights, figures.granule, capacity),
        };
        let lru = pass(lru.ok_or_else(|| {
            Error::Internal(format!("the LRU does not run in {}", bytes_text(budget)))
        })?);
        let limit = mean(model, |at| {
            let (read, streamed) = model.read_by(at);
            let saved = model.saved_by(at);
            // What is raw on the device saves as much of a copy as it takes in the file.
            let over = match figures.packed {
                PackedResidents::Off => {
                    let (over, stored) = (read.saturating_sub(capacity), read - saved);
                    (u128::from(over) * u128::from(stored) / u128::from(read.max(1))) as u64
                }
                _ => (read - saved).saturating_sub(capacity),
            };
            Price {
                bytes: over.max(streamed),
                copies: 0,
            }
        });
        Ok(Cost {
            budget,
            lru,
            planned: residency
                .plan()
                .map_or(lru, |plan| by_plan(model, link, plan)),
            residency,
            limit: pass(limit),
        })
    }
}

/// A pass by a plan. Of several methods each in passes of its own, as under the LRU.
fn by_plan(model: &Model, link: &LinkArguments, plan: &Plan) -> PassCost {
    if model.records.all().len() == 1 {
        return PassCost {
            price: plan.price,
            ms: planned_ms(model, link, plan),
        };
    }
    let price = mean(model, |at| Price {
        bytes: plan.copied(at),
        copies: plan.copies(at),
    });
    PassCost {
        price,
        ms: link.ms(price, model),
    }
}

/// How long a pass takes by a plan: as kernels and copies alternate, where it is known how long kernels run.
fn planned_ms(model: &Model, link: &LinkArguments, plan: &Plan) -> f64 {
    let Some(times) = &model.times else {
        return link.ms(plan.price, model);
    };
    let trace = &model.method().trace;
    let clocks = Clocks {
        kernels: &times.by_event(trace),
        link: link.kind(),
    };
    let expected = expected(plan, &[trace.into()], &[clocks]);
    (expected.pass as f64 / 1e6).max(link.compute_ms) + link.in_place_ms(model)
}
