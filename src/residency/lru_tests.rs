use super::*;
use crate::schedule::Event::{Kernel, Probe, Release};
use crate::schedule::WeightKind;

/// `reads` name weights; each read is a lease over one kernel.
fn policy(sizes: &[u64], reads: &[u32], capacity: u64) -> Lru {
    policy_of(sizes, reads, capacity, &[])
}

/// The same, with weights that never stay.
fn policy_of(sizes: &[u64], reads: &[u32], capacity: u64, streamed: &[usize]) -> Lru {
    let spec = |&bytes| WeightSpec {
        fqn: String::new(),
        bytes,
        stored: bytes,
        kind: WeightKind::Weight,
    };
    let mut specs: Vec<_> = sizes.iter().map(spec).collect();
    for &weight in streamed {
        specs[weight].kind = WeightKind::Streamed;
    }
    let events = (0..reads.len() as u32).flat_map(|id| [Probe(id), Kernel(id), Release(id)]);
    let trace = Trace::new(events.collect(), reads.to_vec(), sizes.len()).unwrap();
    Lru::new(&trace, &specs, 64, capacity)
}

fn evict(weight: u32) -> Action {
    Action::Evict { weight }
}

fn load(weight: u32, bytes: u64, ahead: bool) -> Action {
    Action::Load {
        weight,
        range: 0..bytes,
        window: 0,
        ahead,
    }
}

/// What a demand, and then the lookahead after it, plan.
fn probe(lru: &mut Lru, id: u32) -> (Result<Served>, Vec<Action>, Vec<Action>) {
    let (mut now, mut later) = (vec![], vec![]);
    let served = lru.demand(id, &mut now);
    if served.is_ok() {
        lru.lease(id);
        lru.ahead(&mut later);
    }
    lru.validate().unwrap();
    (served, now, later)
}

fn release(lru: &mut Lru, id: u32) -> (Option<u32>, Vec<Action>) {
    let mut later = vec![];
    let weight = lru.release(id);
    lru.ahead(&mut later);
    lru.validate().unwrap();
    (weight, later)
}

#[test]
fn looks_ahead_as_deep_as_the_budget_allows() {
    let mut lru = policy(&[64, 60, 64, 64], &[0, 1, 2, 3], 192);
    let (served, now, later) = probe(&mut lru, 0);
    assert_eq!((served, now), (Ok(Served::Miss), vec![load(0, 64, false)]));
    assert_eq!(later, [load(1, 60, true), load(2, 64, true)]);
    // The lease's end makes room for one more; around the end of the pass nothing is free.
    assert_eq!(
        release(&mut lru, 0),
        (Some(0), vec![evict(0), load(3, 64, true)])
    );
    assert_eq!(probe(&mut lru, 1), (Ok(Served::Hit), vec![], vec![]));
    assert_eq!(
        release(&mut lru, 1),
        (Some(1), vec![evict(1), load(0, 64, true)])
    );
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut lru = policy(&[64, 64, 64, 192], &[0, 1, 2, 1, 3], 192);
    let mut planned = vec![];
    for id in 0..4 {
        probe(&mut lru, id).0.unwrap();
        planned = release(&mut lru, id).1;
    }
    // 1 was read again after 2.
    assert_eq!(planned, [evict(0), evict(2), evict(1), load(3, 192, true)]);
}

#[test]
fn nothing_is_evicted_in_vain() {
    let mut lru = policy(&[64, 64, 192], &[0, 1, 2], 192);
    probe(&mut lru, 0).0.unwrap();
    release(&mut lru, 0);
    // 2 does not fit beside the lease of 1: 0 must stay.
    assert_eq!(probe(&mut lru, 1).2, []);
    assert!(lru.weights[0].present);
}

/// Fails without `leases == 0` in `Weight::idle`.
#[test]
fn a_leased_weight_is_never_evicted() {
    let mut lru = policy(&[64, 64, 64], &[0, 1, 2], 128);
    probe(&mut lru, 0).0.unwrap();
    probe(&mut lru, 1).0.unwrap();
    let (served, now, _) = probe(&mut lru, 2);
    assert!(
        matches!(served, Err(Error::OutOfMemory { bytes: 64, .. })),
        "{served:?}"
    );
    assert_eq!(now, []);
}

/// Fails without `claims == 0` in `Weight::idle`.
#[test]
fn a_claimed_weight_is_never_evicted() {
    let mut lru = policy(&[64, 64, 64], &[0, 1, 2], 128);
    assert_eq!(probe(&mut lru, 0).2, [load(1, 64, true)]);
    // Room for 2 comes from 0, not from 1, which is older but wanted.
    assert_eq!(release(&mut lru, 0).1, [evict(0), load(2, 64, true)]);
    assert_eq!(probe(&mut lru, 1).0, Ok(Served::Hit));
}

#[test]
fn a_weight_leased_twice_counts_once_and_ends_once() {
    let mut lru = policy(&[64, 640], &[0, 0, 1], 64);
    probe(&mut lru, 0).0.unwrap();
    assert_eq!(probe(&mut lru, 1).0, Ok(Served::Hit));
    assert_eq!(release(&mut lru, 0).0, None);
    assert_eq!(release(&mut lru, 1).0, Some(0));
    assert_eq!(lru.used, 64);
}

