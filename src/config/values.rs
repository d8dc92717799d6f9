//! The values of options: each refused by name, with what it takes instead.

use super::table::{Row, Values};
use super::{
    refuse, Budget, LinkRate, Sha256Digest, Spec, SpecValue, Words, BUDGET_BYTES, BUDGET_MB,
    CUT_LENGTH,
};
use crate::error::{Error, Result};
use std::path::PathBuf;

/// A share of 1.
pub const SHARES: u32 = 1_000_000;

/// What the option takes instead.
pub(super) fn wrong(spec: &Spec) -> Error {
    let accepted = Row::of(&spec.key).map_or_else(String::new, |row| row.values.accepted());
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

pub(super) fn from_mb(spec: &Spec) -> Result<u64> {
    let least = match Row::of(&spec.key).map(|row| row.values) {
        Some(Values::Mb { least }) => least,
        _ => 0,
    };
    let text = match &spec.value {
        SpecValue::Int(value) => value.to_string(),
        SpecValue::Text(text) => text.clone(),
        SpecValue::Bool(_) => return Err(wrong(spec)),
    };
    let (whole, parts) = text.split_once('.').unwrap_or((&text, "0"));
    let (Some(whole), Some(parts_mb)) = (decimal(whole), decimal(parts)) else {
        return Err(wrong(spec));
    };
    let scale = 10u128.checked_pow(parts.len() as u32);
    let bytes = scale.and_then(|scale| {
        let rest = u128::from(parts_mb) << 20;
        let exact = rest.is_multiple_of(scale);
        exact.then(|| (u128::from(whole) << 20) + rest / scale)
    });
    let bytes = bytes.ok_or_else(|| part_of_a_byte(spec, &text))?;
    if bytes < u128::from(least) << 20 {
        return Err(wrong(spec));
    }
    let fits = u64::try_from(bytes).ok();
    fits.ok_or_else(|| {
        refuse(
            &spec.key,
            format!("{text} MB do not fit in 64 bits of bytes"),
        )
    })
}

/// Nobody said whether to round up or down.
fn part_of_a_byte(spec: &Spec, mb: &str) -> Error {
    let instead = match spec.key.as_str() {
        BUDGET_MB => format!("; give the bytes, as {BUDGET_BYTES}"),
        _ => String::new(),
    };
    let what = format!("{mb} MB of 1,048,576 bytes are no whole number of bytes{instead}");
    refuse(&spec.key, what)
}

pub(super) fn switch(spec: &Spec) -> Result<bool> {
    match spec.value {
        SpecValue::Bool(on) => Ok(on),
        _ => Err(wrong(spec)),
    }
}

pub(super) fn budget_from_word(spec: &Spec) -> Result<Budget> {
    match &spec.value {
        SpecValue::Text(text) if text == "auto" => Ok(Budget::Auto),
        SpecValue::Text(text) if text == "shared" => Ok(Budget::Shared),
        _ => Err(wrong(spec)),
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
        .ok_or_else(|| wrong(spec))
}

pub(super) fn priority(spec: &Spec) -> Result<i64> {
    match spec.value {
        SpecValue::Int(value) => Ok(value),
        _ => Err(wrong(spec)),
    }
}

pub(super) fn device_index(spec: &Spec) -> Result<u32> {
    let index = match spec.value {
        SpecValue::Int(value) => u32::try_from(value).ok(),
        _ => None,
    };
    index.ok_or_else(|| wrong(spec))
}

pub(super) fn budget_from_bytes(spec: &Spec) -> Result<u64> {
    let bytes = match &spec.value {
        SpecValue::Text(text) => decimal(text),
        SpecValue::Int(value) => u64::try_from(*value).ok(),
        SpecValue::Bool(_) => None,
    };
    bytes.ok_or_else(|| wrong(spec))
}

/// Digits only: `u64::from_str` would also take a plus sign.
pub(super) fn decimal(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

pub(super) fn word<T: Words>(spec: &Spec) -> Result<T> {
    let found = match &spec.value {
        SpecValue::Text(text) => T::ALL.iter().find(|(word, _)| word == text),
        _ => None,
    };
    found.map(|(_, value)| *value).ok_or_else(|| wrong(spec))
}

pub(super) fn path(spec: &Spec) -> Result<PathBuf> {
    match &spec.value {
        SpecValue::Text(text) if !text.is_empty() => Ok(PathBuf::from(text)),
        _ => Err(wrong(spec)),
    }
}

pub(super) fn digest(spec: &Spec) -> Result<Sha256Digest> {
    let bytes = match &spec.value {
        SpecValue::Text(text) => from_hex(text),
        _ => None,
    };
    bytes.map(Sha256Digest).ok_or_else(|| wrong(spec))
}

/// `decode=0.98,prefill=0.02`: each method once, each share above 0 and at most 1, in parts of [`SHARES`].
pub(super) fn shares(spec: &Spec) -> Result<Vec<(String, u32)>> {
    let SpecValue::Text(text) = &spec.value else {
        return Err(wrong(spec));
    };
    let mut found: Vec<(String, u32)> = Vec::new();
    for part in text.split(',') {
        let (name, share) = part.split_once('=').ok_or_else(|| wrong(spec))?;
        let (name, share) = (name.trim(), share.trim().parse::<f64>());
        let share = share.ok().filter(|share| *share > 0.0 && *share <= 1.0);
        let share = share.ok_or_else(|| {
            let what = format!("says '{}': a share is above 0 and at most 1", part.trim());
            refuse(&spec.key, what)
        })?;
        if name.is_empty() || found.iter().any(|(before, _)| before == name) {
            return Err(refuse(
                &spec.key,
                format!("names '{name}' twice, or not at all"),
            ));
        }
        let parts = (share * f64::from(SHARES)).round() as u32;
        found.push((name.to_owned(), parts.max(1)));
    }
    Ok(found)
}

/// `lm_head.*,layers.0.*`: at least one, none empty, none twice.
pub(super) fn patterns(spec: &Spec) -> Result<Vec<String>> {
    let SpecValue::Text(text) = &spec.value else {
        return Err(wrong(spec));
    };
    let mut found: Vec<String> = Vec::new();
    for pattern in text.split(',').map(str::trim) {
        if pattern.is_empty() {
            return Err(wrong(spec));
        }
        if found.iter().any(|before| before == pattern) {
            return Err(refuse(&spec.key, format!("names '{pattern}' twice")));
        }
        found.push(pattern.to_owned());
    }
    Ok(found)
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
