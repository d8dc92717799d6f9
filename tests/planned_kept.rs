//! Plans whose copies take bytes over from the one before them of the same weight: the policy by hand and by chance, and
//! sessions that run by such plans.

mod kept_support;
mod session_support;

use kept_support::bed::{Bed, Said};
use kept_support::{copied, drawn, planned, Streams, PAGE};
use proptest::prelude::*;
use session_support::draw::{Choices, Draw};
use session_support::{play, Model, Pass};
use std::ops::Range;
use weightstream::config::PolicyKind;
use weightstream::device::sim::{Fault, Order};
use weightstream::device::Sim;
use weightstream::residency::planned::Plan;
use weightstream::residency::{Action, Place};
use weightstream::session::{Session, SessionOptions};
use weightstream::{Error, Result};

fn nothing(_: &[Action]) -> Option<Range<usize>> {
    None
}

/// `pages` of which `tail` do not stay, read by copies of one kernel each that take over so many pages.
fn weight(pages: u64, tail: u64, copies: &[(u32, u64)]) -> Streams {
    Streams {
        bytes: pages * PAGE,
        tail,
        copies: copies.iter().map(|&(at, kept)| (vec![at], kept)).collect(),
    }
}

/// Kernels 0 and 4 read weight 0; its first two pages of four stay from the first to the second. The other two are those
/// of weight 1 in between, which kernel 2 reads; the other kernels read a page each.
fn two_of_four() -> (Model, Plan) {
    planned(&[
        weight(4, 4, &[(0, 0), (4, 2)]),
        weight(2, 2, &[(2, 0)]),
        weight(1, 1, &[(1, 0)]),
        weight(1, 1, &[(3, 0)]),
        weight(1, 1, &[(5, 0)]),
    ])
}

fn evict(weight: u32, pages: Range<u64>) -> Action {
    let range = pages.start * PAGE..pages.end * PAGE;
    Action::Evict { weight, range }
}

/// Of copy `copy` of the plan.
fn load(plan: &Plan, copy: usize, pages: Range<u64>) -> Action {
    let one = &plan.streamed[copy];
    Action::Load {
        weight: one.weight,
        range: pages.start * PAGE..pages.end * PAGE,
        place: Place::Block { offset: one.offset },
        ahead: false,
    }
}

/// Serves the next read on demand and ends it.
fn read(bed: &mut Bed) -> Vec<Action> {
    let mut asked = Vec::new();
    let served = bed.probe(&mut |actions| {
        asked = actions.to_vec();
        None
    });
    served.unwrap();
    bed.release(0);
    bed.check();
    asked
}

fn said(copy: usize, pages: u64) -> Said {
    let there = pages * PAGE;
    let unread = 0;
    Said {
        copy,
        unread,
        there,
    }
}

#[test]
fn a_copy_takes_over_what_others_left() {
    let (model, plan) = two_of_four();
    let mut bed = Bed::new(&model, &plan);
    assert_eq!(read(&mut bed), [load(&plan, 0, 0..4)]);
    read(&mut bed);
    // What the second read takes over stays.
    assert_eq!(read(&mut bed), [evict(0, 2..4), load(&plan, 2, 0..2)]);
    assert_eq!(bed.said()[0], said(0, 2));
    read(&mut bed);
    assert_eq!(read(&mut bed), [evict(1, 0..2), load(&plan, 4, 2..4)]);
    bed.abort();
    bed.comes_back();
}

#[test]
fn what_nobody_left_is_given_up_behind_its_reader() {
    // Nothing lies between the reads that would take the other pages, and yet they come to lie elsewhere.
    let (model, plan) = planned(&[weight(2, 2, &[(0, 0), (1, 1)]), weight(1, 1, &[(2, 0)])]);
    let mut bed = Bed::new(&model, &plan);
    read(&mut bed);
    assert_eq!(read(&mut bed), [evict(0, 1..2), load(&plan, 1, 1..2)]);
    bed.abort();
    bed.comes_back();
}

#[test]
fn a_weight_that_is_there_as_a_whole_is_not_copied() {
    let (model, plan) = planned(&[weight(3, 2, &[(0, 0), (2, 2)]), weight(1, 1, &[(1, 0)])]);
    let mut bed = Bed::new(&model, &plan);
    read(&mut bed);
    read(&mut bed);
    let before = bed.copied;
    let last = plan.streamed.len() - 1;
    // The new place is told all the same.
    assert_eq!(read(&mut bed), [load(&plan, last, 3..3)]);
    assert_eq!(bed.copied, before);
    bed.abort();
    bed.comes_back();
}

#[test]
fn behind_an_abort_a_copy_goes_on_with_what_was_left_of_it() {
    let (model, plan) = two_of_four();
    let mut bed = Bed::new(&model, &plan);
    (0..3).for_each(|_| drop(read(&mut bed)));
    bed.abort();
    assert_eq!(bed.said()[0], said(0, 2));
    assert_eq!(read(&mut bed), [evict(1, 0..2), load(&plan, 0, 2..4)]);
    bed.abort();
    bed.comes_back();
}

