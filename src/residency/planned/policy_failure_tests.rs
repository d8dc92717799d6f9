//! What a policy knows after an abort, or an action that did not happen.

use super::*;

#[test]
fn after_an_abort_the_next_pass_starts_afresh() {
    let mut bed = Bed::new(&FOUR);
    bed.pass();
    bed.read();
    bed.probe(None).unwrap();
    bed.abort();
    // The lease of that pass is still open: its weight stays, and nobody waits for reads that do not come.
    let leased = bed.weight(bed.open[0]);
    bed.ahead(None);
    assert!(bed.there[leased as usize].is_some());
    bed.release_all();
    let (loads, _) = bed.pass();
    assert!(loads <= 5, "{loads}");
    let state = bed.policy.fingerprint();
    assert_eq!(bed.pass(), (4, 0));
    assert_eq!(bed.policy.fingerprint(), state);
}

#[test]
fn an_eviction_before_a_failed_load_is_taken_back() {
    let mut bed = Bed::new(&FOUR);
    bed.probe(None).unwrap();
    bed.ahead(None);
    bed.release(0);
    // The eviction itself fails, and the load that needs it with it.
    assert_eq!(bed.ahead(Some(0)), [evict(0), load(2, true)]);
    assert!(bed.there[0].is_some() && bed.there[2].is_none());
    // Until a lease ends nothing is different.
    assert_eq!(bed.ahead(None), []);
    bed.probe(None).unwrap();
    bed.release(0);
    assert_eq!(bed.ahead(None)[..2], [evict(0), load(2, true)]);
    assert_eq!(bed.probe(None), Ok(Served::Hit));
}

#[test]
fn a_failed_load_is_planned_again() {
    let mut bed = Bed::new(&FOUR);
    bed.probe(None).unwrap();
    bed.ahead(None);
    bed.release(0);
    // The eviction has happened; the load has not.
    bed.ahead(Some(1));
    assert!(bed.there[0].is_none() && bed.there[2].is_none());
    bed.probe(None).unwrap();
    bed.release(0);
    let asked = bed.ahead(None);
    assert_eq!(asked, [load(2, true), evict(1), load(3, true)]);
    bed.read();
    bed.read();
    assert_eq!(bed.pass(), (4, 0));
}

/// The copy of one weight moves to another slot, and both the eviction and the load fail.
#[test]
fn a_weight_whose_move_failed_is_where_it_was() {
    let mut bed = Bed::new(&[
        (0, 0, 1),
        (1, 1, 1),
        (0, 2, 1),
        (2, 0, 1),
        (3, 1, 1),
        (4, 2, 1),
    ]);
    bed.read();
    bed.abort();
    bed.release_all();
    let at = bed.policy.of_weight[0];
    bed.probe(None).unwrap();
    bed.release_all();
    let asked = bed.ahead(Some(0));
    assert!(asked.len() >= 2, "{asked:?}");
    assert_eq!(bed.policy.of_weight[0], at.min(bed.policy.of_weight[0]));
    bed.abort();
    bed.pass();
    assert_eq!(bed.pass().1, 0);
}

/// Copies that were there needed no load; when one before them fails they are claimed again in their turn.
#[test]
fn claims_after_a_failed_load_are_given_back() {
    let mut bed = Bed::new(&FOUR);
    bed.read();
    bed.abort();
    // The first copy is gone, and the second one is there.
    bed.policy.make_room(&mut bed.actions);
    bed.carry_out(None);
    assert!(bed.there.iter().filter(|one| one.is_some()).count() >= 1);
    let there = bed.there.clone();
    bed.ahead(Some(0));
    assert_eq!(bed.there, there);
    bed.pass();
    assert_eq!(bed.pass(), (4, 0));
}
