//! A place in the ring for each tenancy.

use super::conflicts::Conflicts;

/// Where each tenancy lies, and how long the ring is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Offset of each, in the order in which they were given.
    pub offsets: Vec<u64>,
    /// End of the last one.
    pub bytes: u64,
}

/// Places tenancies of these sizes so that no two in conflict share bytes. Two orders are tried, each tenancy at the
/// lowest offset that is free of its conflicts: by size, which mostly finds as many slots as are needed at one time,
/// and by time.
pub(super) fn place(sizes: &[u64], conflicts: &Conflicts) -> Layout {
    let by_time: Vec<usize> = (0..sizes.len()).collect();
    let mut by_size = by_time.clone();
    by_size.sort_by_key(|&index| std::cmp::Reverse(sizes[index]));
    let largest_first = first_fit(&by_size, sizes, conflicts);
    let first_first = first_fit(&by_time, sizes, conflicts);
    match largest_first.bytes <= first_first.bytes {
        true => largest_first,
        false => first_first,
    }
}

fn first_fit(order: &[usize], sizes: &[u64], conflicts: &Conflicts) -> Layout {
    const NOWHERE: u64 = u64::MAX;
    let mut offsets = vec![NOWHERE; sizes.len()];
    let mut taken: Vec<(u64, u64)> = Vec::new();
    let mut bytes = 0;
    for &index in order {
        let placed = conflicts
            .of(index)
            .iter()
            .filter(|&&other| offsets[other] != NOWHERE);
        taken.clear();
        taken.extend(placed.map(|&other| (offsets[other], offsets[other] + sizes[other])));
        taken.sort_unstable();
        let mut at = 0;
        for &(start, end) in &taken {
            if start >= at + sizes[index] {
                break;
            }
            at = at.max(end);
        }
        offsets[index] = at;
        bytes = bytes.max(at + sizes[index]);
    }
    Layout { offsets, bytes }
}

#[cfg(test)]
mod tests {
    use super::super::conflicts::{chain, conflicts};
    use super::super::tenancies::Tenancy;
    use super::*;
    use proptest::prelude::*;

    fn ring(sizes: &[u64]) -> u64 {
        place(sizes, &chain(sizes.len())).bytes
    }

    #[test]
    fn a_chain_needs_two_slots_and_an_odd_one_three() {
        assert_eq!(ring(&[64; 6]), 128);
        assert_eq!(ring(&[64; 7]), 192);
        // Small ones share a large one's slot; as many as the largest neighbours need.
        assert_eq!(ring(&[64, 16, 16, 64, 256, 256]), 512);
        assert_eq!(ring(&[64, 16, 16, 64, 16, 16]), 80);
    }

    proptest! {
        #[test]
        fn no_two_in_conflict_share_bytes(spans in prop::collection::vec((0..90usize, 0..8usize, 0..8i64, 1..20u64), 1..40)) {
            let mut spans = spans;
            spans.sort();
            let tenancy = |&(first, len, before, _): &(usize, usize, i64, u64)| Tenancy {
                weight: 0, probes: vec![], first, last: (first + len).min(100), wanted: first as i64 - before,
            };
            let all: Vec<_> = spans.iter().map(tenancy).collect();
            let sizes: Vec<u64> = spans.iter().map(|span| 64 * span.3).collect();
            let found = conflicts(&all.iter().collect::<Vec<_>>(), 100, 1).unwrap();
            let layout = place(&sizes, &found);
            let apart = |a: usize, b: usize| {
                let (x, y) = (layout.offsets[a], layout.offsets[b]);
                x + sizes[a] <= y || y + sizes[b] <= x
            };
            // An oracle of its own: the times at which each is wanted, point by point.
            let at = |t: &Tenancy, time: i64| [time, time - 100].iter().any(|&x| t.wanted <= x && x <= t.last as i64);
            for a in 0..all.len() {
                for b in 0..a {
                    if (0..=100).any(|time| at(&all[a], time) && at(&all[b], time)) || a == b + 1 {
                        prop_assert!(apart(a, b), "{} and {}: {:?}", a, b, layout);
                    }
                }
            }
            prop_assert!(layout.offsets.iter().zip(&sizes).all(|(at, size)| at + size <= layout.bytes));
        }
    }
}
