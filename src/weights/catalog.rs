//! The record and the data file, checked against each other. From here on nothing about a constant is
//! looked up by name.
#![deny(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{packed_entries, PackedWeight, SharedBytes};
use crate::error::{Error, Result};
use crate::format::packed::PackedEntry;
use crate::format::{sizes_text, ConstantKind, EntryLayout, Record, RecordedConstant, ScalarType};
use crate::schedule::{ProbeId, WeightIndex};

/// Where named bytes come from: a mapped `.ptd`, or ExecuTorch's `NamedDataMap`.
pub trait NamedData {
    /// What errors call the source: the path of the file.
    fn name(&self) -> &str;

    /// Layout of the entry `key`: `Ok(None)` if it is there without a layout, [`Error::Missing`] if it is
    /// not there.
    fn layout(&self, key: &str) -> Result<Option<EntryLayout>>;

    /// Bytes of the entry `key`: [`Error::Missing`] if it is not there. Asked twice, it gives the same
    /// address.
    fn bytes(&self, key: &str) -> Result<SharedBytes>;
}

/// Index of a segment in the catalog.
pub type SegmentId = u32;

/// Bytes that one or more constants read.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The bytes, as they are stored.
    pub bytes: SharedBytes,
    /// How they become the constants' bytes, where they are packed.
    pub packed: Option<Arc<PackedWeight>>,
    /// How the constants that share it are read; constants of different kinds never share.
    pub kind: ConstantKind,
    /// The constants that share it, in the order of their indices.
    pub members: Vec<WeightIndex>,
}

impl Segment {
    fn is_packed_as(&self, other: &Option<PackedWeight>) -> bool {
        let packed = self.packed.as_deref().map(PackedWeight::header);
        packed == other.as_ref().map(PackedWeight::header)
    }
}

/// One constant, checked against its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// Its name.
    pub fqn: String,
    /// How it is read.
    pub kind: ConstantKind,
    /// Element type.
    pub dtype: ScalarType,
    /// Exact bytes.
    pub nbytes: u64,
    /// Recorded CRC-32 of its bytes.
    pub crc32: u32,
    /// Sizes of what kernels index.
    pub sizes: Vec<i64>,
    /// Its strides in elements.
    pub strides: Vec<i64>,
    /// The segment that holds its bytes.
    pub segment: SegmentId,
}

/// All constants of one method, and their bytes.
#[derive(Debug, Clone)]
pub struct Catalog {
    source: String,
    constants: Vec<Constant>,
    segments: Vec<Segment>,
    probes: Vec<WeightIndex>,
}

impl Catalog {
    /// Checks every recorded constant against `data` and finds its bytes. The build id comes first: with
    /// the wrong file every other message would mislead.
    pub fn build(record: &Record, data: &dyn NamedData) -> Result<Self> {
        let own = Catalog::of_program(record, &record.constants, data)?;
        Ok(Catalog {
            probes: record.probes.clone(),
            ..own
        })
    }

    /// The same for the constants of all methods of a program, one of which has this record.
    pub fn of_program(
        record: &Record,
        all: &[RecordedConstant],
        data: &dyn NamedData,
    ) -> Result<Self> {
        check_build_id(record, data)?;
        let mut constants = Vec::with_capacity(all.len());
        let mut segments = Segments::default();
        let packed = packed_entries(data)?;
        for (index, recorded) in all.iter().enumerate() {
            let stored = check_constant(recorded, data, packed.get(&recorded.key))?;
            // The record numbers its constants in 32 bits.
            let segment = segments.place(index as WeightIndex, recorded.kind, stored);
            constants.push(Constant {
                fqn: recorded.fqn.clone(),
                kind: recorded.kind,
                dtype: recorded.dtype,
                nbytes: recorded.nbytes,
                crc32: recorded.crc32,
                sizes: recorded.sizes.clone(),
                strides: recorded.strides.clone(),
                segment,
            });
        }
        Ok(Catalog {
            source: data.name().to_owned(),
            constants,
            segments: segments.list,
            probes: Vec::new(),
        })
    }

    /// What errors call the source of the bytes.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// All constants; the position is the weight index.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// All segments; the position is the segment id.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The segment with this id. Ids come from this catalog, so there is one.
    pub fn segment(&self, id: SegmentId) -> &Segment {
        &self.segments[id as usize]
    }

    /// The constant of a probe; `None` if there is no such probe.
    pub fn probed(&self, id: ProbeId) -> Option<&Constant> {
        self.constants.get(*self.probes.get(id as usize)? as usize)
    }

    /// Bytes of all distinct segments that are read through probes.
    pub fn weight_bytes(&self) -> u64 {
        self.bytes_where(|kind| kind == ConstantKind::Weight)
    }

    /// Bytes of all distinct segments that are resident.
    pub fn direct_bytes(&self) -> u64 {
        self.bytes_where(|kind| kind != ConstantKind::Weight)
    }

