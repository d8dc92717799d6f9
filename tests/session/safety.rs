//! One test per safety rule. Each was seen to fail with its rule taken out of the code; the note says what
//! was taken out.

use crate::session_support::{chain, model, play, Kernels, Pass};
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::Sim;
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::session::Session;
use weightstream::store::StoreOptions;
use weightstream::Error;

/// Three kernels read one weight in turn while a long lease of another stays open over all of them, as an
/// embedding table's does.
fn long_lease() -> crate::session_support::Model {
    let mut events = vec![Probe(0), Kernel(0)];
    (1..6).for_each(|i| events.extend([Probe(i), Kernel(i), Release(i)]));
    events.extend([Release(0), Probe(6), Kernel(6), Release(6)]);
    model(&[640; 7], &[100], &[0, 1, 2, 3, 4, 5, 6], &events)
}

/// Taken out: `self.leases == 0` in `residency::lru::Weight::idle`.
#[test]
fn a_leased_weight_is_never_evicted() {
    let model = long_lease();
    for order in [Order::CopiesFirst, Order::KernelsFirst] {
        let mut session = model.sim(order, None);
        for _ in 0..3 {
            play(&model, &mut session, Pass::Complete).unwrap();
        }
        session.device_mut().check();
        assert!(session.stats().evictions > 0);
    }
}

/// Taken out: `self.claims == 0` in `residency::lru::Weight::idle`.
#[test]
fn a_claimed_weight_is_never_evicted() {
    let model = chain(&[640; 8]);
    let mut session = model.sim(Order::CopiesFirst, None);
    for _ in 0..3 {
        play(&model, &mut session, Pass::Complete).unwrap();
    }
    session.device_mut().check();
    // What is prefetched is there when it is read: only the very first probe of all has to wait.
    let stats = session.stats();
    assert_eq!((stats.misses, stats.hits), (1, 23));
}

/// Taken out: `compute_wait` in `Session::serve`.
#[test]
fn a_weight_in_flight_is_not_read_before_it_arrives() {
    let model = chain(&[640; 8]);
    let mut session = model.sim(Order::KernelsFirst, None);
    play(&model, &mut session, Pass::Complete).unwrap();
    session.device_mut().check();
}

/// Taken out: `copy_wait` in `Session::evict`.
#[test]
fn bytes_are_reused_behind_their_last_reader_only() {
    let model = chain(&[640; 8]);
    let mut session = model.sim(Order::CopiesFirst, None);
    play(&model, &mut session, Pass::Complete).unwrap();
    session.device_mut().check();
}

/// Taken out: the event recorded for leases that end when the pass is aborted.
#[test]
fn an_aborted_pass_leaves_its_readers_alone() {
    let model = chain(&[640; 8]);
    for at in 0..24 {
        let mut session = model.sim(Order::CopiesFirst, None);
        play(&model, &mut session, Pass::AbortAt(at)).unwrap();
        play(&model, &mut session, Pass::Complete).unwrap();
        session.device_mut().check();
    }
}

/// Taken out: the follower's check in `Session::serve`.
#[test]
fn a_wrong_probe_gets_no_address() {
    let model = chain(&[64, 128, 192]);
    let mut session = model.host(None);
    session.begin_pass().unwrap();
    session.probe(0).unwrap();
    session.release(0);
    let before = session.stats();
    let wrong = session.probe(2).unwrap_err();
    assert_eq!(
        wrong,
        Error::Divergence {
            position: 3,
            expected: "probe 1 ('Weight.1')".to_string(),
            found: "probe 2 ('Weight.2')".to_string(),
        }
    );
    assert_eq!(
        session.stats(),
        before,
        "something was decided for a probe that is wrong"
    );
    // Compiled code that ignores the error gets nothing else either, and the pass cannot succeed.
    assert_eq!(session.probe(1), Err(wrong.clone()));
    assert_eq!(session.end_pass(true), Err(wrong));
    for _ in 0..2 {
        play(&model, &mut session, Pass::Complete).unwrap();
    }
}

