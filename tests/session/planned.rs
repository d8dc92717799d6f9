//! The planned policy: that a pass copies exactly what the plan says, never more than under the LRU, and what is left
//! of that between the budget and the least that any policy could copy.

use crate::session_support::case::GRANULE;
use crate::session_support::code::programs;
use crate::session_support::{chain, play, Model, Pass};
use proptest::prelude::*;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::Sim;
use weightstream::figures::DeviceModel;
use weightstream::residency::planned::{lru_passes, lru_price, plan, LruPasses, Plan};
use weightstream::session::Session;

/// Pages of one granule to sixteen, and none.
const PAGES: [Option<u64>; 4] = [None, Some(64), Some(256), Some(1024)];

fn session(model: &Model, order: Order, budget: u64, page: Option<u64>) -> Session<Sim> {
    let mut sim = Sim::in_one_block(order);
    sim.set_page(page);
    model
        .session_by(PolicyKind::Planned, sim, Some(budget))
        .unwrap()
}

/// The plan for a budget.
fn plan_of(model: &Model, budget: u64, page: Option<u64>) -> Option<Plan> {
    let direct = model.floor().direct;
    let figures = DeviceModel {
        apart: direct,
        whole_pages: false,
        packed: Default::default(),
        granule: GRANULE,
        page,
        bytes_per_copy: 0,
    };
    let (trace, weights) = (&model.method.trace, &model.constants.specs);
    plan(&[trace.into()], weights, &figures, budget - direct)
}

/// `share` 0 is the floor, 1000 everything.
fn budget(model: &Model, share: u64) -> u64 {
    let floor = model.floor();
    let least = floor.bytes();
    least + (floor.direct + floor.everything).saturating_sub(least) * share / 1000
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_pass_copies_what_the_plan_says(model in programs(), share in 0..1000u64, page in 0..4usize, order in any::<u64>()) {
        let (budget, page) = (budget(&model, share), PAGES[page]);
        let mut session = session(&model, Order::Random(order), budget, page);
        let mut seen = Vec::new();
        for _ in 0..4 {
            play(&model, &mut session, Pass::Complete).unwrap();
            session.validate().unwrap();
            seen.push(session.stats().bytes_copied_last_pass);
        }
        session.device_mut().verdict().unwrap();
        if session.policy() != "planned" {
            return Ok(());
        }
        let plan = plan_of(&model, budget, page).unwrap();
        // The first pass begins with an empty ring, and the copies for the next one are issued in it.
        prop_assert_eq!(&seen[1..], &[plan.copied(0); 3][..]);
        prop_assert!(plan.copied(0) <= plan.price.bytes);
        let capacity = budget - model.floor().direct;
        let (trace, weights) = (&model.method.trace, &model.constants.specs);
        let lru = lru_price(trace, weights, GRANULE, capacity).unwrap();
        prop_assert!(plan.price.bytes <= lru.bytes);
    }

    /// What is said of the LRU is what its own session copies, where holes in its block make it give up more as well.
    #[test]
    fn the_lru_copies_what_its_price_says(model in programs(), share in 0..1000u64) {
        let budget = budget(&model, share);
        let mut session = model.session(Sim::in_one_block(Order::CopiesFirst), Some(budget)).unwrap();
        if session.policy() != "lru" || !session.store().is_one_block() {
            return Ok(());
        }
        let (trace, weights) = (&model.method.trace, &model.constants.specs);
        let capacity = budget - model.floor().direct;
        let LruPasses { passes, again } = lru_passes(trace, weights, GRANULE, capacity).unwrap();
        let played = passes.iter().chain(passes[again..].iter().cycle());
        for price in played.take(passes.len() + 5) {
            play(&model, &mut session, Pass::Complete).unwrap();
            prop_assert_eq!(session.stats().bytes_copied_last_pass, price.bytes);
        }
    }

    /// Whatever happened to earlier passes, the next complete ones are right, and copy what the plan says.
    #[test]
    fn an_aborted_pass_leaves_nothing_behind(
        model in programs(), share in 0..1000u64, page in 0..4usize, at in 0..60usize, diverges in any::<bool>(),
    ) {
        let (budget, page) = (budget(&model, share), PAGES[page]);
        let mut session = session(&model, Order::KernelsFirst, budget, page);
        let broken = if diverges { Pass::DivergeAt(at) } else { Pass::AbortAt(at) };
        for pass in [Pass::Complete, broken, broken, Pass::Complete, Pass::Complete] {
            play(&model, &mut session, pass).unwrap();
            session.validate().unwrap();
        }
        session.device_mut().verdict().unwrap();
        if session.policy() == "planned" {
            let plan = plan_of(&model, budget, page).unwrap();
            prop_assert_eq!(session.stats().bytes_copied_last_pass, plan.copied(0));
        }
    }

    /// On pages of one granule, and each weight read once: a pass copies what exceeds the budget and, for the ring, no more
    /// than two neighbouring kernels read.
    #[test]
    fn what_is_copied_is_close_to_what_exceeds_the_budget(model in programs(), share in 0..1000u64) {
        let mut reads = model.method.trace.probes().to_vec();
        reads.sort_unstable();
        let once = reads.windows(2).all(|pair| pair[0] != pair[1]);
        let budget = budget(&model, share);
        let (floor, plan) = (model.floor(), plan_of(&model, budget, Some(GRANULE)));
        let Some((plan, pair)) = plan.filter(|_| once).zip(floor.pair) else { return Ok(()) };
        let exceeds = (floor.direct + floor.everything).saturating_sub(budget);
        let bound = exceeds + pair.bytes + pair.bytes / 4 + 4 * GRANULE;
        prop_assert!(plan.price.bytes <= bound, "{} of at most {bound}, {exceeds} exceed", plan.price.bytes);
    }
}

/// Where freed memory falls into pieces a weight may find no place, though there is enough in sum. A plan's memory is
/// taken once.
#[test]
fn weights_of_very_different_sizes_run_at_the_floor() {
    let sizes: Vec<u64> = (0..48)
        .map(|at| if at % 2 == 0 { 8 << 10 } else { 128 << 10 })
        .collect();
    let model = chain(&sizes);
    let budget = model.floor().bytes();
    for page in PAGES.into_iter().flatten() {
        let mut sim = Sim::new(Order::CopiesFirst);
        sim.set_page(Some(page));
        sim.limit_addresses(budget);
        let mut session = model
            .session_by(PolicyKind::Planned, sim, Some(budget))
            .unwrap();
        assert_eq!(session.policy(), "planned");
        for _ in 0..3 {
            play(&model, &mut session, Pass::Complete).unwrap();
        }
        session.device_mut().verdict().unwrap();
        assert_eq!(session.store().fragmentation_misses(), 0);
        assert!(session.stats().bytes_copied_last_pass < sizes.iter().sum());
    }
}

proptest! {
    // Each case is 201 plans.
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// More budget never costs more.
    #[test]
    fn the_price_never_rises_with_the_budget(model in programs(), page in 0..4usize) {
        let mut before = u64::MAX;
        for step in 0..=200 {
            let budget = budget(&model, step * 5);
            if let Some(plan) = plan_of(&model, budget, PAGES[page]) {
                prop_assert!(plan.view.memory <= budget);
                prop_assert!(plan.price.bytes <= before, "{} at {budget}, {before} with less", plan.price.bytes);
                before = plan.price.bytes;
            }
        }
    }
}
