//! Packed weights that stay as they are stored, and are decoded into the ring at each read.
//!
//! ```text
//! raw residents      | heads and whole weights               | ring |     a pass copies r (W - budget + ring)
//! packed residents   | stored bytes of what streams | large ring    |     a pass copies r W - (budget - ring)
//! ```
//!
//! `r` is what packing leaves of a weight, two thirds. A byte of the budget that holds stored bytes saves the link a byte; one that holds raw
//! bytes saves `r`. But all that stays packed is decoded in each pass, and tails are whole weights: so where nearly everything
//! fits, raw residents are better. Both are priced, by the judge of all plans.

use super::plan::{Kept, Plan};
use super::problem::room;
use super::search::plan;
use crate::figures::{DeviceModel, PackedResidents, Piece};
use crate::schedule::{MethodTrace, WeightSpec};

/// Rings that are tried, in halves of the smallest one: more room lets copies run further ahead.
const RINGS: [u64; 4] = [2, 3, 4, 6];

/// Stored bytes lie at multiples of this.
const ALIGNMENT: u64 = 512;

/// The cheapest plan in `capacity`: `find` gives one for raw residents, of which those in less room leave some for packed ones. `cost` says
/// which one is best.
pub(super) fn with_kept(
    (methods, weights): (&[MethodTrace<'_>], &[WeightSpec]),
    model: &DeviceModel,
    capacity: u64,
    find: impl Fn(u64) -> Option<Plan>,
    cost: impl Fn(&Plan) -> u128,
) -> Option<Plan> {
    let raw = find(capacity)?;
    let packs = weights.iter().any(WeightSpec::is_packed);
    if model.packed == PackedResidents::Off || !packs || raw.streamed.is_empty() {
        return Some(raw);
    }
    let (page, all) = (model.page?, room(model, model.page?, capacity));
    let least = least(capacity, page, |capacity| {
        plan(methods, weights, model, capacity).is_some()
    });
    let rings = RINGS.iter().map(|halves| least / 2 * halves);
    let kept = rings
        .take_while(|&ring| ring < capacity)
        .filter_map(|ring| {
            let plan = find(ring)?;
            keep(plan, methods, weights, page, all)
        });
    let packed = kept.map(|plan| (cost(&plan), plan));
    let best = packed.min_by_key(|(cost, _)| *cost);
    match best {
        Some((packed, plan)) if model.packed == PackedResidents::On || packed < cost(&raw) => {
            Some(plan)
        }
        _ => Some(raw),
    }
}

/// The least capacity for which there is a plan, to some pages; `most` is enough.
fn least(most: u64, page: u64, enough: impl Fn(u64) -> bool) -> u64 {
    let (mut below, mut least) = (0, most);
    while least - below > (4 * page).max(most / 256) {
        let middle = below + (least - below) / 2;
        match enough(middle) {
            true => least = middle,
            false => below = middle,
        }
    }
    least
}

/// The plan with stored bytes in the room that it leaves: as large a part of each weight that streams as a whole, so that copies are spread
/// evenly over the pass. `None` if there is nothing to keep, or no room.
fn keep(
    mut plan: Plan,
    methods: &[MethodTrace<'_>],
    weights: &[WeightSpec],
    page: u64,
    all: u64,
) -> Option<Plan> {
    let start = plan.view.whole().next_multiple_of(page);
    let free = (all - all % page).checked_sub(start)?;
    let mut whole: Vec<_> = { plan.streamed.iter() }
        .filter(|copy| copy.range.start == 0 && weights[copy.weight as usize].is_packed())
        .map(|copy| copy.weight)
        .collect();
    whole.sort_unstable();
    whole.dedup();
    let stored = |weight: u32| weights[weight as usize].stored;
    let sum: u64 = whole.iter().map(|&weight| stored(weight)).sum();
    let padding = ALIGNMENT * whole.len() as u64;
    let part = free
        .checked_sub(padding)
        .filter(|&part| part > 0 && sum > 0)?;
    let at = plan.view.bytes;
    let mut end = 0;
    for weight in whole {
        let share = u128::from(stored(weight)) * u128::from(part) / u128::from(sum);
        let bytes = stored(weight).min(u64::try_from(share).unwrap_or(u64::MAX));
        plan.kept.push(Kept {
            weight,
            bytes,
            at: at + end,
        });
        end += bytes.next_multiple_of(ALIGNMENT);
    }
    let bytes = end.next_multiple_of(page);
    let memory = start;
    plan.view.pieces.push(Piece { at, memory, bytes });
    (plan.view.bytes, plan.view.memory) = (at + bytes, memory + bytes);
    for copy in &mut plan.streamed {
        if let Some(kept) = plan.kept.iter().find(|kept| kept.weight == copy.weight) {
            copy.stored = weights[copy.weight as usize].linked_of(&copy.range, kept.bytes);
        }
    }
    plan.price.bytes = plan.mean_copied(methods);
    Some(plan)
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
