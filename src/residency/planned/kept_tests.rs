use super::*;
use crate::figures::{DeviceModel, PackedResidents};
use crate::residency::planned::test_support::{model, PAGE};
use crate::residency::{choose, Request};
use crate::schedule::{Event, Trace, WeightKind};

/// `count` weights that are read one after the other, packed into two thirds.
fn program(count: u32, bytes: u64) -> (Trace, Vec<WeightSpec>) {
    let each = |id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)];
    let trace = Trace::new(
        (0..count).flat_map(each).collect(),
        (0..count).collect(),
        count as usize,
    );
    let spec = |id: u32| WeightSpec {
        fqn: id.to_string(),
        bytes,
        stored: bytes * 2 / 3,
        kind: WeightKind::Weight,
    };
    (trace.unwrap(), (0..count).map(spec).collect())
}

fn planned(
    (trace, weights): &(Trace, Vec<WeightSpec>),
    packed: PackedResidents,
    capacity: u64,
) -> Plan {
    let model = DeviceModel { packed, ..model(0) };
    let residency = choose(&Request {
        kind: Default::default(),
        methods: &[trace.into()],
        weights,
        model: &model,
        capacity,
        link: None,
        times: &[],
    });
    residency.plan().unwrap().clone()
}

/// Nothing is kept beyond the room, nothing twice, and each kept byte is one that a pass does not copy.
#[test]
fn kept_bytes_lie_in_the_room_and_are_not_copied() {
    let (count, bytes) = (200, 6000);
    let program = program(count, bytes);
    let all = u64::from(count) * bytes;
    let mut last = u64::MAX;
    for percent in [15, 25, 40, 50, 60, 75, 90] {
        let capacity = all * percent / 100;
        let raw = planned(&program, PackedResidents::Off, capacity);
        let plan = planned(&program, PackedResidents::Auto, capacity);
        plan.view.check(PAGE).unwrap();
        assert!(plan.view.memory <= capacity, "{percent} %");
        assert!(raw.kept.is_empty());
        for (one, next) in plan.kept.iter().zip(plan.kept.iter().skip(1)) {
            assert!(one.at + one.bytes <= next.at && one.weight < next.weight);
        }
        assert!(plan
            .kept
            .iter()
            .all(|one| one.at + one.bytes <= plan.view.bytes));
        for copy in &plan.streamed {
            let kept = plan.kept.iter().find(|one| one.weight == copy.weight);
            let stored = bytes * 2 / 3;
            let kept = kept.map_or(0, |one| one.bytes);
            if copy.range.start == 0 {
                assert_eq!(copy.stored, stored - kept, "{percent} %");
            }
        }
        // What a pass takes never grows with the budget, and is never more than without.
        let takes = |plan: &Plan| plan.streamed.iter().map(|one| one.takes()).sum::<u64>();
        assert!(takes(&plan) <= takes(&raw), "{percent} %");
        assert!(takes(&plan) <= last, "{percent} %");
        last = takes(&plan);
    }
    let half = planned(&program, PackedResidents::Auto, all / 2);
    let raw = planned(&program, PackedResidents::Off, all / 2);
    assert!(half.copied(0) * 4 < raw.copied(0) * 3);
}

/// Near everything raw residents are better: little is decoded.
#[test]
fn raw_residents_are_taken_where_little_is_missing() {
    let program = program(40, 6000);
    let plan = planned(&program, PackedResidents::Auto, 40 * 6000 - 6000);
    assert!(plan.kept.is_empty());
    let asked = planned(&program, PackedResidents::On, 40 * 6000 - 6000);
    assert!(!asked.kept.is_empty());
}

#[test]
fn weights_that_are_not_packed_stay_raw() {
    let (trace, mut weights) = program(40, 6000);
    for (at, weight) in weights.iter_mut().enumerate() {
        // The last ones are read as the others are, and need not stream.
        if at >= 30 {
            weight.stored = weight.bytes;
        }
    }
    let program = (trace, weights);
    for capacity in [80_000, 120_000, 160_000] {
        let plan = planned(&program, PackedResidents::On, capacity);
        assert!(plan.kept.iter().all(|one| one.weight < 30), "{capacity}");
        let raw = planned(&program, PackedResidents::Off, capacity);
        let auto = planned(&program, PackedResidents::Auto, capacity);
        assert!(auto.copied(0) <= raw.copied(0), "{capacity}");
    }
}
