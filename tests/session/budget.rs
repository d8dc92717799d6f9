//! The budget of a loaded store changes between passes: no kernel reads a wrong byte, the cap holds, what stays is kept, and a
//! graph of another plan is never replayed.

use crate::session_support::code::programs;
use crate::session_support::draw::{Draw, Seeded};
use crate::session_support::{chain, play, Kernels, Model, Pass};
use weightstream::config::PolicyKind;
use weightstream::device::sim::{Order, SimFault};
use weightstream::device::{HostDevice, Sim};
use weightstream::session::Session;
use weightstream::Error;

use std::sync::atomic::Ordering;

use proptest::prelude::*;

/// Weights of whole pages on both devices.
const SIZE: u64 = 64 << 10;
/// A unit of the host's pages: what stays moves as it is.
const UNIT: u64 = 1 << 20;

fn everything(model: &Model) -> u64 {
    let floor = model.floor();
    floor.direct + floor.everything
}

fn planned<D: Kernels>(model: &Model, device: D, budget: u64) -> Session<D> {
    model
        .session_by(PolicyKind::Planned, device, Some(budget))
        .unwrap()
}

fn host(model: &Model, budget: u64) -> Session<HostDevice> {
    planned(model, HostDevice::new().unwrap(), budget)
}

/// Bytes that a pass copies.
fn pass<D: Kernels>(model: &Model, session: &mut Session<D>) -> u64 {
    play(model, session, Pass::Complete).unwrap();
    session.stats().bytes_copied_last_pass
}

/// Bytes that a change of the budget copies.
fn change<D: Kernels>(session: &mut Session<D>, budget: u64) -> u64 {
    let before = session.stats().bytes_copied;
    session.set_budget(budget).unwrap();
    session.validate().unwrap();
    session.stats().bytes_copied - before
}

#[test]
fn a_pass_at_another_budget_is_that_of_a_fresh_load() {
    let model = chain(&[UNIT; 20]);
    let all = everything(&model);
    let mut session = host(&model, all);
    pass(&model, &mut session);
    for percent in [30, 75, 20, 90, 100, 50, 100] {
        let budget = all * percent / 100;
        let copied = change(&mut session, budget);
        pass(&model, &mut session);
        let steady = pass(&model, &mut session);
        let mut fresh = host(&model, budget);
        pass(&model, &mut fresh);
        assert_eq!(steady, pass(&model, &mut fresh), "{percent} %");
        let stats = session.stats();
        assert_eq!(stats.budget_bytes, budget);
        assert!(stats.peak_bytes <= budget);
        assert!(session.device().live_bytes() <= budget + 4096);
        // From a load in one block to pages nothing can be kept.
        if stats.budget_changes > 1 {
            let resident = session.store().residency().layout.bytes();
            assert!(copied < resident, "{percent} %: {copied} of {resident}");
        }
    }
}

/// Growing costs what is added, and shrinking next to nothing.
#[test]
fn what_stays_is_not_copied_again() {
    let model = chain(&[UNIT; 20]);
    let all = everything(&model);
    let mut session = host(&model, all / 2);
    for (percent, most) in [(60, 15), (80, 25), (40, 10), (60, 30), (100, 50), (60, 5)] {
        let copied = change(&mut session, all * percent / 100);
        assert!(
            copied <= all * most / 100,
            "to {percent} %: {copied} of {all}"
        );
        pass(&model, &mut session);
    }
}

/// Loaded with everything resident, the table of which rows are looked up is a weight like all others. Below that it is read in
/// place, as after a load with that budget.
#[test]
fn a_table_is_read_in_place_once_the_budget_covers_it_no_more() {
    let mut model = chain(&[UNIT; 20]);
    model.method.gather = vec![2];
    let all = everything(&chain(&[UNIT; 20]));
    let mut session = host(&model, all);
    pass(&model, &mut session);
    assert_eq!(session.stats().gathered_bytes, 0);
    let least = session.least_budget().unwrap();
    assert!(session.set_budget(least - 1).is_err());
    assert_eq!(session.stats().gathered_bytes, 0);
    for percent in [90, 50, 80] {
        change(&mut session, all * percent / 100);
        pass(&model, &mut session);
        let steady = pass(&model, &mut session);
        let mut fresh = host(&model, all * percent / 100);
        pass(&model, &mut fresh);
        assert_eq!(steady, pass(&model, &mut fresh), "{percent} %");
        assert_eq!(session.stats().gathered_bytes, UNIT);
    }
    change(&mut session, all);
    pass(&model, &mut session);
    assert_eq!(pass(&model, &mut session), 0);
    let mut other = host(&model, all / 2);
    assert_eq!(other.least_budget().unwrap(), least);
    pass(&model, &mut other);
}

