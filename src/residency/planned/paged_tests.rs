use super::super::test_support::{kernels, programs, weights, PAGE};
use super::super::{plan, tenancies};
use super::*;
use crate::figures::DeviceModel;
use crate::residency::planned::Plan;
use crate::schedule::{Trace, WeightSpec};
use proptest::prelude::*;

fn figures(page: Option<u64>, bytes_per_copy: u64) -> DeviceModel {
    DeviceModel {
        apart: 0,
        granule: 64,
        page,
        bytes_per_copy,
    }
}

fn chain(count: u32) -> Trace {
    let reads: Vec<Vec<u32>> = (0..count).map(|weight| vec![weight]).collect();
    kernels(&reads, count as usize)
}

#[test]
fn all_weights_stream_a_little() {
    let (weights, trace) = (weights(&[40 * PAGE; 10]), chain(10));
    let capacity = 360 * PAGE;
    let plan = plan(&trace, &weights, &figures(Some(PAGE), 0), capacity).unwrap();
    // Tails of 5 pages in two slots: 10 x 35 + 2 x 5 pages are exactly those that there are.
    assert_eq!((plan.price.bytes, plan.price.copies), (50 * PAGE, 10));
    assert_eq!((plan.ring, plan.block), (10 * PAGE, capacity));
    // Whole weights would take four of them, of 40 pages each, through a ring of two.
    let flat = super::super::plan(&trace, &weights, &figures(None, 0), capacity).unwrap();
    assert_eq!(flat.price.bytes, 120 * PAGE);
}

#[test]
fn copies_that_cost_much_are_fewer() {
    let (weights, trace) = (weights(&[40 * PAGE; 40]), chain(40));
    let price = |per_copy| {
        let figures = figures(Some(PAGE), per_copy);
        plan(&trace, &weights, &figures, 1500 * PAGE).unwrap().price
    };
    let (dear, cheap) = (price(8 * PAGE), price(0));
    assert!(
        dear.copies < cheap.copies && dear.bytes > cheap.bytes,
        "{dear:?} {cheap:?}"
    );
}

#[test]
fn a_page_that_is_left_is_used() {
    let (weights, trace) = (weights(&[40 * PAGE; 10]), chain(10));
    let bytes = |pages: u64| {
        let plan = plan(&trace, &weights, &figures(Some(PAGE), 0), pages * PAGE).unwrap();
        plan.price.bytes / PAGE
    };
    let all: Vec<u64> = (200..240).map(bytes).collect();
    // A page less for each, and two less where the ring gets shorter by two pages.
    assert!(
        all.windows(2)
            .all(|pair| (1..=3).contains(&(pair[0] - pair[1]))),
        "{all:?}"
    );
}

/// Layers of four weights, each run twice in a row. One copy serves both runs, whatever a copy costs.
#[test]
fn one_copy_serves_reads_that_are_close() {
    let runs = (0..10u32).flat_map(|layer| [layer, layer]);
    let reads: Vec<Vec<u32>> = runs
        .flat_map(|layer| (4 * layer..4 * layer + 4).map(|weight| vec![weight]))
        .collect();
    let (weights, trace) = (weights(&[40 * PAGE; 40]), kernels(&reads, 40));
    for per_copy in [0, PAGE / 8, PAGE] {
        for percent in [50, 75] {
            let capacity = 16 * percent * PAGE;
            let figures = figures(Some(PAGE), per_copy);
            let plan = plan(&trace, &weights, &figures, capacity).unwrap();
            let least = (1600 * PAGE - capacity) as f64;
            let ratio = plan.price.bytes as f64 / least;
            assert!(ratio < 1.4, "{per_copy}, {percent} %: {ratio}");
        }
    }
}

/// A process has only so many mappings.
#[test]
fn no_view_has_very_many_pieces() {
    let (weights, trace) = (weights(&[4 * PAGE; 12_000]), chain(12_000));
    for pages in [16_000, 40_000] {
        let plan = plan(&trace, &weights, &figures(Some(PAGE), 0), pages * PAGE).unwrap();
        let pieces = plan.view.map_or(0, |view| view.pieces.len());
        assert!(pieces <= 2 * MOST + 1, "{pieces}");
    }
}

