use super::super::tensor::{Memory, Room};
use super::*;
use crate::format::{Dim, InputSpec, OutputSpec, ScalarType, Sizes, Solution, Symbol, Wiring};

/// Two inputs: `x` of sizes (seq, b), `mask` of any sizes of rank 1; one output of rank 1.
struct Program {
    inputs: Vec<InputSpec>,
    outputs: Vec<OutputSpec>,
    sizes: Sizes,
    wiring: Wiring,
}

fn expression(text: &str) -> Expression {
    Expression::parse(text, 3, true).unwrap()
}

fn relation(index: usize, dim: usize, text: &str) -> Relation {
    let size = expression(text);
    Relation { index, dim, size }
}

fn symbol(name: &str, input: usize, dim: usize) -> Symbol {
    let name = name.to_owned();
    Symbol { name, input, dim }
}

fn program() -> Program {
    let dim = |symbol| Dim {
        min: 0,
        max: i64::MAX,
        symbol,
    };
    let input = |name: &str, dims| InputSpec {
        name: name.to_owned(),
        dtype: ScalarType::F32,
        dims,
    };
    Program {
        inputs: vec![
            input("x", vec![dim(Some(0)), dim(Some(1))]),
            input("mask", vec![dim(None)]),
        ],
        outputs: vec![OutputSpec {
            dtype: ScalarType::F32,
            ndim: 1,
        }],
        sizes: Sizes {
            symbols: vec![symbol("seq", 0, 0), symbol("b", 0, 1)],
            ..Sizes::default()
        },
        wiring: Wiring::straight(2, 1),
    }
}

impl Program {
    fn signature<'a>(&'a self, call: &'a CallSizes) -> Signature<'a> {
        Signature {
            inputs: &self.inputs,
            outputs: &self.outputs,
            sizes: &self.sizes,
            wiring: &self.wiring,
            call,
        }
    }

