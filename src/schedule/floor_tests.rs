use super::Event::{Kernel, Probe, Release};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn weight(fqn: &str, bytes: u64) -> WeightSpec {
    WeightSpec {
        fqn: fqn.into(),
        bytes,
        stored: bytes,
        kind: WeightKind::Weight,
    }
}

fn lru(trace: &Trace, weights: &[WeightSpec]) -> Floor {
    floor(trace, weights, 64)
}

/// Five kernels, each reading one weight alone: the RFC's case.
fn chain() -> (Trace, Vec<WeightSpec>) {
    let events = (0..5)
        .flat_map(|i| [Probe(i), Kernel(i), Release(i)])
        .collect();
    let sizes = [("a", 100), ("b", 1000), ("c", 64), ("d", 64), ("e", 960)];
    let weights = sizes.map(|(fqn, bytes)| weight(fqn, bytes)).to_vec();
    (Trace::new(events, (0..5).collect(), 5).unwrap(), weights)
}

#[test]
fn leases_of_one_kernel_give_the_rfc_formula() {
    let (trace, weights) = chain();
    let floor = lru(&trace, &weights);
    let pair = floor.pair.as_ref().unwrap();
    assert_eq!((pair.first, pair.second, pair.bytes), (0, 1, 128 + 1024));
    assert_eq!(
        floor.copy,
        Some(Part {
            fqn: "b".into(),
            bytes: 1024
        })
    );
    assert_eq!(floor.hard_minimum, 1024);
    assert_eq!(floor.bytes(), 128 + 1024 + 1024);
}

#[test]
fn pairs_are_cyclic_and_skip_kernels_without_weights() {
    let events = vec![
        Kernel(0),
        Probe(0),
        Kernel(1),
        Release(0),
        Kernel(2),
        Probe(1),
        Kernel(3),
    ];
    let events = [
        events,
        vec![Release(1), Probe(2), Kernel(4), Release(2), Kernel(5)],
    ]
    .concat();
    let trace = Trace::new(events, vec![0, 1, 2], 3).unwrap();
    let weights = [weight("a", 640), weight("b", 64), weight("c", 6400)];
    let pair = lru(&trace, &weights).pair.unwrap();
    assert_eq!((pair.first, pair.second, pair.bytes), (4, 1, 7040));
}

#[test]
fn a_weight_behind_several_probes_counts_once() {
    let events = vec![
        Probe(0),
        Probe(1),
        Kernel(0),
        Release(0),
        Kernel(1),
        Release(1),
    ];
    let trace = Trace::new(events, vec![0, 0], 1).unwrap();
    let floor = lru(&trace, &[weight("a", 64)]);
    assert_eq!((floor.hard_minimum, floor.bytes()), (64, 64));
}

#[test]
fn direct_constants_are_rounded_and_counted() {
    let (trace, mut weights) = chain();
    weights.push(WeightSpec {
        fqn: "d".into(),
        bytes: 1,
        stored: 1,
        kind: WeightKind::Direct,
    });
    weights.push(WeightSpec {
        fqn: "m".into(),
        bytes: 65,
        stored: 65,
        kind: WeightKind::Mutable,
    });
    let floor = lru(&trace, &weights);
    assert_eq!((floor.direct, floor.hard_minimum), (192, 192 + 1024));
    assert_eq!(floor.bytes(), 192 + 128 + 1024 + 1024);
}

#[test]
fn leases_without_a_kernel_are_covered() {
    let trace = Trace::new(vec![Probe(0), Probe(1)], vec![0, 1], 2).unwrap();
    let floor = lru(&trace, &[weight("a", 640), weight("b", 640)]);
    assert_eq!((floor.hard_minimum, floor.bytes()), (1280, 1280));
    assert!(
        floor
            .to_string()
            .contains("leases open at one time need 1280 bytes"),
        "{floor}"
    );
}

#[test]
fn all_weights_together_are_always_enough() {
    let events = (0..2)
        .flat_map(|i| [Probe(i), Kernel(i), Release(i)])
        .collect();
    let trace = Trace::new(events, vec![0, 1], 2).unwrap();
    let floor = lru(&trace, &[weight("a", 640), weight("b", 640)]);
    assert_eq!(floor.bytes(), 1280);
    let text = floor.to_string();
    assert!(
        text.ends_with("all weights together need no more than 1280 bytes"),
        "{text}"
    );
}

