//! The options: one row each.
#![deny(unsafe_code)]

use super::{
    Spec, SpecValue, BUDGET, BUDGET_BYTES, BUDGET_MB, CUDA_GRAPH, DATA, DEVICE, GATHER, HOST,
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

/// What the value of an option is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A word, a path, or a number that is too large for ExecuTorch's integers.
    Text,
    /// An integer.
    Number,
    /// On or off.
    Switch,
}

/// One option.
#[derive(Debug)]
pub struct Row {
    /// Its key.
    pub key: &'static str,
    /// What its value is, so that a text is read as that.
    kind: Kind,
    /// For which programs it can do anything.
    pub reach: Reach,
    /// What holds where nobody says anything; empty where that is no value of the option.
    pub default: &'static str,
}

const fn row(key: &'static str, kind: Kind, reach: Reach, default: &'static str) -> Row {
    Row {
        key,
        kind,
        reach,
        default,
    }
}

/// All of them, in the order of the documentation.
pub const ROWS: [Row; 15] = [
    row(BUDGET, Kind::Text, Reach::Offloaded, ""),
    row(BUDGET_MB, Kind::Number, Reach::Offloaded, ""),
    row(BUDGET_BYTES, Kind::Text, Reach::Offloaded, ""),
    row(POLICY, Kind::Text, Reach::Any, "planned"),
    row(HOST, Kind::Text, Reach::Gpu, "auto"),
    row(STAGING_MB, Kind::Number, Reach::Gpu, ""),
    row(GATHER, Kind::Text, Reach::Any, "auto"),
    row(LINK_GBPS, Kind::Text, Reach::Gpu, "auto"),
    row(KERNEL_TIMES, Kind::Text, Reach::Gpu, ""),
    row(DEVICE, Kind::Number, Reach::Gpu, "0"),
    row(VERIFY, Kind::Text, Reach::Any, "off"),
    row(SYNC, Kind::Switch, Reach::Gpu, "false"),
    row(CUDA_GRAPH, Kind::Switch, Reach::Gpu, "false"),
    row(DATA, Kind::Text, Reach::Any, ""),
    row(PTE_SHA256, Kind::Text, Reach::Any, ""),
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
        let value = match self.kind {
            Kind::Text => None,
            Kind::Number => text.parse().ok().map(SpecValue::Int),
            Kind::Switch => on_or_off(text),
        };
        value.unwrap_or_else(|| SpecValue::Text(text.to_owned()))
    }

    /// The value in the option's own type: a switch is a bool, however it was given.
    fn own(&self, value: &SpecValue) -> SpecValue {
        let own = match (self.kind, value) {
            (Kind::Switch, SpecValue::Int(number)) => on_or_off(&number.to_string()),
            (Kind::Switch, SpecValue::Text(text)) => on_or_off(text),
            _ => None,
        };
        own.unwrap_or_else(|| value.clone())
    }
}

impl Spec {
    /// The same with its value in the option's own type.
    pub(super) fn in_own_type(&self) -> Spec {
        Spec {
            key: self.key.clone(),
            value: Row::of(&self.key)
                .map_or_else(|| self.value.clone(), |row| row.own(&self.value)),
        }
    }
}

/// What a text says of a switch; `None` if it says nothing.
fn on_or_off(text: &str) -> Option<SpecValue> {
    match text {
        "true" | "1" => Some(SpecValue::Bool(true)),
        "false" | "0" => Some(SpecValue::Bool(false)),
        _ => None,
    }
}

/// The three ways to give a budget are one option.
pub fn group(key: &str) -> &str {
    match key {
        BUDGET_MB | BUDGET_BYTES => BUDGET,
        other => other,
    }
}
