//! Builders of tiny `.pte`, `.ptd` and payload files, for tests in `tests/` and (through `#[path]`) in the
//! crate. They number the fields of each table themselves, from the facts of the formats, and share no
//! code with the parsers: a wrong number on either side makes tests fail.
#![allow(dead_code, missing_docs, unused_imports)] // every test binary uses a part

mod program;
mod ptd;
mod record;

pub use program::{pte, Compiled, Plan, PteSpec};
pub use ptd::{ptd, Entry, PtdSpec};
pub use record::{payload, payload_of, FieldValue, RecordSpec, BUILD_ID};

use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, TableFinishedWIPOffset, Vector, WIPOffset};

/// One value of a table's field.
pub(crate) enum Slot {
    U8(u8),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    /// A string, vector or table that was written before.
    Ref(WIPOffset<flatbuffers::UnionWIPOffset>),
    Absent,
}

/// Writes a table; the position in `slots` is the field's number.
pub(crate) fn table(
    fbb: &mut FlatBufferBuilder,
    slots: &[Slot],
) -> WIPOffset<TableFinishedWIPOffset> {
    let start = fbb.start_table();
    for (number, slot) in slots.iter().enumerate() {
        let at = 4 + 2 * number as u16;
        match slot {
            Slot::U8(value) => fbb.push_slot_always(at, *value),
            Slot::I32(value) => fbb.push_slot_always(at, *value),
            Slot::U32(value) => fbb.push_slot_always(at, *value),
            Slot::I64(value) => fbb.push_slot_always(at, *value),
            Slot::U64(value) => fbb.push_slot_always(at, *value),
            Slot::Ref(value) => fbb.push_slot_always(at, *value),
            Slot::Absent => {}
        }
    }
    fbb.end_table(start)
}

pub(crate) fn string(fbb: &mut FlatBufferBuilder, text: &str) -> Slot {
    Slot::Ref(fbb.create_string(text).as_union_value())
}

pub(crate) fn tables(
    fbb: &mut FlatBufferBuilder,
    rows: &[WIPOffset<TableFinishedWIPOffset>],
) -> Slot {
    let vector: WIPOffset<Vector<ForwardsUOffset<TableFinishedWIPOffset>>> =
        fbb.create_vector(rows);
    Slot::Ref(vector.as_union_value())
}

pub(crate) fn reference<T>(offset: WIPOffset<T>) -> Slot {
    Slot::Ref(WIPOffset::new(offset.value()))
}

/// Rounds up to a multiple of `to`.
pub fn round_up(value: usize, to: usize) -> usize {
    value.div_ceil(to) * to
}

/// Puts an extended header behind the identifier and raises the root offset by its length.
pub(crate) fn insert_header(flatbuffer: &[u8], header: &[u8]) -> Vec<u8> {
    let root = u32::from_le_bytes(flatbuffer[..4].try_into().unwrap()) + header.len() as u32;
    [
        &root.to_le_bytes(),
        &flatbuffer[4..8],
        header,
        &flatbuffer[8..],
    ]
    .concat()
}

/// Bytes that differ from weight to weight and hold no long run of zeros.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| {
            (i as u8)
                .wrapping_mul(31)
                .wrapping_add(seed)
                .wrapping_add(1)
                | 1
        })
        .collect()
}

/// Lays out segments as the writers do: each at the next multiple of `alignment`.
pub(crate) fn lay_out(segments: &[Vec<u8>], alignment: usize) -> (Vec<(u64, u64)>, Vec<u8>) {
    let mut rows = Vec::new();
    let mut data: Vec<u8> = Vec::new();
    for segment in segments {
        data.resize(round_up(data.len(), alignment), 0);
        rows.push((data.len() as u64, segment.len() as u64));
        data.extend(segment);
    }
    (rows, data)
}

/// A FIFO that nobody writes to, in `folder`.
pub fn fifo(folder: &std::path::Path) -> std::path::PathBuf {
    let path = folder.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    path
}
