use super::super::tenancies::Tenancy;
use super::super::test_support::{chain, kernels, programs, weights, PAGE};
use super::*;
use crate::figures::DeviceModel;
use crate::schedule::{Trace, WeightSpec};
use proptest::prelude::*;

fn planned(trace: &Trace, weights: &[WeightSpec], capacity: u64) -> Option<(Plan, u64)> {
    let figures = DeviceModel {
        apart: 0,
        granule: 64,
        page: Some(PAGE),
        bytes_per_copy: 0,
    };
    let planner = Planner::new(trace, weights, &figures, capacity);
    let found = cheapest(&planner, PAGE, u64::MAX)?;
    Some((found.finish(&planner), found.cost))
}

fn pages_of(memory: &[Range<u64>]) -> Vec<u64> {
    let all = memory
        .iter()
        .flat_map(|piece| piece.clone().step_by(PAGE as usize));
    all.collect()
}

/// Three weights are read again soon, each beside others of its size, and there is room for two and a half of them.
#[test]
fn a_part_stays_from_one_read_to_the_next_only() {
    let reads = [0, 1, 2, 0, 3, 4, 5, 3, 6, 7, 8, 6];
    let (weights, trace) = (weights(&[4 * PAGE; 9]), chain(&reads, 9));
    let (plan, cost) = planned(&trace, &weights, 10 * PAGE).unwrap();
    // Half of a weight stays up to its second read, and then half of another one. For good it would save two thirds of that.
    assert_eq!(cost, (12 * 4 - 3 * 2) * PAGE, "{plan:?}");
    let kept = plan.streamed.iter().map(|one| one.kept / PAGE);
    assert_eq!(
        kept.collect::<Vec<_>>(),
        [0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]
    );
}

/// A moment as the rule has it: the last kernel in front of a read up to the end of its lease, around the end of the pass.
fn wanted(tenancy: &Tenancy, time: i64, events: i64) -> bool {
    let times = [time - events, time, time + events];
    times
        .iter()
        .any(|time| (tenancy.wanted..=tenancy.last as i64).contains(time))
}

/// The copy that took what `before` leaves, in the order of the pass.
fn next_of<'a>(plan: &'a Plan, before: &Streamed) -> &'a Streamed {
    let mine: Vec<_> = plan
        .streamed
        .iter()
        .filter(|one| one.weight == before.weight)
        .collect();
    let at = mine
        .iter()
        .position(|one| *one == before)
        .expect("it is one of them");
    mine[(at + 1) % mine.len()]
}

/// The pages that are taken at a time, by whom: all of a tenancy while it is wanted, and what the next one takes over in between.
fn taken(
    plan: &Plan,
    tenancies: &[Vec<Tenancy>],
    time: i64,
    events: i64,
) -> Vec<(u64, WeightIndex)> {
    let of = |one: &Streamed| {
        let mine = tenancies[one.weight as usize].iter();
        mine.clone()
            .find(|t| t.probes == one.probes)
            .expect("a tenancy each")
            .clone()
    };
    let mut taken = Vec::new();
    for one in &plan.streamed {
        let (tenancy, next) = (of(one), next_of(plan, one));
        let weight = one.weight;
        let mut until = of(next).wanted;
        while until <= tenancy.wanted {
            until += events;
        }
        let kept = (next.kept - next.range.start).div_ceil(PAGE) as usize;
        let pages = pages_of(&one.memory);
        let stays = [time - events, time, time + events, time + 2 * events]
            .iter()
            .any(|time| (tenancy.wanted..until).contains(time));
        if wanted(&tenancy, time, events) {
            taken.extend(pages.iter().map(|&page| (page, weight)));
        } else if stays {
            taken.extend(pages[..kept].iter().map(|&page| (page, weight)));
        }
    }
    taken.sort_unstable();
    taken.dedup();
    taken
}

/// A moment at which a page has two owners.
fn two_owners(
    plan: &Plan,
    trace: &Trace,
    weights: usize,
) -> Option<(i64, [(u64, WeightIndex); 2])> {
    let tenancies = super::super::tenancies::tenancies(trace, weights);
    let events = trace.events().len() as i64;
    (0..events).find_map(|time| {
        let taken = taken(plan, &tenancies, time, events);
        let pair = taken.windows(2).find(|pair| pair[0].0 == pair[1].0)?;
        Some((time, [pair[0], pair[1]]))
    })
}

