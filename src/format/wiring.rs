//! How the inputs and outputs of a method map to the inputs and outputs of its delegate. They may stand in
//! another order. An output may be an input as it is, or stand twice. An input may not be read at all.
//! ExecuTorch follows the program; callers that call the delegate without ExecuTorch need this.
//!
//! Only tensors are numbered here. None, numbers and strings among inputs and outputs are part of the
//! program and the same in every call; the compiled code takes and gives none.

use std::collections::HashMap;

use super::generated::program as fb;
use super::{malformed, Pte};
use crate::error::{counted, Error, Result};

/// Where an output of a method comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputSource {
    /// The delegate's output of this number.
    Output(usize),
    /// The method's input of this number, as it is.
    Input(usize),
}

/// Which inputs of a method its delegate takes, and what the method returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wiring {
    /// Number of inputs of the method that are tensors.
    pub inputs: usize,
    /// For each input of the delegate, the number of the method's input.
    pub taken: Vec<usize>,
    /// For each output of the method, what it is.
    pub outputs: Vec<OutputSource>,
    /// Whether the numbers are the method's, which its callers know.
    pub numbered: bool,
}

impl Wiring {
    /// Of a method that is its delegate.
    pub fn straight(inputs: usize, outputs: usize) -> Wiring {
        Wiring {
            inputs,
            taken: (0..inputs).collect(),
            outputs: (0..outputs).map(OutputSource::Output).collect(),
            numbered: true,
        }
    }

    /// Of a delegate whose method is not known: it is called by its own numbers.
    pub fn of_delegate(inputs: usize, outputs: usize) -> Wiring {
        Wiring {
            numbered: false,
            ..Wiring::straight(inputs, outputs)
        }
    }

    /// The delegate's number of the method's input `input`, if it is taken.
    pub fn delegates_input(&self, input: usize) -> Option<usize> {
        self.taken.iter().position(|&taken| taken == input)
    }

    /// Whether the method's input `input` has to be there for the call: it is read, or returned as it is.
    pub fn is_used(&self, input: usize) -> bool {
        self.taken.contains(&input) || self.outputs.contains(&OutputSource::Input(input))
    }

    /// As the program wires `method`, whose one delegate takes `inputs` inputs and gives `outputs` outputs.
    /// A method that computes anything outside of its delegate is refused.
    pub fn of(program: &Pte<'_>, method: &str, inputs: usize, outputs: usize) -> Result<Wiring> {
        let plan = program.plan(method)?;
        let bad = |what: String| {
            let what = format!("method '{method}': {what}");
            malformed(program.name(), plan._tab.loc(), what)
        };
        let tensors = |list: Vec<i32>| tensors(program, method, plan, list);
        let args = tensors(delegate_args(program, method, plan)?)?;
        if args.len() != inputs + outputs {
            let what = format!(
                "its delegate is called with {}, and was recorded with {} and {}",
                counted(args.len() as u64, "tensor"),
                counted(inputs as u64, "input"),
                counted(outputs as u64, "output")
            );
            return Err(bad(what));
        }
        let (takes, gives) = args.split_at(inputs);
        let has = tensors(plan.inputs().into_iter().flatten().collect())?;
        let (inputs_at, outputs_at) = (places(&has), places(gives));
        let taken = takes.iter().enumerate().map(|(index, &value)| {
            let what = || bad(format!("input {index} of its delegate is value {value}, which is none of its own inputs"));
            inputs_at.get(&value).copied().ok_or_else(what)
        });
        let returned = tensors(plan.outputs().into_iter().flatten().collect())?;
        let returned = returned.into_iter().enumerate().map(|(index, value)| {
            let output = outputs_at.get(&value).copied().map(OutputSource::Output);
            let source = output.or_else(|| inputs_at.get(&value).copied().map(OutputSource::Input));
            let what = || bad(format!("output {index} is value {value}, which is neither an output of its delegate nor an input"));
            source.ok_or_else(what)
        });
        Ok(Wiring {
            inputs: has.len(),
            taken: taken.collect::<Result<_>>()?,
            outputs: returned.collect::<Result<_>>()?,
            numbered: true,
        })
    }
}

/// Those of a list of values that are tensors. None, numbers and strings are left out, and lists of values are refused.
fn tensors(
    program: &Pte<'_>,
    method: &str,
    plan: &fb::ExecutionPlan<'_>,
    mut list: Vec<i32>,
) -> Result<Vec<i32>> {
    use fb::KernelTypes as Kind;
    let values = plan.values();
    let count = values.map_or(0, |values| values.len());
    let kind = |value: i32| {
        let at = usize::try_from(value).ok().filter(|&at| at < count)?;
        Some(values?.get(at).val_type())
    };
    for &value in &list {
        match kind(value) {
            Some(
                Kind::Tensor | Kind::Null | Kind::Int | Kind::Bool | Kind::Double | Kind::String,
            ) => {}
            Some(other) => {
                let other = other.variant_name().unwrap_or("of an unknown kind");
                return Err(Error::Unsupported(format!(
                    "method '{method}' of {} takes or gives value {value}, which is {other}; this interface runs methods \
                     whose inputs and outputs are tensors, numbers, strings and None",
                    program.name()
                )));
            }
            None => {
                let what = format!("method '{method}': value {value} is not there, it has {count}");
                return Err(malformed(program.name(), plan._tab.loc(), what));
            }
        }
    }
    list.retain(|&value| kind(value) == Some(Kind::Tensor));
    Ok(list)
}

/// Where each value stands first. A map, since a damaged program may list millions.
fn places(values: &[i32]) -> HashMap<i32, usize> {
    let mut places = HashMap::with_capacity(values.len());
    for (place, &value) in values.iter().enumerate() {
        places.entry(value).or_insert(place);
    }
    places
}

/// The values with which the one delegate is called, by the method's only instruction.
fn delegate_args(
    program: &Pte<'_>,
    method: &str,
    plan: &fb::ExecutionPlan<'_>,
) -> Result<Vec<i32>> {
    let chains = plan.chains().into_iter().flatten();
    let instructions: Vec<_> = chains
        .flat_map(|chain| chain.instructions().into_iter().flatten())
        .collect();
    let calls = instructions
        .iter()
        .filter_map(|one| one.instr_args_as_delegate_call());
    let calls: Vec<_> = calls.collect();
    match (calls.as_slice(), instructions.len()) {
        ([call], 1) => Ok(call.args().into_iter().flatten().collect()),
        (_, all) => Err(Error::Unsupported(format!(
            "method '{method}' of {} runs {all} instructions, {} of them calls of a delegate; this interface runs a \
             method that is one delegate as a whole: run it through ExecuTorch's Module",
            program.name(),
            calls.len()
        ))),
    }
}
