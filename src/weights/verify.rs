//! Checksums of weight bytes, on demand: this reads every byte of the data file.
#![deny(unsafe_code)]

use super::Catalog;
use crate::error::{Error, Result};

/// Compares the bytes of every constant with its recorded CRC-32. Bytes that several constants share are
/// read once.
pub fn verify_crc(catalog: &Catalog) -> Result<()> {
    for segment in catalog.segments() {
        let stored = segment.bytes.as_slice();
        let found = match &segment.packed {
            Some(packed) => packed.raw_crc32(stored)?,
            None => crc32fast::hash(stored),
        };
        for index in &segment.members {
            let constant = &catalog.constants()[*index as usize];
            if constant.crc32 != found {
                return Err(Error::Mismatch {
                    name: constant.fqn.clone(),
                    fact: "CRC-32 of its bytes",
                    expected: format!("{:08x} (the program's)", constant.crc32),
                    found: format!("{found:08x} in {}: the data is damaged", catalog.source()),
                });
            }
        }
    }
    Ok(())
}
