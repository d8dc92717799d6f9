//! Twenty thousand random cases of (program, budget, policy, pool, order of the streams, passes) on the simulator: no race, no
//! read of wrong or worthless bytes, never more memory than the budget, no streams that wait for each other, no leak, and
//! every probe served at any budget from the floor up. A load may be refused only where the addresses are as few as the
//! budget, because the memory would fall into pieces; and never later than at load.
//!
//! A case is made from its number alone. A failure prints the number;
//! `WEIGHTSTREAM_CASE=number cargo nextest run --test session the_case_asked_for --no-capture` plays it again.
//! `WEIGHTSTREAM_FIRST_CASE=number` plays others, from that number on; `PROPTEST_CASES=100000` plays so many.

use crate::session_support::case::{Case, Outcome};

const CASES: u64 = 20_000;
/// Tests that share them, so that they run at the same time.
const PARTS: u64 = 10;

macro_rules! parts {
    ($($name:ident = $part:literal)*) => {
        $(#[test]
        fn $name() {
            play_part($part);
        })*
    };
}

parts! {
    cases_0 = 0
    cases_1 = 1
    cases_2 = 2
    cases_3 = 3
    cases_4 = 4
    cases_5 = 5
    cases_6 = 6
    cases_7 = 7
    cases_8 = 8
    cases_9 = 9
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let parsed = text.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

fn play_part(part: u64) {
    let count = number("PROPTEST_CASES").unwrap_or(CASES).div_ceil(PARTS);
    let first = number("WEIGHTSTREAM_FIRST_CASE").unwrap_or(0) + part * count;
    let outcomes: Vec<Outcome> = (first..first + count).map(play_case).collect();
    let share = |what: fn(&Outcome) -> bool| {
        outcomes.iter().filter(|o| what(o)).count() as f64 / outcomes.len() as f64
    };
    // What the cases are about does happen in them.
    assert!(share(|o| o.evictions > 0) > 0.5, "hardly a case evicts");
    assert!(share(|o| o.planned) > 0.15, "hardly a case is planned");
    assert!(share(|o| o.gathered) > 0.1, "hardly a read is in place");
    assert!(share(|o| o.aborted) > 0.5, "hardly a pass is aborted");
    assert!(
        share(|o| o.fragmentation_misses > 0) > 0.1,
        "no pool falls into pieces"
    );
    assert!(share(|o| o.joined) > 0.02, "no copies are joined");
    assert!(share(|o| o.refused) < 0.05, "loads are refused too often");
}

fn play_case(number: u64) -> Outcome {
    let case = Case::of(number);
    case.run().unwrap_or_else(|what| {
        panic!(
            "case {number} (WEIGHTSTREAM_CASE={number} plays it again): {what}\n{}",
            described(&case)
        )
    })
}

#[test]
fn the_case_asked_for() {
    let Some(number) = number("WEIGHTSTREAM_CASE") else {
        return;
    };
    println!("{}", described(&Case::of(number)));
    println!("{:?}", play_case(number));
}

fn described(case: &Case) -> String {
    let trace = &case.model.method.trace;
    let sizes = case.model.constants.specs.iter();
    let sizes: Vec<_> = sizes.map(|w| (&w.fqn, w.bytes)).collect();
    format!(
        "{:?}, {:?}, budget {}, one block: {}, capped: {}, {:?}, {:?}\n{sizes:?}\nprobes {:?}\n{:?}",
        case.shape,
        case.policy,
        case.budget,
        case.one_block,
        case.capped,
        case.order,
        case.passes,
        trace.probes(),
        trace.events()
    )
}
