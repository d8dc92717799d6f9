use super::super::cost::Price;
use super::super::slots::MOST_RANGES;
use super::super::test_support::{chain, in_turn, kernels, model, programs, weights, PAGE};
use super::super::Resident;
use super::*;
use crate::schedule::{Event, Trace, WeightKind};
use proptest::prelude::*;
use std::ops::Range;

fn planned(weights: &[WeightSpec], trace: &Trace, per_copy: u64, capacity: u64) -> Option<Plan> {
    plan(&[trace.into()], weights, &model(per_copy), capacity)
}

/// Some weights never stay in half of the programs.
fn marks() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), any::<u16>()]
}

fn mark(weights: &mut [WeightSpec], marks: u16) {
    for (at, weight) in weights.iter_mut().enumerate() {
        if marks >> (at % 16) & 1 == 1 {
            weight.kind = WeightKind::Streamed;
        }
    }
}

#[test]
fn copies_that_cost_much_are_fewer() {
    let (weights, trace) = (weights(&[40 * PAGE; 40]), in_turn(40));
    let price = |per_copy| {
        planned(&weights, &trace, per_copy, 1500 * PAGE)
            .unwrap()
            .price
    };
    let (dear, cheap) = (price(8 * PAGE), price(0));
    assert!(
        dear.copies < cheap.copies && dear.bytes > cheap.bytes,
        "{dear:?} {cheap:?}"
    );
}

#[test]
fn a_weight_read_twice_stays_where_others_can_go() {
    let weights = weights(&[10 * PAGE; 8]);
    let trace = chain(&[0, 1, 2, 3, 0, 4, 5, 6, 7], 8);
    let plan = planned(&weights, &trace, 0, 60 * PAGE).unwrap();
    assert!(!plan.streams().contains(&0), "{plan:?}");
}

/// Layers of four weights, each run twice in a row. One copy serves both runs, whatever a copy costs.
#[test]
fn one_copy_serves_reads_that_are_close() {
    let runs = (0..10u32).flat_map(|layer| [layer, layer]);
    let reads: Vec<u32> = runs.flat_map(|layer| 4 * layer..4 * layer + 4).collect();
    let (weights, trace) = (weights(&[40 * PAGE; 40]), chain(&reads, 40));
    for per_copy in [0, PAGE / 8, PAGE] {
        for percent in [50, 75] {
            let capacity = 16 * percent * PAGE;
            let plan = planned(&weights, &trace, per_copy, capacity).unwrap();
            let ratio = plan.price.bytes as f64 / (1600 * PAGE - capacity) as f64;
            assert!(ratio < 1.4, "{per_copy}, {percent} %: {ratio}");
            assert!(plan.streamed.iter().all(|copy| copy.probes.len() == 2));
        }
    }
}

#[test]
fn what_cannot_be_there_at_one_time_has_no_plan() {
    let weights = weights(&[640; 4]);
    let events = (0..4).map(Event::Probe).chain([Event::Kernel(0)]).collect();
    let trace = Trace::new(events, (0..4).collect(), 4).unwrap();
    assert_eq!(planned(&weights, &trace, 0, 3 * 640), None);
    let all = planned(&weights, &trace, 0, 4 * 640).unwrap();
    assert_eq!((all.streamed.len(), all.price), (0, Price::default()));
    assert_eq!(all.view.memory, 4 * 640);
}

#[test]
fn nothing_is_planned_where_no_memory_is_mapped() {
    let none = DeviceModel {
        page: None,
        ..model(0)
    };
    let (weights, trace) = (weights(&[PAGE; 4]), in_turn(4));
    assert_eq!(plan(&[(&trace).into()], &weights, &none, 4 * PAGE), None);
}

/// A process has only so many mappings.
#[test]
fn no_view_has_very_many_pieces() {
    let (weights, trace) = (weights(&[4 * PAGE; 12_000]), in_turn(12_000));
    for pages in [17_000, 40_000] {
        let plan = planned(&weights, &trace, 0, pages * PAGE).unwrap();
        let pieces = plan.view.pieces.len();
        assert!(pieces > 1000 && pieces <= 2 * MOST_RANGES + 1, "{pieces}");
    }
}

