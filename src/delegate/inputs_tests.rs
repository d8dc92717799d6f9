use super::super::tensor::{Memory, Room};
use super::*;
use crate::format::Symbol;

const NO_SIZES: &Sizes = &Sizes {
    symbols: Vec::new(),
    solutions: Vec::new(),
    inputs: Vec::new(),
    outputs: Vec::new(),
    guards: Vec::new(),
};

fn spec(name: &str, dims: &[(i64, i64, i64)]) -> InputSpec {
    let dims = dims
        .iter()
        .map(|&(min, max, symbol)| Dim {
            min,
            max,
            symbol: u32::try_from(symbol).ok(),
        })
        .collect();
    InputSpec {
        name: name.to_owned(),
        dtype: ScalarType::F32,
        dims,
    }
}

fn input<'a>(sizes: &'a [i64], bytes: &'a [u8]) -> InputTensor<'a> {
    InputTensor {
        dtype: 6,
        sizes,
        strides: None,
        memory: Memory::Host(bytes),
    }
}

/// A method that is its delegate.
fn check(specs: &[InputSpec], inputs: &[InputTensor<'_>]) -> crate::Result<()> {
    let wiring = Wiring::straight(specs.len(), 0);
    let signature = Signature {
        sizes: &symbols_of(specs),
        ..signature(specs, &[], &wiring)
    };
    super::check(&signature, inputs, &mut CallSizes::default())
}

/// Names for the symbols of some inputs.
fn symbols_of(specs: &[InputSpec]) -> Sizes {
    let mut symbols: Vec<Symbol> = Vec::new();
    for (input, spec) in specs.iter().enumerate() {
        for (dim, number) in spec.dims.iter().map(|dim| dim.symbol).enumerate() {
            if number == Some(symbols.len() as u32) {
                let name = format!("s{}", symbols.len());
                symbols.push(Symbol { name, input, dim });
            }
        }
    }
    Sizes {
        symbols,
        ..Sizes::default()
    }
}

fn signature<'a>(
    inputs: &'a [InputSpec],
    outputs: &'a [OutputSpec],
    wiring: &'a Wiring,
) -> Signature<'a> {
    Signature {
        inputs,
        outputs,
        sizes: NO_SIZES,
        wiring,
        call: &sizes::UNKNOWN,
    }
}

