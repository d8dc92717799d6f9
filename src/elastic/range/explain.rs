//! A refusal in words: why, and who holds the memory.

use super::answer::Refusal;
use super::state::RangesState;
use crate::device::UserStreams;
use crate::elastic::range_share::Holding;
use crate::error::{bytes_text, Result};
use std::collections::BTreeMap;

/// Of more holders the number is told.
const NAMED: usize = 8;

impl<D: UserStreams> RangesState<D> {
    /// All ranges, from the highest rank down, behind what is held beside them.
    pub fn holders(&self) -> Vec<Holding> {
        // Activations are many segments.
        let mut sums = BTreeMap::<&str, u64>::new();
        for one in self.holders.values() {
            *sums.entry(&one.name).or_default() += one.memory.held();
        }
        let held = sums.into_iter().map(|(name, bytes)| Holding {
            name: name.to_owned(),
            bytes,
            rank: None,
        });
        let ranges = self.order.iter().filter_map(|id| self.ranges.get(id));
        let ranges = ranges.map(|range| Holding {
            name: range.name.clone(),
            bytes: range.held(),
            rank: Some(range.rank),
        });
        held.chain(ranges).collect()
    }

    /// A refusal of a range.
    pub fn explain(&mut self, id: u64, refusal: Refusal) -> Result<String> {
        let (why, range) = (refusal.text(), self.range(id)?);
        Ok(match refusal {
            Refusal::AboveWatermark => match &range.why {
                Some(cause) => format!("{why}; it was evicted by {cause}"),
                None => why.to_owned(),
            },
            Refusal::OverLimit => format!("{why}, {}", bytes_text(range.limit)),
            _ if refusal.is_of_others() => format!("{why}; {}", self.who_holds()),
            _ => why.to_owned(),
        })
    }

    /// The budget of the device, and who holds it: the largest holders first.
    pub fn who_holds(&self) -> String {
        let (cap, mut all) = self.pool.holders();
        let ranges = self.ranges.values();
        all.extend(ranges.map(|range| (format!("range '{}'", range.name), range.held())));
        let held = self.holders().into_iter().filter(|one| one.rank.is_none());
        all.extend(held.map(|one| (one.name, one.bytes)));
        all.retain(|(_, bytes)| *bytes > 0);
        all.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        let named = all.iter().take(NAMED);
        let mut words: Vec<String> = named
            .map(|(name, bytes)| format!("{name} holds {}", bytes_text(*bytes)))
            .collect();
        match all.len().saturating_sub(NAMED) {
            0 => {}
            more => words.push(format!("{more} more hold the rest")),
        }
        let who = match words.is_empty() {
            true => "nobody holds any of it".to_owned(),
            false => words.join(", "),
        };
        format!(
            "of the {} that '{}' has for weights, {who}",
            bytes_text(cap),
            self.device.pages.name()
        )
    }
}
