//! How far what a pass copies is from the least that any schedule could copy.

#[path = "session_support/draw.rs"]
#[allow(dead_code)]
mod draw;
#[path = "optimum_support/lp.rs"]
mod lp;
#[path = "optimum_support/traces.rs"]
mod traces;

use lp::least_copied;
use traces::{trace, weights, Case, Shape};
use weightstream::config::PolicyKind;
use weightstream::device::Figures;
use weightstream::residency::planned::{lru_price, plan};
use weightstream::schedule::{floor, Trace, WeightSpec};

const GRANULE: u64 = 64;

/// What a session would copy in a pass.
fn copied(trace: &Trace, weights: &[WeightSpec], budget: u64) -> Option<u64> {
    let figures = Figures {
        granule: GRANULE,
        page: Some(GRANULE),
        bytes_per_copy: 0,
    };
    let plan = plan(trace, weights, &figures, budget);
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

#[test]
fn measure() {
    let mut all: Vec<(f64, f64, bool, String, Shape)> = Vec::new();
    for number in 0..1000 {
        let case = Case::of(number);
        let (trace, weights) = (&case.trace, &case.weights);
        let floor = floor(trace, weights, PolicyKind::Lru, &[], GRANULE);
        let least = floor.pair.as_ref().map_or(0, |pair| pair.bytes);
        let budget = least + (floor.everything.saturating_sub(least)) * case.share / 1000;
        let Some(ours) = copied(trace, weights, budget) else {
            println!("{number}: none");
            continue;
        };
        let optimum = least_copied(trace, weights, budget).unwrap();
        let over = ours as f64 - optimum;
        let reads = trace.probes().len() as f64;
        let ratio = over / optimum.max(1.0);
        let met = over <= (0.03 * optimum).max(GRANULE as f64 * reads) + 1e-3;
        let by_plan = plan(
            trace,
            weights,
            &Figures {
                granule: GRANULE,
                page: Some(GRANULE),
                bytes_per_copy: 0,
            },
            budget,
        )
        .map(|p| (p.price.bytes, p.ring, p.streamed.len()));
        let text = format!("{number} {:?} n {} reads {reads} share {} ours {ours} opt {optimum:.0} budget {budget} all {} over/granule/read {:.1} plan {by_plan:?}", case.shape, weights.len(), case.share, floor.everything, over / reads / 64.0);
        all.push((ratio, over / reads / 64.0, met, text, case.shape));
    }
    for shape in [
        None,
        Some(Shape::Equal),
        Some(Shape::Chain),
        Some(Shape::Several),
        Some(Shape::Long),
        Some(Shape::Again),
        Some(Shape::Mixed),
    ] {
        let mut list: Vec<_> = all
            .iter()
            .filter(|o| shape.is_none_or(|s| s == o.4))
            .collect();
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        let q = |p: f64| list[((list.len() - 1) as f64 * p) as usize].0;
        let met = list.iter().filter(|o| o.2).count();
        println!("{shape:?}: {met} of {} met; ratio 10% {:.4} 50% {:.4} 75% {:.4} 90% {:.4} 99% {:.4} max {:.4}", list.len(), q(0.1), q(0.5), q(0.75), q(0.9), q(0.99), q(1.0));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    for shape in [
        Shape::Equal,
        Shape::Chain,
        Shape::Several,
        Shape::Long,
        Shape::Again,
        Shape::Mixed,
    ] {
        let missed: Vec<_> = all.iter().filter(|o| !o.2 && o.4 == shape).collect();
        for at in [0, missed.len() / 4, missed.len() / 2, missed.len() * 3 / 4] {
            if let Some(one) = missed.get(at) {
                println!("{:.3} {}", one.0, one.3);
            }
        }
    }
}
