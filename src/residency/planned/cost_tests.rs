use super::super::plan::Streamed;
use super::super::test_support::in_turn;
use super::*;
use crate::figures::View;
use proptest::prelude::*;

/// A byte takes a nanosecond, and a copy none of its own.
const LINK: Link = Link {
    bytes_per_second: 1_000_000_000,
    ns_per_copy: 0,
};

/// Weights of 640 bytes, each copied once, for reads in turn: through so many slots.
fn ring(count: u32, slots: u32) -> Plan {
    let copy = |weight: u32| Streamed {
        weight,
        method: 0,
        range: 0..640,
        stored: 640,
        slot: weight % slots,
        window: weight,
        probes: vec![weight],
        always: false,
    };
    Plan {
        kept: Vec::new(),
        view: View::default(),
        windows: Vec::new(),
        slots: Vec::new(),
        resident: Vec::new(),
        streamed: (0..count).map(copy).collect(),
        ahead: slots as usize - 1,
        price: Price::default(),
    }
}

/// Of reads in turn: of the kernels that read, and of those after them that read nothing.
fn kernels(each: &[(u64, u64)]) -> Vec<u64> {
    let each = each.iter().flat_map(|&(reads, idle)| [reads, 0, idle]);
    each.collect()
}

fn takes(plan: &Plan, trace: &Trace, kernels: &[u64], link: Link) -> Expected {
    expected(plan, &[trace.into()], &[Clocks { kernels, link }])
}

#[test]
fn without_kernels_a_pass_takes_its_copies() {
    let found = takes(&ring(6, 2), &in_turn(6), &[0; 18], LINK);
    assert_eq!((found.pass, found.kernels, found.copies), (3840, 0, 3840));
    let each = Link {
        ns_per_copy: 10,
        ..LINK
    };
    assert_eq!(takes(&ring(6, 2), &in_turn(6), &[0; 18], each).pass, 3900);
}

#[test]
fn copies_beside_longer_kernels_take_no_time() {
    let found = takes(&ring(6, 2), &in_turn(6), &kernels(&[(1000, 0); 6]), LINK);
    // A slot is free only when the kernel that reads it has ended: each second kernel's copy runs beside the first.
    assert_eq!((found.pass, found.waits()), (6000, 0));
}

#[test]
fn a_full_ring_waits_for_the_kernel_that_reads_it() {
    // Six copies take 3840; the kernels after read 0 and read 3 take 2000 each, in which two slots take 1280.
    let times = kernels(&[(0, 2000), (0, 0), (0, 0), (0, 2000), (0, 0), (0, 0)]);
    let found = takes(&ring(6, 2), &in_turn(6), &times, LINK);
    // After each pause two copies are there; the third begins when the first of them is read, at the pause's end.
    assert_eq!(found.pass, 2 * (2000 + 640));
    // With a third slot three copies run in a pause, and everything is there after it.
    assert_eq!(takes(&ring(6, 3), &in_turn(6), &times, LINK).pass, 4000);
    assert_eq!(
        found.to_string(),
        "0.01 ms: kernels 0.00 ms, copies 0.00 ms; kernels wait for 0.00 ms"
    );
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
    let found = takes(&ring(2, 2), &trace, &[100, 0, 100, 0], LINK);
    // Nothing can be copied again before both kernels have ended.
    assert_eq!(found.pass, 640 + 640 + 100);
}

/// Of two methods each is played by its own copies, where its passes follow each other.
#[test]
fn of_several_methods_it_is_the_mean_by_their_shares() {
    let one = |method| {
        let mut plan = ring(6, 2);
        plan.streamed
            .iter_mut()
            .for_each(|copy| copy.method = method);
        plan
    };
    let mut both = one(0);
    both.streamed.extend(one(1).streamed);
    let trace = in_turn(6);
    let times = [kernels(&[(1000, 0); 6]), vec![0; 18]];
    let clocks = |kernels| Clocks {
        kernels,
        link: LINK,
    };
    let apart = |at: usize| takes(&one(0), &trace, &times[at], LINK);
    let shares = [3, 1].map(|share| MethodTrace {
        trace: &trace,
        share,
    });
    let found = expected(&both, &shares, &[clocks(&times[0]), clocks(&times[1])]);
    let mean = |of: fn(&Expected) -> u64| (3 * of(&apart(0)) + of(&apart(1))) / 4;
    assert_eq!(found.pass, mean(|one| one.pass));
    assert_eq!(found.kernels, mean(|one| one.kernels));
    assert_eq!(found.copies, mean(|one| one.copies));
}

/// A weight has one place at a time: its next copy waits for the readers of the one before, whatever slot it goes to.
#[test]
fn a_weights_next_copy_waits_for_its_readers() {
    let mut plan = ring(4, 4);
    for copy in &mut plan.streamed {
        copy.weight %= 2;
    }
    let times = kernels(&[(1000, 0); 4]);
    let apart = takes(&ring(4, 4), &in_turn(4), &times, LINK);
    let again = takes(&plan, &in_turn(4), &times, LINK);
    assert_eq!(apart.pass, 4000);
    assert_eq!(again.pass, 4000);
    let times = kernels(&[(3000, 0), (0, 0), (0, 0), (0, 0)]);
    assert_eq!(
        takes(&ring(4, 4), &in_turn(4), &times, LINK).pass,
        3000 + 640
    );
    // Weight 0 is read while its second copy could have been made.
    assert!(takes(&plan, &in_turn(4), &times, LINK).pass > 3000 + 640);
}

proptest! {
    /// An oracle of its own, of equal weights in a ring of `ahead + 1` slots: copy `n` begins when copy `n - 1` has ended and
    /// read `n - slots` too.
    #[test]
    fn a_ring_of_slots_is_a_recurrence(ahead in 1..4usize, rounds in 2..5usize, times in prop::collection::vec((0..900u64, 0..3000u64), 20)) {
        let count = (ahead + 1) * rounds;
        let times = &times[..count];
        let found = takes(&ring(count as u32, ahead as u32 + 1), &in_turn(count), &kernels(times), LINK);
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
