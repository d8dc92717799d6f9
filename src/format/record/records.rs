//! The records of all methods of a program, and what their methods share.
#![deny(unsafe_code)]

use std::collections::HashMap;

use super::decode::record;
use super::fields::Fields;
use super::{ConstantKind, Record, RecordedConstant};
use crate::error::{Error, Result};
use crate::format::{sizes_text, Pte};
use crate::schedule::WeightIndex;

/// The records of all methods of a program. Each delegate's payload has them, with its own one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records {
    /// In the order of their names.
    all: Vec<Record>,
    /// That of the delegate.
    own: usize,
}

/// The constants of all methods, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnionConstants {
    /// As the first method that has it records it; the position is the program's weight index.
    pub constants: Vec<RecordedConstant>,
    /// The program's index of each constant of each method.
    pub index: Vec<Vec<WeightIndex>>,
}

impl From<Record> for Records {
    fn from(record: Record) -> Self {
        Records {
            all: vec![record],
            own: 0,
        }
    }
}

impl Records {
    /// Reads the records from a delegate's processed bytes. `name` is what errors call them.
    pub fn from_payload(name: &str, bytes: &[u8]) -> Result<Records> {
        let (own, others) = Fields::all_from_payload(name, bytes)?;
        let own = record(&own)?;
        let method = own.method.clone();
        let mut all = vec![own];
        for other in &others {
            all.push(record(other)?);
        }
        all.sort_by(|one, other| one.method.cmp(&other.method));
        for pair in all.windows(2) {
            check_pair(name, &pair[0], &pair[1])?;
        }
        if let Some(record) = all
            .iter()
            .find(|one| one.is_one_of_several() != (all.len() > 1))
        {
            return Err(Error::Mismatch {
                name: record.method.clone(),
                fact: "number of methods in its payload",
                expected: match record.is_one_of_several() {
                    true => "several, by the version of its record".to_owned(),
                    false => "1, by the version of its record".to_owned(),
                },
                found: all.len().to_string(),
            });
        }
        let own = all.iter().position(|one| one.method == method);
        Ok(Records {
            own: own.unwrap_or_default(),
            all,
        })
    }

    /// The records of the program of `method`; see [`Record::of`] for the checks of its own one.
    pub fn of(pte: &Pte<'_>, method: &str) -> Result<Records> {
        let own = Record::of(pte, method)?;
        let name = format!("{}, the delegate's payload", pte.name());
        let records = Records::from_payload(&name, pte.delegate(method)?.processed)?;
        match *records.own() == own {
            true => Ok(records),
            false => Err(Error::Internal(format!("two records of method '{method}'"))),
        }
    }

    /// That of the delegate.
    pub fn own(&self) -> &Record {
        &self.all[self.own]
    }

    /// Its position in [`Records::all`].
    pub fn method(&self) -> usize {
        self.own
    }

    /// In the order of their names.
    pub fn all(&self) -> &[Record] {
        &self.all
    }

    /// The names of the methods.
    pub fn names(&self) -> Vec<&str> {
        self.all.iter().map(|one| one.method.as_str()).collect()
    }

    /// The constants of all methods. Those of one key and of one kind are one; what is streamed and what is resident are two,
    /// since they live in different memory.
    pub fn union(&self) -> Result<UnionConstants> {
        let mut constants: Vec<RecordedConstant> = Vec::new();
        let mut known: HashMap<(&str, ConstantKind), WeightIndex> = HashMap::new();
        let mut index = Vec::with_capacity(self.all.len());
        for method in &self.all {
            let mut own = Vec::with_capacity(method.constants.len());
            for constant in &method.constants {
                let next = constants.len() as WeightIndex; // records number their constants in 32 bits
                let at = match self.all.len() {
                    // Two names of one method are two constants, whatever their keys.
                    1 => next,
                    _ => *known.entry((&constant.key, constant.kind)).or_insert(next),
                };
                match constants.get(at as usize) {
                    None => constants.push(constant.clone()),
                    Some(first) => check_same(first, constant, method)?,
                }
                own.push(at);
            }
            index.push(own);
        }
        if self.all.len() > 1 {
            check_state(&constants)?;
        }
        Ok(UnionConstants { constants, index })
    }
}

/// What one method writes, no other may keep a copy of.
fn check_state(constants: &[RecordedConstant]) -> Result<()> {
    let kinds = constants.iter().map(|one| (one.key.as_str(), one));
    let mut seen: HashMap<&str, &RecordedConstant> = HashMap::new();
    for (key, one) in kinds {
        let is_state = |constant: &RecordedConstant| constant.kind == ConstantKind::Mutable;
        let before = seen.insert(key, one);
        let other = before.filter(|before| is_state(before) != is_state(one));
        if let Some(before) = other {
            return Err(Error::Mismatch {
                name: key.to_owned(),
                fact: "kind in two methods",
                expected: format!("{:?} ('{}')", before.kind, before.fqn),
                found: format!("{:?} ('{}')", one.kind, one.fqn),
            });
        }
    }
    Ok(())
}

/// Two methods of one payload: of one program, with names of their own.
fn check_pair(name: &str, one: &Record, other: &Record) -> Result<()> {
    let differs = |fact, expected: String, found: String| Error::Mismatch {
        name: name.to_owned(),
        fact,
        expected: format!("{expected} (method '{}')", one.method),
        found: format!("{found} (method '{}')", other.method),
    };
    if one.method == other.method {
        return Err(differs(
            "names of the methods",
            "two names".to_owned(),
            one.method.clone(),
        ));
    }
    if one.build_id != other.build_id {
        return Err(differs(
            "build id",
            one.build_id.to_string(),
            other.build_id.to_string(),
        ));
    }
    if one.device != other.device {
        return Err(differs("device", one.device.clone(), other.device.clone()));
    }
    match one.offload == other.offload {
        true => Ok(()),
        false => Err(differs(
            "offload",
            one.offload.to_string(),
            other.offload.to_string(),
        )),
    }
}

fn check_same(first: &RecordedConstant, other: &RecordedConstant, method: &Record) -> Result<()> {
    let of = |one: &RecordedConstant| {
        let sizes = sizes_text(&one.sizes);
        format!(
            "{} {sizes}, {} bytes, CRC-32 {:08x}",
            one.dtype, one.nbytes, one.crc32
        )
    };
    match of(first) == of(other) {
        true => Ok(()),
        false => Err(Error::Mismatch {
            name: other.key.clone(),
            fact: "constant of one key in two methods",
            expected: format!("{} ('{}')", of(first), first.fqn),
            found: format!(
                "{} ('{}' of method '{}')",
                of(other),
                other.fqn,
                method.method
            ),
        }),
    }
}
