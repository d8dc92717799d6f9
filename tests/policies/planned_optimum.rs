//! How far what a pass copies is from the least that any schedule could copy.

mod in_place;
mod moving;
mod traces;
mod uses;

use in_place::least_copied_in_place;
use moving::least_copied;
use std::collections::BTreeMap;
use traces::{trace, weights, Case, Shape};
use weightstream::figures::DeviceModel;
use weightstream::residency::planned::{lru_price, plan};
use weightstream::schedule::{floor, Trace, WeightSpec};

const GRANULE: u64 = 64;

/// What a session would copy in a pass.
fn copied(trace: &Trace, weights: &[WeightSpec], budget: u64) -> Option<u64> {
    let figures = DeviceModel {
        apart: 0,
        whole_pages: false,
        packed: Default::default(),
        granule: GRANULE,
        page: Some(GRANULE),
        bytes_per_copy: 0,
    };
    let plan = plan(&[trace.into()], weights, &figures, budget);
    let lru = lru_price(trace, weights, GRANULE, budget);
    let of_plan = plan.map(|plan| plan.price.bytes);
    of_plan.into_iter().chain(lru.map(|lru| lru.bytes)).min()
}

#[test]
fn equal_chains_have_the_optimum_that_is_known() {
    const C: u64 = 1000;
    for n in [3, 4, 5, 8, 31] {
        let reads: Vec<_> = (0..n).map(|weight| vec![(weight, 0)]).collect();
        let (trace, weights) = (trace(&reads, n as usize), weights(&vec![C; n as usize]));
        for budget in [2 * C, 2 * C + 300, (n - 1) * C, n * C] {
            let found = least_copied(&trace, &weights, budget).unwrap();
            let known = (n * (n * C - budget)) as f64 / (n - 2) as f64;
            assert!(
                (found - known).abs() < 1e-6,
                "{n}, {budget}: {found}, {known}"
            );
        }
        assert_eq!(least_copied(&trace, &weights, 2 * C - 1), None);
    }
}

/// Where each read has fixed pages, an odd cycle of `n` needs `2 + 2 / (n - 1)` tails of room and not 2: one page serves `(n - 1) / 2` of
/// them in turn.
#[test]
fn plans_of_equal_chains_are_the_best_with_fixed_pages() {
    const C: u64 = 100 * GRANULE;
    for n in [4, 5, 7, 8, 31] {
        let reads: Vec<_> = (0..n).map(|weight| vec![(weight, 0)]).collect();
        let (trace, weights) = (trace(&reads, n as usize), weights(&vec![C; n as usize]));
        let room = 2.0 + (n % 2) as f64 * 2.0 / (n - 1) as f64;
        for budget in [3 * C, (n - 1) * C] {
            let found = copied(&trace, &weights, budget).unwrap() as f64;
            let best = (n * (n * C - budget)) as f64 / (n as f64 - room);
            let optimum = least_copied_in_place(&trace, &weights, budget).unwrap();
            assert!(
                (optimum - best).abs() < 1e-6 * best,
                "{n}, {budget}: {optimum}, {best}"
            );
            let over = found - best;
            assert!(
                (-1e-6..=(n * GRANULE) as f64).contains(&over),
                "{n}, {budget}: {found}, {best}"
            );
        }
    }
}

/// How a case compares with the optimum: within 3 %, or one granule per read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// Of any schedule.
    Within,
    /// Of those in which addresses never change.
    InPlace,
    /// There is no such schedule.
    NoneInPlace,
    Further,
}

/// How far above the optimum of any schedule a case is, as a part of that; and which optimum it is within.
fn distance(case: &Case) -> (f64, Found) {
    let (trace, weights) = (&case.trace, &case.weights);
    let floor = floor(trace, weights, GRANULE);
    let least = floor.pair.as_ref().map_or(0, |pair| pair.bytes);
    let budget = least + floor.everything.saturating_sub(least) * case.share / 1000;
    let ours = copied(trace, weights, budget).expect("the floor is enough") as f64;
    let optimum = least_copied(trace, weights, budget).expect("the floor is enough");
    let not_less = |than: f64| {
        assert!(
            ours >= than - 1e-6 * (1.0 + than),
            "{ours} is less than {than}: {:?}",
            case.shape
        );
    };
    not_less(optimum);
    let granules = (GRANULE * trace.probes().len() as u64) as f64;
    let within = |optimum: f64| ours - optimum <= (0.03 * optimum).max(granules) + 1e-3;
    let ratio = (ours - optimum) / optimum.max(1.0);
    if within(optimum) {
        return (ratio, Found::Within);
    }
    // Memory comes in whole granules, which may leave no such schedule where bytes would.
    let granules = in_granules(weights);
    let in_granules = least_copied_in_place(trace, &granules, budget - budget % GRANULE);
    let in_place = in_granules.and_then(|_| least_copied_in_place(trace, weights, budget));
    let found = match in_place {
        None => Found::NoneInPlace,
        Some(in_place) => {
            assert!(in_place >= optimum - 1e-6 * (1.0 + optimum));
            // What the LRU does is no schedule of fixed addresses, but where it is cheaper than all of those it is within, too.
            if within(in_place) {
                Found::InPlace
            } else {
                Found::Further
            }
        }
    };
    (ratio, found)
}

/// Weights that have all of their last granules.
fn in_granules(weights: &[WeightSpec]) -> Vec<WeightSpec> {
    let whole = |weight: &WeightSpec| WeightSpec {
        bytes: weight.bytes.next_multiple_of(GRANULE),
        ..weight.clone()
    };
    weights.iter().map(whole).collect()
}

/// All for which there is a plan: where one with fixed addresses has to copy more, or there is none and the LRU copies everything, other
/// memory in each pass would be needed.
#[test]
fn most_random_cycles_are_within_3_percent_of_the_optimum() {
    let mut ratios = Vec::new();
    let mut by_found: BTreeMap<Found, BTreeMap<Shape, u32>> = BTreeMap::new();
    for number in 0..1000 {
        let case = Case::of(number);
        let (ratio, found) = distance(&case);
        let by_shape = by_found.entry(found).or_default();
        *by_shape.entry(case.shape).or_default() += 1;
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    let count = |found| {
        by_found
            .get(&found)
            .map_or(0, |by_shape| by_shape.values().sum::<u32>())
    };
    let (half, three_quarters, nine_tenths) = (ratios[500], ratios[750], ratios[900]);
    println!("half {half:.4}, 3/4 {three_quarters:.4}, 9/10 {nine_tenths:.4}");
    for (found, by_shape) in &by_found {
        println!("{found:?}: {}, {by_shape:?}", count(*found));
    }
    // Equal tails: the best ones differ where several weights are wanted at one time, or one is read again.
    assert!(count(Found::Within) >= 690, "{by_found:?}");
    assert!(half <= 0.036 && three_quarters <= 0.105 && nine_tenths <= 0.36);
}
