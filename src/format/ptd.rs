//! The `.ptd` container (FlatTensor): named bytes, with a tensor layout where they are a tensor.

use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Range;

use super::generated::flat_tensor as fb;
use super::scalar::ScalarType;
use super::segments::{self, SegmentRow};
use super::{flat, header, malformed, sizes_text};
use crate::error::Result;

/// Layout of a tensor in a data file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryLayout {
    /// Element type.
    pub dtype: ScalarType,
    /// Sizes, outermost first.
    pub sizes: Vec<i64>,
    /// Dimensions from outermost to innermost in memory.
    pub dim_order: Vec<u8>,
}

/// One named entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtdEntry {
    /// Layout, if the entry is a tensor.
    pub layout: Option<EntryLayout>,
    /// Index of its segment; entries of equal bytes share one.
    pub segment: usize,
    /// Its bytes in the file.
    pub range: Range<usize>,
}

/// The validated index of a `.ptd`. It holds offsets, not bytes: pair it with the bytes it was parsed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptd {
    file: String,
    entries: BTreeMap<String, PtdEntry>,
}

impl Ptd {
    /// Checks everything in the file but the tensors' values. `name` is what errors call the file.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self> {
        let extent = header::data(name, bytes)?;
        let tables = &bytes[..extent.flatbuffer_end as usize];
        let root = flat::root::<fb::FlatTensor>(name, tables)?;
        if root.version() != 0 {
            let what = format!("FlatTensor version {}, expected 0", root.version());
            return Err(malformed(name, root._tab.loc(), what));
        }
        let rows = root
            .segments()
            .into_iter()
            .flatten()
            .map(|segment| SegmentRow {
                at: segment._tab.loc(),
                offset: segment.offset(),
                size: segment.size_(),
            });
        let ranges = segments::ranges(name, extent.segments, rows)?;
        let mut entries = BTreeMap::new();
        for row in root.named_data().into_iter().flatten() {
            let (key, entry) = read_entry(name, &row, &ranges)?;
            match entries.entry(key) {
                Entry::Vacant(free) => free.insert(entry),
                Entry::Occupied(taken) => {
                    let what = format!("the key '{}' stands here a second time", taken.key());
                    return Err(malformed(name, row._tab.loc(), what));
                }
            };
        }
        Ok(Ptd {
            file: name.to_owned(),
            entries,
        })
    }

    /// What errors call the file.
    pub fn name(&self) -> &str {
        &self.file
    }

    /// The entry with this key.
    pub fn entry(&self, key: &str) -> Option<&PtdEntry> {
        self.entries.get(key)
    }

    /// All entries, in the order of their keys.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &PtdEntry)> {
        self.entries
            .iter()
            .map(|(key, entry)| (key.as_str(), entry))
    }
}

fn read_entry(
    file: &str,
    row: &fb::NamedData,
    ranges: &[Range<usize>],
) -> Result<(String, PtdEntry)> {
    let at = row._tab.loc();
    let key = match row.key() {
        Some(key) if !key.is_empty() => key,
        _ => return Err(malformed(file, at, "an entry has no key")),
    };
    let segment = row.segment_index() as usize;
    let range = ranges.get(segment).cloned().ok_or_else(|| {
        let what = format!("'{key}' names segment {segment} of {}", ranges.len());
        malformed(file, at, what)
    })?;
    let layout = match row.tensor_layout() {
        Some(layout) => Some(read_layout(file, key, &layout, range.len() as u64)?),
        None => None,
    };
    Ok((
        key.to_owned(),
        PtdEntry {
            layout,
            segment,
            range,
        },
    ))
}

fn read_layout(
    file: &str,
    key: &str,
    layout: &fb::TensorLayout,
    bytes: u64,
) -> Result<EntryLayout> {
    let bad = |what: String| malformed(file, layout._tab.loc(), format!("'{key}': {what}"));
    let number = i64::from(layout.scalar_type().0);
    let dtype = ScalarType::from_number(number)
        .ok_or_else(|| bad(format!("{number} is not the number of a scalar type")))?;
    let sizes: Vec<i64> = layout
        .sizes()
        .into_iter()
        .flatten()
        .map(i64::from)
        .collect();
    let dim_order: Vec<u8> = layout
        .dim_order()
        .map(|order| order.bytes().to_vec())
        .unwrap_or_default();
    if !is_permutation(&dim_order, sizes.len()) {
        let what = format!(
            "dim order {dim_order:?} does not order {} dimensions",
            sizes.len()
        );
        return Err(bad(what));
    }
    let takes = dtype.dense_bytes(sizes.iter().copied());
    if takes != Some(bytes) {
        let what = format!(
            "{dtype} of sizes {} takes {} bytes, and its segment holds {bytes}",
            sizes_text(&sizes),
            takes.map_or("too many".to_owned(), |n| n.to_string())
        );
        return Err(bad(what));
    }
    Ok(EntryLayout {
        dtype,
        sizes,
        dim_order,
    })
}

/// Whether `order` names each of `0..count` once.
fn is_permutation(order: &[u8], count: usize) -> bool {
    let mut seen = vec![false; count];
    order.len() == count
        && order
            .iter()
            .all(|&dim| match seen.get_mut(usize::from(dim)) {
                Some(seen) => !std::mem::replace(seen, true),
                None => false,
            })
}
