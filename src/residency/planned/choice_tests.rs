use super::super::lru_price;
use super::super::test_support::{chain, weights};
use super::*;
use crate::schedule::Event;

const GRANULE: u64 = 64;

fn figures(bytes_per_copy: u64) -> DeviceModel {
    DeviceModel {
        apart: 0,
        granule: GRANULE,
        page: None,
        bytes_per_copy,
    }
}

#[test]
fn a_chain_of_equal_weights_streams_what_exceeds_the_budget_and_two_slots() {
    let weights = weights(&[640; 10]);
    let trace = chain(&(0..10).collect::<Vec<_>>(), 10);
    for (capacity, expected) in [
        (2 * 640, 6400),
        // Three of the ten are whole, and 64 bytes of one that streams.
        (5 * 640 + 64, 6400 - 3 * 640 - 64),
        (8 * 640, 4 * 640),
    ] {
        let plan = plan(&trace, &weights, &figures(0), capacity).unwrap();
        assert_eq!(plan.price.bytes, expected, "{capacity}: {plan:?}");
        assert_eq!(plan.block, capacity);
        let lru = lru_price(&trace, &weights, GRANULE, capacity).unwrap();
        assert_eq!((lru.bytes, lru.copies), (6400, 10));
    }
}

#[test]
fn what_streams_is_spread_over_the_pass() {
    let weights = weights(&[640; 12]);
    let trace = chain(&(0..12).collect::<Vec<_>>(), 12);
    let plan = plan(&trace, &weights, &figures(0), 10 * 640).unwrap();
    let streamed: Vec<u32> = plan.streamed.iter().map(|one| one.weight).collect();
    assert_eq!(streamed.len(), 4);
    let gaps = streamed.iter().zip(streamed.iter().cycle().skip(1));
    assert!(
        gaps.into_iter().all(|(a, b)| (b + 12 - a) % 12 == 3),
        "{streamed:?}"
    );
}

/// Small weights in the ring of a plan make it short; a copy's own cost speaks against very small ones.
#[test]
fn the_sizes_that_stream_are_chosen_by_the_ring_and_the_cost_of_a_copy() {
    let sizes: Vec<u64> = (0..40)
        .map(|at| if at % 4 == 0 { 64_000 } else { 6400 })
        .collect();
    let (weights, trace) = (weights(&sizes), chain(&(0..40).collect::<Vec<_>>(), 40));
    let total: u64 = sizes.iter().sum();
    let capacity = total - 64_000;
    let small = plan(&trace, &weights, &figures(0), capacity).unwrap();
    assert!(
        small.streamed.iter().all(|one| one.range.end <= 6400),
        "{small:?}"
    );
    assert_eq!(small.price.bytes, total - capacity + small.ring);
    let large = plan(&trace, &weights, &figures(1 << 20), capacity).unwrap();
    assert!(large.price.copies < small.price.copies, "{large:?}");
}

#[test]
fn a_weight_read_twice_stays_where_others_can_go() {
    let weights = weights(&[640; 8]);
    let trace = chain(&[0, 1, 2, 3, 0, 4, 5, 6, 7], 8);
    let plan = plan(&trace, &weights, &figures(0), 5 * 640).unwrap();
    assert!(plan.streamed.iter().all(|one| one.weight != 0), "{plan:?}");
}

#[test]
fn what_cannot_be_there_at_one_time_has_no_plan() {
    let weights = weights(&[640; 4]);
    let events = (0..4).map(Event::Probe).chain([Event::Kernel(0)]).collect();
    let trace = Trace::new(events, (0..4).collect(), 4).unwrap();
    assert_eq!(plan(&trace, &weights, &figures(0), 3 * 640), None);
    let all = plan(&trace, &weights, &figures(0), 4 * 640).unwrap();
    assert_eq!(
        (all.streamed.len(), all.price, all.block),
        (0, Price::default(), 4 * 640)
    );
}

/// Of a large program not all sets are tried, and with pages few that are flat: what is left out must not make a larger
/// budget cost more.
#[test]
fn a_large_program_never_costs_more_with_more_memory() {
    const MB: u64 = 1 << 20;
    let layer = [MB / 8, 32 * MB, 8 * MB, 8 * MB, 112 * MB, 112 * MB];
    let sizes = layer.repeat(THOROUGH / layer.len() + 2);
    let (weights, count) = (weights(&sizes), sizes.len());
    let trace = chain(&(0..count as u32).collect::<Vec<_>>(), count);
    let figures = DeviceModel {
        apart: 0,
        granule: 512,
        page: Some(2 * MB),
        bytes_per_copy: 192 << 10,
    };
    let everything: u64 = sizes.iter().sum();
    assert!(Planner::new(&trace, &weights, &figures, everything).is_large());
    let mut last = u64::MAX;
    for share in 0..=60 {
        let capacity = 300 * MB + (everything - 300 * MB) / 60 * share;
        let price = plan(&trace, &weights, &figures, capacity).unwrap().price;
        let cost = price.in_bytes(figures.bytes_per_copy);
        assert!(cost <= last, "{share}/60: {cost} after {last}");
        last = cost;
    }
}
