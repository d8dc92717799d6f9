//! The budget that `weight_offload_budget = auto` chooses: what is free, less what the method will take beside
//! its weights.
//!
//! The *headroom* is the sum of these figures:
//! - activations: what the export recorded as the most of them at one time, for the largest shape; outputs are
//!   activations too;
//! - inputs: their bytes at the largest shape. On a GPU they are copied there; on the CPU they are the caller's,
//!   and may not be there yet. With `weight_offload_cuda_graph` both count twice, and the most that
//!   graphs may take is added;
//! - the reserve, [`RESERVE`]: what the driver and this library take as they go. On a GPU that is the code of
//!   the kernels, which the driver loads as they are first launched, its own bookkeeping, and the rounding of
//!   the two pools (weights and activations) up to 32 MiB each; on the CPU, buffers that operators use inside
//!   a call, and stacks.
#![deny(unsafe_code)]

use std::fmt;

use crate::config::{BUDGET, BUDGET_MB};
use crate::error::{bytes_text, Error, Result};
use crate::format::Record;
use crate::schedule::Floor;
use crate::tenancy::RESERVE;

/// No dimension that anyone meant is as large: so the export writes "no upper bound".
const UNBOUNDED: i64 = 1 << 62;

/// A chosen budget and where it comes from. `Display` is the arithmetic, in one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoBudget {
    /// Free on the device at load, bytes.
    pub free: u64,
    /// Most bytes of activations at one time, outputs included.
    pub activations: u64,
    /// Bytes of all inputs at their largest.
    pub inputs: u64,
    /// Most bytes of graphs.
    pub graphs: u64,
    /// What all weights and direct constants occupy together: more than that is of no use.
    pub everything: u64,
}

impl AutoBudget {
    /// The figures of a method whose weights and direct constants occupy `everything`, on a device with `free`
    /// bytes and allocations in multiples of `granule`.
    /// Errors: the program takes shapes without an upper bound, so that nobody can tell what it needs.
    pub fn new(record: &Record, everything: u64, free: u64, granule: u64) -> Result<AutoBudget> {
        let inputs = largest_inputs(record, granule)?;
        let activations = record.activations.ok_or_else(|| {
            unbounded(
                record,
                "one of its activations has a size without an upper bound",
            )
        })?;
        Ok(AutoBudget {
            free,
            activations,
            inputs,
            graphs: 0,
            everything,
        })
    }

    /// The same where passes are captured as graphs: activations and inputs of the captured pass lie beside those of
    /// passes that are issued call by call. `graphs` is the most that the graphs themselves take.
    pub fn with_graphs(self, graphs: u64) -> AutoBudget {
        AutoBudget {
            graphs,
            activations: self.activations.saturating_mul(2),
            inputs: self.inputs.saturating_mul(2),
            ..self
        }
    }

    /// Bytes kept free of weights.
    pub fn headroom(&self) -> u64 {
        self.activations
            .saturating_add(self.inputs)
            .saturating_add(self.graphs)
            .saturating_add(RESERVE)
    }

    /// The budget, bytes: may be below the floor.
    pub fn bytes(&self) -> u64 {
        self.everything
            .min(self.free.saturating_sub(self.headroom()))
    }

    /// The budget, if the method can run with it.
    pub fn accepted(&self, floor: &Floor) -> Result<u64> {
        let (budget, least) = (self.bytes(), floor.bytes());
        match budget >= least {
            true => Ok(budget),
            false => Err(Error::BudgetTooSmall {
                budget,
                floor: least,
                parts: format!("{floor}; {BUDGET} = auto chose {self}"),
                option: BUDGET_MB,
            }),
        }
    }
}

impl fmt::Display for AutoBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} free on the device, less {} (activations {}, inputs {}, graphs {}, reserve {}), and at most {} for all weights",
            bytes_text(self.bytes()),
            bytes_text(self.free),
            bytes_text(self.headroom()),
            bytes_text(self.activations),
            bytes_text(self.inputs),
            bytes_text(self.graphs),
            bytes_text(RESERVE),
            bytes_text(self.everything),
        )
    }
}

/// Bytes of all inputs with every dimension at its maximum.
fn largest_inputs(record: &Record, granule: u64) -> Result<u64> {
    let mut sum = 0u64;
    for input in &record.inputs {
        if input.dims.iter().any(|dim| dim.max >= UNBOUNDED) {
            let what = format!(
                "input '{}' has a dimension without an upper bound",
                input.name
            );
            return Err(unbounded(record, &what));
        }
        let bytes = input
            .dtype
            .dense_bytes(input.dims.iter().map(|dim| dim.max))
            .and_then(|bytes| bytes.checked_next_multiple_of(granule));
        sum = bytes
            .and_then(|bytes| sum.checked_add(bytes))
            .ok_or_else(|| unbounded(record, &format!("input '{}' is too large", input.name)))?;
    }
    Ok(sum)
}

fn unbounded(record: &Record, why: &str) -> Error {
    Error::Option {
        key: BUDGET.to_owned(),
        what: format!(
            "'auto' cannot tell what method '{}' takes beside its weights: {why}; give a budget in MB or bytes, or \
             export with an upper bound for each dynamic dimension (torch.export.Dim(..., max=...))",
            record.method
        ),
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