    /// Bytes of the file that constants read, equal ones once, whatever their kind.
    pub fn distinct_bytes(&self) -> u64 {
        let segments = self.segments.iter().map(|segment| &segment.bytes);
        let places: BTreeSet<_> = segments.map(|bytes| (bytes.addr(), bytes.len())).collect();
        places.iter().map(|(_, len)| len).sum()
    }

    fn bytes_where(&self, wanted: impl Fn(ConstantKind) -> bool) -> u64 {
        // Segments that do not overlap in one address space cannot sum up to more than it holds.
        self.segments
            .iter()
            .filter(|segment| wanted(segment.kind))
            .map(|segment| segment.bytes.len())
            .sum()
    }
}

/// Segments so far, found by address.
#[derive(Default)]
struct Segments {
    list: Vec<Segment>,
    by_place: BTreeMap<(usize, u64, bool), SegmentId>,
}

impl Segments {
    /// The segment of these bytes: an earlier one if address and length are the same and sharing is right.
    fn place(&mut self, index: WeightIndex, kind: ConstantKind, stored: Stored) -> SegmentId {
        let (bytes, packed) = stored;
        let place = (
            bytes.addr() as usize,
            bytes.len(),
            kind == ConstantKind::Weight,
        );
        // A write to a mutable constant must not show in another; and what is streamed and what is resident
        // live in different memory.
        if kind != ConstantKind::Mutable {
            // Bytes that become something else are others.
            let known = self.by_place.get(&place).copied();
            if let Some(id) = known.filter(|&id| self.list[id as usize].is_packed_as(&packed)) {
                self.list[id as usize].members.push(index);
                return id;
            }
        }
        let id = self.list.len() as SegmentId; // at most one per constant
        if kind != ConstantKind::Mutable {
            self.by_place.insert(place, id);
        }
        self.list.push(Segment {
            bytes,
            packed: packed.map(Arc::new),
            kind,
            members: vec![index],
        });
        id
    }
}

/// Whether `data` was written together with the program of this record.
pub fn check_build_id(record: &Record, data: &dyn NamedData) -> Result<()> {
    let key = record.build_id_key();
    let bytes = data.bytes(&key).map_err(|error| match error {
        Error::Missing { .. } => Error::Missing {
            name: key.clone(),
            place: format!(
                "{}: this data file was not written for method '{}' of this program; \
                 use the .ptd that was saved together with the .pte",
                data.name(),
                record.method
            ),
        },
        other => other,
    })?;
    if bytes.as_slice() == record.build_id.0 {
        return Ok(());
    }
    let found: String = bytes
        .as_slice()
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Err(Error::Mismatch {
        name: record.method.clone(),
        fact: "build id",
        expected: format!("{} (the program's)", record.build_id),
        found: format!(
            "{found} in {}: the two files do not belong together; use the .ptd that was saved with the .pte",
            data.name()
        ),
    })
}

/// Bytes as they are stored, and how they become a constant's, where they are packed.
type Stored = (SharedBytes, Option<PackedWeight>);

fn check_constant(
    recorded: &RecordedConstant,
    data: &dyn NamedData,
    packed: Option<&PackedEntry>,
) -> Result<Stored> {
    let differs = |fact, expected: String, found: String| Error::Mismatch {
        name: recorded.fqn.clone(),
        fact,
        expected: format!("{expected} (the program's)"),
        found: format!("{found} in {}", data.name()),
    };
    let layout = match packed {
        Some(entry) => entry.layout.clone(),
        None => data.layout(&recorded.key)?.ok_or_else(|| {
            let expected = format!("{} {}", recorded.dtype, sizes_text(&recorded.sizes));
            differs("layout", expected, "an entry without a layout".to_owned())
        })?,
    };
    if layout.dtype != recorded.dtype {
        return Err(differs(
            "dtype",
            recorded.dtype.to_string(),
            layout.dtype.to_string(),
        ));
    }
    if layout.sizes != recorded.sizes {
        return Err(differs(
            "sizes",
            sizes_text(&recorded.sizes),
            sizes_text(&layout.sizes),
        ));
    }
    let bytes = data.bytes(&recorded.key)?;
    let raw = packed.map_or(bytes.len(), |entry| entry.header.bytes);
    if raw != recorded.nbytes {
        return Err(differs(
            "number of bytes",
            recorded.nbytes.to_string(),
            raw.to_string(),
        ));
    }
    let packed = match packed {
        Some(_) if recorded.kind == ConstantKind::Mutable => {
            let expected = "raw bytes, as compiled code writes to it".to_owned();
            return Err(differs("form", expected, "a packed entry".to_owned()));
        }
        Some(entry) => {
            let name = format!("{}, packed entry '{}'", data.name(), recorded.key);
            Some(PackedWeight::new(name, entry.header, entry.crc32, &bytes)?)
        }
        None => None,
    };
    Ok((bytes, packed))
}