/// Weight 3 is wanted for the next pass before its last lease in this one ends. A copy of its own for each of the two would leave
/// to others what is being read.
#[test]
fn nothing_is_given_up_between_reads_that_touch() {
    let trace = kernels(&[vec![2, 3], vec![2], vec![0], vec![3]], 4);
    let weights = weights(&[2649, 2742, 1060, 812]);
    let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
    for capacity in (0..everything).step_by(PAGE as usize) {
        if let Some((plan, _)) = planned(&trace, &weights, capacity) {
            assert_eq!(two_owners(&plan, &trace, 4), None, "{capacity}: {plan:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn plans_by_gap_hold_together((weights, trace) in programs(), share in 0..1000u64) {
        let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        let capacity = everything * share / 1000;
        let Some((plan, cost)) = planned(&trace, &weights, capacity) else { return Ok(()) };
        let view = plan.view.as_ref().unwrap();
        view.check(PAGE).unwrap();
        prop_assert!(plan.block == view.memory && plan.block <= capacity);
        let copied = plan.streamed.iter().map(|one| one.range.end - one.kept);
        let copies = copied.clone().filter(|&bytes| bytes > 0).count() as u64;
        prop_assert_eq!(plan.price, Price { bytes: copied.sum(), copies });
        prop_assert_eq!(plan.price.bytes, cost);
        // What the copies bring lies behind what stays, and is seen where the plan says.
        for one in &plan.streamed {
            prop_assert!(one.range.start <= one.kept && one.kept <= one.range.end);
            prop_assert_eq!(one.range.end, weights[one.weight as usize].bytes);
            let seen = view.behind(one.offset + one.range.start..one.offset + one.range.end).unwrap();
            let seen = seen.iter().flat_map(|part| part.clone().step_by(PAGE as usize));
            prop_assert_eq!(seen.collect::<Vec<_>>(), pages_of(&one.memory));
            let head: Vec<_> = plan.resident.iter().filter(|r| r.weight == one.weight).collect();
            prop_assert_eq!(head.iter().map(|r| r.range.end).max().unwrap_or(0), one.range.start);
            for head in head {
                prop_assert_eq!(view.behind(head.offset..head.offset + head.range.end), view.behind(one.offset..one.offset + one.range.start));
            }
            // What is taken over lies where it lay.
            let next = next_of(&plan, one);
            let kept = (next.kept - next.range.start).div_ceil(PAGE) as usize;
            prop_assert_eq!(&pages_of(&one.memory)[..kept], &pages_of(&next.memory)[..kept]);
        }
        if let Some((time, pair)) = two_owners(&plan, &trace, weights.len()) {
            prop_assert!(false, "page {} at {time}: {pair:?} of {plan:?}", pair[0].0);
        }
        // Each read is served: by what stays, or by the one copy that names it.
        for (id, &weight) in (0u32..).zip(trace.probes()) {
            let by = plan.streamed.iter().filter(|one| one.probes.contains(&id)).count();
            let stays = plan.resident.iter().any(|r| r.weight == weight && r.range == (0..weights[weight as usize].bytes));
            prop_assert_eq!(by + usize::from(stays), 1, "probe {}", id);
        }
    }
}

proptest! {
    // Each case is a sweep.
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn more_memory_never_costs_more((weights, trace) in programs()) {
        let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        let mut before = u64::MAX;
        for step in 0..=50 {
            if let Some((_, cost)) = planned(&trace, &weights, everything * step / 50) {
                prop_assert!(cost <= before, "{cost} with {step} of 50, {before} with less");
                before = cost;
            } else {
                prop_assert_eq!(before, u64::MAX, "a plan with less, and none with {} of 50", step);
            }
        }
    }
}

#[test]
fn one_kernel_that_reads_all_is_no_cycle() {
    let trace = kernels(&[vec![0, 1], vec![0, 1]], 2);
    let weights = weights(&[4 * PAGE; 2]);
    // All is wanted at all times.
    assert!(planned(&trace, &weights, 7 * PAGE).is_none());
}

/// A process has only so many mappings; the limit of these tests is a small one.
#[test]
fn no_view_has_very_many_pieces() {
    // Weights of many pages that are read at distances of all kinds.
    let reads: Vec<u32> = (0..400u32).map(|at| at * at * 31 % 401 % 40).collect();
    let sizes: Vec<u64> = (0..40).map(|at| PAGE * (400 + 997 * at % 1613)).collect();
    let (weights, trace) = (weights(&sizes), chain(&reads, 40));
    let all: u64 = sizes.iter().sum();
    for part in [5, 10, 20, 50] {
        if let Some((plan, _)) = planned(&trace, &weights, all / 100 * part) {
            let pieces = plan.view.map_or(0, |view| view.pieces.len());
            assert!(pieces <= PIECES, "{pieces} with {part} %");
        }
    }
}
