//! The compiled library of a method: opened, and held against the record and the data.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::delegate_device::Scope;
use crate::aoti::container::{ConstantInfo, Container};
use crate::aoti::registry;
use crate::error::{Error, Result};
use crate::figures::DeviceId;
use crate::format::{Record, RecordedConstant};

/// The compiled library rounds the bytes of its constants up to this.
const COMPILED_ALIGNMENT: u64 = 64;

/// Runs `body`, which calls the compiled code, where that may be called.
pub(super) fn compiled<S: Scope, R>(
    scope: &S,
    doing: &str,
    body: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let entered = scope.within(body);
    entered.map_err(|error| error.during(|| format!("{doing} the compiled code")))?
}

/// Opens the library that the record names. `library` gives the bytes of a key.
pub(super) fn open<'a>(
    record: &Record,
    device: DeviceId,
    library: &dyn Fn(&str) -> Result<&'a [u8]>,
) -> Result<Container> {
    let bytes = library(&record.so_key)?;
    check_digest(&record.so_key, bytes)?;
    Container::new(registry::load(&record.so_key, bytes)?, device)
}

/// The key of the compiled library is made of its digest.
fn check_digest(key: &str, bytes: &[u8]) -> Result<()> {
    let mut found = String::from("weightstream_so_");
    for byte in Sha256::digest(bytes) {
        // Writing to a String cannot fail.
        let _ = write!(found, "{byte:02x}");
    }
    if key == found {
        return Ok(());
    }
    Err(Error::Mismatch {
        name: key.to_owned(),
        fact: "SHA-256 of the compiled library",
        expected: key.to_owned(),
        found: format!("{found}: the program is damaged"),
    })
}

/// Both must take and give as many tensors.
pub(super) fn check_signature(record: &Record, container: &Container) -> Result<()> {
    let counts = [
        (
            "number of inputs",
            record.inputs.len(),
            container.num_inputs(),
        ),
        (
            "number of outputs",
            record.outputs.len(),
            container.num_outputs(),
        ),
    ];
    for (fact, recorded, compiled) in counts {
        if recorded != compiled {
            return Err(Error::Mismatch {
                name: record.method.clone(),
                fact,
                expected: format!("{recorded} (record)"),
                found: format!("{compiled} (compiled library)"),
            });
        }
    }
    Ok(())
}

/// For each constant of the compiled library the index of that of the record. Both must name the same ones.
pub(super) fn match_constants(
    recorded: &[RecordedConstant],
    compiled: &[ConstantInfo],
) -> Result<Vec<usize>> {
    let mut used = vec![false; recorded.len()];
    let mut indices = Vec::with_capacity(compiled.len());
    for info in compiled {
        let index = recorded
            .iter()
            .position(|constant| constant.fqn == info.fqn)
            .ok_or_else(|| Error::Missing {
                name: info.fqn.clone(),
                place: "the record, though the compiled library reads it".to_owned(),
            })?;
        check_constant(&recorded[index], info)?;
        if std::mem::replace(&mut used[index], true) {
            return Err(Error::Mismatch {
                name: info.fqn.clone(),
                fact: "number of constants of this name in the compiled library",
                expected: "1".to_owned(),
                found: "2".to_owned(),
            });
        }
        indices.push(index);
    }
    match used.iter().position(|used| !used) {
        None => Ok(indices),
        Some(index) => Err(Error::Missing {
            name: recorded[index].fqn.clone(),
            place: "the compiled library, though the record has it".to_owned(),
        }),
    }
}

/// The compiled library rounds the bytes of its constants up, and knows no sizes.
fn check_constant(recorded: &RecordedConstant, compiled: &ConstantInfo) -> Result<()> {
    let differs = |fact, expected: String, found: String| Error::Mismatch {
        name: recorded.fqn.clone(),
        fact,
        expected: format!("{expected} (record)"),
        found: format!("{found} (compiled library)"),
    };
    if compiled.dtype.0 != recorded.dtype.number() {
        return Err(differs(
            "dtype",
            recorded.dtype.to_string(),
            compiled.dtype.name().to_owned(),
        ));
    }
    let rounded = recorded.nbytes.next_multiple_of(COMPILED_ALIGNMENT);
    if compiled.bytes != recorded.nbytes && compiled.bytes != rounded {
        return Err(differs(
            "bytes",
            recorded.nbytes.to_string(),
            compiled.bytes.to_string(),
        ));
    }
    Ok(())
}

#[cfg(test)]
#[path = "compiled_tests.rs"]
mod tests;
