//! Inputs and outputs of a record.

use super::fields::{Cursor, Fields};
use crate::error::Result;
use crate::format::ScalarType;

/// One input of the compiled code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// For messages.
    pub name: String,
    /// Element type.
    pub dtype: ScalarType,
    /// Dimensions, outermost first.
    pub dims: Vec<Dim>,
}

/// One dimension of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dim {
    /// Least extent.
    pub min: i64,
    /// Largest extent.
    pub max: i64,
    /// Dimensions with equal symbols have equal extents in one call; a number of [`Sizes::symbols`](super::Sizes::symbols).
    pub symbol: Option<u32>,
}

/// One output of the compiled code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputSpec {
    /// Element type.
    pub dtype: ScalarType,
    /// Number of dimensions.
    pub ndim: usize,
}

/// One input of the method as its callers name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// The argument, and where the input stands in it: `x`, `state[0]`, `cache['k']`.
    pub name: String,
    /// The place of the argument; `None`: it is a keyword.
    pub place: Option<u32>,
    /// The value that is part of the program, as Python writes it; `None`: a tensor.
    pub constant: Option<String>,
}

pub(super) fn call(fields: &Fields<'_>) -> Result<Vec<Argument>> {
    let (names, constants) = ("x_call", "x_call_constants");
    let count = fields.strings(names).len();
    let places = fields.ints_of("x_call_places", count, "input of a call")?;
    if fields.strings(constants).len() != count {
        let what = format!("does not hold one value for each of the {count} inputs of a call");
        return Err(fields.bad(constants, what));
    }
    let each = fields.strings(names).iter().zip(places);
    let read = each.zip(fields.strings(constants));
    let read = read.map(|((name, &place), constant)| {
        let bad = || fields.bad("x_call_places", format!("holds {place} for '{name}'"));
        Ok(Argument {
            name: (*name).to_owned(),
            place: match place {
                -1 => None,
                place => Some(u32::try_from(place).map_err(|_| bad())?),
            },
            constant: Some((*constant).to_owned()).filter(|text| !text.is_empty()),
        })
    });
    read.collect()
}

pub(super) fn inputs(fields: &Fields<'_>) -> Result<Vec<InputSpec>> {
    let names = fields.strings("input_names");
    let mut cursor = fields.cursor("inputs");
    let mut inputs = Vec::with_capacity(names.len());
    for name in names {
        let dtype = fields.scalar("inputs", cursor.int()?)?;
        let ndim = cursor.ndim()?;
        let dims = (0..ndim).map(|_| dim(&mut cursor)).collect::<Result<_>>()?;
        inputs.push(InputSpec {
            name: (*name).to_owned(),
            dtype,
            dims,
        });
    }
    if !cursor.at_end() {
        return Err(cursor.bad(format!(
            "holds more inputs than have names, which are {}",
            names.len()
        )));
    }
    Ok(inputs)
}

fn dim(cursor: &mut Cursor<'_, '_>) -> Result<Dim> {
    let (min, max, symbol) = (cursor.int()?, cursor.int()?, cursor.int()?);
    if min < 0 || max < min {
        return Err(cursor.bad(format!("holds a dimension of {min} to {max}")));
    }
    let symbol = match symbol {
        -1 => None,
        symbol => match u32::try_from(symbol) {
            Ok(symbol) => Some(symbol),
            Err(_) => return Err(cursor.bad(format!("holds the symbol {symbol}"))),
        },
    };
    Ok(Dim { min, max, symbol })
}

pub(super) fn outputs(fields: &Fields<'_>) -> Result<Vec<OutputSpec>> {
    let mut cursor = fields.cursor("outputs");
    let mut outputs = Vec::new();
    while !cursor.at_end() {
        let dtype = fields.scalar("outputs", cursor.int()?)?;
        outputs.push(OutputSpec {
            dtype,
            ndim: cursor.ndim()?,
        });
    }
    Ok(outputs)
}
