//! The table of a data file that says which of its entries are packed. It is an entry itself. As tensors of the file packed entries
//! are int32 of one dimension: a runtime that knows nothing of packed entries finds another dtype than the program's, and refuses them.
//!
//! ```text
//! table         "WSPACKED" | u32 version, 2 | u32 count | entries
//! an entry      u32 bytes of its key | key | u8 scalar type | u8 dimensions | i64 sizes | u8 order of dimensions
//!               u64 raw bytes | 13 exponents | u32 CRC-32 of the stored bytes
//! stored bytes  payload | directory, u32 each
//! ```
//! All numbers are little-endian. Keys ascend.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::malformed;
use super::super::ptd::EntryLayout;
use super::super::scalar::ScalarType;
use super::layout::{PackedHeader, PADDING, RANKS, UNIT};
use crate::error::Result;

/// The key of the table.
pub const TABLE_KEY: &str = "weightstream_packed";

const MAGIC: &[u8; 8] = b"WSPACKED";
const VERSION: u32 = 2;

/// What the table says of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedEntry {
    /// Of the tensor that comes of it.
    pub layout: EntryLayout,
    /// What a decoder has to know.
    pub header: PackedHeader,
    /// CRC-32 of the stored bytes.
    pub crc32: u32,
}

/// Where the parts of an entry's stored bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredParts {
    /// The blocks and the padding.
    pub payload: Range<usize>,
    /// The directory.
    pub directory: Range<usize>,
}

impl PackedEntry {
    /// What the file calls an entry of so many stored bytes.
    pub fn layout_in_file(stored: u64) -> EntryLayout {
        EntryLayout {
            dtype: ScalarType::I32,
            // Payloads and directories are whole u32.
            sizes: vec![(stored / 4) as i64],
            dim_order: vec![0],
        }
    }
}

impl PackedHeader {
    /// The parts of `stored` bytes; `None` if no payload has that many.
    pub fn parts(&self, stored: usize) -> Option<StoredParts> {
        let directory = usize::try_from(self.blocks())
            .ok()?
            .checked_add(1)?
            .checked_mul(4)?;
        let payload = stored.checked_sub(directory)?;
        let whole = payload >= PADDING && payload.is_multiple_of(UNIT);
        whole.then_some(StoredParts {
            payload: 0..payload,
            directory: payload..stored,
        })
    }
}

/// The numbers of a directory.
pub fn directory_of(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

/// The table of these entries, by key.
pub fn write_table(entries: &BTreeMap<String, PackedEntry>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((entries.len() as u32).to_le_bytes());
    for (key, entry) in entries {
        bytes.extend((key.len() as u32).to_le_bytes());
        bytes.extend(key.as_bytes());
        // Scalar types have small numbers, and tensors few dimensions.
        bytes.push(entry.layout.dtype.number() as u8);
        bytes.push(entry.layout.sizes.len() as u8);
        let sizes = entry.layout.sizes.iter();
        bytes.extend(sizes.flat_map(|size| size.to_le_bytes()));
        bytes.extend(&entry.layout.dim_order);
        bytes.extend(entry.header.bytes.to_le_bytes());
        bytes.extend(entry.header.exponents);
        bytes.extend(entry.crc32.to_le_bytes());
    }
    bytes
}

/// Reads a table that stands at byte `at` of a file.
pub fn read_table(file: &str, at: u64, bytes: &[u8]) -> Result<BTreeMap<String, PackedEntry>> {
    let mut reader = Reader {
        file,
        at,
        bytes,
        done: 0,
    };
    if reader.take(MAGIC.len())? != MAGIC {
        return Err(reader.bad(format!("'{TABLE_KEY}' does not begin with 'WSPACKED'")));
    }
    let version = reader.u32()?;
    if version != VERSION {
        return Err(reader.bad(format!(
            "packed entries of version {version}, and this runtime reads version {VERSION}; pack the file again that it was made of"
        )));
    }
    let mut entries = BTreeMap::new();
    for _ in 0..reader.u32()? {
        let (key, entry) = reader.entry()?;
        let last = entries.last_key_value();
        if last.is_some_and(|(last, _)| *last >= key) {
            return Err(reader.bad(format!("the key '{key}' does not follow the one before it")));
        }
        entries.insert(key, entry);
    }
    match reader.done == bytes.len() {
        true => Ok(entries),
        false => Err(reader.bad("bytes after the last packed entry".to_owned())),
    }
}

struct Reader<'a> {
    file: &'a str,
    /// Where the table stands in the file.
    at: u64,
    bytes: &'a [u8],
    done: usize,
}

