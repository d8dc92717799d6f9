//! The sizes of a call, held against the relations and guards of the record. Kernels index by what the compiler derived from
//! them: a size that does not fit its relation lets them read outside of an input.
#![deny(unsafe_code)]

use super::inputs::Signature;
use super::tensor::{InputTensor, OutputTensor};
use crate::error::{Error, Result};
use crate::format::{Expression, OutputSource, Relation};

/// What the sizes of a call come to. Kept from call to call for its memory.
#[derive(Debug, Default)]
pub struct CallSizes {
    /// Value of each symbol.
    symbols: Vec<i64>,
    /// What each relation of outputs says.
    outputs: Vec<i64>,
}

/// Before a call was checked.
pub static UNKNOWN: CallSizes = CallSizes {
    symbols: Vec::new(),
    outputs: Vec::new(),
};

impl CallSizes {
    /// Computes the symbols of a call whose inputs have the ranks of the record, and checks everything that is said of its sizes.
    pub fn solve(&mut self, signature: &Signature<'_>, inputs: &[InputTensor<'_>]) -> Result<()> {
        let sizes = signature.sizes;
        let size = |input: usize, dim: usize| inputs[signature.wiring.taken[input]].sizes[dim];
        self.symbols.clear();
        let places = sizes.symbols.iter();
        self.symbols
            .extend(places.map(|symbol| size(symbol.input, symbol.dim)));
        self.check_equal(signature, size)?;
        for solution in &sizes.solutions {
            let from = self.symbols[solution.symbol];
            let value = solution.value.evaluate(&self.symbols, from);
            self.symbols[solution.symbol] = value.ok_or_else(|| {
                let (name, place) = (
                    sizes.name(solution.symbol),
                    place(signature, solution.symbol),
                );
                refused(format!(
                    "{name} = {} cannot be computed for size {from}, that of {place}",
                    sizes.infix(&solution.value)
                ))
            })?;
        }
        for relation in &sizes.inputs {
            let (found, dim) = (size(relation.index, relation.dim), relation.dim);
            let name = || signature.input_name(signature.wiring.taken[relation.index]);
            let expected = self.expected(signature, relation, name)?;
            if expected != found {
                let (expected, from) = self.expectation(signature, relation, expected);
                return Err(refused(format!(
                    "{}: expected {expected} in dimension {dim}{from}, found {found}",
                    name()
                )));
            }
        }
        self.check_guards(signature)?;
        self.outputs.clear();
        for relation in &sizes.outputs {
            let name = || format!("output {} of the delegate", relation.index);
            let expected = self.expected(signature, relation, name)?;
            self.outputs.push(expected);
        }
        Ok(())
    }

    /// Dimensions of one symbol have one size.
    fn check_equal(
        &self,
        signature: &Signature<'_>,
        size: impl Fn(usize, usize) -> i64,
    ) -> Result<()> {
        if self.symbols.is_empty() {
            return Ok(());
        }
        for (index, input) in signature.inputs.iter().enumerate() {
            for (dim, spec) in input.dims.iter().enumerate() {
                let Some(symbol) = spec.symbol else { continue };
                let (expected, found) = (self.symbols[symbol as usize], size(index, dim));
                if expected != found {
                    let name = signature.input_name(signature.wiring.taken[index]);
                    let place = place(signature, symbol as usize);
                    return Err(refused(format!(
                        "{name}: expected {expected} in dimension {dim}, as in {place}, found {found}"
                    )));
                }
            }
        }
        Ok(())
    }

    fn check_guards(&self, signature: &Signature<'_>) -> Result<()> {
        for guard in &signature.sizes.guards {
            let text = || signature.sizes.infix(guard);
            match guard.evaluate(&self.symbols, 0) {
                None => {
                    return Err(refused(format!(
                        "the program was compiled for sizes with {}, which cannot be computed{}",
                        text(),
                        self.values(signature, guard, "; ", false)
                    )))
                }
                Some(0) => {
                    return Err(refused(format!(
                        "the program was compiled for sizes with {}{}",
                        text(),
                        self.values(signature, guard, "; ", false)
                    )))
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// What a relation comes to.
    fn expected(
        &self,
        signature: &Signature<'_>,
        relation: &Relation,
        name: impl Fn() -> String,
    ) -> Result<i64> {
        let value = relation.size.evaluate(&self.symbols, 0);
        value.ok_or_else(|| {
            refused(format!(
                "{}: the size {} of dimension {} cannot be computed{}",
                name(),
                signature.sizes.infix(&relation.size),
                relation.dim,
                self.values(signature, &relation.size, "; ", true)
            ))
        })
    }

    /// `8*seq = 24`, and ` (seq = 3, from dimension 1 of 'x')`.
    fn expectation(
        &self,
        signature: &Signature<'_>,
        relation: &Relation,
        value: i64,
    ) -> (String, String) {
        if relation.size.is_literal() {
            return (value.to_string(), String::new());
        }
        let from = match self.values(signature, &relation.size, "", true) {
            none if none.is_empty() => none,
            values => format!(" ({values})"),
        };
        (
            format!("{} = {value}", signature.sizes.infix(&relation.size)),
            from,
        )
    }

    /// `seq = 3` of every symbol in an expression, each once, after `lead` if there are any; `places`: with where they come from.
    fn values(
        &self,
        signature: &Signature<'_>,
        expression: &Expression,
        lead: &str,
        places: bool,
    ) -> String {
        let mut symbols: Vec<usize> = expression.symbols().map(|symbol| symbol as usize).collect();
        symbols.sort_unstable();
        symbols.dedup();
        let value = |&symbol: &usize| {
            let (name, value) = (signature.sizes.name(symbol), self.symbols[symbol]);
            match places {
                true => format!("{name} = {value}, from {}", place(signature, symbol)),
                false => format!("{name} = {value}"),
            }
        };
        let values: Vec<String> = symbols.iter().map(value).collect();
        match values.is_empty() {
            true => String::new(),
            false => format!("{lead}{}", values.join(if places { "; " } else { ", " })),
        }
    }
}

/// Refuses room whose sizes are not those that outputs of this call will have, before the program runs.
pub fn check_rooms(signature: &Signature<'_>, rooms: &[OutputTensor<'_>]) -> Result<()> {
    for (index, (source, room)) in signature.wiring.outputs.iter().zip(rooms).enumerate() {
        let OutputSource::Output(own) = *source else {
            continue;
        };
        let relations = signature.sizes.outputs.iter().zip(&signature.call.outputs);
        for (relation, &expected) in relations.filter(|(relation, _)| relation.index == own) {
            let (dim, found) = (relation.dim, room.sizes[relation.dim]);
            if expected != found {
                let (expected, from) = signature.call.expectation(signature, relation, expected);
                return Err(refused(format!(
                    "output {index}: it will have {expected} in dimension {dim}{from}, room was given for {found} (sizes {:?})",
                    room.sizes
                )));
            }
        }
    }
    Ok(())
}

/// Refuses outputs of the delegate whose sizes are not what the record says of this call. `sizes` are those of each, of the
/// recorded ranks.
pub fn check_outputs<'s>(
    signature: &Signature<'_>,
    sizes: impl Fn(usize) -> Option<&'s [i64]>,
) -> Result<()> {
    let relations = signature.sizes.outputs.iter().zip(&signature.call.outputs);
    for (relation, &expected) in relations {
        let found = sizes(relation.index).map(|sizes| sizes[relation.dim]);
        if found.is_some_and(|found| found != expected) {
            let (expected, from) = signature.call.expectation(signature, relation, expected);
            return Err(Error::Mismatch {
                name: format!("output {} of the delegate", relation.index),
                fact: "size",
                expected: format!("{expected} in dimension {}{from} (record)", relation.dim),
                found: format!("{} (compiled code)", found.unwrap_or_default()),
            });
        }
    }
    Ok(())
}

/// `dimension 1 of 'x'`: where a symbol comes from.
fn place(signature: &Signature<'_>, symbol: usize) -> String {
    let symbol = &signature.sizes.symbols[symbol];
    format!(
        "dimension {} of '{}'",
        symbol.dim, signature.inputs[symbol.input].name
    )
}

fn refused(what: String) -> Error {
    Error::InvalidInput(what)
}

#[cfg(test)]
#[path = "sizes_tests.rs"]
mod tests;