/// The 7 GB model of the benches, in megabytes and at the speeds of an H200: how far above what exceeds the budget a plan is.
#[test]
fn a_large_model_comes_close_to_the_limit() {
    const MIB: u64 = 1 << 20;
    const BARS: [(u64, f64); 5] = [
        (12, 1.032),
        (25, 1.030),
        (50, 1.026),
        (75, 1.033),
        (90, 1.053),
    ];
    let layer = [&[8 << 10][..], &[32 * MIB; 4], &[8 << 10], &[86 * MIB; 3]].concat();
    let mut sizes = vec![250 * MIB];
    sizes.extend(layer.repeat(16));
    sizes.extend([8 << 10, 250 * MIB]);
    let (weights, trace) = (weights(&sizes), chain(sizes.len() as u32));
    let total: u64 = sizes.iter().sum();
    let figures = DeviceModel {
        apart: 0,
        granule: 512,
        page: Some(2 * MIB),
        bytes_per_copy: 192 << 10,
    };
    for (percent, bar) in BARS {
        let capacity = total / 100 * percent;
        let plan = plan(&trace, &weights, &figures, capacity).unwrap();
        let ratio = plan.price.in_bytes(figures.bytes_per_copy) as f64 / (total - capacity) as f64;
        let (price, ring) = (plan.price, plan.ring / MIB);
        assert!(
            ratio < bar,
            "{percent} %: {ratio}, {price:?}, ring {ring} MiB"
        );
    }
}

fn apart(a: &std::ops::Range<u64>, b: &std::ops::Range<u64>) -> bool {
    a.end <= b.start || b.end <= a.start
}

fn all_apart(a: &[std::ops::Range<u64>], b: &[std::ops::Range<u64>]) -> bool {
    a.iter().all(|a| b.iter().all(|b| apart(a, b)))
}