impl<'a> Reader<'a> {
    fn bad(&self, what: String) -> crate::Error {
        malformed(self.file, self.at.saturating_add(self.done as u64), what)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.done.checked_add(count);
        let found = end.and_then(|end| self.bytes.get(self.done..end));
        let found = found.ok_or_else(|| {
            let left = self.bytes.len() - self.done;
            self.bad(format!(
                "{count} bytes of '{TABLE_KEY}' are expected here, and {left} are left"
            ))
        })?;
        self.done += count;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let found = self.take(N)?.try_into();
        found.map_err(|_| self.bad("a number is cut".to_owned()))
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn entry(&mut self) -> Result<(String, PackedEntry)> {
        let count = self.u32()? as usize;
        let key = std::str::from_utf8(self.take(count)?);
        let key = key
            .map_err(|_| self.bad("a key that is no text".to_owned()))?
            .to_owned();
        let [number, dims] = self.array()?;
        let dtype = ScalarType::from_number(i64::from(number));
        let dtype = dtype.ok_or_else(|| {
            self.bad(format!(
                "'{key}': {number} is not the number of a scalar type"
            ))
        })?;
        let sizes = (0..dims).map(|_| self.array().map(i64::from_le_bytes));
        let sizes = sizes.collect::<Result<Vec<i64>>>()?;
        let dim_order = self.take(usize::from(dims))?.to_vec();
        let form = dtype
            .form()
            .ok_or_else(|| self.bad(format!("'{key}': numbers of {dtype} are not packed")))?;
        let header = PackedHeader {
            form,
            bytes: self.array().map(u64::from_le_bytes)?,
            exponents: self.array::<RANKS>()?,
        };
        if let Some(found) = header.impossible_exponent() {
            return Err(self.bad(format!(
                "'{key}': no number of {dtype} has the exponent {found}"
            )));
        }
        let takes = dtype.dense_bytes(sizes.iter().copied());
        if takes != Some(header.bytes) {
            return Err(self.bad(format!(
                "'{key}' has {} raw bytes, and its sizes take {}",
                header.bytes,
                takes.map_or("too many".to_owned(), |bytes| bytes.to_string())
            )));
        }
        let layout = EntryLayout {
            dtype,
            sizes,
            dim_order,
        };
        let crc32 = self.u32()?;
        Ok((
            key,
            PackedEntry {
                layout,
                header,
                crc32,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::RAW;
    use super::*;
    use crate::figures::NumberForm;

    fn entries() -> BTreeMap<String, PackedEntry> {
        let entry = |dtype: ScalarType, sizes: &[i64], crc32| PackedEntry {
            layout: EntryLayout {
                dtype,
                sizes: sizes.to_vec(),
                dim_order: (0..sizes.len() as u8).collect(),
            },
            header: PackedHeader {
                form: dtype.form().unwrap(),
                bytes: dtype.itemsize() * sizes.iter().product::<i64>() as u64,
                exponents: std::array::from_fn(|rank| 15 - rank as u8),
            },
            crc32,
        };
        [
            (
                "a.weight".to_owned(),
                entry(ScalarType::BF16, &[4096, 3], 7),
            ),
            (
                "b.weight".to_owned(),
                entry(ScalarType::F8E4M3FN, &[5], u32::MAX),
            ),
        ]
        .into()
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = write_table(&entries());
        assert_eq!(read_table("file", 0, &bytes).unwrap(), entries());
        assert_eq!(
            read_table("file", 0, &write_table(&BTreeMap::new())).unwrap(),
            BTreeMap::new()
        );
    }

    #[test]
    fn a_cut_or_changed_table_is_refused_with_its_place() {
        let bytes = write_table(&entries());
        for end in 0..bytes.len() {
            let error = read_table("model.ptd", 1000, &bytes[..end])
                .unwrap_err()
                .to_string();
            let place = error.contains("model.ptd") && error.contains("byte 1");
            assert!(place, "{end}: {error}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(read_table("file", 0, &longer).is_err());
        // The magic, the version, a scalar type, a size: each is looked at.
        for at in [0, 8, 16 + 4 + 8, 16 + 4 + 8 + 2] {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            assert!(read_table("file", 0, &other).is_err(), "byte {at}");
        }
    }

    #[test]
    fn numbers_without_a_form_are_refused_by_their_key() {
        let mut entries = entries();
        for entry in entries.values_mut() {
            entry.layout.dtype = ScalarType::I8;
        }
        let error = read_table("model.ptd", 0, &write_table(&entries)).unwrap_err();
        let expected = "'a.weight': numbers of int8 are not packed";
        assert!(error.to_string().contains(expected), "{error}");
    }

    /// Decoders put exponents between sign and mantissa: larger ones would be seen in these.
    #[test]
    fn exponents_that_a_type_has_not_are_refused() {
        let mut entries = entries();
        let fp8 = entries.get_mut("b.weight").unwrap();
        fp8.header.exponents[12] = 16;
        let error = read_table("model.ptd", 0, &write_table(&entries)).unwrap_err();
        let expected = "'b.weight': no number of float8_e4m3fn has the exponent 16";
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn stored_bytes_are_a_payload_and_a_directory() {
        let header = PackedHeader {
            form: NumberForm::Bf16,
            bytes: 20_000,
            exponents: [0; RANKS],
        };
        let parts = header.parts(16 * 700 + 16).unwrap();
        // Three blocks have four entries.
        assert_eq!(parts.directory.len(), 16);
        assert_eq!(parts.payload.end, parts.directory.start);
        assert!(header.parts(16).is_none() && header.parts(16 * 700 + 8).is_none());
        assert_eq!(directory_of(&[1, 0, 0, 0, 0, 0, 0, 0x80]), [1, RAW]);
    }
}