#[test]
fn too_small_a_budget_names_the_least_one_and_changes_nothing() {
    let model = chain(&[UNIT; 20]);
    let all = everything(&model);
    let mut session = host(&model, all / 2);
    pass(&model, &mut session);
    let steady = pass(&model, &mut session);
    let least = session.least_budget().unwrap();
    for budget in [0, 1, least - 1] {
        match session.set_budget(budget) {
            Err(Error::BudgetTooSmall {
                budget: named,
                floor,
                ..
            }) => {
                assert_eq!((named, floor), (budget, least));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(session.stats().budget_bytes, all / 2);
        assert_eq!(pass(&model, &mut session), steady);
    }
    session.set_budget(least).unwrap();
    pass(&model, &mut session);
    assert_eq!(session.stats().budget_changes, 1);
}

#[test]
fn only_plans_change_their_budget() {
    let model = chain(&[SIZE; 20]);
    let half = everything(&model) / 2;
    let refused = |mut session: Session<Sim>, word: &str| {
        let error = session.set_budget(half / 2 * 3).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert!(error.to_string().contains(word), "{error}");
        play(&model, &mut session, Pass::Complete).unwrap();
    };
    refused(model.sim(Order::CopiesFirst, Some(half)), "'lru'");
    let mut sim = Sim::new(Order::CopiesFirst);
    sim.set_page(None);
    refused(planned(&model, sim, half), "'sim' maps no memory");
}

#[test]
fn in_the_middle_of_a_pass_it_is_an_error() {
    let model = chain(&[UNIT; 4]);
    let all = everything(&model);
    let mut session = host(&model, all);
    session.begin_pass().unwrap();
    assert!(session.set_budget(all / 4 * 3).is_err());
    session.end_pass(false).unwrap();
    session.set_budget(all / 4 * 3).unwrap();
    pass(&model, &mut session);
}

/// A random sequence of passes and budgets.
fn walk(model: &Model, mut sim: Sim, seed: u64) -> Session<Sim> {
    let mut draw = Seeded(seed);
    let (floor, all) = (model.floor().bytes(), everything(model));
    let budget = |draw: &mut Seeded| floor + draw.below(all + 1 - floor.min(all));
    sim.set_page(Some([64, 256, 1024][draw.below(3) as usize]));
    let first = budget(&mut draw);
    let mut session = planned(model, sim, first);
    let events = model.method.trace.events().len();
    for _ in 0..10 {
        match draw.below(4) {
            0 => {
                let wanted = budget(&mut draw);
                match session.set_budget(wanted) {
                    Ok(()) => assert_eq!(session.stats().budget_bytes, wanted),
                    Err(Error::BudgetTooSmall { floor: least, .. }) => assert!(least > wanted),
                    // The LRU was taken at load.
                    Err(Error::Unsupported(_)) => assert_eq!(session.policy(), "lru"),
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            1 => {
                let at = draw.below(events as u64 + 1) as usize;
                // A lease that a divergence left is ended by the pass.
                play(model, &mut session, Pass::AbortAt(at)).unwrap();
            }
            2 => {
                let weights = session.store().constants().specs.len() as u64;
                match session.copy_again(&[draw.below(weights) as u32]) {
                    Ok(()) => {}
                    Err(Error::Unsupported(_)) => assert_eq!(session.policy(), "lru"),
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            _ => play(model, &mut session, Pass::CompleteIn(draw.next())).unwrap(),
        }
        let stats = session.stats();
        assert!(stats.peak_bytes <= stats.budget_bytes, "seed {seed}");
        assert!(
            session.device().live_bytes() <= stats.budget_bytes + 1024,
            "seed {seed}"
        );
        session.validate().unwrap();
    }
    session
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_programs_keep_their_bytes_under_changing_budgets(
        model in programs(),
        order in prop_oneof![Just(Order::CopiesFirst), Just(Order::KernelsFirst), any::<u64>().prop_map(Order::Random)],
        seed in any::<u64>(),
    ) {
        let mut model = model;
        let reads = 0..model.method.trace.probes().len() as u32;
        // Some are of tables of which rows are looked up.
        model.method.gather = reads.filter(|id| seed >> (id % 64) & 3 == 3).collect();
        let mut session = walk(&model, Sim::in_one_block(order), seed);
        session.device_mut().check();
    }
}

/// Whatever call fails on the way, later passes are right or refused.
#[test]
fn a_change_that_fails_leaves_the_store_right_or_poisoned() {
    let odd = [1000, 3000, 700, 5000, 2300, 4100, 900, 2600, 64, 3333];
    let (mut kept, mut poisoned) = (0, 0);
    for model in [chain(&[SIZE; 6]), chain(&odd)] {
        let (least, all) = (model.floor().bytes(), everything(&model));
        let at = |percent: u64| least + (all - least) * percent / 100;
        for (from, to) in [(20, 70), (70, 20), (0, 100), (100, 30)] {
            for call in [
                None,
                Some("bring"),
                Some("create"),
                Some("release"),
                Some("copy_across"),
            ] {
                for after in 0..30 {
                    let mut sim = Sim::new(Order::Random(after));
                    sim.set_page(Some(SIZE / 64));
                    let mut session = planned(&model, sim, at(from));
                    session.set_budget(at(from) + 64).unwrap();
                    play(&model, &mut session, Pass::Complete).unwrap();
                    session.device_mut().fail(SimFault {
                        call,
                        after,
                        lost: false,
                    });
                    match fails_or_changes(&model, &mut session, at(to)) {
                        true => kept += 1,
                        false => poisoned += 1,
                    }
                }
            }
        }
    }
    assert!(kept > 0, "{kept} kept, {poisoned} poisoned");
}

/// Whether passes are right after a change of the budget that may fail; otherwise they are refused.
fn fails_or_changes(model: &Model, session: &mut Session<Sim>, budget: u64) -> bool {
    let before = session.stats().budget_bytes;
    let changed = session.set_budget(budget);
    let fired = session.device().pending_fault().is_none();
    session.device_mut().fail(None);
    match changed {
        Ok(()) => assert!(!fired, "a call failed, and nobody said so"),
        Err(error) => {
            assert!(fired, "{error}");
            assert_eq!(session.stats().budget_bytes, before);
        }
    }
    let usable = match session.begin_pass() {
        Ok(()) => {
            session.end_pass(false).unwrap();
            play(model, session, Pass::Complete).unwrap();
            play(model, session, Pass::Complete).unwrap();
            true
        }
        Err(Error::Poisoned(_)) => false,
        Err(error) => panic!("{error}"),
    };
    session.device_mut().check();
    usable
}

/// Taken out: the question in `move_memory`. After a move that failed, its pages are not there, though its plan says so.
#[test]
fn pages_of_a_move_that_failed_are_loaded_again() {
    let model = chain(&[SIZE; 6]);
    let all = everything(&model);
    let mut session = planned(&model, Sim::new(Order::CopiesFirst), all / 2);
    session.set_budget(all).unwrap();
    let high = session.store().residency().clone();
    session.set_budget(all / 3 * 2).unwrap();
    play(&model, &mut session, Pass::Complete).unwrap();
    let low = session.store().residency().clone();
    let mut session = planned(&model, Sim::new(Order::CopiesFirst), all);
    session.use_residency(low).unwrap();
    session.device_mut().fail_call("bring", 0);
    assert!(session.use_residency(high.clone()).is_err());
    session.use_residency(high).unwrap();
    play(&model, &mut session, Pass::Complete).unwrap();
    session.device_mut().check();
}

/// What grows is copied while the next pass runs: each read waits for its own bytes only.
#[test]
fn a_pass_starts_before_all_that_stays_is_there() {
    let model = chain(&[SIZE; 20]);
    let all = everything(&model);
    let mut session = planned(&model, Sim::new(Order::KernelsFirst), all / 3);
    play(&model, &mut session, Pass::Complete).unwrap();
    session.device_mut().check();
    let events = session.device().live_events();
    session.set_budget(all / 3 * 2).unwrap();
    assert!(events.load(Ordering::Relaxed) > 0, "nothing is on its way");
    play(&model, &mut session, Pass::Complete).unwrap();
    session.device_mut().check();
}

/// Memory moves between passes only.
#[test]
fn no_pass_maps_allocates_or_waits_for_both_streams() {
    let model = chain(&[SIZE; 20]);
    let all = everything(&model);
    let mut session = planned(&model, Sim::new(Order::CopiesFirst), all / 2);
    for (round, call) in ["map", "create", "release", "alloc", "free", "synchronize"]
        .into_iter()
        .enumerate()
    {
        session.set_budget(all / 2 + round as u64 * SIZE).unwrap();
        session.device_mut().fail_call(call, 0);
        for _ in 0..2 {
            play(&model, &mut session, Pass::Complete).unwrap();
        }
        assert!(session.device().pending_fault().is_some(), "{call}");
        session.device_mut().fail(None);
    }
    session.device_mut().check();
}
