//! Defaults, for callers that cannot give options at each load. The strongest says what holds: the load itself, then what
//! was set for the process, then the environment, then the program.
//!
//! Given at load, an option that cannot take effect is an error. Defaults are for programs of all kinds, so one that
//! cannot is left out, and a log line says so. An unknown key or a wrong value is an error everywhere.
#![deny(unsafe_code)]

use std::sync::{Mutex, PoisonError};

use super::options::{Options, Origin};
use super::table::{group, unknown, Reach, Row, ROWS, VARIABLE_PREFIX};
use super::{
    refuse, HostMemory, Spec, SpecValue, Verify, CUDA_GRAPH, DATA, GRAPH_MB, GRAPH_SHAPES,
    LINK_GBPS, PTE_SHA256, STAGING_MB, SYNC,
};
use crate::error::{Error, Result};

/// What of a method decides which options apply to it.
#[derive(Debug, Clone, Copy)]
pub struct Applies<'a> {
    /// The method, for messages.
    pub method: &'a str,
    /// Whether it runs on a GPU.
    pub gpu: bool,
    /// Whether its weights are read through probes.
    pub offload: bool,
    /// Whether the file of its weights is known.
    pub has_data: bool,
}

static PROCESS: Mutex<Vec<Spec>> = Mutex::new(Vec::new());

/// Variables of ours that are no options.
const OTHER_VARIABLES: [&str; 4] = ["LIBRARY", "ANY_TORCH", "PROGRESS", "PYTHON"];
const OTHER_PREFIXES: [&str; 5] = ["TEST_", "BUILD_", "CARGO_", "FUZZ_", "CASE"];

/// Sets defaults of this process, for later loads. Either all of them are set or, after an error, none.
pub fn set_defaults(specs: &[Spec]) -> Result<()> {
    check_defaults(specs)?;
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    for spec in specs {
        process.retain(|earlier| group(&earlier.key) != group(&spec.key));
        process.push(spec.in_own_type());
    }
    Ok(())
}

/// The default of this process for `key`, if there is one.
pub fn get_default(key: &str) -> Result<Option<SpecValue>> {
    Row::of(key).ok_or_else(|| unknown(key))?;
    let process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = process.iter().find(|spec| spec.key == key);
    Ok(found.map(|spec| spec.value.clone()))
}

/// Refuses what cannot be a default: unknown keys, wrong values, two budgets.
pub fn check_defaults(specs: &[Spec]) -> Result<()> {
    if let Some(spec) = specs.iter().find(|spec| spec.key == PTE_SHA256) {
        return Err(refuse(
            &spec.key,
            "is for one program, and a default would be for all; give it at load".to_owned(),
        ));
    }
    Options::parse(specs).map(drop)
}

/// Options of a program's compile specs; others are not ours.
pub fn from_program<'a>(specs: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Vec<Spec>> {
    let mut found = Vec::new();
    for (key, value) in specs {
        if !key.starts_with("weight_offload") {
            continue;
        }
        let row = Row::of(key).ok_or_else(|| unknown(key))?;
        let text = std::str::from_utf8(value)
            .map_err(|_| refuse(key, "the program's value is not UTF-8".to_owned()))?;
        found.push(Spec {
            key: key.to_owned(),
            value: row.value(text),
        });
    }
    Ok(found)
}

/// Options among environment variables.
fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Vec<Spec>> {
    let mut found = Vec::new();
    for (name, text) in variables {
        let Some(short) = name.strip_prefix(VARIABLE_PREFIX) else {
            continue;
        };
        let other = OTHER_VARIABLES.contains(&short);
        if other || OTHER_PREFIXES.iter().any(|start| short.starts_with(start)) {
            continue;
        }
        let row = ROWS.iter().find(|row| row.variable() == name);
        let row = row.ok_or_else(|| unknown_variable(&name))?;
        found.push(Spec {
            key: row.key.to_owned(),
            value: row.value(&text),
        });
    }
    // The environment has no order.
    found.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(found)
}

