//! From the bag of fields to the record: single facts here, lists in the files beside this one.

use super::fields::{self, Fields};
use super::{constants, signature, sizes, trace, BuildId, Record, Target, BACKEND};
use crate::error::{Error, Result};
use crate::format::Pte;

/// What the key of the compiled library starts with; the SHA-256 of its bytes follows.
const SO_PREFIX: &str = "weightstream_so_";

impl Record {
    /// Reads the record from a delegate's processed bytes. `name` is what errors call them.
    pub fn from_payload(name: &str, bytes: &[u8]) -> Result<Self> {
        record(&Fields::from_payload(name, bytes)?)
    }

    /// Reads the record of `method` from its delegate, and compares it with that in the constant methods if the program has them.
    pub fn of(pte: &Pte<'_>, method: &str) -> Result<Self> {
        let delegate = pte.delegate(method)?;
        if delegate.backend != BACKEND {
            return Err(Error::Mismatch {
                name: method.to_owned(),
                fact: "backend",
                expected: BACKEND.to_owned(),
                found: format!("{} in {}", delegate.backend, pte.name()),
            });
        }
        let name = format!("{}, the delegate's payload", pte.name());
        let payload = Record::from_payload(&name, delegate.processed)?.named(method, pte)?;
        if fields::has_methods(pte, method) {
            let written = Record::from_pte(pte, method)?;
            if payload != written {
                return Err(Error::Mismatch {
                    name: method.to_owned(),
                    fact: "record",
                    expected: format!("build {} of the delegate's payload", payload.build_id),
                    found: format!(
                        "build {} in the constant methods, or other values",
                        written.build_id
                    ),
                });
            }
        }
        Ok(payload)
    }

    /// Reads the record of `method` from the program's constant methods.
    pub fn from_pte(pte: &Pte<'_>, method: &str) -> Result<Self> {
        record(&Fields::from_pte(pte, method)?)?.named(method, pte)
    }

    fn named(self, method: &str, pte: &Pte<'_>) -> Result<Self> {
        if self.method == method {
            return Ok(self);
        }
        Err(Error::Mismatch {
            name: method.to_owned(),
            fact: "method of its record",
            expected: method.to_owned(),
            found: format!("{} in {}", self.method, pte.name()),
        })
    }
}

pub(super) fn record(fields: &Fields<'_>) -> Result<Record> {
    let offload = flag(fields, "offload")?;
    let device = device(fields)?;
    let constants = constants::read(fields, offload)?;
    let probes = trace::probes(fields, &constants)?;
    let gathers = trace::gathers(fields, &probes, &constants)?;
    let places = trace::places(fields, &gathers, &probes, &constants)?;
    let trace = trace::events(fields, probes.len())?;
    let access_order = trace::access_order(fields, &trace, &probes)?;
    let (floor, hard_minimum) = (fields.bytes("floor")?, fields.bytes("hard_minimum")?);
    if floor < hard_minimum {
        let what = format!("is {floor}, below the hard minimum of {hard_minimum}");
        return Err(fields.bad("floor", what));
    }
    let method = fields.string("method")?.to_owned();
    if method.is_empty() {
        return Err(fields.bad("method", "is empty"));
    }
    let (inputs, outputs) = (signature::inputs(fields)?, signature::outputs(fields)?);
    Ok(Record {
        version: fields.int("format_version")?,
        method,
        build_id: build_id(fields)?,
        so_key: so_key(fields)?,
        offload,
        target: target(fields, &device)?,
        device,
        constants,
        probes,
        gathers,
        places,
        access_order,
        trace,
        floor,
        hard_minimum,
        activations: activations(fields)?,
        sizes: sizes::read(fields, &inputs, &outputs)?,
        call: signature::call(fields)?,
        inputs,
        outputs,
    })
}

/// Bytes, or -1 where a size has no upper bound.
fn activations(fields: &Fields<'_>) -> Result<Option<u64>> {
    match fields.int("activations")? {
        -1 => Ok(None),
        bytes => u64::try_from(bytes)
            .map(Some)
            .map_err(|_| fields.bad("activations", format!("is {bytes}, expected bytes or -1"))),
    }
}

fn flag(fields: &Fields<'_>, name: &str) -> Result<bool> {
    match fields.int(name)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(fields.bad(name, format!("is {other}, expected 0 or 1"))),
    }
}

fn device(fields: &Fields<'_>) -> Result<String> {
    match fields.string("device")? {
        known @ ("cpu" | "cuda") => Ok(known.to_owned()),
        other => Err(Error::Unsupported(format!(
            "{} was exported for device '{other}'; this runtime knows 'cpu' and 'cuda'",
            fields.file()
        ))),
    }
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn build_id(fields: &Fields<'_>) -> Result<BuildId> {
    let text = fields.string("build_id")?;
    let bad = || {
        fields.bad(
            "build_id",
            format!("is '{text}', expected 32 lowercase hex digits"),
        )
    };
    if text.len() != 32 || !is_lower_hex(text) {
        return Err(bad());
    }
    let value = u128::from_str_radix(text, 16).map_err(|_| bad())?;
    Ok(BuildId(value.to_be_bytes()))
}

fn so_key(fields: &Fields<'_>) -> Result<String> {
    let key = fields.string("so_key")?;
    match key.strip_prefix(SO_PREFIX) {
        Some(digest) if digest.len() == 64 && is_lower_hex(digest) => Ok(key.to_owned()),
        _ => {
            let what = format!("is '{key}', expected '{SO_PREFIX}' and 64 lowercase hex digits");
            Err(fields.bad("so_key", what))
        }
    }
}

fn target(fields: &Fields<'_>, device: &str) -> Result<Target> {
    let [os, arch, isa, torch, sms] = fields.strings("target") else {
        let count = fields.strings("target").len();
        return Err(fields.bad("target", format!("holds {count} values, expected 5")));
    };
    if [os, arch, isa, torch].iter().any(|text| text.is_empty()) {
        return Err(fields.bad(
            "target",
            "lacks the OS, the architecture, the ISA level or the torch version",
        ));
    }
    let sms = sm_list(sms).ok_or_else(|| {
        fields.bad(
            "target",
            format!("holds the SM list '{sms}', expected numbers like '90,100'"),
        )
    })?;
    if (device == "cuda") == sms.is_empty() {
        return Err(fields.bad(
            "target",
            format!("holds {} SM versions for device '{device}'", sms.len()),
        ));
    }
    let owned = |text: &str| text.to_owned();
    Ok(Target {
        os: owned(os),
        arch: owned(arch),
        isa: owned(isa),
        torch: owned(torch),
        sms,
        tuned: fields.ints("x_tuned") != [0],
    })
}

fn sm_list(text: &str) -> Option<Vec<u32>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|sm| sm.parse().ok()).collect()
}
