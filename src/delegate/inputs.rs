//! The check of a call's inputs, and of the room for its outputs. The compiled code checks nothing: a wrong count throws through its C
//! boundary, and a wrong shape reads outside the input.
#![deny(unsafe_code)]

use super::tensor::{is_contiguous, InputTensor, OutputTensor};
use crate::error::Error;
use crate::format::{Dim, InputSpec, OutputSpec, ScalarType, Source, Wiring};

/// What a call must look like: what was recorded about the delegate, and how its caller's inputs and outputs
/// belong to it.
#[derive(Clone, Copy)]
pub struct Signature<'a> {
    /// The delegate's inputs, by its own numbers.
    pub inputs: &'a [InputSpec],
    /// Its outputs.
    pub outputs: &'a [OutputSpec],
    /// From those numbers to the caller's.
    pub wiring: &'a Wiring,
}

impl<'a> Signature<'a> {
    /// What was recorded about the caller's input `index`; `None` if the delegate does not take it.
    pub fn input(&self, index: usize) -> Option<&'a InputSpec> {
        let own = self.wiring.delegates_input(index)?;
        Some(&self.inputs[own])
    }

    /// What messages call the caller's input `index`.
    pub fn input_name(&self, index: usize) -> String {
        match self.input(index) {
            Some(spec) => format!("input {index} '{}'", spec.name),
            None => format!("input {index}"),
        }
    }

    /// Type and number of dimensions of the caller's output `index`, as far as they are recorded.
    fn output(&self, index: usize) -> Option<OutputSpec> {
        match self.wiring.outputs[index] {
            Source::Output(own) => Some(self.outputs[own]),
            Source::Input(input) => self.input(input).map(|spec| OutputSpec {
                dtype: spec.dtype,
                ndim: spec.dims.len(),
            }),
        }
    }
}

/// Refuses inputs that the program was not exported for.
pub fn check(signature: &Signature<'_>, inputs: &[InputTensor<'_>]) -> crate::Result<()> {
    let expected = signature.wiring.inputs;
    if expected != inputs.len() {
        let name = |index| signature.input(index).map_or("not read", |spec| &spec.name);
        let names: Vec<&str> = (0..expected).map(name).collect();
        return Err(refuse(format!(
            "the program takes {expected} inputs ({}), {} were given",
            names.join(", "),
            inputs.len()
        )));
    }
    let mut symbols = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let checked = match signature.input(index) {
            Some(spec) => check_one(spec, input, &mut symbols),
            None if signature.wiring.is_used(index) => check_returned(input),
            None => Ok(()),
        };
        checked.map_err(|what| refuse(format!("{}: {what}", signature.input_name(index))))?;
    }
    Ok(())
}

/// Of an input that is only handed back, nothing was recorded: it must be what it says.
fn check_returned(input: &InputTensor<'_>) -> Result<(), String> {
    let dtype = ScalarType::from_number(i64::from(input.dtype));
    let dtype = dtype.ok_or_else(|| format!("dtype number {} is unknown", input.dtype))?;
    check_layout(dtype, input)
}

fn refuse(what: String) -> Error {
    Error::InvalidInput(what)
}

/// An extent already seen for a symbol, and where.
struct Bound {
    symbol: u32,
    extent: i64,
    place: String,
}

fn check_one(
    spec: &InputSpec,
    input: &InputTensor<'_>,
    symbols: &mut Vec<Bound>,
) -> Result<(), String> {
    if spec.dtype.number() != input.dtype {
        return Err(format!(
            "expected dtype {}, found {}",
            spec.dtype,
            dtype_text(input.dtype)
        ));
    }
    if spec.dims.len() != input.sizes.len() {
        return Err(format!(
            "expected {} dimensions, found {} (sizes {:?})",
            spec.dims.len(),
            input.sizes.len(),
            input.sizes
        ));
    }
    for (dim, (spec_dim, &size)) in spec.dims.iter().zip(input.sizes).enumerate() {
        check_dim(dim, spec_dim, size, input.sizes)?;
        check_symbol(spec, dim, spec_dim, size, symbols)?;
    }
    check_layout(spec.dtype, input)
}

fn check_dim(dim: usize, spec: &Dim, size: i64, sizes: &[i64]) -> Result<(), String> {
    if (spec.min..=spec.max).contains(&size) && size >= 0 {
        return Ok(());
    }
    let expected = if spec.min == spec.max {
        format!("{}", spec.min)
    } else {
        format!("{} to {}", spec.min, spec.max)
    };
    Err(format!(
        "expected {expected} in dimension {dim}, found {size} (sizes {sizes:?})"
    ))
}