/// Two weights are returned, and whoever has them lets them go in any order. Taken out: telling the policy of both at
/// once, in access order (`end_tail`). Then what the next pass evicts first depends on it.
#[test]
fn the_order_in_which_returned_weights_are_let_go_decides_nothing() {
    let mut events: Vec<_> = (0..6)
        .flat_map(|i| [Probe(i), Kernel(i), Release(i)])
        .collect();
    events.extend([Probe(6), Probe(7)]);
    let model = model(&[640; 8], &[], &[0, 1, 2, 3, 4, 5, 6, 7], &events);
    let copies = |seeds: [u64; 4]| {
        let mut sim = Sim::new(Order::CopiesFirst);
        sim.keep_log();
        let mut session = model.session(sim, None).unwrap();
        for seed in seeds {
            play(&model, &mut session, Pass::CompleteIn(seed)).unwrap();
        }
        session.device_mut().check();
        let log = session.device_mut().take_log();
        let text: Vec<_> = log.iter().map(|issued| format!("{issued:?}")).collect();
        text
    };
    let first = copies([0; 4]);
    for seed in 1..20 {
        assert_eq!(copies([seed, seed + 1, seed + 2, seed + 3]), first);
    }
}

/// Taken out: the comparison of releases in `Follower::release`.
#[test]
fn a_release_out_of_order_is_reported_at_the_end_of_a_complete_pass() {
    let events = [
        Probe(0),
        Probe(1),
        Kernel(0),
        Release(1),
        Release(0),
        Probe(2),
        Kernel(1),
        Release(2),
    ];
    let model = model(&[64, 64, 64], &[], &[0, 1, 2], &events);
    let mut session = model.host(None);
    let mut run = |complete| {
        session.begin_pass().unwrap();
        session.probe(0).unwrap();
        session.probe(1).unwrap();
        session.release(0);
        session.release(1);
        session.probe(2).unwrap();
        session.release(2);
        session.end_pass(complete)
    };
    match run(true) {
        Err(Error::Divergence {
            position: 3,
            expected,
            found,
        }) => {
            assert_eq!(expected, "the release of probe 1 ('Weight.1')");
            assert_eq!(found, "the release of probe 0 ('Weight.0')");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(run(false), Ok(()));
    play(&model, &mut session, Pass::Complete).unwrap();
}

/// Taken out: `check_no_lease`.
#[test]
fn a_lease_that_outlives_its_pass_is_named() {
    let model = chain(&[64, 128]);
    let mut session = model.host(None);
    session.begin_pass().unwrap();
    session.probe(0).unwrap();
    session.release(0);
    session.probe(1).unwrap();
    let leak = |r| matches!(r, Err(Error::Internal(what)) if what.contains("probe 1 ('Weight.1')"));
    assert!(leak(session.end_pass(true)));
    assert!(
        leak(session.begin_pass()),
        "the weight might be evicted under its reader"
    );
    session.release(1);
    play(&model, &mut session, Pass::Complete).unwrap();
}

/// Taken out: poisoning in `keep_last_read`. Without the event nothing may be copied over the weight any
/// more, so the session has to stop, and say so from then on.
#[test]
fn a_lost_lease_end_poisons_the_session() {
    for lost in 0..8 {
        let model = chain(&[640; 8]);
        let mut session = model.sim(Order::CopiesFirst, None);
        session.device_mut().fail_call("record_compute", lost);
        let ended = play(&model, &mut session, Pass::Complete);
        assert!(ended.is_err(), "lost at {lost}");
        session.device_mut().check();
        session.end_pass(false).ok();
        let next = session.begin_pass();
        assert!(matches!(next, Err(Error::Poisoned(why)) if why.contains("'Weight.")));
    }
}

/// Taken out: `tenant.ready = None` behind the wait. Only a cost, but on the hot path.
#[test]
fn one_wait_per_copy_is_enough() {
    let events: Vec<_> = (0..6)
        .flat_map(|i| [Probe(i), Kernel(i), Release(i)])
        .collect();
    let model = model(&[64, 640, 640, 640, 640], &[], &[0, 0, 1, 2, 3, 4], &events);
    let mut session = model.sim(Order::KernelsFirst, None);
    session.begin_pass().unwrap();
    session.probe(0).unwrap();
    session.release(0);
    session.device_mut().fail_call("compute_wait", 0);
    session.probe(1).unwrap();
    assert!(
        session.device().pending_fault().is_some(),
        "waited again for a copy that was waited for"
    );
    session.release(1);
    session.end_pass(false).unwrap();
}

/// Taken out: the reverse order in which `carry_out` takes back what did not happen.
#[test]
fn a_failed_plan_is_taken_back_from_its_end() {
    // When the lease of 1 ends, 4 needs the room of 0 and of 1, and leaves enough for 0 to come back: one
    // plan evicts a weight and loads it again.
    let events: Vec<_> = (0..6)
        .flat_map(|i| [Probe(i), Kernel(i), Release(i)])
        .collect();
    let model = model(&[64, 128, 64, 64, 128], &[], &[0, 1, 2, 3, 4, 0], &events);
    for call in ["alloc", "free", "bring", "record_copy", "copy_wait"] {
        for after in 0..12 {
            let mut session = model.sim(Order::CopiesFirst, None);
            session.device_mut().fail_call(call, after);
            for _ in 0..3 {
                if play(&model, &mut session, Pass::Complete).is_err() {
                    (0..6).for_each(|id| session.release(id));
                    session.end_pass(false).ok();
                }
                session.validate().unwrap();
            }
            session.device_mut().fail(None);
            play(&model, &mut session, Pass::Complete).unwrap();
            session.device_mut().check();
        }
    }
}

/// Taken out: giving up more for a demand (`carry_out_demand`), or leaving a copy ahead to its read.
#[test]
fn a_pool_in_pieces_still_serves_every_read() {
    // Small and large weights in turn: what a large one leaves, small ones break up.
    let sizes = [64, 512, 64, 128, 512, 64, 320, 64, 512, 192];
    let probes: Vec<u32> = (0..sizes.len() as u32).collect();
    let events: Vec<_> = probes
        .iter()
        .flat_map(|&i| [Probe(i), Kernel(i), Release(i)])
        .collect();
    let model = model(&sizes, &[], &probes, &events);
    let mut fragmentation_misses = 0;
    for budget in (1600..2432).step_by(64) {
        let mut session = model.sim(Order::CopiesFirst, Some(budget));
        session.device_mut().limit_addresses(budget);
        for _ in 0..6 {
            play(&model, &mut session, Pass::Complete).unwrap();
            session.validate().unwrap();
        }
        assert!(session.stats().peak_bytes <= budget);
        session.device_mut().check();
        fragmentation_misses += session.store().fragmentation_misses();
    }
    assert!(
        fragmentation_misses > 0,
        "the pool was never in pieces: the test shows nothing"
    );
}

/// Taken out: the question for the pool in `undo`. A load that was not reached gives nothing up of a weight whose eviction
/// in front of it failed, and is taken back: the weight is still there.
#[test]
fn a_weight_whose_eviction_failed_is_there_whatever_was_planned_behind_it() {
    let model = chain(&[64, 192, 192]);
    let options = StoreOptions {
        budget: Some(256),
        policy: PolicyKind::Lru,
        times: None,
        ..StoreOptions::default()
    };
    let sim = Sim::new(Order::KernelsFirst);
    let session = Session::with_any_budget(sim, model.program(), model.host_bytes(), options);
    let mut session = session.unwrap();
    session.begin_pass().unwrap();
    for id in 0..2 {
        session.probe(id).unwrap();
        if id == 1 {
            // Both are evicted for the third one now, and there is room behind that to load the first one again.
            session.device_mut().fail_call("copy_wait", 0);
        }
        session.release(id);
    }
    assert_eq!(session.device().pending_fault(), None);
    session.validate().unwrap();
    session.end_pass(false).unwrap_err();
    session.validate().unwrap();
    assert_eq!(session.begin_pass(), Ok(()));
}
