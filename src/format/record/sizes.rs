//! What a record says about sizes: the symbols, how each gets its value, and what must hold between sizes.

use super::expression::Expression;
use super::fields::Fields;
use super::signature::{InputSpec, OutputSpec};
use crate::error::Result;

/// The sizes of a program's calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sizes {
    /// By number.
    pub symbols: Vec<Symbol>,
    /// Of the symbols that are no dimension by themselves, in the order in which they can be computed.
    pub solutions: Vec<Solution>,
    /// What dimensions of inputs must be.
    pub inputs: Vec<Relation>,
    /// What dimensions of outputs must be.
    pub outputs: Vec<Relation>,
    /// What must not be zero: the compiler took it for granted.
    pub guards: Vec<Expression>,
}

/// A size that differs from call to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// For messages.
    pub name: String,
    /// The delegate's input that it comes from.
    pub input: usize,
    /// The dimension of that input: its size is the symbol's value, or what its solution starts from.
    pub dim: usize,
}

/// How a symbol follows from the size of its dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Solution {
    /// Its number.
    pub symbol: usize,
    /// Over that size, and the symbols that have a value by then.
    pub value: Expression,
}

/// The size that a dimension must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// Number of the delegate's input or output.
    pub index: usize,
    /// Its dimension.
    pub dim: usize,
    /// Over the symbols.
    pub size: Expression,
}

impl Sizes {
    /// An expression over the symbols, with their names.
    pub fn infix(&self, expression: &Expression) -> String {
        expression.infix(|symbol| self.name(symbol as usize), "size")
    }

    /// What messages call a symbol.
    pub fn name(&self, symbol: usize) -> &str {
        self.symbols.get(symbol).map_or("?", |one| &one.name)
    }
}

/// Where symbols come from, as far as the record was read.
struct Reader<'f, 'a> {
    fields: &'f Fields<'a>,
    inputs: &'f [InputSpec],
    names: &'f [&'a str],
    places: Vec<Option<(usize, usize)>>,
}

pub(super) fn read(
    fields: &Fields<'_>,
    inputs: &[InputSpec],
    outputs: &[OutputSpec],
) -> Result<Sizes> {
    let names = fields.strings("symbols");
    let mut reader = Reader {
        fields,
        inputs,
        names,
        places: vec![None; names.len()],
    };
    reader.own_dimensions()?;
    let solutions = reader.solutions()?;
    let (of_inputs, of_outputs) = reader.relations(outputs)?;
    let guards = fields.strings("guards").iter().enumerate();
    let guards = guards.map(|(entry, text)| {
        let guard = Expression::parse(text, names.len(), false);
        guard.map_err(|what| reader.bad("guards", entry, text, &what))
    });
    Ok(Sizes {
        guards: guards.collect::<Result<_>>()?,
        symbols: reader.symbols()?,
        solutions,
        inputs: of_inputs,
        outputs: of_outputs,
    })
}

impl Reader<'_, '_> {
    fn bad(&self, field: &str, entry: usize, text: &str, what: &str) -> crate::Error {
        let what = format!("holds '{text}', which {what} (entry {entry})");
        self.fields.bad(field, what)
    }

    /// Symbols that are a dimension: the first one that has each.
    fn own_dimensions(&mut self) -> Result<()> {
        for (index, input) in self.inputs.iter().enumerate() {
            for (dim, spec) in input.dims.iter().enumerate() {
                let Some(symbol) = spec.symbol else { continue };
                let count = self.names.len();
                let place = self.places.get_mut(symbol as usize).ok_or_else(|| {
                    let what = format!("gives dimension {dim} of '{}' the symbol {symbol}, `symbols` names {count}", input.name);
                    self.fields.bad("inputs", what)
                })?;
                place.get_or_insert((index, dim));
            }
        }
        Ok(())
    }

    fn solutions(&mut self) -> Result<Vec<Solution>> {
        let texts = self.fields.strings("solutions").iter().enumerate();
        let read = texts.map(|(entry, text)| {
            let solution = self.solution(text);
            solution.map_err(|what| self.bad("solutions", entry, text, &what))
        });
        read.collect()
    }

    /// `"<k> <i> <d> <postfix>"`.
    fn solution(&mut self, text: &str) -> std::result::Result<Solution, String> {
        let mut words = text.splitn(4, ' ');
        let mut number = || words.next().and_then(decimal);
        let (Some(symbol), Some(input), Some(dim)) = (number(), number(), number()) else {
            return Err("does not start with a symbol, an input and a dimension".to_owned());
        };
        let value = Expression::parse(words.next().unwrap_or_default(), self.names.len(), true)?;
        let spec = self.inputs.get(input);
        if spec.is_none_or(|spec| spec.dims.len() <= dim) {
            return Err(format!(
                "names dimension {dim} of input {input}, which is not there"
            ));
        }
        if let Some(early) = value
            .symbols()
            .find(|&symbol| self.places[symbol as usize].is_none())
        {
            return Err(format!("uses symbol {early} before it has a value"));
        }
        match self.places.get_mut(symbol) {
            Some(place @ None) => *place = Some((input, dim)),
            Some(_) => return Err(format!("solves symbol {symbol}, which has a value already")),
            None => return Err(format!("names symbol {symbol} of {}", self.names.len())),
        }
        Ok(Solution { symbol, value })
    }

    /// Of inputs, and of outputs.
    fn relations(&self, outputs: &[OutputSpec]) -> Result<(Vec<Relation>, Vec<Relation>)> {
        let (mut of_inputs, mut of_outputs) = (Vec::new(), Vec::new());
        for (entry, text) in self.fields.strings("relations").iter().enumerate() {
            let bad = |what: String| self.bad("relations", entry, text, &what);
            let (place, postfix) = text.split_once(' ').unwrap_or((text, ""));
            let (kind, list) = match place.as_bytes().first() {
                Some(b'i') => ("input", &mut of_inputs),
                Some(b'o') => ("output", &mut of_outputs),
                _ => return Err(bad("names neither an input nor an output".to_owned())),
            };
            let numbers = place[1..].split_once('.');
            let numbers = numbers.and_then(|(index, dim)| Some((decimal(index)?, decimal(dim)?)));
            let Some((index, dim)) = numbers else {
                return Err(bad(format!("names no dimension of an {kind}")));
            };
            let ndim = match kind {
                "input" => self.inputs.get(index).map(|spec| spec.dims.len()),
                _ => outputs.get(index).map(|spec| spec.ndim),
            };
            if ndim.is_none_or(|ndim| ndim <= dim) {
                let what = format!("names dimension {dim} of {kind} {index}, which is not there");
                return Err(bad(what));
            }
            let size = Expression::parse(postfix, self.names.len(), false).map_err(bad)?;
            list.push(Relation { index, dim, size });
        }
        Ok((of_inputs, of_outputs))
    }

    /// Every symbol has a name, and a value in each call.
    fn symbols(&self) -> Result<Vec<Symbol>> {
        let named = self.names.iter().zip(&self.places).enumerate();
        let symbols = named.map(|(number, (name, place))| match place {
            _ if name.is_empty() => {
                let what = format!("holds an empty name (entry {number})");
                Err(self.fields.bad("symbols", what))
            }
            None => {
                let what = format!(
                    "holds '{name}', which is no dimension and has no solution (entry {number})"
                );
                Err(self.fields.bad("symbols", what))
            }
            Some((input, dim)) => Ok(Symbol {
                name: (*name).to_owned(),
                input: *input,
                dim: *dim,
            }),
        });
        symbols.collect()
    }
}

/// A number as the exporter writes it: digits alone.
fn decimal(text: &str) -> Option<usize> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}
