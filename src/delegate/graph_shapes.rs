//! The shapes whose graphs are captured at load: sizes of inputs for each combination that the option asks for, held against
//! the record before anything is opened.
#![deny(unsafe_code)]

use super::inputs::check_dim;
use super::signature_of;
use super::sizes::CallSizes;
use super::tensor::{InputTensor, Memory};
use crate::config::{Options, ShapeGroup, GRAPH_SHAPES};
use crate::device::NODE_BYTES;
use crate::error::{Error, Result};
use crate::format::{Record, Records, Sizes, Wiring};
use crate::schedule::Event;
use crate::session::GRAPH_BYTES;

/// More than anybody waits for at a load.
const MOST: usize = 1024;

/// One shape of a method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphShape {
    /// `batch=1,tokens=16`.
    pub name: String,
    /// Sizes of each of the delegate's inputs.
    pub inputs: Vec<Vec<i64>>,
}

impl GraphShape {
    /// Bytes of its inputs, each rounded up to the granule; saturates.
    pub fn input_bytes(&self, record: &Record, granule: u64) -> u64 {
        let both = record.inputs.iter().zip(&self.inputs);
        let bytes = both.map(|(spec, sizes)| {
            let bytes = spec.dtype.dense_bytes(sizes.iter().copied());
            let bytes = bytes.and_then(|bytes| bytes.checked_next_multiple_of(granule));
            bytes.unwrap_or(u64::MAX)
        });
        bytes.fold(0, u64::saturating_add)
    }
}

/// Kernels of a pass, as recorded: an operator that launches several counts once.
pub fn kernels(record: &Record) -> u64 {
    let is_kernel = |event: &&Event| matches!(event, Event::Kernel(_));
    record.trace.iter().filter(is_kernel).count() as u64
}

/// Bytes that graphs may take, before there is a plan: of the shapes that the options name if each read is a copy, else the cap.
pub fn graph_room(records: &Records, options: &Options) -> Result<u64> {
    let cap = options.graph_bytes.unwrap_or(GRAPH_BYTES);
    if options.graph_shapes.is_empty() {
        return Ok(cap);
    }
    let mut bytes = 0u64;
    for record in records.all() {
        let nodes = kernels(record) + record.probes.len() as u64;
        let count = shapes_of(records, record, options)?.len() as u64;
        bytes = bytes.saturating_add(nodes.saturating_mul(count).saturating_mul(NODE_BYTES));
    }
    Ok(bytes.min(cap))
}

/// The shapes of the method `record` that the options ask for. Names of methods are checked against all of `records`.
pub fn shapes_of(records: &Records, record: &Record, options: &Options) -> Result<Vec<GraphShape>> {
    let mut found: Vec<GraphShape> = Vec::new();
    for group in &options.graph_shapes {
        if !is_of(records, record, group)? {
            continue;
        }
        for shape in Method::new(record).combine(&group.dims)? {
            if found.iter().any(|before| before.inputs == shape.inputs) {
                let what = format!("names {} of method '{}' twice", shape.name, record.method);
                return Err(refused(what));
            }
            found.push(shape);
        }
    }
    Ok(found)
}

fn is_of(records: &Records, record: &Record, group: &ShapeGroup) -> Result<bool> {
    let names = records.names();
    match &group.method {
        Some(name) if names.contains(&name.as_str()) => Ok(*name == record.method),
        None if names.len() == 1 => Ok(true),
        Some(name) => Err(refused(format!(
            "names method '{name}'; the methods of this program are {}",
            names.join(", ")
        ))),
        None => Err(refused(format!(
            "names no method, and the program has {}: write '{}:' before the sizes, and ';' between methods",
            names.join(", "),
            record.method
        ))),
    }
}

/// A method whose shapes are looked for.
struct Method<'a> {
    record: &'a Record,
    sizes: &'a Sizes,
}

