//! Packed copies in host memory, of weights that no file has packed.
#![deny(unsafe_code)]

use std::sync::Arc;

use super::{PackedWeight, SharedBytes};
use crate::error::{Error, Result};
use crate::figures::NumberForm;
use crate::format::packed::{Histogram, PackedHeader, PackedWriter};

/// Bytes that are decoded and compared at a time.
const PIECE: u64 = 1 << 20;

/// The stored bytes of a weight, and how they become its bytes.
#[derive(Debug, Clone)]
pub struct PackedCopy {
    stored: SharedBytes,
    weight: Arc<PackedWeight>,
}

impl PackedCopy {
    /// Packs the bytes of such numbers, on this thread. `None`: it would gain less than a twentieth. Each block is decoded and
    /// compared as it is coded.
    ///
    /// Errors: no memory for the copy; a weight too large to pack.
    pub fn of(name: &str, form: NumberForm, raw: &[u8]) -> Result<Option<PackedCopy>> {
        let mut histogram = Histogram::new(form);
        histogram.add(raw);
        if !histogram.gains() {
            return Ok(None);
        }
        let header = histogram.header();
        let most = histogram.most_bytes();
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(most as usize);
        reserved.map_err(|_| Error::OutOfMemory {
            bytes: most,
            what: format!("the packed copy of '{name}' in host memory"),
        })?;
        let mut writer = PackedWriter::new(name, header, &mut bytes);
        writer.write(raw)?;
        let directory = writer.finish()?;
        bytes.extend(directory.iter().flat_map(|entry| entry.to_le_bytes()));
        bytes.shrink_to_fit();
        let crc32 = crc32fast::hash(&bytes);
        let stored = SharedBytes::from_vec(bytes);
        let called = format!("packed copy of '{name}'");
        let weight = PackedWeight::new(called, header, crc32, &stored)?;
        Ok(Some(PackedCopy {
            stored,
            weight: Arc::new(weight),
        }))
    }

    /// A copy that was packed before, which errors call `name`: decoded on this thread, and compared with the weight's bytes.
    ///
    /// Errors: it is malformed, or one of other bytes.
    pub fn read(
        name: String,
        header: PackedHeader,
        stored: SharedBytes,
        raw: &[u8],
    ) -> Result<PackedCopy> {
        if let Some(found) = header.impossible_exponent() {
            return Err(Error::Mismatch {
                name,
                fact: "exponents",
                expected: format!("those of {:?}", header.form),
                found: found.to_string(),
            });
        }
        if header.bytes != raw.len() as u64 {
            return Err(Error::Mismatch {
                name,
                fact: "number of bytes of its packed copy",
                expected: format!("{} (the weight's)", raw.len()),
                found: header.bytes.to_string(),
            });
        }
        let bytes = stored.as_slice();
        let weight = PackedWeight::new(name.clone(), header, crc32fast::hash(bytes), &stored)?;
        let mut piece = vec![0; PIECE as usize];
        for (at, expected) in (0..).step_by(piece.len()).zip(raw.chunks(piece.len())) {
            let piece = &mut piece[..expected.len()];
            weight.decode(bytes, at, piece)?;
            if piece != expected {
                return Err(Error::Mismatch {
                    name,
                    fact: "bytes of its packed copy",
                    expected: "those of the weight".to_owned(),
                    found: format!(
                        "others from byte {at} on: it was made of another weight, or is damaged"
                    ),
                });
            }
        }
        Ok(PackedCopy {
            stored,
            weight: Arc::new(weight),
        })
    }

    /// The stored bytes. They stay where they are while this copy or a clone of it lives.
    pub fn stored(&self) -> &SharedBytes {
        &self.stored
    }

    /// How they become the weight's bytes.
    pub fn weight(&self) -> &Arc<PackedWeight> {
        &self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_bytes_of_its_weight() {
        let raw: Vec<u8> = (0..100_000u32)
            .flat_map(|at| ((at * 7919) as u16 & 0x80ff | 0x3f00).to_le_bytes())
            .collect();
        let copy = PackedCopy::of("w", NumberForm::Bf16, &raw)
            .unwrap()
            .unwrap();
        assert!(copy.stored().len() * 4 < raw.len() as u64 * 3);
        let mut again = vec![0; raw.len()];
        let stored = copy.stored().as_slice();
        copy.weight().decode(stored, 0, &mut again).unwrap();
        assert_eq!(again, raw);
        assert_eq!(
            copy.weight().raw_crc32(stored).unwrap(),
            crc32fast::hash(&raw)
        );
    }

    #[test]
    fn a_copy_that_was_packed_before_is_of_the_same_bytes() {
        let raw: Vec<u8> = (0..1_500_000u32)
            .flat_map(|at| (at.wrapping_mul(7919) as u16 & 0x80ff | 0x3f00).to_le_bytes())
            .collect();
        let copy = PackedCopy::of("w", NumberForm::Bf16, &raw)
            .unwrap()
            .unwrap();
        let (stored, header) = (copy.stored().clone(), *copy.weight().header());
        let read = |header, stored, raw: &[u8]| {
            PackedCopy::read("f: 'w'".to_owned(), header, stored, raw)
                .map_err(|error| error.to_string())
        };
        assert!(read(header, stored.clone(), &raw).is_ok());
        // The last byte, after several pieces.
        let mut other = raw.clone();
        *other.last_mut().unwrap() ^= 1;
        let error = read(header, stored.clone(), &other).unwrap_err();
        assert!(
            error.contains("f: 'w'") && error.contains("byte 2097152 on"),
            "{error}"
        );
        let error = read(header, stored.clone(), &raw[..raw.len() - 2]).unwrap_err();
        assert!(error.contains("2999998"), "{error}");
        let mut header = header;
        header.form = NumberForm::F16;
        assert!(read(header, stored, &raw).is_err());
    }

    #[test]
    fn what_gains_too_little_has_no_copy() {
        let raw: Vec<u8> = (0..100_000u32)
            .flat_map(|at| (at.wrapping_mul(2_654_435_761) >> 16).to_le_bytes())
            .collect();
        assert!(PackedCopy::of("w", NumberForm::Bf16, &raw)
            .unwrap()
            .is_none());
        assert!(PackedCopy::of("w", NumberForm::Bf16, &[])
            .unwrap()
            .is_none());
    }
}
