use super::super::test_support::{chain, in_turn, model, weights, PAGE};
use super::*;
use crate::schedule::Trace;

fn of(sizes: &[u64], trace: &Trace, capacity: u64) -> Vec<Vec<WeightIndex>> {
    let weights = weights(sizes);
    let problem = Problem::new(&[trace.into()], &weights, &model(0), capacity).unwrap();
    sets(&problem, &Timeline::of(&[trace.into()], weights.len()))
}

#[test]
fn sets_do_not_depend_on_the_budget() {
    let sizes: Vec<u64> = (0..40).map(|at| 64 * (1 + at * 7 % 11)).collect();
    let trace = in_turn(40);
    let sets = of(&sizes, &trace, 0);
    assert_eq!(sets, of(&sizes, &trace, 5000));
    assert!(sets[0].is_empty());
    assert_eq!(sets.last().unwrap().len(), 40);
}

#[test]
fn large_weights_stream_first_and_what_is_read_again_last() {
    let mut sizes = vec![PAGE; 8];
    (sizes[2], sizes[5]) = (8 * PAGE, 8 * PAGE);
    let trace = chain(&[0, 1, 2, 3, 4, 5, 6, 7, 2], 8);
    let found = of(&sizes, &trace, 0);
    // What is read twice, and is large, comes after all others.
    assert_eq!(found[1], [5]);
    assert!(found.contains(&vec![0, 1, 3, 4, 5, 6, 7]), "{found:?}");
    let with: Vec<_> = found.iter().filter(|set| set.contains(&2)).collect();
    assert!(with.iter().all(|set| set.len() == 8), "{found:?}");
}

#[test]
fn of_equal_weights_those_stream_that_are_spread() {
    let found = of(&[640; 12], &in_turn(12), 0);
    let steps = |set: &Vec<u32>| {
        let next = set.iter().skip(1).chain(set.first());
        let steps = set.iter().zip(next).map(|(a, b)| (b + 12 - a) % 12);
        steps.collect::<Vec<_>>()
    };
    for (count, step) in [(2, 6), (3, 4), (4, 3), (6, 2)] {
        let mut sets = found.iter().filter(|set| set.len() == count);
        assert!(
            sets.any(|set| steps(set) == vec![step; count]),
            "{count}: {found:?}"
        );
    }
}

#[test]
fn of_large_programs_few_sets_are_tried() {
    let layer = [1 << 20, 3 << 20, 9 << 20];
    let sizes = layer.repeat(LARGE / 3 + 1);
    let trace = in_turn(sizes.len());
    assert!(of(&sizes, &trace, 0).len() <= 1 + FEW_SETS + 3);
    let sizes = layer.repeat(50);
    assert!(of(&sizes, &in_turn(sizes.len()), 0).len() > SETS);
}
