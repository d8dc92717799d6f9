use super::super::refine::refine;
use super::super::test_support::{chain, in_turn, weights};
use super::super::{plan, Streamed};
use super::*;
use crate::figures::DeviceModel;
use crate::schedule::WeightSpec;
use proptest::prelude::*;

const PAGE: u64 = 1000;
/// A byte takes a nanosecond, a copy none of its own.
const LINK: Link = Link {
    bytes_per_second: 1_000_000_000,
    ns_per_copy: 0,
};

fn figures() -> DeviceModel {
    DeviceModel {
        apart: 0,
        granule: 10,
        page: Some(PAGE),
        bytes_per_copy: 10,
    }
}

fn pages(sizes: &[u64]) -> Vec<WeightSpec> {
    weights(&sizes.iter().map(|size| size * PAGE).collect::<Vec<_>>())
}

/// Of a chain: pages that can be copied beside each read's kernel.
fn kernels(each: &[u64]) -> Vec<u64> {
    each.iter().flat_map(|&long| [long * PAGE, 0, 0]).collect()
}

/// What [`Timed`] makes of a chain of these weights, with that capacity, all in pages.
fn timed<R>(sizes: &[u64], each: &[u64], capacity: u64, ask: impl FnOnce(&Timed<'_>) -> R) -> R {
    let (weights, trace, kernels) = (pages(sizes), in_turn(sizes.len()), kernels(each));
    let planner = Planner::new(&trace, &weights, &figures(), capacity * PAGE);
    let times = Times {
        trace: &trace,
        kernels: &kernels,
        link: LINK,
    };
    let all = (0..sizes.len() as u32).collect();
    ask(&Timed::new(&planner, PAGE, times, all).unwrap())
}

fn shape(at_least: bool, carried: bool) -> Shape {
    Shape {
        at_least,
        quarters: 4,
        carried,
    }
}

#[test]
fn a_gap_is_what_runs_from_read_to_read() {
    let gaps = timed(&[9; 4], &[5, 1, 2, 3], 20, |timed| timed.gaps.clone());
    // The first one's is that of the pass before.
    assert_eq!(gaps, [3, 5, 1, 2]);
    // A weight that is read twice has the shorter one.
    let (weights, trace) = (pages(&[9, 9, 9]), chain(&[0, 1, 0, 2], 3));
    let planner = Planner::new(&trace, &weights, &figures(), 12 * PAGE);
    let times = Times {
        trace: &trace,
        kernels: &kernels(&[7, 2, 4, 6]),
        link: LINK,
    };
    let timed = Timed::new(&planner, PAGE, times, vec![0, 1, 2]).unwrap();
    assert_eq!(timed.gaps, [2, 7, 4]);
}

#[test]
fn tails_follow_their_gaps_and_the_rest_is_even() {
    timed(&[9; 4], &[5, 1, 2, 3], 20, |timed| {
        let least = |together| timed.tails(shape(true, false), together).unwrap();
        assert_eq!(least(11), [3, 5, 1, 2]);
        assert_eq!(least(14), [3, 5, 3, 3]);
        // One more does not reach for all that are alike.
        assert_eq!(least(15).iter().sum::<u64>(), 15);
        assert_eq!(least(36), [9; 4]);
        assert!(timed.tails(shape(true, false), 10).is_none());
        assert!(timed.tails(shape(true, false), 37).is_none());
        let most = |together| timed.tails(shape(false, false), together).unwrap();
        assert_eq!(most(11), [3, 5, 1, 2]);
        assert_eq!(most(7), [2, 2, 1, 2]);
        assert!(timed.tails(shape(false, false), 12).is_none());
    });
}

#[test]
fn what_a_weight_cannot_fill_is_carried_to_the_next() {
    timed(&[4, 4, 9, 9], &[12, 1, 1, 0], 20, |timed| {
        assert_eq!(timed.parts(shape(true, false)), [0, 12, 1, 1]);
        // Read 1 has 4 of its 12 pages, read 2 its own and 8 of what is left; nothing goes further.
        assert_eq!(timed.parts(shape(true, true)), [0, 4, 9, 1]);
    });
    // Around the end of the pass.
    timed(&[9, 9, 9, 4], &[1, 1, 12, 1], 20, |timed| {
        assert_eq!(timed.parts(shape(true, true)), [9, 1, 1, 4]);
    });
}

/// Layers of a Llama with a pause for attention; sizes in pages of 2 MB, times in pages that are copied meanwhile.
fn llama(attention: u64, product: u64) -> (Vec<WeightSpec>, Trace, Vec<u64>) {
    let sizes = [16, 16, 16, 16, 43, 43, 43].repeat(16);
    let each = |(at, size): (usize, &u64)| {
        let pause = if at % 7 == 2 { attention } else { 0 };
        size * product / 10 + pause
    };
    let times: Vec<u64> = sizes.iter().enumerate().map(each).collect();
    (pages(&sizes), in_turn(sizes.len()), kernels(&times))
}

/// (percent of the weights, attention, tenths of a product's own bytes, what a pass may take of the limit).
#[test]
fn kernels_as_long_as_copies_hardly_wait() {
    for (percent, attention, product, most) in [
        (8, 60, 3, 1.04),
        (25, 60, 3, 1.04),
        (50, 60, 3, 1.05),
        (25, 33, 7, 1.005),
        (8, 33, 7, 1.04),
    ] {
        let (weights, trace, kernels) = llama(attention, product);
        let total: u64 = weights.iter().map(|weight| weight.bytes).sum();
        let capacity = total * percent / 100;
        let first = plan(&trace, &weights, &figures(), capacity).unwrap();
        let found = refine(
            &trace,
            &weights,
            &figures(),
            capacity,
            &first,
            (&kernels, LINK),
        );
        let limit = (total - capacity).max(kernels.iter().sum()) as f64;
        let (plan, after) = found.better.expect("a better plan");
        let (before, after) = (found.before.pass as f64 / limit, after.pass as f64 / limit);
        assert!(
            after < most && after < before - 0.02,
            "{percent} %: {before}, {after}"
        );
        assert!(plan.block <= capacity);
    }
}

fn overlap(a: &Streamed, b: &Streamed) -> bool {
    let meets = |one: &std::ops::Range<u64>| {
        b.memory
            .iter()
            .any(|other| one.start < other.end && other.start < one.end)
    };
    a.memory.iter().any(meets)
}

proptest! {
    /// Whatever the program and its times: all weights have all of their bytes once, within the capacity, what is copied beside
    /// a kernel has other memory than what that reads, and the pass is as long as was said.
    #[test]
    fn plans_are_whole(
        sizes in prop::collection::vec(1..30u64, 4..24),
        again in prop::collection::vec(0..4usize, 0..4),
        percent in 20..95u64,
        times in prop::collection::vec(0..40u64, 28),
    ) {
        let weights = pages(&sizes);
        let mut reads: Vec<u32> = (0..sizes.len() as u32).collect();
        again.iter().for_each(|&at| reads.push(at as u32));
        let trace = chain(&reads, sizes.len());
        let kernels = kernels(&times[..reads.len()]);
        let capacity = sizes.iter().sum::<u64>() * PAGE * percent / 100;
        let planner = Planner::new(&trace, &weights, &figures(), capacity);
        let known = Times { trace: &trace, kernels: &kernels, link: LINK };
        let Some((plan, takes)) = quickest(&planner, PAGE, known, u64::MAX, |_| true) else { return Ok(()) };
        prop_assert!(plan.block <= capacity);
        prop_assert_eq!(takes, expected(&plan, &trace, &kernels, LINK));
        let copied: u64 = plan.streamed.iter().map(|one| one.range.end - one.range.start).sum();
        let pieces: usize = plan.streamed.iter().map(|one| one.memory.len()).sum();
        prop_assert_eq!((plan.price.bytes, plan.price.copies), (copied, pieces as u64));
        for (weight, spec) in (0..).zip(&weights) {
            let stays = plan.resident.iter().filter(|one| one.weight == weight);
            let stays: u64 = stays.map(|one| one.range.end - one.range.start).sum();
            let streams = plan.streamed.iter().find(|one| one.weight == weight);
            prop_assert_eq!(stays + streams.map_or(0, |one| one.range.end - one.range.start), spec.bytes);
        }
        // Of two reads in direct succession the second one's bytes are copied beside the first one's kernel.
        for pair in plan.streamed.windows(2) {
            let last = pair[0].probes.last().unwrap();
            prop_assert!(last + 1 < pair[1].probes[0] || !overlap(&pair[0], &pair[1]));
        }
        for one in &plan.streamed {
            let memory: u64 = one.memory.iter().map(|range| range.end - range.start).sum();
            prop_assert_eq!(memory, (one.range.end - one.range.start).next_multiple_of(PAGE));
        }
    }
}
