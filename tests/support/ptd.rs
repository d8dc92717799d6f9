//! Builder of a `.ptd`.

use flatbuffers::FlatBufferBuilder;

use super::{insert_header, lay_out, reference, round_up, string, table, tables, Slot};

/// One named entry.
#[derive(Debug, Clone)]
pub struct Entry {
    pub key: String,
    pub segment: u32,
    /// Scalar type number, sizes, dim order.
    pub layout: Option<(u8, Vec<i32>, Vec<u8>)>,
}

/// A `.ptd` to write.
#[derive(Debug, Clone)]
pub struct PtdSpec {
    pub version: u32,
    pub alignment: usize,
    pub segments: Vec<Vec<u8>>,
    pub entries: Vec<Entry>,
    /// Offset and size of each segment; `None`: as laid out.
    pub rows: Option<Vec<(u64, u64)>>,
}

impl Default for PtdSpec {
    fn default() -> Self {
        PtdSpec {
            version: 0,
            alignment: 64,
            segments: Vec::new(),
            entries: Vec::new(),
            rows: None,
        }
    }
}

impl PtdSpec {
    /// Adds bytes as a new segment with one entry.
    pub fn add(&mut self, key: &str, layout: Option<(u8, Vec<i32>)>, bytes: Vec<u8>) -> &mut Self {
        self.segments.push(bytes);
        self.share(key, layout, self.segments.len() as u32 - 1)
    }

    /// Adds an entry that names a segment which is there already.
    pub fn share(&mut self, key: &str, layout: Option<(u8, Vec<i32>)>, segment: u32) -> &mut Self {
        let layout = layout.map(|(dtype, sizes)| {
            let order = (0..sizes.len() as u8).collect();
            (dtype, sizes, order)
        });
        self.entries.push(Entry {
            key: key.to_owned(),
            segment,
            layout,
        });
        self
    }
}

/// Writes the file.
pub fn ptd(spec: &PtdSpec) -> Vec<u8> {
    let (rows, data) = lay_out(&spec.segments, spec.alignment);
    let flatbuffer = tables_of(spec, spec.rows.as_ref().unwrap_or(&rows));
    let padded_header = 48;
    let end = flatbuffer.len() + padded_header;
    let base = round_up(end, spec.alignment);
    let mut header = Vec::new();
    header.extend(b"FH01");
    header.extend(40u32.to_le_bytes());
    for number in [padded_header, flatbuffer.len(), base, data.len()] {
        header.extend((number as u64).to_le_bytes());
    }
    header.resize(padded_header, 0);
    let mut file = insert_header(&flatbuffer, &header);
    assert_eq!(file.len(), end);
    file.resize(base, 0);
    file.extend(data);
    file
}

fn tables_of(spec: &PtdSpec, rows: &[(u64, u64)]) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let fbb = &mut fbb;
    let segments: Vec<_> = rows
        .iter()
        .map(|(offset, size)| table(fbb, &[Slot::U64(*offset), Slot::U64(*size)]))
        .collect();
    let segments = tables(fbb, &segments);
    let mut entries = Vec::new();
    for entry in &spec.entries {
        let layout = match &entry.layout {
            None => Slot::Absent,
            Some((dtype, sizes, order)) => {
                let sizes = reference(fbb.create_vector(sizes));
                let order = reference(fbb.create_vector(order));
                reference(table(fbb, &[Slot::U8(*dtype), sizes, order]))
            }
        };
        let key = string(fbb, &entry.key);
        entries.push(table(fbb, &[key, Slot::U32(entry.segment), layout]));
    }
    let entries = tables(fbb, &entries);
    let root = table(fbb, &[Slot::U32(spec.version), segments, entries]);
    fbb.finish(root, Some("FT01"));
    fbb.finished_data().to_vec()
}
