use super::super::planned::plan;
use super::*;
use crate::figures::DeviceModel;
use crate::schedule::{Event, Trace, WeightKind, WeightSpec};
use proptest::prelude::*;

const PAGE: u64 = 256;

fn specs(sizes: &[u64]) -> Vec<WeightSpec> {
    let spec = |(at, &bytes): (usize, &u64)| WeightSpec {
        fqn: format!("w{at}"),
        bytes,
        stored: bytes,
        kind: WeightKind::Weight,
    };
    sizes.iter().enumerate().map(spec).collect()
}

fn chain(count: u32) -> Trace {
    let events =
        (0..count).flat_map(|id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)]);
    Trace::new(events.collect(), (0..count).collect(), count as usize).unwrap()
}

/// The plan at so many bytes.
fn at(trace: &Trace, weights: &[WeightSpec], capacity: u64) -> Option<Plan> {
    let model = DeviceModel {
        granule: 64,
        page: Some(PAGE),
        bytes_per_copy: 0,
        apart: 0,
        whole_pages: false,
        packed: Default::default(),
    };
    plan(&[trace.into()], weights, &model, capacity)
}

/// Which byte of which weight lies where.
type Memory = Vec<Option<(WeightIndex, u64)>>;

fn write(memory: &mut Memory, plan: &Plan, weight: WeightIndex, range: Range<u64>, window: u32) {
    let start = plan.windows[window as usize];
    let parts = plan.view.behind(start + range.start..start + range.end);
    for (byte, at) in range.zip(parts.unwrap().into_iter().flatten()) {
        memory[at as usize] = Some((weight, byte));
    }
}

/// Memory as a complete load of the plan leaves it.
fn loaded(plan: &Plan) -> Memory {
    let mut memory = vec![None; plan.view.whole() as usize];
    for one in &plan.resident {
        write(&mut memory, plan, one.weight, one.range.clone(), one.window);
    }
    memory
}

/// Plays a move from one plan to another. Bytes that are loaded.
fn play(old: &Plan, new: &Plan) -> u64 {
    play_with_losses(old, new, |_| false)
}

/// The same where the device does not keep the pages that are `lost`, by their new place.
fn play_with_losses(old: &Plan, new: &Plan, lost: impl Fn(u64) -> bool) -> u64 {
    let moved = between(old, new, PAGE);
    let before = loaded(old);
    let mut memory: Memory = vec![None; new.view.whole() as usize];
    let mut losses = Vec::new();
    let mut taken = vec![false; before.len()];
    for KeptPages { from, to, bytes } in moved.kept() {
        assert!([from, to, bytes].iter().all(|at| at % PAGE == 0) && bytes > 0);
        let (to, from) = (to as usize, from as usize);
        let taken = &mut taken[from..][..bytes as usize];
        assert!(!taken.contains(&true), "one page in two places");
        taken.fill(true);
        assert!(
            memory[to..][..bytes as usize].iter().all(Option::is_none),
            "kept twice"
        );
        memory[to..][..bytes as usize].copy_from_slice(&before[from..][..bytes as usize]);
        for at in (to..to + bytes as usize).step_by(PAGE as usize) {
            if lost(at as u64) {
                losses.push(at as u64..at as u64 + PAGE);
                memory[at..][..PAGE as usize].fill(Some((WeightIndex::MAX, 0)));
            }
        }
    }
    let mut bytes = 0;
    for action in moved.loads(&losses) {
        let Action::Load {
            weight,
            range,
            window,
            ..
        } = action
        else {
            panic!("{action:?}")
        };
        bytes += range.end - range.start;
        write(&mut memory, new, weight, range, window);
    }
    for (at, byte) in loaded(new)
        .into_iter()
        .enumerate()
        .filter(|(_, byte)| byte.is_some())
    {
        assert_eq!(memory[at], byte, "byte {at}");
    }
    bytes
}

fn resident(plan: &Plan) -> u64 {
    plan.resident
        .iter()
        .map(|one| one.range.end - one.range.start)
        .sum()
}