fn unknown_variable(name: &str) -> Error {
    let names: Vec<_> = ROWS.iter().map(Row::variable).collect();
    refuse(
        name,
        format!(
            "this environment variable is unknown; the options' variables are {}",
            names.join(", ")
        ),
    )
}

fn environment() -> Result<Vec<Spec>> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    from_variables(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
}

impl Options {
    /// These options, given at load, with the defaults of the process, the environment and the program for what was not
    /// given.
    pub fn with_defaults(&self, program: &[Spec], method: Applies<'_>) -> Result<Options> {
        let process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let layers = [
            (Origin::SetOption, process.clone()),
            (Origin::Environment, environment()?),
            (Origin::Program, program.to_vec()),
        ];
        drop(process);
        self.layered(&layers, method)
    }

    fn layered(&self, layers: &[(Origin, Vec<Spec>)], method: Applies<'_>) -> Result<Options> {
        let mut all = self.clone();
        for (origin, specs) in layers {
            check_defaults(specs).map_err(|error| from(*origin, error))?;
            for spec in specs {
                if all.origin(&spec.key).is_some() {
                    continue;
                }
                match all.why_not(&spec.key, method) {
                    None => all.take(spec, *origin)?,
                    Some(why) => log::info!(
                        "method '{}': option '{}' of the {} is left out: {why}",
                        method.method,
                        spec.key,
                        origin.name()
                    ),
                }
            }
        }
        Ok(all)
    }

    /// Why a default could do nothing.
    fn why_not(&self, key: &str, method: Applies<'_>) -> Option<&'static str> {
        let reach = Row::of(key).map_or(Reach::Any, |row| row.reach);
        let settled = matches!(self.host, HostMemory::Mapped | HostMemory::Pinned);
        let waits = self.sync || self.verify == Verify::EveryRead;
        match key {
            _ if reach == Reach::Gpu && !method.gpu => Some("it is for GPUs"),
            _ if reach == Reach::Offloaded && !method.offload => {
                Some("the method was exported without offloading")
            }
            DATA if method.has_data => Some("the file of the weights is known"),
            STAGING_MB if settled => Some("weights are held in another way than 'staged'"),
            LINK_GBPS if !self.policy.plans() => Some("nothing is planned for a link"),
            CUDA_GRAPH if waits => Some("the host is to wait in the middle of passes"),
            GRAPH_MB | GRAPH_SHAPES if !self.cuda_graph => Some("no passes are to be captured"),
            SYNC if self.cuda_graph => Some("passes are to be captured"),
            _ => None,
        }
    }

    /// What holds and who said so, as a JSON object: `{"weight_offload_policy": {"value": "lru", "from": "environment"}}`.
    /// Options that nobody gave stand there with their default, where they have one and apply.
    pub fn to_json(&self, gpu: bool) -> String {
        let given = self.given.iter().map(|given| {
            let value = given.spec.value.to_json();
            entry(&given.spec.key, &value, given.origin.name())
        });
        let silent = ROWS.iter().filter(|row| {
            let applies = gpu || row.reach != Reach::Gpu;
            applies && !row.default.is_empty() && self.origin(row.key).is_none()
        });
        let silent = silent.map(|row| entry(row.key, &row.value(row.default).to_json(), "default"));
        format!("{{{}}}", given.chain(silent).collect::<Vec<_>>().join(", "))
    }
}

fn from(origin: Origin, error: Error) -> Error {
    match error {
        Error::Option { key, what } => Error::Option {
            key,
            what: format!("{what} (given by the {})", origin.name()),
        },
        other => other,
    }
}

fn entry(key: &str, value: &str, from: &str) -> String {
    format!("\"{key}\": {{\"value\": {value}, \"from\": \"{from}\"}}")
}

impl SpecValue {
    fn to_json(&self) -> String {
        match self {
            SpecValue::Bool(value) => value.to_string(),
            SpecValue::Int(value) => value.to_string(),
            SpecValue::Text(value) => quoted(value),
        }
    }
}

/// The text as a string of JSON.
pub fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => json.extend(['\\', letter]),
            control if control < ' ' => json += &format!("\\u{:04x}", control as u32),
            other => json.push(other),
        }
    }
    json + "\""
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
