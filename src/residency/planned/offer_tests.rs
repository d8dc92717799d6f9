use super::super::test_support::{chain, in_turn, weights};
use super::*;
use crate::config::PolicyKind;
use crate::figures::DeviceModel;
use crate::residency::{choose, replan};
use crate::schedule::{Event, KernelTimes, MethodTrace, Trace, WeightSpec};

const PAGE: u64 = 1024;
const LINK: Link = Link {
    bytes_per_second: 1_000_000_000,
    ns_per_copy: 50,
};
const MODEL: DeviceModel = DeviceModel {
    apart: 0,
    whole_pages: false,
    packed: crate::figures::PackedResidents::Off,
    granule: 64,
    page: Some(PAGE),
    bytes_per_copy: LINK.ns_per_copy,
};

fn request<'a>(
    weights: &'a [WeightSpec],
    methods: &'a [MethodTrace<'a>],
    percent: u64,
) -> Request<'a> {
    let total: u64 = weights.iter().map(|weight| weight.bytes).sum();
    Request {
        kind: PolicyKind::Planned,
        methods,
        weights,
        model: &MODEL,
        capacity: total * percent / 100,
        link: Some(LINK),
        times: &[],
    }
}

/// Layers of seven weights, four of sixteen pages and three of forty, as in a Llama.
fn layers(count: usize) -> (Vec<WeightSpec>, Trace) {
    let sizes = [16, 16, 16, 16, 40, 40, 40].map(|pages| pages * PAGE);
    let weights = weights(&sizes.repeat(count));
    let trace = in_turn(weights.len());
    (weights, trace)
}

/// Each read takes so many nanoseconds per page, and after the third of a layer attention so many.
fn times(weights: &[WeightSpec], per_page: u64, attention: u64) -> KernelTimes {
    let mut times = KernelTimes::new(weights.len());
    for (id, weight) in (0..).zip(weights) {
        times.add(Event::Probe(id), weight.bytes / PAGE * per_page);
        if id % 7 == 2 {
            times.add(Event::Release(id), attention);
        }
    }
    times
}

/// What a pass takes by the plan of the load, and by a better one.
fn replanned(percent: u64, per_page: u64, attention: u64) -> (Expected, Option<Expected>, u64) {
    let (weights, trace) = layers(16);
    let methods = [(&trace).into()];
    let request = request(&weights, &methods, percent);
    let first = choose(&request);
    let times = times(&weights, per_page, attention);
    let request = Request {
        times: &[Some(&times)],
        ..request
    };
    let known = Times::of(&request).unwrap();
    let takes = |of: &Residency| known.expected(of.plan().unwrap());
    let better = replan(&request, &first);
    if let Some(better) = &better {
        let (now, before) = (better.plan().unwrap(), first.plan().unwrap());
        assert!(now.ring() > before.ring() && now.price.bytes > before.price.bytes);
        assert!(better.why.contains("replanned"), "{}", better.why);
    }
    let missing = 16 * 184 * PAGE - request.capacity;
    (takes(&first), better.as_ref().map(takes), missing)
}

#[test]
fn where_copies_are_all_that_takes_time_the_plan_stays() {
    for percent in [20, 50, 90] {
        let (before, after, missing) = replanned(percent, 10, 0);
        assert_eq!(after, None, "{percent} %: {before}");
        assert!(before.pass >= missing);
    }
}

#[test]
fn where_kernels_are_all_that_takes_time_the_plan_stays() {
    let (before, after, _) = replanned(50, 2000, 0);
    assert_eq!((after, before.waits()), (None, 0));
}

