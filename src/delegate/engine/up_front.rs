//! Graphs captured at load, over inputs of zeros. Zeros are right where inputs are indices: row 0 of a table is there.
#![deny(unsafe_code)]

use std::time::Instant;

use super::graphs::EngineGraphs;
use super::replay::shapes_of;
use super::{DelegateDevice, Engine, Turn};
use crate::config::GRAPH_SHAPES;
use crate::delegate::graph_shapes::GraphShape;
use crate::delegate::inputs::{self, Signature};
use crate::delegate::sizes::CallSizes;
use crate::delegate::tensor::{InputTensor, Memory};
use crate::error::{bytes_text, Error, Result};
use crate::session::{capture_up_front, GraphKey, Session, UpFront};

impl<D: DelegateDevice> Engine<D> {
    /// Captures the graphs of these shapes of `method`. After an error the engine is to be dropped, and they go with it.
    pub fn capture_shapes(
        &mut self,
        method: &str,
        signature: Signature<'_>,
        shapes: &[GraphShape],
    ) -> Result<()> {
        if shapes.is_empty() {
            return Ok(());
        }
        let (begun, count) = (Instant::now(), shapes.len());
        log::info!(
            "method '{method}': capturing {count} graphs, of {}",
            some(shapes)
        );
        self.in_turn(|turn, _, graph| {
            let graphs = graph.as_mut().ok_or_else(no_graphs)?;
            turn.capture_shapes(graphs, method, signature, shapes)
        })?;
        let stats = *super::locked(&self.shared.stats);
        log::info!(
            "method '{method}': captured {count} graphs in {:.2} s; the program has {} of {}",
            begun.elapsed().as_secs_f64(),
            stats.graphs,
            bytes_text(stats.graph_bytes)
        );
        Ok(())
    }
}

fn some(shapes: &[GraphShape]) -> String {
    let names: Vec<&str> = shapes.iter().map(|shape| shape.name.as_str()).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first, .., last] => format!("{first} to {last}"),
    }
}

fn no_graphs() -> Error {
    Error::Internal("graphs of shapes were asked for where none are captured".to_owned())
}

impl<D: DelegateDevice> Turn<'_, D> {
    fn capture_shapes(
        &mut self,
        graphs: &mut EngineGraphs,
        method: &str,
        signature: Signature<'_>,
        shapes: &[GraphShape],
    ) -> Result<()> {
        let buffers = self.session.buffers_of(self.state)?;
        let bytes = shapes
            .iter()
            .map(|shape| most_bytes(signature, shape))
            .max();
        let zeros = zeros(bytes.unwrap_or(0))?;
        let all = shapes.iter().map(|shape| tensors(signature, shape, &zeros));
        let mut passes = Zeros {
            turn: self,
            number: graphs.number,
            method,
            signature,
            shapes,
            inputs: all.collect::<Result<_>>()?,
            call: CallSizes::default(),
        };
        capture_up_front(&mut passes, shapes.len(), &buffers)
    }
}

/// Passes over zeros.
struct Zeros<'t, 'd, 'a, D: DelegateDevice> {
    turn: &'t mut Turn<'d, D>,
    number: u64,
    method: &'a str,
    signature: Signature<'a>,
    shapes: &'a [GraphShape],
    inputs: Vec<Vec<InputTensor<'a>>>,
    call: CallSizes,
}

impl<D: DelegateDevice> UpFront<D> for Zeros<'_, '_, '_, D> {
    fn session(&mut self) -> &mut Session<D> {
        self.turn.session
    }

    fn name(&self, shape: usize) -> String {
        format!("{} of method '{}'", self.shapes[shape].name, self.method)
    }

    fn key(&mut self, shape: usize) -> GraphKey {
        let shapes = shapes_of(&self.signature, &self.inputs[shape]);
        let session = &self.turn.session;
        session.graph_key(self.number, self.turn.state, shapes)
    }

    fn input_bytes(&self, shape: usize) -> u64 {
        self.inputs[shape]
            .iter()
            .map(|input| input.memory.len())
            .sum()
    }

    fn by_calls(&mut self, shape: usize) -> Result<()> {
        let (signature, inputs) = (self.signature, &self.inputs[shape]);
        inputs::check(&signature, inputs, &mut self.call)?;
        let call = &self.call;
        let signature = Signature { call, ..signature };
        self.turn.run_once(&signature, inputs, &mut |_, _| Ok(()))
    }

    fn capture(&mut self, shape: usize) -> Result<bool> {
        let key = self.key(shape);
        let (signature, inputs) = (self.signature, &self.inputs[shape]);
        inputs::check(&signature, inputs, &mut self.call)?;
        let call = &self.call;
        let signature = Signature { call, ..signature };
        self.turn.capture(&key, &signature, inputs)
    }
}

fn most_bytes(signature: Signature<'_>, shape: &GraphShape) -> u64 {
    let both = signature.inputs.iter().zip(&shape.inputs);
    let bytes = both.map(|(spec, sizes)| spec.dtype.dense_bytes(sizes.iter().copied()));
    bytes.max().flatten().unwrap_or(0)
}

fn zeros(bytes: u64) -> Result<Vec<u8>> {
    let mut zeros = Vec::new();
    let reserved = zeros.try_reserve_exact(bytes as usize);
    reserved.map_err(|_| Error::OutOfMemory {
        what: format!("the largest input of {GRAPH_SHAPES}"),
        bytes,
    })?;
    zeros.resize(bytes as usize, 0);
    Ok(zeros)
}

/// The inputs of a call over this shape, by the caller's numbers.
fn tensors<'a>(
    signature: Signature<'a>,
    shape: &'a GraphShape,
    zeros: &'a [u8],
) -> Result<Vec<InputTensor<'a>>> {
    let one = |index: usize| {
        match signature.wiring.delegates_input(index) {
        Some(own) => {
            let (spec, sizes) = (&signature.inputs[own], shape.inputs[own].as_slice());
            let bytes = spec.dtype.dense_bytes(sizes.iter().copied());
            let bytes = bytes.and_then(|bytes| zeros.get(..bytes as usize));
            let bytes = bytes.ok_or_else(|| Error::Internal("zeros of no size".to_owned()))?;
            Ok(InputTensor {
                dtype: spec.dtype.number(),
                sizes,
                strides: None,
                memory: Memory::Host(bytes),
            })
        }
        None if signature.wiring.is_used(index) => Err(Error::Option {
            key: GRAPH_SHAPES.to_owned(),
            what: format!(
                "cannot tell the sizes of {}, which the method only hands back: the record has none of them",
                signature.input_name(index)
            ),
        }),
        None => Ok(InputTensor {
            dtype: 0,
            sizes: &[],
            strides: None,
            memory: Memory::Host(&[]),
        }),
    }
    };
    (0..signature.wiring.inputs).map(one).collect()
}