/// What has to hold for any plan, seen through its view.
fn check(plan: &Plan, weights: &[WeightSpec], trace: &Trace, (capacity, direct): (u64, u64)) {
    let Some(view) = &plan.view else { return };
    view.check(PAGE).unwrap();
    assert_eq!(plan.block, view.memory);
    assert!(plan.block <= capacity);
    // What is really taken, with what lies apart: the budget rounded up to a page.
    let taken = view.whole() + direct.next_multiple_of(PAGE);
    assert!(taken <= (capacity + direct).next_multiple_of(PAGE));
    let behind = |offset: u64, range: &std::ops::Range<u64>| {
        view.behind(offset + range.start..offset + range.end)
            .unwrap()
    };
    let mut kept: Vec<(u32, std::ops::Range<u64>)> = Vec::new();
    for one in &plan.resident {
        for part in behind(one.offset, &one.range) {
            assert!(
                kept.iter().all(|(_, other)| apart(&part, other)),
                "{one:?} lies over another"
            );
            kept.push((one.weight, part));
        }
    }
    for one in &plan.streamed {
        let parts = behind(one.offset, &one.range);
        // As the view shows it, but for what the last page has behind the weight's end; neighbours are one part there.
        let seen: u64 = parts.iter().map(|part| part.end - part.start).sum();
        assert_eq!(seen, one.range.end - one.range.start);
        let inside = |part: &std::ops::Range<u64>| {
            let pages = (part.start..part.end).step_by(PAGE as usize);
            let mine = |page: u64| one.memory.iter().any(|piece| piece.contains(&page));
            pages.into_iter().all(mine)
        };
        assert!(parts.iter().all(inside), "{one:?} is at {parts:?}");
        let all: u64 = one.memory.iter().map(|piece| piece.end - piece.start).sum();
        assert_eq!(all, seen.next_multiple_of(PAGE));
        assert_eq!(parts[0].start, one.memory[0].start);
        for (number, piece) in one.memory.iter().enumerate() {
            assert!(
                all_apart(&one.memory[..number], std::slice::from_ref(piece)),
                "{one:?}"
            );
        }
        assert!(
            kept.iter()
                .all(|(_, other)| all_apart(&one.memory, std::slice::from_ref(other))),
            "{one:?} lies over what stays"
        );
        // In front of what is copied lies what stays of the same weight.
        let head: Vec<_> = behind(one.offset, &(0..one.range.start));
        let mine: Vec<_> = plan
            .resident
            .iter()
            .filter(|r| r.weight == one.weight)
            .collect();
        assert_eq!(
            mine.iter().map(|r| r.range.end).max().unwrap_or(0),
            one.range.start
        );
        assert!(mine.iter().all(|r| behind(r.offset, &r.range) == head));
        assert_eq!(one.range.end, weights[one.weight as usize].bytes);
    }
    // Each read is served: by what stays, or by the one copy that names it.
    for (id, &weight) in (0u32..).zip(trace.probes()) {
        let by = plan.streamed.iter().filter(|one| one.probes.contains(&id));
        let stays = plan
            .resident
            .iter()
            .any(|r| r.weight == weight && r.range == (0..weights[weight as usize].bytes));
        assert_eq!(by.count() + usize::from(stays), 1, "probe {id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn plans_on_pages_hold_together((weights, trace) in programs(), share in 0..1000u64, per_copy in 0..3 * PAGE, direct in 0..3 * PAGE) {
        let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        let capacity = everything * share / 1000;
        let figures = figures(Some(PAGE), per_copy).beside(direct);
        let planner = Planner::new(&trace, &weights, &figures, capacity);
        let Some(found) = cheapest(&planner, PAGE) else { return Ok(()) };
        let plan = found.finish(&planner);
        check(&plan, &weights, &trace, (capacity, direct));
        let copied: u64 = plan.streamed.iter().map(|one| one.range.end - one.range.start).sum();
        prop_assert_eq!(plan.price, Price { bytes: copied, copies: plan.streamed.len() as u64 });
        // What may be wanted at one time shares no memory.
        let all = tenancies::tenancies(&trace, weights.len());
        let spans: Vec<_> = plan.streamed.iter().map(|one| {
            let mut of = all[one.weight as usize].iter().filter(|t| one.probes.contains(&t.probes[0]));
            let first = of.next().unwrap();
            (first.wanted, of.next_back().unwrap_or(first).last as i64, &one.memory)
        }).collect();
        let events = trace.events().len() as i64;
        let at = |span: &(i64, i64, &Vec<std::ops::Range<u64>>), time: i64| [time, time - events].iter().any(|&x| span.0 <= x && x <= span.1);
        for (a, one) in spans.iter().enumerate() {
            for other in &spans[..a] {
                if (0..=events).any(|time| at(one, time) && at(other, time)) {
                    prop_assert!(all_apart(one.2, other.2), "{:?} {:?}", one, other);
                }
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Rings of which it is known that they cost too much are not shared: the one that is found must not be one of them.
    #[test]
    fn no_ring_costs_less_than_is_known_of_it((weights, trace) in programs(), share in 0..1000u64) {
        let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        let figures = figures(Some(PAGE), 0);
        let planner = Planner::new(&trace, &weights, &figures, everything * share / 1000);
        if let Some(found) = filled::cheapest(&planner, PAGE, 0, u64::MAX) {
            let again = filled::cheapest(&planner, PAGE, 0, found.cost + 1);
            prop_assert_eq!(again.map(|again| again.cost), Some(found.cost));
            prop_assert!(filled::cheapest(&planner, PAGE, 0, found.cost).is_none());
        }
    }
}

proptest! {
    // Each case is a sweep.
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn more_memory_never_costs_more((weights, trace) in programs(), per_copy in 0..3 * PAGE) {
        let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        let mut before = u64::MAX;
        for step in 0..=50 {
            let capacity = everything * step / 50;
            let planner = Planner::new(&trace, &weights, &figures(Some(PAGE), per_copy), capacity);
            if let Some(found) = cheapest(&planner, PAGE) {
                prop_assert!(found.cost <= before, "{} with {capacity}, {before} with less", found.cost);
                before = found.cost;
            } else {
                prop_assert_eq!(before, u64::MAX, "a plan with less, and none with {}", capacity);
            }
        }
    }
}