#[test]
fn sums_saturate() {
    let (trace, mut weights) = chain();
    weights[0].bytes = u64::MAX;
    weights[1].bytes = u64::MAX - 100;
    assert_eq!(lru(&trace, &weights).bytes(), u64::MAX);
}

#[test]
fn the_parts_are_a_sentence() {
    let (trace, weights) = chain();
    assert_eq!(
        lru(&trace, &weights).to_string(),
        "direct constants 0 bytes + weights read by kernels 0 and 1 1152 bytes \
         [a: 128, b: 1024] + largest copy in flight 1024 bytes [b]"
    );
    let events = (0..10).map(Probe).chain([Kernel(3)]).collect();
    let many = Trace::new(events, (0..10).collect(), 10).unwrap();
    let weights: Vec<_> = (0..10).map(|i| weight(&format!("w{i}"), 1)).collect();
    let text = lru(&many, &weights).to_string();
    assert!(
        text.contains("read by kernel 3 640 bytes") && text.contains("w7: 64 and 2 more]"),
        "{text}"
    );
}

/// The definitions of the design, read literally: for each kernel the set of leases open at it.
fn naive(trace: &Trace, sizes: &[u64]) -> (u64, u64) {
    let open_at = |until: usize| -> BTreeSet<u32> {
        let upto = &trace.events()[..until];
        let open = trace
            .order()
            .iter()
            .filter(|id| upto.contains(&Probe(**id)));
        open.filter(|id| !upto.contains(&Release(**id)))
            .map(|id| trace.weight(*id))
            .collect()
    };
    let bytes = |set: &BTreeSet<u32>| set.iter().map(|w| sizes[*w as usize]).sum::<u64>();
    let all = 0..=trace.events().len();
    let hard = all.map(|until| bytes(&open_at(until))).max().unwrap_or(0);
    let at_kernel = |at: &usize| matches!(trace.events()[*at], Kernel(_));
    let kernels = (0..trace.events().len()).filter(at_kernel).map(open_at);
    let kernels: Vec<_> = kernels.filter(|open| !open.is_empty()).collect();
    let next = kernels.iter().cycle().skip(1);
    let pair = kernels
        .iter()
        .zip(next)
        .map(|(a, b)| bytes(&(a | b)))
        .max()
        .unwrap_or(0);
    let copy = trace
        .probes()
        .iter()
        .map(|w| sizes[*w as usize])
        .max()
        .unwrap_or(0);
    let all: BTreeSet<u32> = trace.probes().iter().copied().collect();
    (hard, (pair.max(hard) + copy).min(bytes(&all)))
}

/// A random trace: each step opens, closes or runs; leases still open at the end stay without a release.
fn traces() -> impl Strategy<Value = (Trace, Vec<WeightSpec>)> {
    let weights = prop::collection::vec(prop_oneof![Just(0), 1..200u64, 1..100_000u64], 1..6);
    let steps = prop::collection::vec((0..3u8, any::<prop::sample::Index>()), 0..40);
    (weights, steps).prop_map(|(sizes, steps)| {
        let (mut events, mut probes, mut open) = (vec![], vec![], vec![]);
        for (at, (what, pick)) in (0..).zip(steps) {
            match what {
                0 => {
                    events.push(Probe(probes.len() as u32));
                    open.push(probes.len() as u32);
                    probes.push(pick.index(sizes.len()) as u32);
                }
                1 if !open.is_empty() => {
                    events.push(Release(open.swap_remove(pick.index(open.len()))))
                }
                _ => events.push(Kernel(at)),
            }
        }
        let weights: Vec<_> = sizes.iter().map(|b| weight("w", *b)).collect();
        (Trace::new(events, probes, weights.len()).unwrap(), weights)
    })
}

proptest! {
    #[test]
    fn agrees_with_the_naive_oracle((trace, weights) in traces()) {
        let sizes: Vec<u64> = weights.iter().map(|w| w.bytes.div_ceil(64) * 64).collect();
        let (hard, all) = naive(&trace, &sizes);
        let floor = lru(&trace, &weights);
        prop_assert_eq!(floor.hard_minimum, hard);
        prop_assert_eq!(floor.bytes(), all);
    }
}
