use super::super::plan;
use super::super::test_support::{in_turn, weights};
use super::*;

const PAGE: u64 = 1024;
const LINK: Link = Link {
    bytes_per_second: 1_000_000_000,
    ns_per_copy: 50,
};

fn figures() -> DeviceModel {
    DeviceModel {
        apart: 0,
        granule: 64,
        page: Some(PAGE),
        bytes_per_copy: LINK.ns_per_copy,
    }
}

/// Layers of seven weights, four of sixteen pages and three of forty, as in a Llama.
fn layers(count: usize) -> (Vec<WeightSpec>, Trace) {
    let sizes = [16, 16, 16, 16, 40, 40, 40].map(|pages| pages * PAGE);
    let weights = weights(&sizes.repeat(count));
    let trace = in_turn(weights.len());
    (weights, trace)
}

/// Each read takes so many nanoseconds per page, and behind the third of a layer attention so many.
fn kernels(weights: &[WeightSpec], per_page: u64, attention: u64) -> Vec<u64> {
    let each = weights.iter().enumerate().flat_map(|(at, weight)| {
        let behind = if at % 7 == 2 { attention } else { 0 };
        [weight.bytes / PAGE * per_page, 0, behind]
    });
    each.collect()
}

/// As it is made without times, and refined.
fn refined(percent: u64, per_page: u64, attention: u64) -> (Plan, Refined, u64) {
    let (weights, trace) = layers(16);
    let total: u64 = weights.iter().map(|weight| weight.bytes).sum();
    let capacity = total * percent / 100;
    let first = plan(&trace, &weights, &figures(), capacity).unwrap();
    let times = kernels(&weights, per_page, attention);
    let known = (times.as_slice(), LINK);
    let found = refine(&trace, &weights, &figures(), capacity, &first, known);
    (first, found, total - capacity)
}

#[test]
fn where_copies_are_all_that_takes_time_the_plan_stays() {
    for percent in [20, 50, 90] {
        let (_, found, missing) = refined(percent, 10, 0);
        let better = found.better.map(|(_, takes)| takes.pass);
        assert_eq!(better, None, "{percent} %: {:?}", found.before);
        assert!(found.before.pass >= missing);
    }
}

#[test]
fn where_kernels_are_all_that_takes_time_the_plan_stays() {
    let (_, found, _) = refined(50, 2000, 0);
    assert_eq!(found.better, None);
    assert_eq!(found.before.waits(), 0);
}

/// Attention takes as long as the products, and both together about as long as the copies.
#[test]
fn a_longer_ring_goes_on_through_attention() {
    for (percent, attention, most) in [(25, 140_000, 1.01), (25, 70_000, 1.06), (50, 70_000, 1.01)]
    {
        let (first, found, missing) = refined(percent, 230, attention);
        let (better, takes) = found.better.expect("a longer ring");
        let (weights, trace) = layers(16);
        let times = kernels(&weights, 230, attention);
        assert_eq!(takes, expected(&better, &trace, &times, LINK));
        assert!(better.ring > first.ring && better.price.bytes > first.price.bytes);
        let over = |pass: u64| pass as f64 / missing.max(takes.kernels) as f64;
        let (before, after) = (over(found.before.pass), over(takes.pass));
        assert!(
            before > 1.15 && after < most,
            "{percent} %, {attention}: {before}, {after}"
        );
    }
}

/// A little is not worth a load of everything that stays.
#[test]
fn a_gain_of_less_than_a_hundredth_is_none() {
    let mut left = 0;
    for attention in (1_000..90_000).step_by(2_000) {
        let (_, found, _) = refined(50, 10, attention);
        let before = found.before;
        match found.better {
            Some((_, after)) => assert!(after.pass < before.pass - before.pass / WORTH),
            None => left += u32::from(before.pass > before.copies.max(before.kernels)),
        }
    }
    assert!(left > 0, "kernels wait a little somewhere");
}
