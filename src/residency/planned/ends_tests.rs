use super::super::conflicts::conflicts;
use super::super::test_support::{in_turn, kernels, weights, PAGE};
use super::*;
use crate::figures::DeviceModel;
use crate::schedule::{Trace, WeightSpec};
use proptest::prelude::*;

const ANY: u64 = u64::MAX;

fn found(weights: &[WeightSpec], trace: &Trace, capacity: u64, ring: u64) -> Option<Paged> {
    let figures = DeviceModel {
        apart: 0,
        granule: 64,
        page: Some(PAGE),
        bytes_per_copy: 0,
    };
    let planner = Planner::new(trace, weights, &figures, capacity);
    let all: Vec<WeightIndex> = (0..weights.len() as u32).collect();
    let order = planner.order_of(&all);
    let conflicts = conflicts(&planner.in_order(&order), planner.events, planner.ahead)?;
    shortest(&planner, PAGE, &order, &conflicts, ring)
}

fn of_pages(pages: &[u64], capacity: u64, ring: u64) -> Option<Paged> {
    let sizes: Vec<u64> = pages.iter().map(|pages| pages * PAGE).collect();
    found(
        &weights(&sizes),
        &in_turn(pages.len()),
        capacity * PAGE,
        ring,
    )
}

#[test]
fn long_tails_stand_beside_short_ones() {
    // 14 pages are missing. With tails of 10, 10, 10 and 4 pages, two slots have 20.
    let plan = of_pages(&[20, 20, 20, 4], 50, 20).unwrap();
    assert_eq!(plan.tails, [10, 4, 10, 4]);
    assert_eq!((plan.ring.pages, plan.price.bytes), (14, 28 * PAGE));
    let start = |at: usize| plan.ring.places[at][0].clone();
    assert_eq!([start(0), start(1)], [0..10, 10..14]);
    assert_eq!([start(2), start(3)], [0..10, 10..14]);
}

#[test]
fn no_longer_ring_is_taken() {
    assert!(of_pages(&[20, 20, 20, 4], 50, 15).is_some());
    assert!(of_pages(&[20, 20, 20, 4], 50, 14).is_none());
    // Nor one that does not hold what is missing.
    assert!(of_pages(&[20, 20, 20, 4], 7, ANY).is_none());
}

/// The copies would wait for the kernel in front of a weight that is copied in no time.
#[test]
fn no_very_short_tail_is_between_two_that_share_memory() {
    assert!(of_pages(&[20, 20, 20, 2], 50, ANY).is_some());
    assert!(of_pages(&[20, 20, 20, 1], 50, ANY).is_none());
    let plan = of_pages(&[20, 20, 20, 2], 58, ANY).unwrap();
    assert!(plan.tails.iter().all(|&tail| tail > 0), "{:?}", plan.tails);
}

#[test]
fn only_chains_of_an_even_count_are_taken() {
    let sizes = weights(&[20 * PAGE; 6]);
    let reads = |reads: &[&[u32]]| {
        let reads: Vec<Vec<u32>> = reads.iter().map(|read| read.to_vec()).collect();
        found(&sizes, &kernels(&reads, 6), 100 * PAGE, ANY)
    };
    assert!(reads(&[&[0], &[1], &[2], &[3], &[4], &[5]]).is_some());
    // Two are wanted at a time, and the next; one is read twice; the last and the first lie at the same end.
    assert!(reads(&[&[0, 1], &[2], &[3], &[4], &[5]]).is_none());
    assert!(reads(&[&[0], &[1], &[2], &[3], &[0], &[4], &[5]]).is_none());
    assert!(of_pages(&[20; 5], 80, ANY).is_none());
    assert!(of_pages(&[20; 2], 30, ANY).is_none());
}

/// Sizes in bytes of an even number of weights, of two pages or more.
fn chains() -> impl Strategy<Value = Vec<u64>> {
    let two = prop::collection::vec(PAGE + 1..24 * PAGE, 2);
    prop::collection::vec(two, 2..12).prop_map(|pairs| pairs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn neighbours_never_share_memory(sizes in chains()) {
        let (weights, trace) = (weights(&sizes), in_turn(sizes.len()));
        let pages: Vec<u64> = sizes.iter().map(|bytes| bytes.div_ceil(PAGE)).collect();
        let all: u64 = pages.iter().sum();
        let mut ring = None;
        for capacity in 0..=all {
            let Some(plan) = found(&weights, &trace, capacity * PAGE, ANY) else {
                prop_assert!(ring.is_none(), "nothing for {capacity} pages");
                continue;
            };
            // More memory never costs more.
            let before = ring.replace(plan.ring.pages);
            prop_assert!(before.is_none_or(|before| plan.ring.pages <= before));
            let together: u64 = plan.tails.iter().sum();
            prop_assert_eq!(all - together + plan.ring.pages, capacity.min(all));
            let copied: u64 = sizes.iter().zip(&pages).zip(&plan.tails)
                .map(|((bytes, pages), tail)| bytes.saturating_sub((pages - tail) * PAGE)).sum();
            prop_assert_eq!(plan.price.bytes, copied);
            for (at, &pages) in pages.iter().enumerate() {
                let [one, next] = [at, (at + 1) % sizes.len()].map(|at| plan.ring.places[at][0].clone());
                prop_assert_eq!(one.end - one.start, plan.tails[at]);
                prop_assert!(plan.tails[at] <= pages && one.end <= plan.ring.pages);
                prop_assert!(one.end <= next.start || next.end <= one.start || one.is_empty() || next.is_empty());
            }
        }
        prop_assert!(ring.is_some());
    }
}
