//! The values of options: each refused by name, with what it takes instead.

use super::{
    Budget, LinkRate, Sha256Digest, Spec, SpecValue, BUDGET_BYTES, BUDGET_MB, CUT_LENGTH, MB,
};
use crate::error::{Error, Result};
use std::path::PathBuf;

pub(super) fn refuse(key: &str, what: String) -> Error {
    Error::Option {
        key: key.to_owned(),
        what,
    }
}

pub(super) fn wrong(spec: &Spec, accepted: &str) -> Error {
    refuse(
        &spec.key,
        format!("takes {accepted}, not {}", spec.value.describe()),
    )
}

pub(super) fn refuse_cut(spec: &Spec) -> Result<()> {
    match &spec.value {
        SpecValue::Text(text) if text.len() >= CUT_LENGTH => Err(refuse(
            &spec.key,
            format!(
                "the value has {} characters or more and may have been cut: ExecuTorch keeps {CUT_LENGTH} \
                 characters of a string; use at most {}",
                text.len(),
                CUT_LENGTH - 1
            ),
        )),
        _ => Ok(()),
    }
}

pub(super) fn from_mb(spec: &Spec, least: u64) -> Result<u64> {
    let accepted = format!("an int from {least} up, in MB of 1,048,576 bytes");
    let SpecValue::Int(value) = spec.value else {
        return Err(wrong(spec, &accepted));
    };
    let mb = u64::try_from(value).ok().filter(|mb| *mb >= least);
    let mb = mb.ok_or_else(|| wrong(spec, &accepted))?;
    mb.checked_mul(MB)
        .ok_or_else(|| refuse(&spec.key, format!("{mb} MB do not fit in 64 bits of bytes")))
}

pub(super) fn switch(spec: &Spec) -> Result<bool> {
    match spec.value {
        SpecValue::Bool(on) => Ok(on),
        _ => Err(wrong(spec, "true or false, or 1 or 0")),
    }
}

pub(super) fn budget_from_word(spec: &Spec) -> Result<Budget> {
    match &spec.value {
        SpecValue::Text(text) if text == "auto" => Ok(Budget::Auto),
        _ => Err(wrong(
            spec,
            &format!("'auto'; a size goes into {BUDGET_MB} or {BUDGET_BYTES}"),
        )),
    }
}

pub(super) fn link_rate(spec: &Spec) -> Result<LinkRate> {
    let gbps = match &spec.value {
        SpecValue::Text(text) if text == "auto" => return Ok(LinkRate::Timed),
        SpecValue::Int(value) => Some(*value as f64),
        SpecValue::Text(text) => text.parse().ok(),
        SpecValue::Bool(_) => None,
    };
    // No link carries more; and what is left of less than a byte per second is none.
    let rate = gbps.map(|gbps: f64| gbps * 1e9);
    rate.filter(|rate| (1.0..=1e15).contains(rate))
        .map(|rate| LinkRate::Given(rate as u64))
        .ok_or_else(|| {
            wrong(
                spec,
                "a positive number of GB/s, at most 1000000, or 'auto'",
            )
        })
}

pub(super) fn device_index(spec: &Spec) -> Result<u32> {
    let index = match spec.value {
        SpecValue::Int(value) => u32::try_from(value).ok(),
        _ => None,
    };
    index.ok_or_else(|| wrong(spec, "the index of a device, an int from 0 up"))
}

pub(super) fn budget_from_bytes(spec: &Spec) -> Result<u64> {
    const ACCEPTED: &str = "a number of bytes, as a string of decimal digits";
    let bytes = match &spec.value {
        SpecValue::Text(text) => decimal(text),
        SpecValue::Int(value) => u64::try_from(*value).ok(),
        SpecValue::Bool(_) => None,
    };
    bytes.ok_or_else(|| wrong(spec, ACCEPTED))
}

/// Digits only: `u64::from_str` would also take a plus sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

pub(super) fn choice<T: Copy>(spec: &Spec, known: &[(&str, T)]) -> Result<T> {
    if let SpecValue::Text(text) = &spec.value {
        if let Some((_, value)) = known.iter().find(|(name, _)| name == text) {
            return Ok(*value);
        }
    }
    let names: Vec<String> = known.iter().map(|(name, _)| format!("'{name}'")).collect();
    Err(wrong(
        spec,
        &format!("a string, one of {}", names.join(", ")),
    ))
}

/// `what` it is, for a message.
pub(super) fn path(spec: &Spec, what: &str) -> Result<PathBuf> {
    match &spec.value {
        SpecValue::Text(text) if !text.is_empty() => Ok(PathBuf::from(text)),
        _ => Err(wrong(spec, &format!("{what}, as a string"))),
    }
}

pub(super) fn digest(spec: &Spec) -> Result<Sha256Digest> {
    let bytes = match &spec.value {
        SpecValue::Text(text) => from_hex(text),
        _ => None,
    };
    bytes.map(Sha256Digest).ok_or_else(|| {
        wrong(
            spec,
            "a SHA-256 as a string of 64 hexadecimal digits (`sha256sum model.pte` prints it)",
        )
    })
}

/// Digits only: `u8::from_str_radix` would also take a plus sign.
fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}
