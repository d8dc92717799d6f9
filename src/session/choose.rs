//! Which policy runs: what was asked for, unless the budget covers everything or the LRU copies less than any plan.

use super::{build::weight_name, refine::Refine, Program, SessionOptions, Stats};
use crate::config::PolicyKind;
use crate::device::{Device, HostBytes};
use crate::error::{bytes_text, Result};
use crate::figures::{DeviceModel, Link};
use crate::residency::planned::{self, Plan, Planned};
use crate::residency::{AllResident, Lru, Policy};

/// Who is on the device, by the budget and the policy that was asked for.
#[derive(Clone)]
pub(super) enum Residency {
    AllResident,
    Lru { capacity: u64 },
    Planned(Plan),
}

impl Residency {
    /// With what makes the plan anew once kernels were timed, if there is one and they are to be. `bytes` are those of the
    /// weights, ready to be copied.
    pub(super) fn of<D: Device>(
        device: &mut D,
        program: &Program,
        bytes: &[HostBytes],
        stats: &Stats,
        options: &SessionOptions,
    ) -> Result<(Self, Option<Box<Refine>>)> {
        let capacity = capacity(stats);
        if stats.total_weight_bytes <= capacity {
            return Ok((Residency::AllResident, None));
        }
        let lru = Residency::Lru { capacity };
        if options.policy == PolicyKind::Lru {
            return Ok((lru, None));
        }
        let link = calibrate(device, program, bytes, capacity)?;
        let figures = device.model().beside(stats.direct_bytes);
        let Some(plan) = cheaper_plan(program, &figures, capacity, link) else {
            return Ok((lru, None));
        };
        let refine = Refine::new(figures, &plan, link);
        Ok(match (&options.times, refine) {
            (Some(times), Some(refine)) => {
                let better = refine.better(program, capacity, times);
                (Residency::Planned(better.unwrap_or(plan)), None)
            }
            (Some(_), None) => {
                log::warn!(
                    "the times of kernels are of no use: what the link carries is not known"
                );
                (Residency::Planned(plan), None)
            }
            (None, refine) => {
                let refine = refine.filter(|_| device.times_kernels());
                (Residency::Planned(plan), refine.map(Box::new))
            }
        })
    }

    /// A policy that has seen nothing.
    pub(super) fn policy(&self, program: &Program, granule: u64) -> Box<dyn Policy> {
        let (trace, weights) = (&program.trace, &program.weights);
        match self {
            Residency::AllResident => Box::new(AllResident::new(trace, weights, granule)),
            Residency::Lru { capacity } => Box::new(Lru::new(trace, weights, granule, *capacity)),
            Residency::Planned(plan) => Box::new(Planned::new(
                plan.clone(),
                weights.len(),
                trace.probes().len(),
            )),
        }
    }
}

/// Bytes for weights.
pub(super) fn capacity(stats: &Stats) -> u64 {
    stats.budget_bytes - stats.direct_bytes
}

/// What copies cost, if the device was told or can tell: it copies the largest weight, or what of it fits into the budget,
/// as long as no memory is taken.
fn calibrate<D: Device>(
    device: &mut D,
    program: &Program,
    bytes: &[HostBytes],
    capacity: u64,
) -> Result<Option<Link>> {
    let Some((weight, largest)) = (0..).zip(bytes).max_by_key(|(_, bytes)| bytes.len()) else {
        return Ok(None);
    };
    let some = largest.slice(0..largest.len().min(capacity));
    let link = device.calibrate(some).map_err(|error| {
        error.during(|| {
            let name = weight_name(program, weight);
            format!("measuring what copies cost, with {name}")
        })
    })?;
    if let Some(link) = link {
        log::info!(
            "the link carries {link}, which plans take for {}",
            bytes_text(device.bytes_per_copy())
        );
    }
    Ok(link)
}

/// The plan for this capacity, if a pass copies no more by it than under the LRU.
fn cheaper_plan(
    program: &Program,
    figures: &DeviceModel,
    capacity: u64,
    link: Option<Link>,
) -> Option<Plan> {
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
                "policy 'planned': {} are copied in a pass by {} copies, {} stay, {} are shared{}{}",
                bytes_text(plan.price.bytes),
                plan.price.copies,
                bytes_text(plan.block - plan.ring),
                bytes_text(plan.ring),
                plan.view.as_ref().map_or("", |_| ", on mapped pages"),
                link.map_or(String::new(), |link| expected(link, &plan))
            );
            Some(plan)
        }
    }
}

/// What the copies of a pass will take, in words.
fn expected(link: Link, plan: &Plan) -> String {
    let seconds = link.seconds(plan.price.bytes, plan.price.copies);
    format!(
        "; the copies of a pass are expected to take {:.2} ms",
        seconds * 1e3
    )
}
