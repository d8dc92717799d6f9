use super::super::test_support::{chain, in_turn, kernels};
use super::*;
use crate::schedule::Trace;
use proptest::prelude::*;

fn set(trace: &Trace, weights: usize, ahead: usize) -> Option<(Timeline, Vec<Vec<usize>>)> {
    let timeline = Timeline::of(&[trace.into()], weights);
    let all = (0..weights as u32).collect();
    let conflicts = Set::new(&timeline, all, ahead)?.conflicts;
    let sorted = conflicts.into_iter().map(|mut list| {
        list.sort_unstable();
        list.dedup();
        list
    });
    let sorted = sorted.collect();
    Some((timeline, sorted))
}

#[test]
fn neighbours_conflict_around_the_end() {
    let (_, conflicts) = set(&in_turn(5), 5, 1).unwrap();
    assert_eq!(
        conflicts,
        [vec![1, 4], vec![0, 2], vec![1, 3], vec![2, 4], vec![0, 3]]
    );
}

#[test]
fn what_is_wanted_at_one_time_conflicts() {
    // Weight 1 is read by the second and the fourth kernel, as one live range.
    let trace = chain(&[0, 1, 2, 1, 3, 4], 5);
    let timeline = Timeline::of(&[(&trace).into()], 5).merged(10);
    let set = Set::new(&timeline, (0..5).collect(), 1).unwrap();
    let mut found = set.conflicts[1].clone();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, [0, 2, 3]);
    // One kernel reads two, and the next one reads two others: all four.
    let (_, conflicts) = super::tests::set(&kernels(&[vec![0, 1], vec![2, 3]], 4), 4, 1).unwrap();
    assert_eq!(conflicts[0], [1, 2, 3]);
}

#[test]
fn more_copies_ahead_keep_more_apart() {
    let conflicts = |ahead| set(&in_turn(7), 7, ahead).unwrap().1;
    assert_eq!(conflicts(2)[3], [1, 2, 4, 5]);
    assert_eq!(conflicts(2)[0], [1, 2, 5, 6]);
    // Around the whole pass each is apart from all others, and none from itself.
    assert_eq!(conflicts(9)[3], [0, 1, 2, 4, 5, 6]);
}

#[test]
fn far_too_many_at_one_time_are_no_set() {
    let all: Vec<u32> = (0..300).collect();
    let trace = kernels(&[all], 300);
    assert!(set(&trace, 300, 1).is_none());
}

#[test]
fn no_set_has_more_live_ranges_than_a_process_has_mappings_for() {
    for (count, is_some) in [(MOST_RANGES, true), (MOST_RANGES + 1, false)] {
        assert_eq!(set(&in_turn(count), count, 1).is_some(), is_some);
    }
}

fn slots(count: usize, ahead: usize) -> (Vec<usize>, usize) {
    let timeline = Timeline::of(&[(&in_turn(count)).into()], count);
    let set = Set::new(&timeline, (0..count as u32).collect(), ahead).unwrap();
    set.slots(&(0..count).collect::<Vec<_>>())
}

#[test]
fn a_chain_needs_two_slots_and_an_odd_one_three() {
    assert_eq!(slots(6, 1), (vec![0, 1, 0, 1, 0, 1], 2));
    assert_eq!(slots(5, 1), (vec![0, 1, 0, 1, 2], 3));
    assert_eq!(slots(8, 3), (vec![0, 1, 2, 3, 0, 1, 2, 3], 4));
}

proptest! {
    /// An oracle of its own: the times at which each is wanted, point by point.
    #[test]
    fn no_two_that_conflict_share_a_slot(
        reads in prop::collection::vec(prop::collection::vec(0..9u32, 1..4), 1..24),
        distance in 0..30usize, ahead in 1..4usize, shift in 0..40usize,
    ) {
        let mut reads = reads;
        for list in &mut reads {
            list.sort_unstable();
            list.dedup();
        }
        let timeline = Timeline::of(&[(&kernels(&reads, 9)).into()], 9).merged(distance);
        let Some(set) = Set::new(&timeline, (0..9).collect(), ahead) else { return Ok(()) };
        let count = set.ranges.len();
        let mut order: Vec<usize> = (0..count).collect();
        order.rotate_left(shift % count);
        let (slot_of, slots) = set.slots(&order);
        prop_assert!(slot_of.iter().all(|&slot| slot < slots));
        let events = timeline.circles[0].events as i64;
        let wanted = |at: usize, time: i64| {
            let range = &timeline.ranges[set.ranges[at]];
            [time - events, time].iter().any(|time| (range.wanted..=range.last as i64).contains(time))
        };
        for a in 0..count {
            for b in 0..a {
                let near = (1..=ahead).any(|step| (a + step) % count == b || (b + step) % count == a);
                let together = (0..=events).any(|time| wanted(a, time) && wanted(b, time));
                prop_assert!(slot_of[a] != slot_of[b] || !(near || together), "{a} and {b}: {slot_of:?}");
            }
        }
    }
}
