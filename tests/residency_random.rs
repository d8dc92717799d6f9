//! Policies and pools under random sequences of operations, each of them followed by `validate()` and compared with an
//! oracle. The sequences are lists of choices, which shrink.

mod session_support;

use proptest::prelude::*;
use session_support::draw::Choices;
use session_support::operations::{play_policy, play_pool};

fn choices() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..1000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn policies_keep_their_promises(choices in choices()) {
        let steps = choices.len() / 3;
        let outcome = play_policy(&mut Choices::new(choices), steps);
        prop_assert_eq!(outcome, Ok(()));
    }

    #[test]
    fn pools_keep_their_promises(choices in choices()) {
        let steps = choices.len() / 3;
        let outcome = play_pool(&mut Choices::new(choices), steps);
        prop_assert_eq!(outcome, Ok(()));
    }
}
