//! Which weights may stream.
//!
//! A pass copies `W - budget + ring`, and each copy has a cost of its own. So weights stream that one copy serves, large
//! ones first; of equal ones those that are spread over the pass, so that the kernels of what stays hide copies. Some sets
//! of each size are tried. They do not depend on the budget, so that a larger budget has all plans of a smaller one.

use super::problem::Problem;
use super::timeline::Timeline;
use crate::schedule::WeightIndex;

/// Sets by their share of all bytes: at most so many, and in large programs.
const SETS: usize = 64;
const FEW_SETS: usize = 3;

/// Sets by share times live ranges, at most.
const EFFORT: usize = 24_000;

/// From so many live ranges on a program is large.
const LARGE: usize = 2000;

/// The sets to try, each sorted by index; the least one is the first. All have what never stays.
pub(super) fn sets(problem: &Problem<'_>, timeline: &Timeline) -> Vec<Vec<WeightIndex>> {
    let groups = groups(problem, timeline);
    let count = match timeline.ranges.len() {
        few if few <= LARGE => SETS.min(EFFORT / few.max(1)),
        _ => FEW_SETS,
    };
    let mut ends: Vec<u64> = (1..=count as u128)
        .map(|part| (u128::from(problem.total) * part).div_ceil(count as u128) as u64)
        .collect();
    let mut sum = 0;
    for group in &groups {
        sum += problem.size_of(group);
        ends.push(sum);
    }
    ends.sort_unstable();
    ends.dedup();
    let always = groups
        .iter()
        .flatten()
        .copied()
        .filter(|&one| problem.is_streamed(one));
    let always: Vec<WeightIndex> = always.collect();
    let mut sets = Vec::new();
    for needed in [0].into_iter().chain(ends) {
        let mut set = pick(problem, &groups, needed);
        set.extend(&always);
        set.sort_unstable();
        set.dedup();
        sets.push(set);
    }
    sets.dedup();
    sets
}

/// Weights in the order in which they are taken: those that the fewest copies serve first (in methods that rarely run a copy
/// counts less), and of them the large ones, by halves; each group by time.
fn groups(problem: &Problem<'_>, timeline: &Timeline) -> Vec<Vec<WeightIndex>> {
    let largest = problem.sizes.iter().copied().max().unwrap_or(0);
    let mut seen = vec![false; problem.sizes.len()];
    let mut all: Vec<(u64, u32, usize, WeightIndex)> = Vec::new();
    for range in &timeline.ranges {
        let (weight, size) = (range.weight, problem.size(range.weight));
        if size > 0 && !std::mem::replace(&mut seen[weight as usize], true) {
            let times = timeline.times[weight as usize];
            all.push((times, (largest / size).ilog2(), range.first, weight));
        }
    }
    all.sort_unstable();
    let groups = all.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
    let weights = groups.map(|group| group.iter().map(|one| one.3).collect());
    weights.collect()
}

/// Weights of at least `needed` bytes together, or all. Of the last group those that are spread best.
fn pick(problem: &Problem<'_>, groups: &[Vec<WeightIndex>], needed: u64) -> Vec<WeightIndex> {
    let mut picked = Vec::new();
    let mut rest = needed;
    for group in groups {
        let bytes = problem.size_of(group);
        match bytes <= rest {
            true => picked.extend(group),
            false => picked.extend(spread(problem, group, bytes, rest)),
        }
        rest = rest.saturating_sub(bytes);
        if rest == 0 {
            break;
        }
    }
    picked
}

/// Of `group`, which has `bytes` bytes, weights of at least `needed` bytes at about equal distances.
fn spread(
    problem: &Problem<'_>,
    group: &[WeightIndex],
    bytes: u64,
    needed: u64,
) -> Vec<WeightIndex> {
    let (mut passed, mut chosen) = (0u64, 0u64);
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    for &weight in group {
        let size = problem.size(weight);
        passed += size;
        let due = (u128::from(passed) * u128::from(needed) / u128::from(bytes)) as u64;
        match chosen + size / 2 < due.max(1) && chosen < needed {
            true => {
                chosen += size;
                taken.push(weight);
            }
            false => left.push(weight),
        }
    }
    while chosen < needed {
        let Some(weight) = left.pop() else { break };
        chosen += problem.size(weight);
        taken.push(weight);
    }
    taken
}

#[cfg(test)]
#[path = "candidates_tests.rs"]
mod tests;