impl<'a> Method<'a> {
    fn new(record: &'a Record) -> Method<'a> {
        let sizes = &record.sizes;
        Method { record, sizes }
    }

    /// All combinations of the sizes of these dimensions.
    fn combine(&self, dims: &[(String, Vec<i64>)]) -> Result<Vec<GraphShape>> {
        self.check_names(dims)?;
        let count = dims.iter().map(|(_, sizes)| sizes.len());
        let count = count.fold(1, usize::saturating_mul);
        if count > MOST {
            return Err(refused(format!(
                "asks for {count} graphs of method '{}' at once; the most are {MOST}",
                self.record.method
            )));
        }
        (0..count).map(|at| self.shape(&pick(dims, at))).collect()
    }

    /// Each dimension of the record is given, and no other.
    fn check_names(&self, dims: &[(String, Vec<i64>)]) -> Result<()> {
        let symbols = &self.sizes.symbols;
        let unknown = |(name, _): &&(String, Vec<i64>)| symbols.iter().all(|one| one.name != *name);
        if let Some((name, _)) = dims.iter().find(unknown) {
            return Err(refused(format!(
                "names dimension '{name}' of method '{}': {}",
                self.record.method,
                self.allowed()
            )));
        }
        let given = |name: &str| dims.iter().any(|(other, _)| other == name);
        match symbols.iter().find(|one| !given(&one.name)) {
            None => Ok(()),
            Some(missing) => Err(refused(format!(
                "gives dimension '{}' of method '{}' no size: {}",
                missing.name,
                self.record.method,
                self.allowed()
            ))),
        }
    }

    /// What may be given, in words.
    fn allowed(&self) -> String {
        let symbols = self.sizes.symbols.iter().enumerate();
        let each = symbols.map(|(number, symbol)| match self.range(number) {
            Some((min, max)) => format!("{}={min} to {max}", symbol.name),
            None => symbol.name.clone(),
        });
        match self.sizes.symbols.is_empty() {
            true => "it has no dynamic dimensions; write 'static'".to_owned(),
            false => format!("its dimensions are {}", each.collect::<Vec<_>>().join(", ")),
        }
    }

    /// The sizes that a symbol may have; `None` where only sizes that follow from it are bounded.
    fn range(&self, symbol: usize) -> Option<(i64, i64)> {
        let dims = self.record.inputs.iter().flat_map(|input| &input.dims);
        let own = dims.filter(|dim| dim.symbol == Some(symbol as u32));
        own.map(|dim| (dim.min, dim.max))
            .reduce(|one, other| (one.0.max(other.0), one.1.min(other.1)))
    }

    /// The shape with these sizes of its dimensions. Whatever is wrong with them is said with their names.
    fn shape(&self, picked: &[(&str, i64)]) -> Result<GraphShape> {
        let name: Vec<String> = { picked.iter() }
            .map(|(name, size)| format!("{name}={size}"))
            .collect();
        let name = match name.is_empty() {
            true => "static".to_owned(),
            false => name.join(","),
        };
        let wrong = |what: String| {
            refused(format!(
                "{name} of method '{}': {what}; {}",
                self.record.method,
                self.allowed()
            ))
        };
        let mut symbols = Vec::new();
        for symbol in &self.sizes.symbols {
            let found = picked.iter().find(|(name, _)| *name == symbol.name);
            let size = found.map_or(0, |(_, size)| *size);
            symbols.push(size);
        }
        let inputs = self.inputs(&symbols).map_err(&wrong)?;
        self.check(&inputs).map_err(wrong)?;
        Ok(GraphShape { name, inputs })
    }

    /// Sizes of all inputs, from the values of the symbols.
    fn inputs(&self, symbols: &[i64]) -> std::result::Result<Vec<Vec<i64>>, String> {
        let mut inputs: Vec<Vec<i64>> = Vec::new();
        for (index, input) in self.record.inputs.iter().enumerate() {
            let mut sizes = Vec::new();
            for (at, dim) in input.dims.iter().enumerate() {
                let relation = |one: &&crate::format::Relation| one.index == index && one.dim == at;
                let size = match (dim.symbol, self.sizes.inputs.iter().find(relation)) {
                    (Some(symbol), _) => symbols.get(symbol as usize).copied(),
                    (None, Some(relation)) => relation.size.evaluate(symbols, 0),
                    (None, None) => (dim.min == dim.max).then_some(dim.min),
                };
                sizes.push(size.ok_or_else(|| {
                    format!(
                        "dimension {at} of input '{}' cannot be computed from it",
                        input.name
                    )
                })?);
            }
            for (at, (dim, &size)) in input.dims.iter().zip(&sizes).enumerate() {
                let checked = check_dim(at, dim, size, &sizes);
                checked.map_err(|what| format!("input '{}': {what}", input.name))?;
            }
            inputs.push(sizes);
        }
        Ok(inputs)
    }

    /// Relations and guards, as at a call.
    fn check(&self, inputs: &[Vec<i64>]) -> std::result::Result<(), String> {
        let record = self.record;
        let tensors = record.inputs.iter().zip(inputs);
        let tensors: Vec<InputTensor<'_>> = tensors
            .map(|(spec, sizes)| InputTensor {
                dtype: spec.dtype.number(),
                sizes,
                strides: None,
                memory: Memory::Host(&[]),
            })
            .collect();
        let wiring = Wiring::of_delegate(record.inputs.len(), record.outputs.len());
        let solved = CallSizes::default().solve(&signature_of(record, &wiring), &tensors);
        solved.map_err(|error| match error {
            Error::InvalidInput(what) => what,
            other => other.to_string(),
        })
    }
}

/// The combination of this number.
fn pick(dims: &[(String, Vec<i64>)], mut at: usize) -> Vec<(&str, i64)> {
    let mut picked = Vec::new();
    for (name, sizes) in dims.iter().rev() {
        picked.push((name.as_str(), sizes[at % sizes.len()]));
        at /= sizes.len();
    }
    picked.reverse();
    picked
}

fn refused(what: String) -> Error {
    Error::Option {
        key: GRAPH_SHAPES.to_owned(),
        what,
    }
}