/// An encoder that runs once for four passes of a transformer, at the sizes of Flux: kernels of a pass of the latter take nearly as long
/// as its copies. A ring of 2.0 GB would make passes shorter by half a percent, and copy an eighth more.
#[test]
fn a_larger_ring_that_gains_next_to_nothing_is_not_taken() {
    const MB: u64 = 1_000_000;
    // Megabytes, and microseconds of the kernels that read them.
    let encoder = [(33, 90); 4].into_iter().chain([(84, 220); 3]);
    let double = [(113, 60), (113, 60), (19, 150), (19, 150), (19, 150)];
    let double = double.into_iter().chain([(19, 50); 4]);
    let double = double.chain([(19, 1150), (75, 500), (75, 500), (75, 80), (75, 80)]);
    let single = [
        (57, 60),
        (75, 500),
        (19, 150),
        (19, 150),
        (19, 150),
        (94, 1600),
    ];
    let times_of = |layers: &[(u64, u64)], scale| -> Vec<u64> {
        let kernel = |&(_, us): &(u64, u64)| [0, us * scale, 0];
        layers.iter().flat_map(kernel).collect()
    };
    let encoder = Vec::from_iter(encoder).repeat(24);
    let double = Vec::from_iter(double).repeat(19);
    let transformer = [double, single.repeat(38)].concat();
    let sizes: Vec<u64> = { encoder.iter().chain(&transformer) }
        .map(|&(mb, _)| mb * MB)
        .collect();
    let first = encoder.len() as u32;
    let reads = [(0..first).collect(), (first..sizes.len() as u32).collect()];
    let traces = reads.map(|reads: Vec<u32>| chain(&reads, sizes.len()));
    let methods = [(&traces[0], 1), (&traces[1], 4)].map(|(trace, share)| MethodTrace {
        share,
        ..trace.into()
    });
    let link = crate::figures::Link {
        bytes_per_second: 55_000 * MB,
        ns_per_copy: 3000,
    };
    let times = [times_of(&encoder, 1000), times_of(&transformer, 1250)];
    let clocks = [0, 1].map(|at| Clocks {
        kernels: &times[at],
        link,
    });
    let figures = DeviceModel {
        granule: 256,
        bytes_per_copy: 192 << 10,
        page: Some(2 << 20),
        apart: 0,
        whole_pages: true,
        packed: Default::default(),
    };
    let specs = weights(&sizes);
    let capacity = 12_000 * MB;
    let by_bytes = plan(&methods, &specs, &figures, capacity).unwrap();
    let by_time = quickest(&methods, &specs, &figures, capacity, (&clocks, u64::MAX)).unwrap();
    let pass = |plan| expected(plan, &methods, &clocks).pass;
    assert!(pass(&by_time) < pass(&by_bytes));
    let (more, bytes) = (by_time.price.bytes, by_bytes.price.bytes);
    assert!(more - bytes < bytes / 32, "{more} bytes, {bytes} at least");
}

/// Where kernels without reads take long, a ring with room for more copies ahead is full later.
#[test]
fn long_kernels_ask_for_more_copies_ahead() {
    let (weights, trace) = (weights(&[40 * PAGE; 24]), in_turn(24));
    let link = crate::figures::Link {
        bytes_per_second: 1_000_000_000,
        ns_per_copy: 0,
    };
    let capacity = 24 * 20 * PAGE;
    let pause = 6 * 20 * PAGE;
    let times: Vec<u64> = (0..24)
        .flat_map(|at| [0, 0, if at % 6 == 0 { pause } else { 0 }])
        .collect();
    let clocks = Clocks {
        kernels: &times,
        link,
    };
    let by_bytes = planned(&weights, &trace, 0, capacity).unwrap();
    let by_time = quickest(
        &[(&trace).into()],
        &weights,
        &model(0),
        capacity,
        (&[clocks], u64::MAX),
    )
    .unwrap();
    assert_eq!(by_bytes.ahead, 1);
    assert!(
        by_time.ahead > 2 && by_time.ring() > by_bytes.ring(),
        "{by_time:?}"
    );
    let pass = |plan| expected(plan, &[(&trace).into()], &[clocks]).pass;
    assert!(pass(&by_time) * 10 < pass(&by_bytes) * 8);
    // No more bytes than it may.
    let most = by_bytes.price.bytes;
    let within = quickest(
        &[(&trace).into()],
        &weights,
        &model(0),
        capacity,
        (&[clocks], most),
    )
    .unwrap();
    assert!(within.price.bytes <= most);
    assert_eq!(
        quickest(
            &[(&trace).into()],
            &weights,
            &model(0),
            capacity,
            (&[clocks], most / 2)
        ),
        None
    );
}

