//! The check of a call's inputs, and of the room for its outputs. The compiled code checks nothing: a wrong count throws through its C
//! boundary, and a wrong shape reads outside the input.
#![deny(unsafe_code)]

use super::sizes::{self, CallSizes};
use super::tensor::{InputTensor, OutputTensor};
use crate::aoti::outputs::Output;
use crate::error::{counted, given, Error};
use crate::format::{
    dtype_name, Dim, InputSpec, OutputSource, OutputSpec, ScalarType, Sizes, Wiring,
};

/// What a call must look like: what was recorded about the delegate, and how its caller's inputs and outputs
/// belong to it.
#[derive(Clone, Copy)]
pub struct Signature<'a> {
    /// The delegate's inputs, by its own numbers.
    pub inputs: &'a [InputSpec],
    /// Its outputs.
    pub outputs: &'a [OutputSpec],
    /// What was recorded about the sizes of both.
    pub sizes: &'a Sizes,
    /// From those numbers to the caller's.
    pub wiring: &'a Wiring,
    /// What the sizes of this call come to, once they were checked.
    pub call: &'a CallSizes,
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
            Some(spec) if self.wiring.numbered => format!("input {index} '{}'", spec.name),
            Some(spec) => format!("input '{}'", spec.name),
            None => format!("input {index}"),
        }
    }

    /// What messages call the caller's output `index`.
    pub fn output_name(&self, index: usize) -> String {
        match self.wiring.numbered {
            true => format!("output {index}"),
            false => format!("output {index} of the delegate"),
        }
    }

    /// Type and number of dimensions of the caller's output `index`, as far as they are recorded.
    fn output(&self, index: usize) -> Option<OutputSpec> {
        match self.wiring.outputs[index] {
            OutputSource::Output(own) => Some(self.outputs[own]),
            OutputSource::Input(input) => self.input(input).map(|spec| OutputSpec {
                dtype: spec.dtype,
                ndim: spec.dims.len(),
            }),
        }
    }
}

/// Refuses inputs that the program was not exported for. What their sizes come to is in `call` then.
pub fn check(
    signature: &Signature<'_>,
    inputs: &[InputTensor<'_>],
    call: &mut CallSizes,
) -> crate::Result<()> {
    let expected = signature.wiring.inputs;
    if expected != inputs.len() {
        let name = |index| signature.input(index).map_or("not read", |spec| &spec.name);
        let names: Vec<&str> = (0..expected).map(name).collect();
        return Err(refuse(format!(
            "the program takes {} ({}), {}",
            counted(expected as u64, "input"),
            names.join(", "),
            given(inputs.len())
        )));
    }
    for (spec, &index) in signature.inputs.iter().zip(&signature.wiring.taken) {
        let checked = check_one(spec, &inputs[index]);
        checked.map_err(|what| refuse(format!("{}: {what}", signature.input_name(index))))?;
    }
    for (index, input) in inputs.iter().enumerate() {
        let returned = signature.input(index).is_none() && signature.wiring.is_used(index);
        if returned {
            check_returned(input).map_err(|what| refuse(format!("input {index}: {what}")))?;
        }
    }
    call.solve(signature, inputs)
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

fn check_one(spec: &InputSpec, input: &InputTensor<'_>) -> Result<(), String> {
    if spec.dtype.number() != input.dtype {
        return Err(format!(
            "expected dtype {}, found {}",
            spec.dtype,
            dtype_name(input.dtype)
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
    }
    check_layout(spec.dtype, input)
}

pub(super) fn check_dim(dim: usize, spec: &Dim, size: i64, sizes: &[i64]) -> Result<(), String> {
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

/// Nothing is read outside of an input's memory, in whatever layout it is given.
fn check_layout(dtype: ScalarType, input: &InputTensor<'_>) -> Result<(), String> {
    let dense = dtype.dense_bytes(input.sizes.iter().copied());
    let dense = dense.ok_or_else(|| format!("sizes {:?} are too large", input.sizes))?;
    let (needed, layout) = match input.strides {
        None => (dense, String::new()),
        Some(strides) if strides.len() != input.sizes.len() => {
            let what = format!("has strides {strides:?} for sizes {:?}", input.sizes);
            return Err(what);
        }
        Some(strides) => {
            let layout = format!(" and strides {strides:?}");
            let reach = input.reach(dtype.itemsize());
            let refused = || {
                format!(
                    "expected strides that are not negative and do not overflow, found sizes {:?}{layout}",
                    input.sizes
                )
            };
            (reach.ok_or_else(refused)?, layout)
        }
    };
    if input.memory.len() < needed {
        return Err(format!(
            "expected {needed} bytes for sizes {:?}{layout}, found {}",
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
            "the program has {}, room for {} was given",
            counted(expected as u64, "output"),
            rooms.len()
        )));
    }
    for (index, room) in rooms.iter().enumerate() {
        let Some(spec) = signature.output(index) else {
            continue;
        };
        let refuse = |what| Err(refuse(format!("{}: {what}", signature.output_name(index))));
        if spec.dtype.number() != room.dtype {
            return refuse(format!(
                "it has dtype {}, room was given for dtype {}",
                spec.dtype,
                dtype_name(room.dtype)
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

/// Refuses outputs of the delegate that are not what the record says: they would not fit where the caller puts them.
pub fn check_outputs(signature: &Signature<'_>, outputs: &[Output<'_>]) -> crate::Result<()> {
    for (index, (spec, output)) in signature.outputs.iter().zip(outputs).enumerate() {
        check_output(index, spec, output.dtype.0, output.sizes)?;
    }
    sizes::check_outputs(signature, |index| Some(outputs.get(index)?.sizes))
}

fn check_output(index: usize, spec: &OutputSpec, dtype: i32, sizes: &[i64]) -> crate::Result<()> {
    let differs = |fact, expected, found| Error::Mismatch {
        name: format!("output {index} of the delegate"),
        fact,
        expected: format!("{expected} (record)"),
        found: format!("{found} (compiled code)"),
    };
    if dtype != spec.dtype.number() {
        return Err(differs("dtype", spec.dtype.to_string(), dtype_name(dtype)));
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

#[cfg(test)]
#[path = "inputs_tests.rs"]
mod tests;
