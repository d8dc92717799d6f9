use super::super::test_support::{chain, weights};
use super::*;
use Event::{Kernel, Probe};

const GRANULE: u64 = 64;

#[test]
fn a_cycle_that_does_not_fit_is_copied_as_a_whole() {
    // Ten bytes occupy a granule.
    let sizes = [64, 128, 10, 64];
    let trace = chain(&[0, 1, 2, 3], 4);
    let price = |capacity| lru_price(&trace, &weights(&sizes), GRANULE, capacity).unwrap();
    assert_eq!((price(319).bytes, price(319).copies), (266, 4));
    assert_eq!(price(320), Price::default());
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