fn apart(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.end <= b.start || b.end <= a.start
}

/// The memory behind bytes of a weight, through a window.
fn behind(plan: &Plan, window: u32, range: &Range<u64>) -> Vec<Range<u64>> {
    let at = plan.windows[window as usize];
    let found = plan.view.behind(at + range.start..at + range.end);
    found.expect("inside of the view")
}

/// What has to hold for any plan, seen through its view.
fn check(plan: &Plan, weights: &[WeightSpec], trace: &Trace, capacity: u64, direct: u64) {
    plan.view.check(PAGE).unwrap();
    // What is really taken, with what lies apart: the budget rounded up to a page.
    let taken = plan.view.whole() + direct.next_multiple_of(PAGE);
    assert!(plan.view.memory <= capacity && taken <= (capacity + direct).next_multiple_of(PAGE));
    let mut kept: Vec<Range<u64>> = Vec::new();
    for one in &plan.resident {
        for part in behind(plan, one.window, &one.range) {
            assert!(part.end <= plan.view.memory);
            assert!(
                kept.iter().all(|other| apart(&part, other)),
                "{one:?} lies over another"
            );
            assert!(
                plan.slots.iter().all(|slot| apart(&part, slot)),
                "{one:?} lies in a slot"
            );
            kept.push(part);
        }
    }
    for (at, slot) in plan.slots.iter().enumerate() {
        assert!(slot.end <= plan.view.memory);
        assert!(
            plan.slots[..at].iter().all(|other| apart(slot, other)),
            "{:?}",
            plan.slots
        );
    }
    for one in &plan.streamed {
        check_copy(plan, one, weights);
    }
    // Each read is served: by what stays, or by the one copy that names it.
    for (id, &weight) in (0u32..).zip(trace.probes()) {
        let by = plan
            .streamed
            .iter()
            .filter(|one| one.probes.contains(&id))
            .count();
        let whole = 0..weights[weight as usize].bytes;
        let stays = |one: &Resident| one.weight == weight && one.range == whole;
        let stays = plan.resident.iter().any(stays);
        assert_eq!(by + usize::from(stays), 1, "probe {id}");
    }
    let copied = plan
        .streamed
        .iter()
        .map(|one| one.range.end - one.range.start);
    let price = Price {
        bytes: copied.sum(),
        copies: plan.streamed.len() as u64,
    };
    assert_eq!(plan.price, price);
}

fn check_copy(plan: &Plan, one: &super::super::Streamed, weights: &[WeightSpec]) {
    let [tail] = &behind(plan, one.window, &one.range)[..] else {
        panic!("{one:?} is in pieces");
    };
    let slot = &plan.slots[one.slot as usize];
    assert!(
        slot.start <= tail.start && tail.end <= slot.end,
        "{one:?} is not in {slot:?}"
    );
    assert_eq!(one.range.end, weights[one.weight as usize].bytes);
    // Before what is copied lies what stays of the same weight.
    let mut mine = plan
        .resident
        .iter()
        .filter(|other| other.weight == one.weight);
    let head = mine.next().map_or(0, |head| {
        let through = |window| behind(plan, window, &head.range);
        assert_eq!(through(head.window), through(one.window));
        head.range.end
    });
    assert!(head == one.range.start && mine.next().is_none(), "{one:?}");
}

