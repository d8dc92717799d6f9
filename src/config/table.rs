//! The options: one row each.
#![deny(unsafe_code)]

use super::{
    SpecValue, BUDGET, BUDGET_BYTES, BUDGET_MB, CUDA_GRAPH, DATA, DEVICE, GATHER, HOST,
    KERNEL_TIMES, LINK_GBPS, POLICY, PTE_SHA256, STAGING_MB, SYNC, VERIFY,
};

/// What the keys of options start with.
const PREFIX: &str = "weight_offload_";
/// What the environment variables start with that stand for them.
pub const VARIABLE_PREFIX: &str = "WEIGHTSTREAM_";

/// For which programs an option can do anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All.
    Any,
    /// Those whose weights are read through probes.
    Offloaded,
    /// Those that run on a GPU.
    Gpu,
}

/// One option.
#[derive(Debug)]
pub struct Row {
    /// Its key.
    pub key: &'static str,
    /// Whether its value is a number, so that a text that holds one is meant as a number.
    numeric: bool,
    /// For which programs it can do anything.
    pub reach: Reach,
    /// What holds where nobody says anything; empty where that is no value of the option.
    pub default: &'static str,
}

const fn row(key: &'static str, numeric: bool, reach: Reach, default: &'static str) -> Row {
    Row {
        key,
        numeric,
        reach,
        default,
    }
}

/// All of them, in the order of the documentation.
pub const ROWS: [Row; 15] = [
    row(BUDGET, false, Reach::Offloaded, ""),
    row(BUDGET_MB, true, Reach::Offloaded, ""),
    row(BUDGET_BYTES, false, Reach::Offloaded, ""),
    row(POLICY, false, Reach::Any, "planned"),
    row(HOST, false, Reach::Gpu, "auto"),
    row(STAGING_MB, true, Reach::Gpu, ""),
    row(GATHER, false, Reach::Any, "auto"),
    row(LINK_GBPS, false, Reach::Gpu, "auto"),
    row(KERNEL_TIMES, false, Reach::Gpu, ""),
    row(DEVICE, true, Reach::Gpu, "0"),
    row(VERIFY, false, Reach::Any, "off"),
    row(SYNC, true, Reach::Gpu, "0"),
    row(CUDA_GRAPH, true, Reach::Gpu, "0"),
    row(DATA, false, Reach::Any, ""),
    row(PTE_SHA256, false, Reach::Any, ""),
];

impl Row {
    /// The row of a key.
    pub fn of(key: &str) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.key == key)
    }

    /// The environment variable: `WEIGHTSTREAM_POLICY` for `weight_offload_policy`.
    pub fn variable(&self) -> String {
        let name = self.key.strip_prefix(PREFIX).unwrap_or("BUDGET");
        VARIABLE_PREFIX.to_owned() + &name.to_uppercase()
    }

    /// The value that a text stands for, where there are only texts: in the environment, and in a program.
    pub fn value(&self, text: &str) -> SpecValue {
        match text.parse() {
            Ok(number) if self.numeric => SpecValue::Int(number),
            _ => SpecValue::Text(text.to_owned()),
        }
    }
}

/// The three ways to give a budget are one option.
pub fn group(key: &str) -> &str {
    match key {
        BUDGET_MB | BUDGET_BYTES => BUDGET,
        other => other,
    }
}
