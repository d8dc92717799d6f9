//! Every policy of the table and every pool, under random sequences of calls. The sequences are lists of choices, which shrink.

use crate::policy_support::draw::{Choices, Draw, Seeded};
use crate::policy_support::played::Played;
use crate::policy_support::pools::play_pool;
use crate::policy_support::{play, policy_of_bytes, pools_of_bytes};
use proptest::prelude::*;
use std::collections::BTreeSet;
use weightstream::config::PolicyKind;
use weightstream::device::{HostDevice, Sim};

fn choices() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..600)
}

fn policy() -> impl Strategy<Value = PolicyKind> {
    prop::sample::select(PolicyKind::ALL)
}

fn played<D: Played>(kind: PolicyKind, choices: Vec<u32>) {
    let steps = choices.len() / 4;
    play::<D>(kind, &mut Choices::new(choices), steps);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn policies_keep_their_promises_on_sim(kind in policy(), choices in choices()) {
        played::<Sim>(kind, choices);
    }

    #[test]
    fn pools_keep_their_promises(choices in choices()) {
        let steps = choices.len() / 3;
        let outcome = play_pool(&mut Choices::new(choices), steps);
        prop_assert_eq!(outcome, Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn policies_keep_their_promises_on_host(kind in policy(), choices in choices()) {
        played::<HostDevice>(kind, choices);
    }
}

/// Otherwise the tests above would say less than they seem to.
#[test]
fn every_policy_comes_to_be_chosen() {
    let mut found = BTreeSet::new();
    for &kind in PolicyKind::ALL {
        for seed in 0..60 {
            found.insert(play::<Sim>(kind, &mut Seeded(seed), 20));
        }
    }
    for kind in PolicyKind::ALL {
        assert!(
            found.remove(kind.name()),
            "'{}' was never chosen",
            kind.name()
        );
    }
    assert_eq!(Vec::from_iter(found), ["all_resident"]);
}

/// The targets `policy` and `pools` of `make fuzz`.
#[test]
fn bytes_of_a_fuzzer_are_played() {
    let mut draw = Seeded(1);
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..draw.below(400)).map(|_| draw.next() as u8).collect();
        policy_of_bytes(&bytes);
        pools_of_bytes(&bytes);
    }
}