/// Two copies that have one slot, and are wanted at one time.
fn shared(plan: &Plan, trace: &Trace, weights: usize) -> Option<(usize, usize)> {
    let all = Timeline::of(&[trace.into()], weights).ranges;
    let events = trace.events().len() as i64;
    let wanted = |at: usize, time: i64| {
        let mine = |probes: &[u32]| plan.streamed[at].probes.contains(&probes[0]);
        let mut mine = all.iter().filter(|range| mine(&range.probes));
        let first = mine.next().unwrap();
        let last = mine.next_back().unwrap_or(first);
        let times = [time - events, time];
        times
            .iter()
            .any(|time| (first.wanted..=last.last as i64).contains(time))
    };
    let pairs = (0..plan.streamed.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let mut same = pairs.filter(|&(a, b)| plan.streamed[a].slot == plan.streamed[b].slot);
    same.find(|&(a, b)| (0..=events).any(|time| wanted(a, time) && wanted(b, time)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn plans_hold_together((mut weights, trace) in programs(), marks in marks(), share in 0..1200u64, per_copy in 0..3 * PAGE, direct in 0..3 * PAGE) {
        mark(&mut weights, marks);
        let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        let capacity = everything * share / 1000;
        let model = model(per_copy).beside(direct);
        let Some(plan) = plan(&[(&trace).into()], &weights, &model, capacity) else { return Ok(()) };
        check(&plan, &weights, &trace, capacity, direct);
        prop_assert_eq!(shared(&plan, &trace, weights.len()), None, "{:?}", plan);
        let streamed = |weight: u32| weights[weight as usize].is_streamed();
        prop_assert!(!plan.resident.iter().any(|one| streamed(one.weight)), "{:?}", plan);
        for &weight in trace.probes().iter().filter(|&&weight| streamed(weight)) {
            let mut copies = plan.streamed.iter().filter(|one| one.weight == weight);
            prop_assert!(copies.next().is_some_and(|one| one.range.start == 0), "{:?}", plan);
        }
    }

    /// The same where kernels were timed.
    #[test]
    fn plans_by_time_hold_together((weights, trace) in programs(), share in 0..1000u64, times in prop::collection::vec(0..5000u64, 1..30)) {
        let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        let capacity = everything * share / 1000;
        let kernels: Vec<u64> = times.iter().copied().cycle().take(trace.events().len()).collect();
        let link = crate::figures::Link { bytes_per_second: 1_000_000_000, ns_per_copy: 50 };
        let clocks = Clocks { kernels: &kernels, link };
        let by_bytes = planned(&weights, &trace, 50, capacity);
        let by_time = quickest(&[(&trace).into()], &weights, &model(50), capacity, (&[clocks], u64::MAX));
        // With room for more copies ahead slots are shared otherwise: that may fit where the other does not.
        prop_assert!(by_bytes.is_none() || by_time.is_some());
        if let Some((by_bytes, by_time)) = by_bytes.zip(by_time) {
            check(&by_time, &weights, &trace, capacity, 0);
            prop_assert_eq!(shared(&by_time, &trace, weights.len()), None, "{:?}", by_time);
            let pass = |plan| expected(plan, &[(&trace).into()], &[clocks]).pass;
            prop_assert!(pass(&by_time) <= pass(&by_bytes));
        }
    }
}

proptest! {
    // Each case is a sweep.
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn more_memory_never_costs_more((mut weights, trace) in programs(), marks in marks(), per_copy in 0..3 * PAGE, direct in 0..2 * PAGE) {
        let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        mark(&mut weights, marks);
        let mut before = u64::MAX;
        for step in 0..=50 {
            let capacity = everything * step / 50;
            let found = plan(&[(&trace).into()], &weights, &model(per_copy).beside(direct), capacity);
            if let Some(found) = found {
                let cost = found.price.in_bytes(per_copy);
                prop_assert!(cost <= before, "{} with {capacity}, {before} with less", cost);
                before = cost;
            } else {
                prop_assert_eq!(before, u64::MAX, "a plan with less, and none with {}", capacity);
            }
        }
    }
}

/// Of a large program not all sets are tried: what is left out must not make a larger budget cost more.
#[test]
fn a_large_program_never_costs_more_with_more_memory() {
    const MB: u64 = 1 << 20;
    let layer = [MB / 8, 32 * MB, 8 * MB, 8 * MB, 112 * MB, 112 * MB];
    let sizes = layer.repeat(2000 / layer.len() + 2);
    let (weights, trace) = (weights(&sizes), in_turn(sizes.len()));
    let figures = DeviceModel {
        apart: 0,
        whole_pages: false,
        packed: Default::default(),
        granule: 512,
        page: Some(2 * MB),
        bytes_per_copy: 192 << 10,
    };
    let everything: u64 = sizes.iter().sum();
    let mut last = u64::MAX;
    for share in 0..=60 {
        let capacity = 300 * MB + (everything - 300 * MB) / 60 * share;
        let price = plan(&[(&trace).into()], &weights, &figures, capacity)
            .unwrap()
            .price;
        let cost = price.in_bytes(figures.bytes_per_copy);
        assert!(cost <= last, "{share}/60: {cost} after {last}");
        last = cost;
    }
}

#[test]
fn one_kernel_that_reads_all_is_no_cycle() {
    let trace = kernels(&[vec![0, 1], vec![0, 1]], 2);
    // All is wanted at all times.
    assert_eq!(planned(&weights(&[4 * PAGE; 2]), &trace, 0, 7 * PAGE), None);
}
