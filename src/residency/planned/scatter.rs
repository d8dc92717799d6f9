//! Places in several pieces: one behind the other around a ring, so that an odd number of them in turn needs less than a
//! third one's room.

use super::conflicts::Conflicts;
use std::iter;
use std::ops::Range;

/// Lengths of the ring that are tried.
const STEPS: u64 = 12;

/// The pieces of each tenancy, in the order in which they were given, and how long the ring is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scattered {
    pub pieces: Vec<Vec<Range<u64>>>,
    pub bytes: u64,
}

/// Places tenancies of these sizes, in order of time, so that no two in conflict share bytes, in a ring that is shorter than
/// `most` and not below `least`. `None` if none was found.
pub(super) fn scatter(
    sizes: &[u64],
    conflicts: &Conflicts,
    least: u64,
    most: u64,
) -> Option<Scattered> {
    let mut last = u64::MAX;
    for step in 0..STEPS {
        let ring = least + (most.saturating_sub(least) * step).div_ceil(STEPS);
        if ring >= most {
            return None;
        }
        if ring == last {
            continue;
        }
        last = ring;
        if let Some(pieces) = around(sizes, conflicts, ring) {
            return Some(Scattered {
                pieces,
                bytes: ring,
            });
        }
    }
    None
}

/// Each takes what is free of its conflicts, from the end of the one before it on.
pub(super) fn around(
    sizes: &[u64],
    conflicts: &Conflicts,
    ring: u64,
) -> Option<Vec<Vec<Range<u64>>>> {
    let mut pieces: Vec<Vec<Range<u64>>> = vec![Vec::new(); sizes.len()];
    let mut taken: Vec<Range<u64>> = Vec::new();
    let mut from = 0;
    for (index, &size) in sizes.iter().enumerate() {
        taken.clear();
        let others = conflicts.of(index).iter();
        taken.extend(others.flat_map(|&other| pieces[other].iter().cloned()));
        taken.sort_unstable_by_key(|piece| piece.start);
        let mut left = size;
        let mut mine = Vec::new();
        for part in [from..ring, 0..from] {
            let mut at = part.start;
            let ends = taken.iter().cloned().chain(iter::once(ring..ring));
            for used in ends {
                let end = used.start.min(part.end).min(at.saturating_add(left));
                if end > at {
                    mine.push(at..end);
                    left -= end - at;
                }
                at = at.max(used.end);
                if left == 0 || at >= part.end {
                    break;
                }
            }
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            return None;
        }
        if let Some(last) = mine.last() {
            from = last.end % ring.max(1);
        }
        pieces[index] = mine;
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::super::conflicts::chain;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn five_in_turn_need_two_and_a_half() {
        let found = scatter(&[12; 5], &chain(5), 24, 36).unwrap();
        assert_eq!(found.bytes, 30);
        assert_eq!(found.pieces[2], [24..30, 0..6]);
        // Four need no more than two, which is what one piece for each takes.
        assert_eq!(scatter(&[12; 4], &chain(4), 24, 24), None);
    }

    proptest! {
        #[test]
        fn conflicts_share_nothing(sizes in prop::collection::vec(0..40u64, 3..30)) {
            let conflicts = chain(sizes.len());
            let pairs = (0..sizes.len()).map(|at| sizes[at] + sizes[(at + 1) % sizes.len()]);
            let least = pairs.max().unwrap();
            let Some(found) = scatter(&sizes, &conflicts, least, 3 * least) else { return Ok(()) };
            for (at, pieces) in found.pieces.iter().enumerate() {
                prop_assert_eq!(pieces.iter().map(|p| p.end - p.start).sum::<u64>(), sizes[at]);
                prop_assert!(pieces.iter().all(|p| p.start < p.end && p.end <= found.bytes));
                for other in conflicts.of(at).iter().flat_map(|&other| &found.pieces[other]) {
                    prop_assert!(pieces.iter().all(|p| p.end <= other.start || other.end <= p.start));
                }
            }
        }
    }
}