fn refusal(specs: &[InputSpec], inputs: &[InputTensor<'_>]) -> String {
    match check(specs, inputs) {
        Err(Error::InvalidInput(what)) => what,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_wrong_count_names_the_inputs() {
    let specs = [spec("x", &[(2, 2, -1)]), spec("mask", &[(2, 2, -1)])];
    let what = refusal(&specs, &[input(&[2], &[0; 8])]);
    assert!(
        what.contains("takes 2 inputs (x, mask), 1 was given"),
        "{what}"
    );
}

#[test]
fn dtype_rank_and_extent_name_input_expected_and_found() {
    let specs = [spec("x", &[(2, 2, -1), (1, 8, 0)])];
    let bytes = [0; 64];
    assert_eq!(check(&specs, &[input(&[2, 8], &bytes)]), Ok(()));
    let what = refusal(
        &specs,
        &[InputTensor {
            dtype: 4,
            ..input(&[2, 8], &bytes)
        }],
    );
    assert!(
        what.contains("input 0 'x': expected dtype float32, found int64"),
        "{what}"
    );
    let what = refusal(&specs, &[input(&[2], &bytes)]);
    assert!(what.contains("expected 2 dimensions, found 1"), "{what}");
    for (sizes, expected) in [
        ([3, 8], "expected 2 in dimension 0, found 3"),
        ([2, 9], "expected 1 to 8 in"),
    ] {
        let what = refusal(&specs, &[input(&sizes, &bytes)]);
        assert!(what.contains(expected), "{what}");
    }
}

#[test]
fn a_negative_extent_is_never_accepted() {
    let what = refusal(&[spec("x", &[(-5, 5, -1)])], &[input(&[-1], &[0; 64])]);
    assert!(what.contains("found -1"), "{what}");
}

#[test]
fn equal_symbols_need_equal_extents() {
    let specs = [spec("x", &[(1, 8, 0)]), spec("y", &[(1, 8, 1), (1, 8, 0)])];
    let bytes = [0; 256];
    assert_eq!(
        check(&specs, &[input(&[3], &bytes), input(&[5, 3], &bytes)]),
        Ok(())
    );
    let what = refusal(&specs, &[input(&[3], &bytes), input(&[3, 4], &bytes)]);
    assert!(
        what.contains("input 1 'y'") && what.contains("as in dimension 0 of 'x'"),
        "{what}"
    );
}

#[test]
fn any_layout_is_taken_whose_reach_is_within_the_memory() {
    let specs = [spec("x", &[(2, 2, -1), (3, 3, -1)])];
    let bytes = [0; 64];
    for (strides, needed) in [
        ([3, 1], 24),
        ([1, 2], 24),
        ([8, 1], 44),
        ([0, 1], 12),
        ([0, 0], 4),
        ([1, 5], 48),
    ] {
        let given = |length: usize| InputTensor {
            strides: Some(&strides),
            ..input(&[2, 3], &bytes[..length])
        };
        assert_eq!(check(&specs, &[given(needed)]), Ok(()), "{strides:?}");
        let what = refusal(&specs, &[given(needed - 1)]);
        let expected = format!(
            "input 0 'x': expected {needed} bytes for sizes [2, 3] and strides {strides:?}, found {}",
            needed - 1
        );
        assert!(what.contains(&expected), "{what}");
    }
    assert!(refusal(&specs, &[input(&[2, 3], &[0; 23])]).contains("expected 24 bytes"));
}

#[test]
fn strides_that_go_backwards_or_overflow_are_refused() {
    let specs = [spec("x", &[(2, 2, -1), (3, 3, -1)])];
    for strides in [&[-3, 1][..], &[i64::MAX, i64::MAX]] {
        let given = InputTensor {
            strides: Some(strides),
            ..input(&[2, 3], &[0; 64])
        };
        let what = refusal(&specs, &[given]);
        assert!(
            what.contains("input 0 'x': expected strides that are not negative"),
            "{what}"
        );
    }
    let given = InputTensor {
        strides: Some(&[1]),
        ..input(&[2, 3], &[0; 64])
    };
    assert!(refusal(&specs, &[given]).contains("has strides [1] for sizes [2, 3]"));
}

#[test]
fn room_that_cannot_fit_is_refused_before_the_pass() {
    let specs = [OutputSpec {
        dtype: ScalarType::F32,
        ndim: 2,
    }];
    let room = |dtype, sizes| OutputTensor {
        dtype,
        sizes,
        strides: None,
        room: Room::Host(&mut []),
    };
    let wiring = Wiring::straight(0, 1);
    let signature = signature(&[], &specs, &wiring);
    assert_eq!(check_rooms(&signature, &[room(6, &[2, 3])]), Ok(()));
    let cases: [(&[OutputTensor<'_>], &str); 3] = [
        (&[], "has 1 output, room for 0 was given"),
        (
            &[room(4, &[2, 3])],
            "output 0: it has dtype float32, room was given for dtype int64",
        ),
        (
            &[room(6, &[2])],
            "output 0: it has 2 dimensions, room was given for 1",
        ),
    ];
    for (rooms, expected) in cases {
        let what = check_rooms(&signature, rooms).unwrap_err().to_string();
        assert!(what.contains(expected), "{what}");
    }
}

/// The method takes `y`, something that it only returns, something that it ignores, and `x`.
fn crossed() -> Wiring {
    Wiring {
        inputs: 4,
        taken: vec![3, 0],
        outputs: vec![
            OutputSource::Input(1),
            OutputSource::Output(0),
            OutputSource::Input(3),
        ],
        numbered: true,
    }
}

#[test]
fn inputs_are_named_by_the_numbers_of_the_method() {
    let specs = [spec("x", &[(2, 2, -1)]), spec("y", &[(3, 3, -1)])];
    let wiring = crossed();
    let signature = signature(&specs, &[], &wiring);
    let bytes = [0; 16];
    let (two, three) = (input(&[2], &bytes), input(&[3], &bytes));
    let strange = InputTensor { dtype: 99, ..two };
    let refusal = |inputs: &[InputTensor<'_>]| {
        let refused = super::check(&signature, inputs, &mut CallSizes::default()).unwrap_err();
        refused.to_string()
    };
    assert_eq!(
        super::check(
            &signature,
            &[three, two, strange, two],
            &mut CallSizes::default()
        ),
        Ok(())
    );
    let cases: [(&[InputTensor<'_>], &str); 4] = [
        (
            &[two, two, two, two],
            "input 0 'y': expected 3 in dimension 0, found 2",
        ),
        (
            &[three, two, two, three],
            "input 3 'x': expected 2 in dimension 0, found 3",
        ),
        (
            &[three, strange, two, two],
            "input 1: dtype number 99 is unknown",
        ),
        (
            &[two, three],
            "takes 4 inputs (y, not read, not read, x), 2 were given",
        ),
    ];
    for (inputs, expected) in cases {
        let what = refusal(inputs);
        assert!(what.contains(expected), "{what}");
    }
    let short = input(&[5], &bytes);
    assert!(refusal(&[three, short, two, two]).contains("input 1: expected 20 bytes"));
}

/// ExecuTorch calls a delegate by numbers that its own caller never sees.
#[test]
fn where_the_method_is_not_known_inputs_have_their_names_only() {
    let specs = [spec("x", &[(2, 2, -1)]), spec("mask", &[(3, 3, -1)])];
    let wiring = Wiring::of_delegate(2, 1);
    let signature = signature(&specs, &[], &wiring);
    let two = input(&[2], &[0; 8]);
    let error = super::check(&signature, &[two, two], &mut CallSizes::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(": input 'mask': expected 3 in dimension 0"),
        "{text}"
    );
    assert_eq!(signature.output_name(0), "output 0 of the delegate");
}

#[test]
fn room_is_checked_against_what_the_method_returns() {
    let specs = [spec("x", &[(2, 2, -1)]), spec("y", &[(3, 3, -1)])];
    let outputs = [OutputSpec {
        dtype: ScalarType::F32,
        ndim: 2,
    }];
    let wiring = crossed();
    let signature = signature(&specs, &outputs, &wiring);
    let room = |sizes| OutputTensor {
        dtype: 6,
        sizes,
        strides: None,
        room: Room::Host(&mut []),
    };
    // What is handed back unread may be anything.
    let fitting = [room(&[1, 1, 1]), room(&[2, 3]), room(&[2])];
    assert_eq!(check_rooms(&signature, &fitting), Ok(()));
    for (at, rooms) in [
        (1, [room(&[1]), room(&[2]), room(&[2])]),
        (2, [room(&[1]), room(&[2, 3]), room(&[2, 3])]),
    ] {
        let what = check_rooms(&signature, &rooms).unwrap_err().to_string();
        assert!(what.contains(&format!("output {at}: it has")), "{what}");
    }
}

/// The delegate takes one of the method's inputs twice: it must be right for both.
#[test]
fn an_input_that_is_taken_twice_fits_both_places() {
    let specs = [spec("x", &[(2, 3, -1)]), spec("y", &[(3, 3, -1)])];
    let wiring = Wiring {
        inputs: 1,
        taken: vec![0, 0],
        outputs: Vec::new(),
        numbered: true,
    };
    let signature = signature(&specs, &[], &wiring);
    let check = |size| {
        let sizes = [size];
        let refused = super::check(
            &signature,
            &[input(&sizes, &[0; 16])],
            &mut CallSizes::default(),
        );
        refused.map_err(|error| error.to_string())
    };
    assert_eq!(check(3), Ok(()));
    let what = check(2).unwrap_err();
    assert!(
        what.contains("expected 3 in dimension 0, found 2"),
        "{what}"
    );
}