    fn call(&self, x: [i64; 2], mask: i64) -> std::result::Result<CallSizes, String> {
        let tensor = |sizes| InputTensor {
            dtype: 6,
            sizes,
            strides: None,
            memory: Memory::Host(&[]),
        };
        let mut call = CallSizes::default();
        let signature = self.signature(&UNKNOWN);
        match call.solve(&signature, &[tensor(&x), tensor(&[mask])]) {
            Ok(()) => Ok(call),
            Err(Error::InvalidInput(what)) => Err(what),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn refusal(&self, x: [i64; 2], mask: i64) -> String {
        self.call(x, mask).unwrap_err()
    }
}

#[test]
fn a_relation_of_inputs_names_itself_both_sizes_and_the_symbols() {
    let mut program = program();
    program.sizes.inputs = vec![relation(1, 0, "8 s0 *")];
    assert_eq!(program.call([3, 2], 24).unwrap().symbols, [3, 2]);
    assert_eq!(
        program.refusal([3, 2], 25),
        "input 1 'mask': expected 8*seq = 24 in dimension 0 (seq = 3, from dimension 0 of 'x'), found 25"
    );
    program.sizes.inputs = vec![relation(1, 0, "s0 s1 + s0 +")];
    assert_eq!(
        program.refusal([3, 2], 9),
        "input 1 'mask': expected seq + b + seq = 8 in dimension 0 (seq = 3, from dimension 0 of 'x'; b = 2, from dimension 1 \
         of 'x'), found 9"
    );
    program.sizes.inputs = vec![relation(1, 0, "7")];
    assert_eq!(
        program.refusal([3, 2], 9),
        "input 1 'mask': expected 7 in dimension 0, found 9"
    );
}

#[test]
fn symbols_are_solved_in_order() {
    let mut program = program();
    program.sizes.symbols = vec![symbol("n", 1, 0), symbol("seq", 0, 0), symbol("half", 0, 1)];
    program.inputs[0].dims[0].symbol = Some(1);
    program.inputs[0].dims[1].symbol = None;
    let solution = |symbol, text| Solution {
        symbol,
        value: expression(text),
    };
    // half from dimension 1 of x, then n from the mask and both.
    program.sizes.solutions = vec![solution(2, "x 2 //"), solution(0, "x s2 - s1 //")];
    program.sizes.inputs = vec![relation(1, 0, "s0 s1 * s2 +"), relation(0, 1, "s2 2 *")];
    assert_eq!(program.call([3, 10], 26).unwrap().symbols, [7, 3, 5]);
    assert_eq!(
        program.refusal([3, 11], 26),
        "input 0 'x': expected half*2 = 10 in dimension 1 (half = 5, from dimension 1 of 'x'), found 11"
    );
    assert_eq!(
        program.refusal([3, 10], 27),
        "input 1 'mask': expected n*seq + half = 26 in dimension 0 (n = 7, from dimension 0 of 'mask'; seq = 3, from dimension 0 \
         of 'x'; half = 5, from dimension 1 of 'x'), found 27"
    );
    assert_eq!(
        program.refusal([0, 10], 26),
        "n = (size - half) // seq cannot be computed for size 26, that of dimension 0 of 'mask'"
    );
}

#[test]
fn what_overflows_is_refused() {
    let mut program = program();
    program.sizes.inputs = vec![relation(1, 0, "8 s0 *")];
    assert_eq!(
        program.refusal([i64::MAX, 2], 3),
        "input 1 'mask': the size 8*seq of dimension 0 cannot be computed; seq = 9223372036854775807, from dimension 0 of 'x'"
    );
    program.sizes.inputs.clear();
    program.sizes.outputs = vec![relation(0, 0, "8 s1 // s0 //")];
    assert_eq!(
        program.refusal([0, 2], 3),
        "output 0 of the delegate: the size 8 // b // seq of dimension 0 cannot be computed; seq = 0, from dimension 0 of 'x'; b = 2, from \
         dimension 1 of 'x'"
    );
}

#[test]
fn a_guard_names_itself_and_its_symbols() {
    let mut program = program();
    program.sizes.guards = vec![expression("s1 1 >"), expression("s0 8 % 0 ==")];
    assert!(program.call([16, 2], 1).is_ok());
    assert_eq!(
        program.refusal([3, 2], 1),
        "the program was compiled for sizes with seq % 8 == 0; seq = 3"
    );
    assert!(program.refusal([16, 1], 1).contains("with b > 1; b = 1"));
    program.sizes.guards = vec![expression("s0 s1 %")];
    assert!(program
        .refusal([3, 0], 1)
        .contains("seq % b, which cannot be computed; seq = 3, b = 0"));
}

#[test]
fn outputs_and_rooms_have_the_sizes_that_follow() {
    let mut program = program();
    program.sizes.outputs = vec![relation(0, 0, "s0 1 +")];
    let call = program.call([3, 2], 1).unwrap();
    let signature = program.signature(&call);
    let found = |size: &'static [i64]| check_outputs(&signature, |_| Some(size));
    assert_eq!(found(&[4]), Ok(()));
    let what = found(&[5]).unwrap_err();
    assert!(
        matches!(what, Error::Mismatch { fact: "size", .. }),
        "{what:?}"
    );
    let what = what.to_string();
    assert!(
        what.contains("output 0")
            && what
                .contains("seq + 1 = 4 in dimension 0 (seq = 3, from dimension 0 of 'x') (record)")
            && what.contains("5 (compiled code)"),
        "{what}"
    );
    let room = |sizes| OutputTensor {
        dtype: 6,
        sizes,
        strides: None,
        room: Room::Host(&mut []),
    };
    assert_eq!(check_rooms(&signature, &[room(&[4])]), Ok(()));
    let what = check_rooms(&signature, &[room(&[5])]).unwrap_err();
    assert!(
        what.to_string().contains(
            "output 0: it will have seq + 1 = 4 in dimension 0 (seq = 3, from dimension 0 of 'x'), room was given for 5"
        ),
        "{what}"
    );
    program.sizes.outputs = vec![relation(0, 0, "64")];
    let call = program.call([3, 2], 1).unwrap();
    let what = check_outputs(&program.signature(&call), |_| Some(&[65])).unwrap_err();
    assert!(
        what.to_string().contains("64 in dimension 0 (record)"),
        "{what}"
    );
}
