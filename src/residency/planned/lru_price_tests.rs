use super::super::test_support::{chain, programs, weights, PAGE};
use super::*;
use proptest::prelude::*;
use Event::{Kernel, Probe, Release};

const GRANULE: u64 = 64;

fn bound(sizes: &[u64], events: &[Event], reads: &[u32], capacity: u64) -> u64 {
    let weights = weights(sizes);
    let trace = Trace::new(events.to_vec(), reads.to_vec(), weights.len()).unwrap();
    lru_copies_at_least(&trace, &weights, GRANULE, capacity)
}

fn one_by_one(reads: u32) -> Vec<Event> {
    let read = |id| [Probe(id), Kernel(id), Release(id)];
    (0..reads).flat_map(read).collect()
}

#[test]
fn a_cycle_that_does_not_fit_is_copied_as_a_whole() {
    // Ten bytes occupy a granule.
    let (sizes, events) = ([64, 128, 10, 64], one_by_one(4));
    let reads = [0, 1, 2, 3];
    assert_eq!(bound(&sizes, &events, &reads, 319), 266);
    assert_eq!(bound(&sizes, &events, &reads, 320), 0);
    let trace = chain(&reads, 4);
    let price = |capacity| lru_price(&trace, &weights(&sizes), GRANULE, capacity).unwrap();
    assert_eq!((price(319).bytes, price(319).copies), (266, 4));
    assert_eq!(price(320), Price::default());
}

#[test]
fn a_weight_that_is_read_again_soon_may_still_be_there() {
    let (sizes, events) = ([64; 4], one_by_one(5));
    // Weight 0 comes back after one other, then after two; the others after all.
    let reads = [0, 1, 0, 2, 3];
    assert_eq!(bound(&sizes, &events, &reads, 256), 0);
    assert_eq!(bound(&sizes, &events, &reads, 255), 64 * 3);
    assert_eq!(bound(&sizes, &events, &reads, 191), 64 * 4);
    assert_eq!(bound(&sizes, &events, &reads, 127), 64 * 5);
}

#[test]
fn what_is_read_during_a_lease_does_not_count_and_neither_does_a_leased_weight() {
    let events = [
        Probe(0),
        Probe(1),
        Kernel(0),
        Release(1),
        Probe(2),
        Kernel(1),
        Release(2),
        Release(0),
        Probe(3),
        Kernel(2),
        Release(3),
    ];
    // Weight 0 is leased over the reads of 1 and, again, 0. From the lease's end on only 2 is read until it comes again.
    let (sizes, reads) = ([64; 3], [0, 1, 0, 2]);
    assert_eq!(bound(&sizes, &events, &reads, 128), 128);
    assert_eq!(bound(&sizes, &events, &reads, 127), 192);
}

#[test]
fn what_cannot_be_there_at_one_time_has_no_price() {
    let events = (0..3).map(Probe).chain([Kernel(0)]).collect();
    let trace = Trace::new(events, (0..3).collect(), 3).unwrap();
    let weights = weights(&[64; 3]);
    assert_eq!(lru_price(&trace, &weights, GRANULE, 128), None);
    assert_eq!(
        lru_price(&trace, &weights, GRANULE, 192),
        Some(Price::default())
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_lru_cannot_help_copying_its_bound((weights, trace) in programs(), share in 0..1000u64) {
        let everything: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        let capacity = everything * share / 1000;
        if let Some(lru) = lru_price(&trace, &weights, GRANULE, capacity) {
            let bound = lru_copies_at_least(&trace, &weights, GRANULE, capacity);
            prop_assert!(lru.bytes >= bound, "{lru:?}, {bound}");
        }
    }
}
