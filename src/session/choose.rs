//! Which policy runs: what the table of policies chooses, with what copies cost.

use super::{build::weight_name, refine::Refine, Program, SessionOptions, Stats};
use crate::device::{Device, HostBytes};
use crate::error::{bytes_text, Result};
use crate::figures::Link;
use crate::residency::{choose, Request, Residency};

/// The residency; and what makes the plan anew once kernels were timed, if there is one and they are to be. `bytes` are
/// those of the weights, ready to be copied.
pub(super) fn residency_of<D: Device>(
    device: &mut D,
    program: &Program,
    bytes: &[HostBytes],
    stats: &Stats,
    options: &SessionOptions,
) -> Result<(Residency, Option<Box<Refine>>)> {
    let capacity = capacity(stats);
    let streams = stats.total_weight_bytes > capacity;
    let link = match streams && options.policy.plans() {
        true => calibrate(device, program, bytes, capacity)?,
        false => None,
    };
    let figures = device.model().beside(stats.direct_bytes);
    let residency = choose(&Request {
        kind: options.policy,
        trace: &program.trace,
        weights: &program.weights,
        model: &figures,
        capacity,
        link,
        times: options.times.as_ref(),
    });
    let refine = Refine::new(figures, &residency, link);
    let refine = refine.filter(|_| options.times.is_none() && device.times_kernels());
    Ok((residency, refine.map(Box::new)))
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
