//! Packed weights that stay as they are stored, and are decoded into the ring at each read.
//!
//! ```text
//! raw residents      | heads and whole weights               | ring |     a pass copies r (W - budget + ring)
//! packed residents   | stored bytes of what streams | large ring    |     a pass copies r W - (budget - ring)
//! ```
//!
//! `r` is what packing leaves of a weight, two thirds. A byte of the budget that holds stored bytes saves the link a byte; one that holds raw
//! bytes saves `r`. But all that stays packed is decoded in each pass, and tails are whole weights: so where nearly everything
//! fits, raw residents are better. Both are priced, and what lies between them: some weights raw, and the rest packed.

use super::plan::{KeptPacked, Plan};
use crate::figures::Piece;
use crate::schedule::{MethodTrace, WeightSpec};

/// Stored bytes lie at multiples of this, as blocks do in their file.
const ALIGNMENT: u64 = 16;

/// The plan with stored bytes in the room that it leaves: as large a part of each weight that streams as a whole, so that copies are spread
/// evenly over the pass. `None` if the plan itself has no room.
pub(super) fn keep(
    mut plan: Plan,
    methods: &[MethodTrace<'_>],
    weights: &[WeightSpec],
    page: u64,
    all: u64,
) -> Option<Plan> {
    let start = plan.view.whole().next_multiple_of(page);
    let free = (all - all % page).checked_sub(start)?;
    let mut whole: Vec<_> = { plan.streamed.iter() }
        .filter(|copy| {
            let weight = &weights[copy.weight as usize];
            copy.range.start == 0 && weight.is_packed() && !weight.is_streamed()
        })
        .map(|copy| copy.weight)
        .collect();
    whole.sort_unstable();
    whole.dedup();
    let stored = |weight: u32| weights[weight as usize].stored;
    let sum: u64 = whole.iter().map(|&weight| stored(weight)).sum();
    let padding = ALIGNMENT * whole.len() as u64;
    let Some(part) = free
        .checked_sub(padding)
        .filter(|&part| part > 0 && sum > 0)
    else {
        return Some(plan);
    };
    let at = plan.view.bytes;
    let mut end = 0;
    for weight in whole {
        let share = u128::from(stored(weight)) * u128::from(part) / u128::from(sum);
        let bytes = stored(weight).min(u64::try_from(share).unwrap_or(u64::MAX));
        plan.kept.push(KeptPacked {
            weight,
            bytes,
            at: at + end,
        });
        end += bytes.next_multiple_of(ALIGNMENT);
    }
    if end == 0 {
        plan.kept.clear();
        return Some(plan);
    }
    let bytes = end.next_multiple_of(page);
    let memory = start;
    plan.view.pieces.push(Piece { at, memory, bytes });
    (plan.view.bytes, plan.view.memory) = (at + bytes, memory + bytes);
    for copy in &mut plan.streamed {
        let kept = { &plan.kept }.binary_search_by_key(&copy.weight, |kept| kept.weight);
        if let Ok(at) = kept {
            let kept = &plan.kept[at];
            copy.stored = weights[copy.weight as usize].linked_of(&copy.range, kept.bytes);
        }
    }
    plan.price.bytes = plan.mean_copied(methods);
    Some(plan)
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
