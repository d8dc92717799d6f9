//! The graphs that a load captures for some shapes: how many, and what memory they take.

use super::cost::Cost;
use super::model::Model;
use super::size::{grouped, with_megabytes};
use crate::config::{Options, PolicyKind, Spec, SpecValue, GRAPH_SHAPES};
use crate::delegate::differs;
use crate::delegate::graph_shapes::{kernels, shapes_of};
use crate::device::NODE_BYTES;
use crate::{Error, Result};
use serde_json::{json, Value};
use std::fmt::Write;

/// The graphs of one method.
struct OfMethod {
    name: String,
    count: u64,
    kernels: u64,
    copies: u64,
    /// Inputs and activations of the largest shape.
    block: Option<u64>,
}

impl OfMethod {
    fn bytes(&self) -> u64 {
        self.count * (self.kernels + self.copies) * NODE_BYTES
    }
}

/// All graphs at one budget.
pub struct GraphCosts {
    methods: Vec<OfMethod>,
}

/// Refuses what a load refuses.
fn check(model: &Model, cost: &Cost) -> Result<()> {
    let why = if model.record.device == "cpu" {
        format!(
            "method '{}' was exported for 'cpu', which has no graphs",
            model.record.method
        )
    } else if cost.residency.policy().everything_stays() {
        return Ok(());
    } else if cost.residency.plan().is_none() || !model.policy.plans() {
        differs(model.policy, PolicyKind::Lru.name())
    } else {
        return Ok(());
    };
    Err(Error::Option {
        key: GRAPH_SHAPES.to_owned(),
        what: why,
    })
}

impl GraphCosts {
    /// `shapes` as the option has them.
    pub fn of(model: &Model, cost: &Cost, shapes: &str) -> Result<GraphCosts> {
        let options = Options::parse(&[Spec {
            key: GRAPH_SHAPES.to_owned(),
            value: SpecValue::Text(shapes.to_owned()),
        }])?;
        check(model, cost)?;
        let granule = model.figures.granule;
        let plan = cost.residency.plan();
        let mut methods = Vec::new();
        for (at, record) in model.picked().zip(model.picked_records()) {
            let shapes = shapes_of(&model.records, record, &options)?;
            let inputs = shapes.iter().map(|one| one.input_bytes(record, granule));
            let Some(inputs) = inputs.max() else { continue };
            methods.push(OfMethod {
                name: record.method.clone(),
                count: shapes.len() as u64,
                kernels: kernels(record),
                copies: plan.map_or(0, |plan| plan.copies(at)),
                block: record.activations.map(|most| inputs.saturating_add(most)),
            });
        }
        Ok(GraphCosts { methods })
    }

    fn bytes(&self) -> u64 {
        self.methods.iter().map(OfMethod::bytes).sum()
    }

    /// All of them lie in one block; `None`: a size has no upper bound.
    fn block(&self) -> Option<u64> {
        let blocks = self.methods.iter().map(|one| one.block);
        blocks.reduce(|one, other| Some(one?.max(other?))).flatten()
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "\n{:20}{:>8}{:>10}{:>10}{:>18}\n",
            "graphs of", "shapes", "kernels", "copies", "bytes"
        );
        for one in &self.methods {
            let _ = writeln!(
                text,
                "{:20}{:>8}{:>10}{:>10}{:>18}",
                one.name,
                grouped(one.count),
                grouped(one.kernels),
                grouped(one.copies),
                grouped(one.bytes())
            );
        }
        let block = match self.block() {
            Some(bytes) => format!(
                "the block of inputs and activations: up to {} for the largest shape of the export, and the gaps between activations",
                with_megabytes(bytes)
            ),
            None => "the block of inputs and activations: unknown, since a size has no upper bound".to_owned(),
        };
        let _ = writeln!(
            text,
            "\ngraphs: {}, at {} bytes for each kernel and each copy; an operator of several kernels takes more\n{block}",
            with_megabytes(self.bytes()),
            grouped(NODE_BYTES)
        );
        text
    }

    pub fn object(&self) -> Value {
        let methods = self.methods.iter().map(|one| {
            json!({
                "method": one.name,
                "graphs": one.count,
                "kernels": one.kernels,
                "copies": one.copies,
                "bytes": one.bytes(),
            })
        });
        json!({
            "methods": methods.collect::<Value>(),
            "bytes": self.bytes(),
            "block_bytes": self.block(),
        })
    }
}
