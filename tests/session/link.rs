//! What copies cost is found out at load, where a plan needs it, and the plan weighs it.

use crate::session_support::{chain, play, Model, Pass};
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::Sim;
use weightstream::figures::Link;
use weightstream::session::Session;

/// 192 KiB could be copied while the next copy is begun: a plan for a link like this makes few copies.
const SLOW_TO_BEGIN: Link = Link {
    bytes_per_second: 55_000_000_000,
    ns_per_copy: 3500,
};

fn model() -> Model {
    chain(&[64 << 10; 24])
}

/// At three quarters of the weights.
fn session(model: &Model, policy: PolicyKind, link: Option<Link>) -> Session<Sim> {
    let mut sim = Sim::new(Order::CopiesFirst);
    sim.set_page(Some(64));
    if let Some(link) = link {
        sim.set_link(link);
    }
    let floor = model.floor();
    model
        .session_by(policy, sim, Some(floor.everything / 4 * 3))
        .unwrap()
}

/// Copies and bytes of a pass, once the first ones are over.
fn steady(model: &Model, session: &mut Session<Sim>) -> (u64, u64) {
    (0..2).for_each(|_| play(model, session, Pass::Complete).unwrap());
    let before = session.device_mut().copies_issued();
    play(model, session, Pass::Complete).unwrap();
    session.device_mut().verdict().unwrap();
    let copies = session.device_mut().copies_issued() - before;
    (copies, session.stats().bytes_copied_last_pass)
}

#[test]
fn a_plan_weighs_what_a_copy_was_found_to_cost() {
    let model = model();
    let mut free = session(&model, PolicyKind::Planned, None);
    let mut dear = session(&model, PolicyKind::Planned, Some(SLOW_TO_BEGIN));
    assert_eq!((free.policy(), dear.policy()), ("planned", "planned"));
    let ((many, less), (few, more)) = (steady(&model, &mut free), steady(&model, &mut dear));
    assert!(
        few < many && less < more,
        "{few} copies of {more} bytes, and {many} of {less} where they are free"
    );
}

/// A call that is told to fail and does not come is still pending.
#[test]
fn nothing_is_measured_for_who_plans_nothing() {
    let model = model();
    let everything = model.floor().everything;
    for (policy, budget) in [
        (PolicyKind::Lru, everything / 2),
        (PolicyKind::Planned, everything),
    ] {
        let mut sim = Sim::new(Order::CopiesFirst);
        sim.fail_call("calibrate", 0);
        let mut session = model.session_by(policy, sim, Some(budget)).unwrap();
        assert!(session.device_mut().pending_fault().is_some());
    }
}

#[test]
fn a_measurement_that_fails_is_an_error_of_the_load() {
    let model = model();
    let mut sim = Sim::new(Order::CopiesFirst);
    sim.fail_call("calibrate", 0);
    let budget = model.floor().everything / 2;
    let refused = model.session_by(PolicyKind::Planned, sim, Some(budget));
    let text = refused.err().unwrap().to_string();
    assert!(
        text.contains("calibrate") && text.contains("measuring what copies cost, with 'Weight."),
        "{text}"
    );
}