fn check_symbol(
    input: &InputSpec,
    dim: usize,
    spec: &Dim,
    size: i64,
    symbols: &mut Vec<Bound>,
) -> Result<(), String> {
    let Some(symbol) = spec.symbol else {
        return Ok(());
    };
    match symbols.iter().find(|bound| bound.symbol == symbol) {
        Some(bound) if bound.extent != size => Err(format!(
            "expected {} in dimension {dim}, as in {}, found {size}",
            bound.extent, bound.place
        )),
        Some(_) => Ok(()),
        None => {
            let place = format!("dimension {dim} of '{}'", input.name);
            symbols.push(Bound {
                symbol,
                extent: size,
                place,
            });
            Ok(())
        }
    }
}

/// The kernels were compiled for contiguous inputs, and index them so.
fn check_layout(dtype: ScalarType, input: &InputTensor<'_>) -> Result<(), String> {
    if let Some(strides) = input.strides {
        if !is_contiguous(input.sizes, strides) {
            return Err(format!(
                "expected a contiguous tensor, found strides {strides:?} with sizes {:?}; make it contiguous first",
                input.sizes
            ));
        }
    }
    let expected = dtype.dense_bytes(input.sizes.iter().copied());
    let expected = expected.ok_or_else(|| format!("sizes {:?} are too large", input.sizes))?;
    if input.memory.len() < expected {
        return Err(format!(
            "expected {expected} bytes for sizes {:?}, found {}",
            input.sizes,
            input.memory.len()
        ));
    }
    Ok(())
}

/// Refuses room that no output of the program can fit, before the program runs.
pub fn check_rooms(signature: &Signature<'_>, rooms: &[OutputTensor<'_>]) -> crate::Result<()> {
    let expected = signature.wiring.outputs.len();
    if expected != rooms.len() {
        return Err(refuse(format!(
            "the program has {expected} outputs, room for {} was given",
            rooms.len()
        )));
    }
    for (index, room) in rooms.iter().enumerate() {
        let Some(spec) = signature.output(index) else {
            continue;
        };
        let refuse = |what| Err(refuse(format!("output {index}: {what}")));
        if spec.dtype.number() != room.dtype {
            return refuse(format!(
                "it has dtype {}, room was given for dtype {}",
                spec.dtype,
                dtype_text(room.dtype)
            ));
        }
        if spec.ndim != room.sizes.len() {
            return refuse(format!(
                "it has {} dimensions, room was given for {} (sizes {:?})",
                spec.ndim,
                room.sizes.len(),
                room.sizes
            ));
        }
    }
    Ok(())
}

/// Refuses an output that is not what the record says: it would not fit where the caller puts it.
pub fn check_output(
    index: usize,
    spec: &OutputSpec,
    dtype: i32,
    sizes: &[i64],
) -> crate::Result<()> {
    let differs = |fact, expected, found| Error::Mismatch {
        name: format!("output {index}"),
        fact,
        expected: format!("{expected} (record)"),
        found: format!("{found} (compiled code)"),
    };
    if dtype != spec.dtype.number() {
        return Err(differs("dtype", spec.dtype.to_string(), dtype_text(dtype)));
    }
    if sizes.len() != spec.ndim {
        return Err(differs(
            "number of dimensions",
            spec.ndim.to_string(),
            sizes.len().to_string(),
        ));
    }
    Ok(())
}

fn dtype_text(dtype: i32) -> String {
    ScalarType::from_number(i64::from(dtype))
        .map_or_else(|| format!("number {dtype}"), |known| known.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::tensor::{Memory, Room};
    use super::*;

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
        super::check(&signature(specs, &[], &wiring), inputs)
    }

    fn signature<'a>(
        inputs: &'a [InputSpec],
        outputs: &'a [OutputSpec],
        wiring: &'a Wiring,
    ) -> Signature<'a> {
        Signature {
            inputs,
            outputs,
            wiring,
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
            what.contains("takes 2 inputs (x, mask), 1 were given"),
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
    fn strided_and_short_inputs_are_refused_by_name() {
        let specs = [spec("x", &[(2, 2, -1), (3, 3, -1)])];
        let strided = InputTensor {
            strides: Some(&[1, 2]),
            ..input(&[2, 3], &[0; 24])
        };
        assert!(refusal(&specs, &[strided])
            .contains("'x': expected a contiguous tensor, found strides [1, 2]"));
        let contiguous = InputTensor {
            strides: Some(&[3, 1]),
            ..input(&[2, 3], &[0; 24])
        };
        assert_eq!(check(&specs, &[contiguous]), Ok(()));
        assert!(refusal(&specs, &[input(&[2, 3], &[0; 23])]).contains("expected 24 bytes"));
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
            (&[], "has 1 outputs, room for 0 was given"),
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
            outputs: vec![Source::Input(1), Source::Output(0), Source::Input(3)],
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
            let refused = super::check(&signature, inputs).unwrap_err();
            refused.to_string()
        };
        assert_eq!(
            super::check(&signature, &[three, two, strange, two]),
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
}
