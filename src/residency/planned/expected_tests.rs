use super::super::choice::plan_ahead;
use super::super::test_support::{chain, in_turn, weights};
use super::*;
use crate::figures::DeviceModel;
use proptest::prelude::*;

/// A byte takes a nanosecond, and a copy none of its own.
const LINK: Link = Link {
    bytes_per_second: 1_000_000_000,
    ns_per_copy: 0,
};

/// Of a chain: of the kernels that read, and of those behind them that read nothing.
fn kernels(each: &[(u64, u64)]) -> Vec<u64> {
    each.iter()
        .flat_map(|&(reads, idle)| [reads, 0, idle])
        .collect()
}

fn planned(sizes: &[u64], capacity: u64, ahead: usize) -> Plan {
    let figures = DeviceModel {
        apart: 0,
        granule: 64,
        page: None,
        bytes_per_copy: 64,
    };
    plan_ahead(
        &in_turn(sizes.len()),
        &weights(sizes),
        &figures,
        capacity,
        (false, ahead),
    )
    .unwrap()
}

/// Everything streams through two slots.
fn two_slots(count: usize) -> Plan {
    let plan = planned(&vec![640; count], 1280, 1);
    assert_eq!(plan.price.copies, count as u64);
    plan
}

#[test]
fn without_kernels_a_pass_takes_its_copies() {
    let found = expected(&two_slots(6), &in_turn(6), &[0; 18], LINK);
    assert_eq!((found.pass, found.kernels, found.copies), (3840, 0, 3840));
    let each = Link {
        ns_per_copy: 10,
        ..LINK
    };
    assert_eq!(
        expected(&two_slots(6), &in_turn(6), &[0; 18], each).pass,
        3900
    );
}

#[test]
fn copies_beside_longer_kernels_take_no_time() {
    let found = expected(&two_slots(6), &in_turn(6), &kernels(&[(1000, 0); 6]), LINK);
    // But a slot is free only when the kernel that reads it has ended: each second kernel's copy goes on beside the first.
    assert_eq!(found.pass, 6000);
    assert_eq!(found.waits(), 0);
}

#[test]
fn a_full_ring_waits_for_the_kernel_that_reads_it() {
    // Six copies take 3840; the kernels behind read 0 and read 3 take 2000 each, in which two slots take 1280.
    let times = kernels(&[(0, 2000), (0, 0), (0, 0), (0, 2000), (0, 0), (0, 0)]);
    let found = expected(&two_slots(6), &in_turn(6), &times, LINK);
    // Behind each pause two copies are there; the third begins when the first of them is read, at the pause's end.
    assert_eq!(found.pass, 2 * (2000 + 640));
    let plan = planned(&[640; 6], 3 * 640, 2);
    assert_eq!(plan.price.copies, 6);
    // With a third slot three copies go on in a pause, and everything is there behind it.
    assert_eq!(expected(&plan, &in_turn(6), &times, LINK).pass, 4000);
}

#[test]
fn a_lease_until_the_end_keeps_its_slot_until_then() {
    let events = vec![
        Event::Probe(0),
        Event::Kernel(0),
        Event::Probe(1),
        Event::Kernel(1),
    ];
    let trace = Trace::new(events, vec![0, 1], 2).unwrap();
    let streamed = |weight: u32| Streamed {
        weight,
        range: 0..640,
        kept: 0,
        offset: 640 * u64::from(weight),
        memory: std::iter::once(640 * u64::from(weight)..640 * u64::from(weight) + 640).collect(),
        probes: vec![weight],
    };
    let mut plan = two_slots(4);
    plan.streamed = vec![streamed(0), streamed(1)];
    let found = expected(&plan, &trace, &[100, 0, 100, 0], LINK);
    // Nothing can be copied again before both kernels have ended.
    assert_eq!(found.pass, 640 + 640 + 100);
}

/// Weight 0 is read twice, and others by the reads behind these; of its 640 bytes those below `kept` stay in between, and the
/// others share their memory with the other weights.
fn keeping(kept: u64) -> Plan {
    let streamed = |probe: u32, weight: u32, kept: u64, memory: Vec<Range<u64>>| Streamed {
        weight,
        range: 0..memory.iter().map(|piece| piece.end - piece.start).sum(),
        kept,
        offset: 0,
        memory,
        probes: vec![probe],
    };
    let first = |probe| streamed(probe, 0, kept, vec![0..320, 320..640]);
    let other = |probe, weight| streamed(probe, weight, 0, std::iter::once(kept..640).collect());
    let mut plan = two_slots(4);
    plan.streamed = vec![first(0), other(1, 1), first(2), other(3, 2)];
    plan
}

#[test]
fn what_is_taken_over_takes_no_time() {
    let trace = chain(&[0, 1, 0, 2], 3);
    let each = Link {
        ns_per_copy: 10,
        ..LINK
    };
    // Four copies of one piece.
    let found = expected(&keeping(320), &trace, &[0; 12], each);
    assert_eq!((found.pass, found.copies), (4 * 330, 4 * 330));
}

#[test]
fn what_is_there_as_a_whole_waits_for_nothing() {
    let mut plan = keeping(640);
    // The other two weights share theirs with each other only.
    for at in [1, 3] {
        plan.streamed[at].memory = std::iter::once(640..1280).collect();
        plan.streamed[at].range = 0..640;
    }
    let trace = chain(&[0, 1, 0, 2], 3);
    let found = expected(&plan, &trace, &[0; 12], LINK);
    assert_eq!((found.pass, found.copies), (1280, 1280));
    // Kernels that read what stays go on beside the copies.
    let times = kernels(&[(640, 0), (0, 0), (640, 0), (0, 0)]);
    assert_eq!(expected(&plan, &trace, &times, LINK).pass, 1280);
}

proptest! {
    /// An oracle of its own, on plans of equal weights in a ring of `ahead + 1` slots: copy `n` begins when copy `n - 1` has
    /// ended and read `n - slots` too.
    #[test]
    fn a_ring_of_slots_is_a_recurrence(ahead in 1..4usize, rounds in 2..5usize, times in prop::collection::vec((0..900u64, 0..3000u64), 20)) {
        let count = (ahead + 1) * rounds;
        let plan = planned(&vec![640; count], 640 * (ahead as u64 + 1), ahead);
        prop_assert_eq!(plan.price.copies, count as u64);
        let times = &times[..count];
        let found = expected(&plan, &in_turn(count), &kernels(times), LINK);
        let (mut copied, mut now, mut over, mut ends) = (0, 0, Vec::new(), vec![0]);
        for number in 0..PASSES * count {
            let free = number.checked_sub(ahead + 1).map_or(0, |before| over[before]);
            copied = free.max(copied) + 640;
            now = copied.max(now) + times[number % count].0;
            // The last lease ends with the pass.
            let last = number % count == count - 1;
            over.push(now + if last { times[number % count].1 } else { 0 });
            now += times[number % count].1;
            if last {
                ends.push(now);
            }
        }
        let passes: Vec<u64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let steady = passes.windows(2).find(|pair| pair[0] == pair[1]).map_or(passes[PASSES - 1], |pair| pair[0]);
        prop_assert_eq!(found.pass, steady);
        prop_assert!(found.pass >= found.kernels.max(found.copies));
    }
}
