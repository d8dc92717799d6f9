//! How a method's inputs and outputs belong to those of its delegate, as the program says.

use crate::support::{pte, Plan, PteSpec, RecordSpec};
use weightstream::format::{OutputSource, Pte, Wiring};
use weightstream::{Error, Result};

fn wiring(plan: Plan, inputs: usize, outputs: usize) -> Result<Wiring> {
    let mut spec = PteSpec::new(&RecordSpec::small(), b"so");
    spec.plan = plan;
    let bytes = pte(&spec);
    Wiring::of(
        &Pte::parse("model.pte", &bytes)?,
        "forward",
        inputs,
        outputs,
    )
}

fn plan(inputs: &[i32], call: &[i32], outputs: &[i32]) -> Plan {
    Plan {
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        calls: vec![call.to_vec()],
        ..Plan::default()
    }
}

#[test]
fn a_method_that_is_its_delegate_is_wired_straight() {
    let found = wiring(plan(&[0, 1], &[0, 1, 2], &[2]), 2, 1).unwrap();
    assert_eq!(found, Wiring::straight(2, 1));
}

#[test]
fn inputs_and_outputs_are_followed_where_the_program_crosses_them() {
    // Value 1 is not read, 0 is also returned, and the first output of the delegate is returned twice.
    let found = wiring(plan(&[0, 1, 2], &[2, 0, 3, 4], &[0, 4, 3, 3]), 2, 2).unwrap();
    let expected = Wiring {
        inputs: 3,
        taken: vec![2, 0],
        outputs: vec![
            OutputSource::Input(0),
            OutputSource::Output(1),
            OutputSource::Output(0),
            OutputSource::Output(0),
        ],
        numbered: true,
    };
    assert_eq!(found, expected);
    assert_eq!(found.delegates_input(0), Some(1));
    assert_eq!(
        [0, 1, 2].map(|index| found.is_used(index)),
        [true, false, true]
    );
}

#[test]
fn an_input_that_is_only_returned_is_used() {
    let found = wiring(plan(&[0, 1], &[0, 2], &[1]), 1, 1).unwrap();
    assert_eq!(found.outputs, [OutputSource::Input(1)]);
    assert!(found.is_used(1));
}

#[test]
fn values_from_elsewhere_are_damage_with_their_number() {
    for (plan, expected) in [
        (
            plan(&[0], &[7, 1], &[1]),
            "input 0 of its delegate is value 7",
        ),
        (plan(&[0], &[0, 1], &[9]), "output 0 is value 9"),
        (
            plan(&[0], &[0, 1, 2], &[1]),
            "called with 3 tensors, and was recorded with 1 input",
        ),
    ] {
        let error = wiring(plan, 1, 1).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Malformed { .. }), "{text}");
        assert!(
            text.contains(expected) && text.contains("'forward'"),
            "{text}"
        );
    }
}

const NULL: u8 = 1;
const INT: u8 = 2;
const BOOL: u8 = 3;
const DOUBLE: u8 = 4;
const STRING: u8 = 6;
const TENSOR_LIST: u8 = 10;

/// The method takes (None, x, 3, y, 2.5, 'text') and gives (y, None, f(x), True, f(x)); its delegate may be given the 3.
#[test]
fn what_is_no_tensor_is_left_out_on_all_sides() {
    for call in [&[1, 6][..], &[1, 2, 6], &[0, 1, 2, 6, 7]] {
        let found = wiring(
            Plan {
                others: vec![
                    (0, NULL),
                    (2, INT),
                    (4, DOUBLE),
                    (5, STRING),
                    (7, NULL),
                    (8, BOOL),
                ],
                ..plan(&[0, 1, 2, 3, 4, 5], call, &[3, 7, 6, 8, 6])
            },
            1,
            1,
        );
        let expected = Wiring {
            inputs: 2,
            taken: vec![0],
            outputs: vec![
                OutputSource::Input(1),
                OutputSource::Output(0),
                OutputSource::Output(0),
            ],
            numbered: true,
        };
        assert_eq!(found.unwrap(), expected, "{call:?}");
    }
}

#[test]
fn a_method_may_only_change_its_state() {
    let found = wiring(plan(&[0], &[0], &[]), 1, 0).unwrap();
    assert_eq!(found, Wiring::straight(1, 0));
    let found = wiring(plan(&[], &[], &[]), 0, 0).unwrap();
    assert_eq!(found, Wiring::straight(0, 0));
}

#[test]
fn lists_are_refused_and_values_that_are_not_there_are_damage() {
    let listed = Plan {
        others: vec![(0, TENSOR_LIST)],
        ..plan(&[0, 1], &[1, 2], &[2])
    };
    let error = wiring(listed, 1, 1).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unsupported(_)), "{text}");
    assert!(text.contains("value 0, which is TensorList"), "{text}");
    let missing = Plan {
        values: Some(2),
        ..plan(&[0, 1], &[1, 2], &[2])
    };
    let error = wiring(missing, 1, 1).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Malformed { .. }), "{text}");
    assert!(text.contains("value 2 is not there, it has 2"), "{text}");
}

/// Without ExecuTorch nobody would run the rest, and the outputs would be wrong.
#[test]
fn a_method_that_does_more_than_call_its_delegate_is_refused() {
    let straight = plan(&[0], &[0, 1], &[1]);
    let twice = vec![vec![0, 1], vec![0, 1]];
    for (plan, expected) in [
        (
            Plan {
                kernels: 1,
                ..straight.clone()
            },
            "runs 2 instructions, 1 of them calls",
        ),
        (
            Plan {
                calls: twice,
                ..straight.clone()
            },
            "runs 2 instructions, 2 of them calls",
        ),
        (
            Plan {
                calls: vec![],
                kernels: 1,
                ..straight
            },
            "runs 1 instructions, 0 of them calls",
        ),
    ] {
        let error = wiring(plan, 1, 1).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Unsupported(_)), "{text}");
        assert!(text.contains(expected) && text.contains("Module"), "{text}");
    }
}