/// Attention takes as long as the products, and both together about as long as the copies.
#[test]
fn a_longer_ring_bridges_attention() {
    for (percent, attention, most) in [(25, 140_000, 1.01), (25, 70_000, 1.06), (50, 70_000, 1.01)]
    {
        let (before, after, missing) = replanned(percent, 230, attention);
        let after = after.expect("a longer ring");
        let over = |of: &Expected| of.pass as f64 / missing.max(of.kernels) as f64;
        let (before, after) = (over(&before), over(&after));
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
    for attention in (500..30_000).step_by(1_500) {
        let (before, after, _) = replanned(50, 10, attention);
        match after {
            Some(after) => assert!(after.pass < before.pass - before.pass / WORTH),
            None => left += u32::from(before.pass > before.copies.max(before.kernels)),
        }
    }
    assert!(left > 0, "kernels wait a little somewhere");
}

#[test]
fn times_that_are_known_at_load_give_the_plan_at_once() {
    let (weights, trace) = layers(16);
    let methods = [(&trace).into()];
    let times = times(&weights, 230, 70_000);
    let plain = request(&weights, &methods, 25);
    let timed = Request {
        times: &[Some(&times)],
        ..plain
    };
    let again = replan(&timed, &choose(&plain)).unwrap();
    assert_eq!(choose(&timed).plan(), again.plan());
    // They are of no use where nobody knows what copies take.
    let unknown = Request {
        link: None,
        ..timed
    };
    assert_eq!(choose(&unknown).plan(), choose(&plain).plan());
    assert!(replan(&unknown, &choose(&plain)).is_none());
}

/// Reads go there and back: at each end the LRU finds what it read last.
#[test]
fn the_lru_is_taken_where_it_copies_less() {
    let reads: Vec<u32> = (0..12).chain((0..12).rev()).collect();
    let (weights, trace) = (weights(&[16 * PAGE; 12]), chain(&reads, 12));
    let methods = [(&trace).into()];
    let mut taken = 0;
    for percent in [30, 40, 50, 60, 70, 80, 90] {
        let request = request(&weights, &methods, percent);
        let found = choose(&request);
        let lru = super::super::lru_price(&trace, &weights, 64, request.capacity).unwrap();
        match found.plan() {
            Some(plan) => assert!(plan.price.bytes <= lru.bytes),
            None => {
                taken += 1;
                assert_eq!(found.policy().name(), "lru");
                assert!(found.why.contains("the LRU is taken"), "{}", found.why);
            }
        }
        // By time as well.
        let times = times(&weights, 100, 0);
        let timed = choose(&Request {
            times: &[Some(&times)],
            ..request
        });
        assert!(timed
            .plan()
            .is_none_or(|plan| plan.price.bytes <= lru.bytes));
    }
    assert!((1..7).contains(&taken), "{taken} times of 7");
}

#[test]
fn what_is_chosen_says_why() {
    let (weights, trace) = layers(2);
    let methods = [(&trace).into()];
    let of = |percent| choose(&request(&weights, &methods, percent));
    assert_eq!(
        (of(100).policy().name(), &of(100).why[..]),
        ("all_resident", "everything is resident")
    );
    assert!(
        of(50).why.contains("are copied in a pass by 14 copies"),
        "{}",
        of(50).why
    );
    assert!(
        of(1)
            .why
            .contains("no plan on pages of 1024 bytes fits into"),
        "{}",
        of(1).why
    );
    let flat = DeviceModel {
        page: None,
        ..MODEL
    };
    let found = choose(&Request {
        model: &flat,
        ..request(&weights, &methods, 50)
    });
    assert_eq!(found.policy().name(), "lru");
    assert!(found.why.contains("maps no memory"), "{}", found.why);
}

/// The second method reads all weights backwards, and waits for attention as the first one does. Plans go by the times of both; one of
/// which nothing is known counts as if its kernels took no time.
#[test]
fn several_methods_have_a_plan_by_their_times() {
    let (weights, trace) = layers(8);
    let back: Vec<u32> = (0..weights.len() as u32).rev().collect();
    let back = chain(&back, weights.len());
    let times = times(&weights, 230, 140_000);
    let methods = [(&trace).into(), (&back).into()];
    let plain = request(&weights, &methods, 25);
    let first = choose(&plain);
    let both = [Some(&times), Some(&times)];
    let timed = Request {
        times: &both,
        ..plain
    };
    let better = replan(&timed, &first).unwrap();
    assert!(better.plan().unwrap().ring() > first.plan().unwrap().ring());
    assert_eq!(choose(&timed).plan(), better.plan());
    let known = Times::of(&timed).unwrap();
    let takes = |of: &Residency| known.expected(of.plan().unwrap()).pass;
    assert!(takes(&better) < takes(&first));
    assert!(crate::residency::is_cheaper(&timed, &better, &first));
    assert!(!crate::residency::is_cheaper(&timed, &first, &better));
    assert!(!crate::residency::is_cheaper(&plain, &better, &first));
    let one = [Some(&times), None];
    let half = Request {
        times: &one,
        ..plain
    };
    let half = Times::of(&half).unwrap();
    let half = half.expected(first.plan().unwrap());
    assert!(
        half.pass < takes(&first) && half.kernels < known.expected(first.plan().unwrap()).kernels
    );
    let none = Request {
        times: &[None, None],
        ..plain
    };
    assert!(Times::of(&none).is_none());
    assert_eq!(choose(&none).plan(), first.plan());
}
