//! The plan for kernels whose times are known.
//!
//! A plan that is made before anything has run takes copies for what a pass waits for: its ring has room for the copy of one
//! tenancy beside the one that is read, as more room would only make more to copy. Where kernels run for long between
//! two reads (attention over many tokens), such a ring is full before they end, and the link stands still. Plans whose
//! tails go by kernels' times (`timed`), and plans whose rings hold more copies ahead, are tried here, and the one of the shortest
//! pass is taken.

use super::choice::{plan_ahead, plan_timed};
use super::expected::{expected, Expected};
use super::price::cheaper_lru;
use super::timed::Times;
use super::Plan;
use crate::figures::{DeviceModel, Link};
use crate::schedule::{Trace, WeightSpec};

/// Copies ahead that are tried; the plan of the load has one.
const AHEAD: [usize; 10] = [2, 3, 4, 5, 7, 9, 12, 16, 24, 32];

/// A plan is made anew for a gain of at least one part in so many of a pass: it costs a load of what stays, once, which is some
/// passes.
const WORTH: u64 = 100;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refined {
    /// What a pass takes by the plan that is at work.
    pub before: Expected,
    /// A better plan, if there is one, and what a pass takes by it.
    pub better: Option<(Plan, Expected)>,
}

/// Looks for a plan by which a pass takes less time than by `current`, which is one for the same program, figures and
/// capacity. `kernels` as for [`expected`]. No plan copies more than the LRU would.
pub fn refine(
    trace: &Trace,
    weights: &[WeightSpec],
    figures: &DeviceModel,
    capacity: u64,
    current: &Plan,
    (kernels, link): (&[u64], Link),
) -> Refined {
    let before = expected(current, trace, kernels, link);
    // No plan takes less than its kernels do, and hardly one less than the copies of what a ring does not hold.
    let worth = before.pass - before.pass / WORTH;
    let missing = current.price.bytes.saturating_sub(current.ring);
    let copies = (link.seconds(missing, 0) * 1e9) as u64;
    if before.kernels.max(copies) > worth {
        return Refined {
            before,
            better: None,
        };
    }
    let may = |plan: &Plan| cheaper_lru(plan, trace, weights, figures.granule, capacity).is_none();
    let times = Times {
        trace,
        kernels,
        link,
    };
    // Memory that was taken as pages is given back as pages.
    let on_pages = current.view.is_some();
    let mut better = on_pages
        .then(|| plan_timed(weights, figures, capacity, times, worth, may))
        .flatten();
    for ahead in AHEAD {
        let least = better.as_ref().map_or(worth, |(_, best)| best.pass);
        if least <= before.kernels {
            break;
        }
        let Some(plan) = plan_ahead(trace, weights, figures, capacity, (on_pages, ahead)) else {
            break;
        };
        let takes = expected(&plan, trace, kernels, link);
        if takes.pass < least && may(&plan) {
            better = Some((plan, takes));
        }
    }
    Refined { before, better }
}

#[cfg(test)]
#[path = "refine_tests.rs"]
mod tests;