#[test]
fn weights_of_whole_pages_are_copied_once() {
    let weights = specs(&[8 * PAGE; 20]);
    let trace = chain(20);
    let total = 160 * PAGE;
    for (from, to) in [
        (30, 90),
        (90, 30),
        (50, 100),
        (100, 50),
        (40, 41),
        (100, 100),
    ] {
        let plan_at = |percent| at(&trace, &weights, total * percent / 100).unwrap();
        let (old, new) = (plan_at(from), plan_at(to));
        let grown: u64 = resident(&new).saturating_sub(resident(&old));
        let loaded = play(&old, &new);
        // Another set of weights streams: what the old one left out of a head is missing.
        assert!(
            loaded <= grown + total / 10,
            "{from} to {to}: {loaded} of {grown}"
        );
    }
}

#[test]
fn the_same_plan_again_copies_nothing() {
    let weights = specs(&[5 * PAGE + 64, 64, 3 * PAGE, 700, 9 * PAGE, 10]);
    let trace = chain(6);
    for capacity in (8 * PAGE..30 * PAGE).step_by(64) {
        if let Some(plan) = at(&trace, &weights, capacity) {
            assert_eq!(play(&plan, &plan), 0, "{capacity}");
        }
    }
}

proptest! {
    /// Whatever is kept and loaded, what stays is there in the end.
    #[test]
    fn what_stays_is_there_after_a_move(
        sizes in prop::collection::vec(prop_oneof![1..9u64, 40..900u64, 1000..5000u64], 1..14),
        shares in prop::collection::vec(0..=100u64, 2..6),
        lost in 0..16u64,
    ) {
        let weights = specs(&sizes);
        let trace = chain(sizes.len() as u32);
        let total: u64 = weights.iter().map(|weight| weight.occupied(64)).sum();
        let plans = shares.iter().filter_map(|share| at(&trace, &weights, total * share / 100 + PAGE));
        let plans: Vec<Plan> = plans.collect();
        for pair in plans.windows(2) {
            play(&pair[0], &pair[1]);
            play_with_losses(&pair[0], &pair[1], |at| at / PAGE % 4 == lost);
        }
    }
}

/// Weights that nearly fill their pages take whole ones, so that they lie alike under every budget.
#[test]
fn weights_that_are_no_whole_pages_are_kept_as_well() {
    let weights = specs(&[40 * PAGE - 37; 20]);
    let trace = chain(20);
    let total = 800 * PAGE;
    let plan_at = |percent| {
        let model = DeviceModel {
            granule: 64,
            page: Some(PAGE),
            bytes_per_copy: 0,
            apart: 0,
            whole_pages: true,
            packed: Default::default(),
        };
        plan(&[(&trace).into()], &weights, &model, total * percent / 100).unwrap()
    };
    for (from, to) in [(50, 100), (100, 50), (30, 80), (80, 60)] {
        let (old, new) = (plan_at(from), plan_at(to));
        let grown = resident(&new).saturating_sub(resident(&old));
        let loaded = play(&old, &new);
        assert!(
            loaded <= grown + total / 10,
            "{from} to {to}: {loaded} of {grown}"
        );
    }
}

/// Two weights shared a page and part: only one of them keeps it, and the other is loaded.
#[test]
fn a_page_is_kept_in_one_place() {
    let stay = |weight, memory| Stay {
        weight,
        bytes: PAGE / 2,
        memory,
        window: weight,
    };
    let (old, new) = (
        [stay(0, 0), stay(1, PAGE / 2)],
        [stay(0, PAGE), stay(1, 3 * PAGE + PAGE / 2)],
    );
    let mut pages = Pages::new(PAGE);
    for (after, before) in new.iter().zip(&old) {
        pages.add(after, Some(before));
    }
    pages.keep_each_once();
    let kept = [KeptPages {
        from: 0,
        to: PAGE,
        bytes: PAGE,
    }];
    assert_eq!(pages.runs(), kept);
    assert_eq!(pages.load(&new[0], &[]), None);
    assert!(pages.load(&new[1], &[]).is_some());
}
