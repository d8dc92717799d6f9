//! The parser targets. Each asks everything that can be asked of what a parser accepts, and checks that it is
//! consistent in itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::packed;
use weightstream::format::{ConstantKind, EntryLayout, Ptd, Pte, Record};
use weightstream::schedule::{floor, Trace, WeightKind, WeightSpec};
use weightstream::weights::{verify_crc, Catalog, NamedData, SharedBytes};
use weightstream::{Error, Result};

/// A parser, and what is asked of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Pte,
    Ptd,
    Record,
    /// A record's bytes and a data file, joined by [`join`], as a load takes them.
    Load,
    /// Packed weights: header, directory and payload.
    Packed,
    /// The table of a data file that says which entries are packed.
    PackedTable,
}

impl Target {
    pub const ALL: [Target; 6] = [
        Target::Pte,
        Target::Ptd,
        Target::Record,
        Target::Load,
        Target::Packed,
        Target::PackedTable,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Target::Pte => "pte",
            Target::Ptd => "ptd",
            Target::Record => "record",
            Target::Load => "load",
            Target::Packed => "packed",
            Target::PackedTable => "packed_table",
        }
    }

    /// Whether the bytes were accepted. Panics if what was accepted is inconsistent.
    pub fn run(self, bytes: &[u8]) -> bool {
        match self {
            Target::Pte => exercise_pte(bytes),
            Target::Ptd => exercise_ptd(bytes),
            Target::Record => exercise_record(bytes),
            Target::Load => exercise_load(bytes),
            Target::Packed => packed::exercise(bytes),
            Target::PackedTable => packed::exercise_table(bytes),
        }
    }
}

/// Asks everything that can be asked of a program.
pub fn exercise_pte(bytes: &[u8]) -> bool {
    let Ok(program) = Pte::parse("m.pte", bytes) else {
        return false;
    };
    assert!(program.tables().len() <= bytes.len());
    let mut recorded = false;
    for method in program.methods() {
        if let Ok(delegate) = program.delegate(method) {
            recorded |= Record::from_payload("payload", delegate.processed).is_ok();
        }
        let _ = program.constant_method(method);
        let _ = Record::from_pte(&program, method);
    }
    for key in program.named_data_keys() {
        assert!(program.named_data(key).unwrap().len() <= bytes.len());
    }
    recorded
}

/// What a data file says is inside of it, and its tensors fill their bytes.
pub fn exercise_ptd(bytes: &[u8]) -> bool {
    let Ok(data) = Ptd::parse("w.ptd", bytes) else {
        return false;
    };
    let mut segments = BTreeMap::new();
    for (key, entry) in data.entries() {
        let of = segments.entry(entry.segment).or_insert(&entry.range);
        assert_eq!(*of, &entry.range, "{key}");
        let found = bytes
            .get(entry.range.clone())
            .unwrap_or_else(|| panic!("{key} is outside"));
        if let Some(layout) = &entry.layout {
            let dense = layout.dtype.dense_bytes(layout.sizes.iter().copied());
            assert_eq!(dense, Some(found.len() as u64), "{key}");
            assert_eq!(layout.dim_order.len(), layout.sizes.len());
        }
    }
    // Two segments have no byte in common.
    let ranges: Vec<_> = segments.into_values().collect();
    assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
    true
}

pub fn exercise_record(bytes: &[u8]) -> bool {
    let Ok(record) = Record::from_payload("payload", bytes) else {
        return false;
    };
    assert_eq!(record.probes.len(), record.access_order.len());
    for id in 0..record.probes.len() as u32 {
        assert!(record.probed(id).is_some());
    }
    // What the record accepts, the schedule accepts; and its floor is one that a budget can be compared with.
    let weights: Vec<_> = record.constants.iter().map(spec).collect();
    let trace = Trace::new(record.trace.clone(), record.probes.clone(), weights.len())
        .expect("the record's trace is one that can happen");
    let floor = floor(&trace, &weights, 64);
    assert!(floor.hard_minimum <= floor.bytes());
    let _ = floor.to_string();
    exercise_sizes(&record);
    true
}

/// Whatever sizes a call has, what is recorded of them has a value or none, and a text.
fn exercise_sizes(record: &Record) {
    let sizes = &record.sizes;
    for symbol in &sizes.symbols {
        assert!(symbol.dim < record.inputs[symbol.input].dims.len());
    }
    let relations = sizes.inputs.iter().chain(&sizes.outputs);
    let all = relations.map(|relation| &relation.size);
    let all = all.chain(sizes.solutions.iter().map(|solution| &solution.value));
    for expression in all.chain(&sizes.guards) {
        for value in [0, 1, -3, i64::MAX, i64::MIN] {
            let values = vec![value; sizes.symbols.len()];
            let _ = expression.evaluate(&values, value);
        }
        assert!(!sizes.infix(expression).is_empty());
    }
}

fn spec(constant: &weightstream::format::RecordedConstant) -> WeightSpec {
    WeightSpec {
        fqn: constant.fqn.clone(),
        bytes: constant.nbytes,
        stored: constant.nbytes,
        kind: match constant.kind {
            ConstantKind::Weight => WeightKind::Weight,
            ConstantKind::Direct => WeightKind::Direct,
            ConstantKind::Mutable => WeightKind::Mutable,
        },
    }
}

/// One input of [`Target::Load`].
pub fn join(record: &[u8], data: &[u8]) -> Vec<u8> {
    [&(record.len() as u32).to_le_bytes(), record, data].concat()
}

/// The two parts of an input of [`Target::Load`].
pub fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// The record against the data: what a load does before it opens anything.
pub fn exercise_load(bytes: &[u8]) -> bool {
    let Some((record, data)) = split(bytes) else {
        return false;
    };
    exercise_record(record);
    let Ok(record) = Record::from_payload("payload", record) else {
        return false;
    };
    let Ok(ptd) = Ptd::parse("w.ptd", data) else {
        return false;
    };
    let data = InMemory {
        ptd,
        bytes: Arc::new(data.to_vec()),
    };
    let Ok(catalog) = Catalog::build(&record, &data) else {
        return false;
    };
    assert_eq!(catalog.constants().len(), record.constants.len());
    for constant in catalog.constants() {
        let segment = catalog.segment(constant.segment);
        assert_eq!(segment.bytes.as_slice().len() as u64, constant.nbytes);
        assert!(constant.kind != ConstantKind::Mutable || segment.members.len() == 1);
    }
    assert!(catalog.distinct_bytes() <= data.bytes.len() as u64);
    verify_crc(&catalog).is_ok()
}

struct InMemory {
    ptd: Ptd,
    bytes: Arc<Vec<u8>>,
}

impl InMemory {
    fn entry(&self, key: &str) -> Result<&weightstream::format::PtdEntry> {
        self.ptd.entry(key).ok_or_else(|| Error::Missing {
            name: key.to_owned(),
            place: "w.ptd".to_owned(),
        })
    }
}

impl NamedData for InMemory {
    fn name(&self) -> &str {
        "w.ptd"
    }

    fn layout(&self, key: &str) -> Result<Option<EntryLayout>> {
        Ok(self.entry(key)?.layout.clone())
    }

    fn bytes(&self, key: &str) -> Result<SharedBytes> {
        SharedBytes::new(self.bytes.clone(), self.entry(key)?.range.clone())
    }
}
