//! From one plan to another: which pages keep what they hold, and what has to be loaded.
//!
//! ```text
//! old memory   head a . . . | head b . . | ring    | c c c c
//! new memory   head a .     | head b     | ring . . . .     | c c c c
//!              kept           kept         holds nothing      kept
//! ```
//! What stays of a weight under both plans is there already. A page is kept if all that stays in it under the new plan lies in
//! one page of the old memory, at the same place in the page. Everything else that stays is loaded again; so is what the device
//! could not keep.

use super::planned::Plan;
use super::Action;
use crate::figures::KeptPages;
use crate::schedule::WeightIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The first bytes of a weight, which stay, and where they lie.
#[derive(Debug, Clone, Copy)]
struct Stay {
    weight: WeightIndex,
    bytes: u64,
    /// Bytes from the start of the memory.
    memory: u64,
    window: u32,
}

/// What a change of plans needs.
pub struct Move {
    stays: Vec<Stay>,
    pages: Pages,
}

impl Move {
    /// Pages that keep what they hold, by their new place.
    pub fn kept(&self) -> Vec<KeptPages> {
        self.pages.runs()
    }

    /// What stays under the new plan and has to be copied, where the device has `lost` some of the kept pages: bytes of the new
    /// memory.
    pub fn loads(&self, lost: &[Range<u64>]) -> Vec<Action> {
        let loads = self
            .stays
            .iter()
            .filter_map(|stay| self.pages.load(stay, lost));
        loads.collect()
    }
}

/// From `old` to `new`, for a device with such pages.
pub fn between(old: &Plan, new: &Plan, page: u64) -> Move {
    let before: BTreeMap<WeightIndex, Stay> = stays(old).map(|one| (one.weight, one)).collect();
    let stays: Vec<Stay> = stays(new).collect();
    let mut pages = Pages::new(page);
    for stay in &stays {
        pages.add(stay, before.get(&stay.weight));
    }
    pages.inner.sort_unstable_by_key(|(range, _)| range.start);
    pages.keep_each_once();
    Move { stays, pages }
}

/// What stays under a plan. Each lies in one piece of the memory.
fn stays(plan: &Plan) -> impl Iterator<Item = Stay> + '_ {
    plan.resident.iter().filter_map(|one| {
        let start = plan.windows[one.window as usize];
        let bytes = one.range.end - one.range.start;
        let memory = plan.view.behind(start..start + bytes)?;
        match memory.as_slice() {
            [piece] if one.range.start == 0 => Some(Stay {
                weight: one.weight,
                bytes,
                memory: piece.start,
                window: one.window,
            }),
            _ => None,
        }
    })
}

/// Where the pages of the new memory were: bytes from the start of the old one; `None` for those that hold nothing.
struct Pages {
    page: u64,
    /// Pages that are filled by one weight, in runs by their new place: that, and the old one.
    inner: Vec<(Range<u64>, Option<u64>)>,
    /// The others, by their new place.
    borders: BTreeMap<u64, Option<u64>>,
}

impl Pages {
    fn new(page: u64) -> Pages {
        Pages {
            page,
            inner: Vec::new(),
            borders: BTreeMap::new(),
        }
    }

    /// `before` is what stayed of the weight under the old plan.
    fn add(&mut self, stay: &Stay, before: Option<&Stay>) {
        let page = self.page;
        let (start, end) = (stay.memory, stay.memory + stay.bytes);
        // The bytes that are there already, if they lie at the same place in their page.
        let alike = before.filter(|old| old.memory % page == start % page);
        let there = alike.map_or(start, |old| start + old.bytes.min(stay.bytes));
        let old = |at: u64| alike.map(|old| old.memory + at - start);
        let (first, last) = (start.next_multiple_of(page), end - end % page);
        if first < last {
            let whole = (there - there % page).clamp(first, last);
            self.inner.push((first..whole, old(first)));
            self.inner.push((whole..last, None));
        }
        let mut border = |at: u64, needed: u64| {
            let from = old(start).map(|memory| (memory + at).wrapping_sub(start));
            let from = from.filter(|_| needed <= there);
            let entry = self.borders.entry(at).or_insert(from);
            *entry = entry.filter(|_| *entry == from);
        };
        if start % page > 0 || end < first {
            border(start - start % page, end.min(first));
        }
        if end % page > 0 && last >= first {
            border(last, end);
        }
    }

    /// Two weights that shared a page may lie in two pages now: the page goes to the first.
    fn keep_each_once(&mut self) {
        let mut given = BTreeSet::new();
        for from in self.borders.values_mut() {
            *from = from.filter(|from| given.insert(*from));
        }
    }

    /// What has to be copied of a weight: from the first byte that is not there to the last one.
    fn load(&self, stay: &Stay, lost: &[Range<u64>]) -> Option<Action> {
        let page = self.page;
        let end = stay.memory + stay.bytes;
        let mut missing: Option<Range<u64>> = None;
        let mut miss = |range: Range<u64>| {
            let range = range.start.max(stay.memory)..range.end.min(end);
            if !range.is_empty() {
                let (start, end) = missing
                    .as_ref()
                    .map_or((range.start, range.end), |all| (all.start, all.end));
                missing = Some(start.min(range.start)..end.max(range.end));
            }
        };
        let borders = [stay.memory - stay.memory % page, end - end % page];
        for at in borders {
            if self.borders.get(&at) == Some(&None) {
                miss(at..at + page);
            }
        }
        let first = self
            .inner
            .partition_point(|(range, _)| range.end <= stay.memory);
        let inner = self.inner[first..].iter();
        inner
            .take_while(|(range, _)| range.start < end)
            .filter(|(_, old)| old.is_none())
            .for_each(|(range, _)| miss(range.clone()));
        // rule: lost-pages-are-loaded
        lost.iter().for_each(|range| miss(range.clone()));
        missing.map(|range| Action::Load {
            weight: stay.weight,
            range: range.start - stay.memory..range.end - stay.memory,
            window: stay.window,
            ahead: true,
        })
    }

    /// The kept pages, neighbours together.
    fn runs(&self) -> Vec<KeptPages> {
        let inner = self.inner.iter().filter_map(|(range, old)| {
            Some(KeptPages {
                from: (*old)?,
                to: range.start,
                bytes: range.end - range.start,
            })
        });
        let borders = self.borders.iter().filter_map(|(&to, &from)| {
            Some(KeptPages {
                from: from?,
                to,
                bytes: self.page,
            })
        });
        let mut all: Vec<KeptPages> = inner.chain(borders).filter(|one| one.bytes > 0).collect();
        all.sort_unstable_by_key(|one| one.to);
        all.dedup_by(|next, last| {
            let follows = (next.to, next.from) == (last.to + last.bytes, last.from + last.bytes);
            if follows {
                last.bytes += next.bytes;
            }
            follows
        });
        all
    }
}

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