/// The memory of the last copy is that of the first only as far as the first takes it over; and where another one than
/// the one before it has the weight, nothing is taken over.
#[test]
fn only_the_copy_before_it_leaves_a_copy_something() {
    let (model, plan) = planned(&[
        weight(4, 4, &[(0, 1), (2, 2), (4, 4)]),
        weight(3, 3, &[(1, 0)]),
        weight(3, 3, &[(3, 0)]),
    ]);
    let copies: Vec<usize> = (0..5).filter(|&at| plan.streamed[at].weight == 0).collect();
    let mut bed = Bed::new(&model, &plan);
    (0..3).for_each(|_| drop(read(&mut bed)));
    bed.abort();
    // The second one has it; before the first comes the third.
    assert!(bed.holds(copies[1], 4 * PAGE));
    let asked = read(&mut bed);
    assert_eq!(asked[0], evict(0, 0..4));
    assert_eq!(asked[asked.len() - 1], load(&plan, copies[0], 0..4));
    bed.abort();
    bed.comes_back();
}

#[test]
fn a_lease_holds_all_of_its_copy() {
    let (model, plan) = two_of_four();
    let mut bed = Bed::new(&model, &plan);
    assert!(bed.probe(&mut nothing).is_some());
    assert!(bed.probe(&mut nothing).is_some());
    // The next one needs two pages of the first.
    assert_eq!(bed.probe(&mut nothing), None);
    bed.ahead(&mut nothing);
    bed.check();
    bed.release(0);
    assert!(bed.probe(&mut nothing).is_some());
    assert_eq!(bed.said()[0], said(0, 2));
    bed.abort();
    (0..2).for_each(|_| bed.release(0));
    bed.comes_back();
}

/// Each list of actions of a pass fails at each of its actions, also where copies in front of it were to be one.
#[test]
fn whatever_fails_is_taken_back() {
    let (model, plan) = two_of_four();
    for list in 0..8 {
        for end in 0..5 {
            for joined in 0..2 {
                let mut bed = Bed::new(&model, &plan);
                bed.comes_back();
                let mut lists = 0;
                let mut fails = |actions: &[Action]| {
                    lists += usize::from(!actions.is_empty());
                    let here = lists == list + 1 && end < actions.len();
                    here.then(|| joined_copies(actions, end, joined))
                };
                for _ in 0..6 {
                    bed.ahead(&mut fails);
                    bed.check();
                    if bed.probe(&mut fails).is_some() {
                        bed.check();
                        bed.release(0);
                    }
                    bed.check();
                }
                bed.abort();
                bed.check();
                bed.comes_back();
            }
        }
    }
}

/// If action `end` fails, or if there is none the last copy: with so many loads in front of it, if there are as many.
fn joined_copies(actions: &[Action], end: usize, joined: usize) -> Range<usize> {
    let before = actions[..end].iter().rev();
    let loads = before.take_while(|action| matches!(action, Action::Load { .. }));
    end - loads.count().min(joined)..end
}

/// A step of a session that reads in order, in which everything else happens at any time. Behind a failure it ends the
/// pass.
fn step(bed: &mut Bed, draw: &mut Choices) {
    let what = draw.below(16);
    let mut failed = false;
    let mut fails = |actions: &[Action]| {
        failed |= draw.one_in(6) && !actions.is_empty();
        failed.then(|| {
            let end = draw.below(actions.len() as u64 + 1) as usize;
            joined_copies(actions, end, draw.below(3) as usize)
        })
    };
    match what {
        0..7 if !bed.open.contains(&(bed.position as u32)) => {
            let served = bed.probe(&mut fails);
            if served.is_some() && bed.position == 0 {
                // What a pass has leased ends before the next one.
                (0..bed.open.len()).for_each(|_| bed.release(0));
            }
        }
        0..11 if !bed.open.is_empty() => bed.release(draw.below(bed.open.len() as u64) as usize),
        11..14 => bed.ahead(&mut fails),
        14 => drop(bed.make_room(&mut fails)),
        15 if draw.one_in(3) => bed.abort(),
        _ => {}
    }
    bed.check();
    if failed {
        (0..draw.below(bed.open.len() as u64 + 1)).for_each(|_| bed.release(0));
        bed.abort();
        bed.check();
    }
}

fn choices(most: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..most)
}

/// Everything is in the budget, and then this plan is put in place of what that makes.
fn session(model: &Model, plan: &Plan, order: Order) -> Session<Sim> {
    let mut sim = Sim::in_one_block(order);
    sim.set_page(Some(PAGE));
    let sizes = model.program.weights.iter().map(|one| one.occupied(PAGE));
    let options = SessionOptions {
        budget: Some(plan.block.max(sizes.sum())),
        policy: PolicyKind::Planned,
        times: None,
    };
    let session = Session::new(sim, model.program.clone(), model.host_bytes(), options);
    let mut session = session.unwrap();
    session.use_plan(plan).unwrap();
    session
}

