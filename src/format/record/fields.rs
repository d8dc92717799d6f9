//! The bag of named lists that a record is, from either of its two places.

use std::collections::btree_map::{BTreeMap, Entry};

use crate::error::{Error, Result};
use crate::format::generated::record as fb;
use crate::format::{flat, malformed, Pte, ScalarType};

/// The versions of records that this runtime reads and the exporter beside it writes: of programs of one method, and of those
/// of several, which share weights and state.
const FORMAT_VERSIONS: [i64; 2] = [4, 5];
/// Fields that hold integers.
const INT_FIELDS: [&str; 16] = [
    "access_order",
    "activations",
    "crc32",
    "dtypes",
    "floor",
    "format_version",
    "gathers",
    "hard_minimum",
    "inputs",
    "kinds",
    "layouts",
    "nbytes",
    "offload",
    "outputs",
    "probes",
    "trace",
];
/// Fields that hold strings.
const STRING_FIELDS: [&str; 12] = [
    "build_id",
    "device",
    "fqns",
    "guards",
    "input_names",
    "keys",
    "method",
    "relations",
    "so_key",
    "solutions",
    "symbols",
    "target",
];

/// Named lists, each with the place where it stands.
pub(super) struct Fields<'a> {
    file: String,
    /// Where the whole record stands: the offset reported for a field that is not there.
    root: u64,
    fields: BTreeMap<&'a str, Field<'a>>,
}

struct Field<'a> {
    offset: u64,
    ints: Vec<i64>,
    strings: Vec<&'a str>,
}

/// What the names of the constant methods start with that hold the record of `method`.
fn prefix(method: &str) -> String {
    format!("{method}__weight_offload__")
}

/// Whether the program has such methods.
pub fn has_methods(pte: &Pte<'_>, method: &str) -> bool {
    let prefix = prefix(method);
    pte.methods().any(|name| name.starts_with(&prefix))
}

impl<'a> Fields<'a> {
    pub fn from_payload(name: &str, bytes: &'a [u8]) -> Result<Self> {
        Fields::of_table(name, payload(name, bytes)?)
    }

    /// The same, with the records of the other methods of the program.
    pub fn all_from_payload(name: &str, bytes: &'a [u8]) -> Result<(Self, Vec<Self>)> {
        let own = payload(name, bytes)?;
        let mut others = Vec::new();
        for other in own.others().into_iter().flatten() {
            if other.others().is_some() {
                let what = "a record of another method holds records of others itself";
                return Err(malformed(name, other._tab.loc(), what.to_owned()));
            }
            others.push(Fields::of_table(name, other)?);
        }
        Ok((Fields::of_table(name, own)?, others))
    }

    fn of_table(name: &str, payload: fb::Payload<'a>) -> Result<Self> {
        let mut bag = Fields::new(name, payload._tab.loc() as u64);
        for field in payload.fields() {
            let content = Field {
                offset: field._tab.loc() as u64,
                ints: field.ints().into_iter().flatten().collect(),
                strings: field.strings().into_iter().flatten().collect(),
            };
            bag.insert(field.name(), content)?;
        }
        bag.check_version()?;
        Ok(bag)
    }

    pub fn from_pte(pte: &Pte<'a>, method: &str) -> Result<Self> {
        let prefix = prefix(method);
        let mut bag = Fields::new(pte.name(), pte.root_offset());
        for name in pte.methods() {
            if let Some(field) = name.strip_prefix(prefix.as_str()) {
                let found = pte.constant_method(name)?;
                let content = Field {
                    offset: found.offset,
                    ints: found.ints,
                    strings: found.strings,
                };
                bag.insert(field, content)?;
            }
        }
        if bag.fields.is_empty() {
            return Err(Error::Missing {
                name: format!("{prefix}format_version"),
                place: format!(
                    "{}: method '{method}' has no weight offload record",
                    pte.name()
                ),
            });
        }
        bag.check_version()?;
        Ok(bag)
    }

    fn new(file: &str, root: u64) -> Self {
        Fields {
            file: file.to_owned(),
            root,
            fields: BTreeMap::new(),
        }
    }

    fn insert(&mut self, name: &'a str, field: Field<'a>) -> Result<()> {
        match self.fields.entry(name) {
            Entry::Vacant(free) => {
                free.insert(field);
                Ok(())
            }
            Entry::Occupied(_) => {
                let what = format!("field '{name}' stands here a second time");
                Err(malformed(&self.file, field.offset, what))
            }
        }
    }

    /// The version comes first: another version may mean other fields. Then every field must be known.
    fn check_version(&self) -> Result<()> {
        let version = self.int("format_version")?;
        if !FORMAT_VERSIONS.contains(&version) {
            return Err(Error::Mismatch {
                name: self.file.clone(),
                fact: "format version of the record",
                expected: format!(
                    "{} or {} (what this runtime reads; export the program again)",
                    FORMAT_VERSIONS[0], FORMAT_VERSIONS[1]
                ),
                found: version.to_string(),
            });
        }
        for (name, field) in &self.fields {
            let what = match (INT_FIELDS.contains(name), STRING_FIELDS.contains(name)) {
                (true, _) if !field.strings.is_empty() => "holds strings, expected integers",
                (_, true) if !field.ints.is_empty() => "holds integers, expected strings",
                (false, false) if !name.starts_with("x_") => "is not a field of a record",
                _ => continue,
            };
            return Err(self.bad(name, what));
        }
        Ok(())
    }

