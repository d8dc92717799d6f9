//! Runtime specs of ExecuTorch as options, and the defaults of this process.

use super::status::crossing;
use super::types::{RuntimeSpec, SpecKind};
use crate::config::{self, Options, Spec, SpecValue};
use crate::error::Error;

/// See [`config::set_defaults`].
pub(super) fn set_defaults(specs: Vec<RuntimeSpec>) -> Result<(), String> {
    crossing(|| Ok(config::set_defaults(&parsed(specs)?)?))
}

/// See [`config::get_default`].
pub(super) fn get_default(key: &str) -> Result<RuntimeSpec, String> {
    crossing(|| {
        let value = config::get_default(key)?.ok_or_else(|| Error::Option {
            key: key.to_owned(),
            what: "has no default in this process; set_option sets one".to_owned(),
        })?;
        let (kind, number, text) = match value {
            SpecValue::Bool(value) => (SpecKind::Bool, value.into(), String::new()),
            SpecValue::Int(value) => (SpecKind::Int, value, String::new()),
            SpecValue::Text(value) => (SpecKind::Text, 0, value),
        };
        let key = key.to_owned();
        Ok(RuntimeSpec {
            key,
            kind,
            number,
            text,
        })
    })
}

/// See [`config::check_defaults`].
pub(super) fn check_defaults(specs: Vec<RuntimeSpec>) -> Result<(), String> {
    crossing(|| Ok(config::check_defaults(&parsed(specs)?)?))
}

pub(super) fn options(specs: Vec<RuntimeSpec>) -> crate::Result<Options> {
    Options::parse(&parsed(specs)?)
}

fn parsed(specs: Vec<RuntimeSpec>) -> crate::Result<Vec<Spec>> {
    specs.into_iter().map(spec).collect()
}

fn spec(spec: RuntimeSpec) -> crate::Result<Spec> {
    let value = match spec.kind {
        SpecKind::Bool => SpecValue::Bool(spec.number != 0),
        SpecKind::Int => SpecValue::Int(spec.number),
        SpecKind::Text => SpecValue::Text(spec.text),
        other => {
            return Err(Error::Internal(format!(
                "runtime spec of type {}",
                other.repr
            )))
        }
    };
    Ok(Spec {
        key: spec.key,
        value,
    })
}