/// Behind an error, which comes where nothing is leased, the pass ends.
fn play_through(model: &Model, session: &mut Session<Sim>) -> Result<()> {
    let played = play(model, session, Pass::Complete);
    if played.is_err() {
        // If it has not ended by that.
        let _ = session.end_pass(false);
    }
    played
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn passes_copy_what_is_not_taken_over(choices in choices(40)) {
        let (model, plan) = planned(&drawn(&mut Choices::new(choices)));
        Bed::new(&model, &plan).comes_back();
    }

    #[test]
    fn nothing_that_is_wanted_is_lost(choices in choices(400)) {
        let mut draw = Choices::new(choices);
        let (model, plan) = planned(&drawn(&mut draw));
        let mut bed = Bed::new(&model, &plan);
        while !draw.is_empty() {
            step(&mut bed, &mut draw);
        }
        bed.abort();
        (0..bed.open.len()).for_each(|_| bed.release(0));
        bed.comes_back();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn every_read_of_a_session_is_right(
        choices in choices(40), order in any::<u64>(), aborts in prop::collection::vec(0..40usize, 0..3),
    ) {
        let (model, plan) = planned(&drawn(&mut Choices::new(choices)));
        for order in [Order::CopiesFirst, Order::KernelsFirst, Order::Random(order)] {
            let mut session = session(&model, &plan, order);
            let aborts = aborts.iter().map(|&at| Pass::AbortAt(at));
            for pass in aborts.flat_map(|pass| [Pass::Complete, pass]).chain([Pass::Complete; 3]) {
                play(&model, &mut session, pass).unwrap();
            }
            session.device_mut().verdict().unwrap();
            prop_assert_eq!(session.stats().bytes_copied_last_pass, copied(&plan));
            prop_assert_eq!(session.stats().bytes_copied, session.device().bytes_copied());
        }
    }

    /// One failure of one call: reported, and what comes behind it is right, unless the session says that it is poisoned.
    #[test]
    fn a_failure_in_a_session_is_survived(
        choices in choices(40), order in prop::option::of(any::<u64>()), after in 0..40u64, before in 0..3usize,
        call in prop::sample::select(&["discard", "copy_to_device", "record_copy", "record_compute", "copy_wait", "compute_wait"][..]),
    ) {
        let (model, plan) = planned(&drawn(&mut Choices::new(choices)));
        let order = order.map_or(Order::CopiesFirst, Order::Random);
        let mut session = session(&model, &plan, order);
        (0..before).for_each(|_| play(&model, &mut session, Pass::Complete).unwrap());
        session.device_mut().fail(Fault { call: Some(call), after, lost: false });
        let mut poisoned = false;
        for _ in 0..4 {
            let armed = session.device().pending_fault().is_some();
            let outcome = play_through(&model, &mut session);
            let fired = armed && session.device().pending_fault().is_none();
            session.validate().unwrap();
            poisoned |= session.begin_pass().is_err();
            if !poisoned {
                session.end_pass(false).unwrap();
            }
            prop_assert_eq!(outcome.is_err(), fired || poisoned, "{:?}", outcome);
        }
        session.device_mut().fail(None);
        session.device_mut().verdict().unwrap();
        if !poisoned {
            (0..3).for_each(|_| play(&model, &mut session, Pass::Complete).unwrap());
            prop_assert_eq!(session.stats().bytes_copied_last_pass, copied(&plan));
            session.device_mut().verdict().unwrap();
        }
    }

    /// A pass that is captured finds the bytes that the one before it left.
    #[test]
    fn a_pass_can_be_captured(choices in choices(40), order in any::<u64>(), abort in 0..40usize) {
        let (model, plan) = planned(&drawn(&mut Choices::new(choices)));
        let mut session = session(&model, &plan, Order::Random(order));
        session.allow_capture().unwrap();
        (0..2).for_each(|_| play(&model, &mut session, Pass::Complete).unwrap());
        session.begin_capture().unwrap();
        play(&model, &mut session, Pass::Complete).unwrap();
        session.end_capture(true).unwrap();
        for _ in 0..2 {
            session.replay().unwrap();
            session.device_mut().verdict().unwrap();
        }
        play(&model, &mut session, Pass::AbortAt(abort)).unwrap();
        if !session.is_primed() {
            prop_assert!(matches!(session.replay(), Err(Error::Internal(_))));
            (0..2).for_each(|_| play(&model, &mut session, Pass::Complete).unwrap());
        }
        session.replay().unwrap();
        session.device_mut().verdict().unwrap();
        session.validate().unwrap();
    }
}