#[test]
fn weights_without_bytes_never_move() {
    let mut lru = policy(&[0, 64], &[0, 1, 0], 64);
    assert_eq!(
        probe(&mut lru, 0),
        (Ok(Served::Hit), vec![], vec![load(1, 64, true)])
    );
    assert_eq!(release(&mut lru, 0).0, None);
}

#[test]
fn an_aborted_pass_gives_back_its_claims() {
    let mut lru = policy(&[64, 64, 64], &[0, 1, 2], 192);
    probe(&mut lru, 0).0.unwrap();
    lru.abort();
    lru.validate().unwrap();
    assert_eq!(lru.idle.iter().collect::<Vec<_>>(), [2, 1]);
    release(&mut lru, 0);
    assert_eq!(probe(&mut lru, 0), (Ok(Served::Hit), vec![], vec![]));
}

#[test]
fn failures_are_taken_back() {
    let mut lru = policy(&[64, 64, 64, 64], &[0, 1, 2, 3], 128);
    probe(&mut lru, 0).0.unwrap();
    lru.release(0);
    let mut plan = vec![];
    lru.ahead(&mut plan);
    assert_eq!(plan, [evict(0), load(2, 64, true)]);
    lru.load_failed(2);
    lru.evict_failed(0);
    lru.validate().unwrap();
    assert!(lru.weights[0].present && lru.weights[1].present && !lru.weights[2].present);
    assert_eq!(probe(&mut lru, 1).0, Ok(Served::Hit));
}

/// An eviction that was not carried out, since the load in front of it was not either, is no use of the weight.
#[test]
fn evictions_that_are_taken_back_leave_the_list_in_order() {
    let mut lru = policy(&[64, 64, 64, 64, 64, 64], &[0, 1, 2, 3, 4, 5], 256);
    for id in 0..3 {
        probe(&mut lru, id).0.unwrap();
    }
    for id in 0..3 {
        lru.release(id);
    }
    let before: Vec<_> = lru.idle.iter().collect();
    assert_eq!(before, [0, 1, 2]);
    let mut plan = vec![];
    lru.ahead(&mut plan);
    let planned = [evict(0), load(4, 64, true), evict(1), load(5, 64, true)];
    assert_eq!(plan[..4], planned);
    for undone in plan.into_iter().rev() {
        match undone {
            Action::Evict { weight } => lru.evict_failed(weight),
            Action::Load { weight, .. } => lru.load_failed(weight),
        }
    }
    lru.validate().unwrap();
    assert_eq!(lru.idle.iter().collect::<Vec<_>>(), before);
}

/// All fits, and weight 1 is copied for each pass: once its last lease is over it goes, and comes again for the next pass.
#[test]
fn what_never_stays_comes_again_for_the_next_pass() {
    let mut lru = policy_of(&[64; 3], &[0, 1, 2], 192, &[1]);
    let (_, _, later) = probe(&mut lru, 0);
    assert_eq!(later, [load(1, 64, true), load(2, 64, true)]);
    assert_eq!(release(&mut lru, 0), (Some(0), vec![]));
    assert_eq!(probe(&mut lru, 1), (Ok(Served::Hit), vec![], vec![]));
    let again = vec![evict(1), load(1, 64, true)];
    assert_eq!(release(&mut lru, 1), (Some(1), again));
    assert_eq!(probe(&mut lru, 2), (Ok(Served::Hit), vec![], vec![]));
    assert_eq!(release(&mut lru, 2), (Some(2), vec![]));
    for id in [0, 1] {
        assert_eq!(probe(&mut lru, id), (Ok(Served::Hit), vec![], vec![]));
    }
}

/// Two reads in a pass: the window may not claim one of the next pass on the copy of this one.
#[test]
fn a_window_ends_where_another_copy_is_needed() {
    let mut lru = policy_of(&[64; 2], &[0, 1, 0, 1], 128, &[0]);
    let (_, _, later) = probe(&mut lru, 0);
    assert_eq!(later, [load(1, 64, true)]);
    release(&mut lru, 0);
    probe(&mut lru, 1).0.unwrap();
    release(&mut lru, 1);
    // The first read of the next pass is within reach, and the copy is still to be read in this one.
    assert_eq!(probe(&mut lru, 2), (Ok(Served::Hit), vec![], vec![]));
    assert_eq!(
        release(&mut lru, 2),
        (Some(0), vec![evict(0), load(0, 64, true)])
    );
}

/// What never stays is the first to make room, once its last lease is over.
#[test]
fn what_never_stays_goes_first() {
    let mut lru = policy_of(&[64; 3], &[0, 1, 2], 192, &[1]);
    let mut actions = vec![];
    for id in [0, 1] {
        lru.demand(id, &mut actions).unwrap();
        lru.lease(id);
        lru.release(id);
    }
    actions.clear();
    assert!(lru.make_room(&mut actions));
    assert_eq!(actions, [evict(1)]);
}
