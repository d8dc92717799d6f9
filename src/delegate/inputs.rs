//! The check of a call's inputs, and of the room for its outputs. The compiled code checks nothing: a wrong count throws through its C
//! boundary, and a wrong shape reads outside the input.
#![deny(unsafe_code)]

use super::tensor::{is_contiguous, InputTensor, OutputTensor};
use crate::error::Error;
use crate::format::{Dim, InputSpec, OutputSpec, ScalarType};

/// Refuses inputs that the program was not exported for.
pub fn check(specs: &[InputSpec], inputs: &[InputTensor<'_>]) -> crate::Result<()> {
    if specs.len() != inputs.len() {
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        return Err(refuse(format!(
            "the program takes {} inputs ({}), {} were given",
            specs.len(),
            names.join(", "),
            inputs.len()
        )));
    }
    let mut symbols = Vec::new();
    for (index, (spec, input)) in specs.iter().zip(inputs).enumerate() {
        check_one(spec, input, &mut symbols)
            .map_err(|what| refuse(format!("input {index} '{}': {what}", spec.name)))?;
    }
    Ok(())
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
    check_layout(spec, input)
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
fn check_layout(spec: &InputSpec, input: &InputTensor<'_>) -> Result<(), String> {
    if let Some(strides) = input.strides {
        if !is_contiguous(input.sizes, strides) {
            return Err(format!(
                "expected a contiguous tensor, found strides {strides:?} with sizes {:?}; make it contiguous first",
                input.sizes
            ));
        }
    }
    let expected = spec.dtype.dense_bytes(input.sizes.iter().copied());
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
pub fn check_rooms(specs: &[OutputSpec], rooms: &[OutputTensor<'_>]) -> crate::Result<()> {
    if specs.len() != rooms.len() {
        return Err(refuse(format!(
            "the program has {} outputs, room for {} was given",
            specs.len(),
            rooms.len()
        )));
    }
    for (index, (spec, room)) in specs.iter().zip(rooms).enumerate() {
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
        assert_eq!(check_rooms(&specs, &[room(6, &[2, 3])]), Ok(()));
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
            let what = check_rooms(&specs, rooms).unwrap_err().to_string();
            assert!(what.contains(expected), "{what}");
        }
    }
}