    /// The scalar type with this number, from field `name`.
    pub fn scalar(&self, name: &str, number: i64) -> Result<ScalarType> {
        let what = || format!("holds {number}, which is not the number of a scalar type");
        ScalarType::from_number(number).ok_or_else(|| self.bad(name, what()))
    }

    /// The error for a bad field.
    pub fn bad(&self, name: &str, what: impl AsRef<str>) -> Error {
        let offset = self
            .fields
            .get(name)
            .map_or(self.root, |field| field.offset);
        malformed(
            &self.file,
            offset,
            format!("field '{name}' {}", what.as_ref()),
        )
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn ints(&self, name: &str) -> &[i64] {
        self.fields
            .get(name)
            .map_or(&[], |field| field.ints.as_slice())
    }

    pub fn strings(&self, name: &str) -> &[&'a str] {
        self.fields
            .get(name)
            .map_or(&[], |field| field.strings.as_slice())
    }

    pub fn int(&self, name: &str) -> Result<i64> {
        self.only(name, self.ints(name)).copied()
    }

    pub fn string(&self, name: &str) -> Result<&'a str> {
        self.only(name, self.strings(name)).copied()
    }

    /// The single value of a field that counts bytes.
    pub fn bytes(&self, name: &str) -> Result<u64> {
        let value = self.int(name)?;
        u64::try_from(value).map_err(|_| self.bad(name, format!("is {value}, expected bytes")))
    }

    fn only<'v, T>(&self, name: &str, values: &'v [T]) -> Result<&'v T> {
        match values {
            [one] => Ok(one),
            _ => Err(self.bad(name, format!("holds {} values, expected 1", values.len()))),
        }
    }

    /// A list of integers that must have `count` values, one per `per`.
    pub fn ints_of(&self, name: &str, count: usize, per: &str) -> Result<&[i64]> {
        let values = self.ints(name);
        if values.len() == count {
            return Ok(values);
        }
        Err(self.bad(
            name,
            format!(
                "holds {} values, expected {count}, one per {per}",
                values.len()
            ),
        ))
    }

    /// Reads the integers of a field one after the other.
    pub fn cursor<'s>(&'s self, name: &'static str) -> Cursor<'s, 'a> {
        Cursor {
            fields: self,
            name,
            ints: self.ints(name),
            next: 0,
        }
    }
}

fn payload<'a>(name: &str, bytes: &'a [u8]) -> Result<fb::Payload<'a>> {
    check_identifier(name, bytes)?;
    flat::root::<fb::Payload>(name, bytes)
}

fn check_identifier(name: &str, bytes: &[u8]) -> Result<()> {
    match bytes.get(4..8) {
        Some(b"WSR1") => Ok(()),
        Some(found) => {
            let found = found.escape_ascii();
            let what =
                format!("this is not a weight offload record: expected 'WSR1', found '{found}'");
            Err(malformed(name, 4u64, what))
        }
        None if bytes.is_empty() => Err(malformed(name, 0u64, "the record is empty")),
        None => {
            let what = format!(
                "the record is truncated: it needs at least 8 bytes, there are {}",
                bytes.len()
            );
            Err(malformed(name, bytes.len(), what))
        }
    }
}

/// A place in a list of integers that holds several things of different lengths.
pub(super) struct Cursor<'s, 'a> {
    fields: &'s Fields<'a>,
    name: &'static str,
    ints: &'s [i64],
    next: usize,
}

/// Compiled code has tensors of a few dimensions; this many are damage.
const MAX_DIMS: i64 = 64;

impl<'s> Cursor<'s, '_> {
    pub fn at_end(&self) -> bool {
        self.next == self.ints.len()
    }

    pub fn bad(&self, what: impl AsRef<str>) -> Error {
        self.fields.bad(
            self.name,
            format!("{} (at value {})", what.as_ref(), self.next),
        )
    }

    pub fn int(&mut self) -> Result<i64> {
        let value = self
            .ints
            .get(self.next)
            .copied()
            .ok_or_else(|| self.bad("ends too early"))?;
        self.next += 1;
        Ok(value)
    }

    pub fn slice(&mut self, count: usize) -> Result<&'s [i64]> {
        let end = self.next.saturating_add(count);
        let slice = self
            .ints
            .get(self.next..end)
            .ok_or_else(|| self.bad("ends too early"))?;
        self.next = end;
        Ok(slice)
    }

    /// A number of dimensions.
    pub fn ndim(&mut self) -> Result<usize> {
        let value = self.int()?;
        match usize::try_from(value) {
            Ok(ndim) if value <= MAX_DIMS => Ok(ndim),
            _ => Err(self.bad(format!(
                "holds {value} where a number of dimensions is expected"
            ))),
        }
    }
}
