//! Builder of a record: the fields of a small method that is right in every respect, to be doctored.

use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};

use super::{pattern, reference, string, table, tables, PtdSpec, Slot};

/// Content of one field.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    Ints(Vec<i64>),
    Strings(Vec<String>),
}

/// A record as named fields, in the order in which they are written.
#[derive(Debug, Clone)]
pub struct RecordSpec {
    pub method: String,
    pub fields: Vec<(String, FieldValue)>,
}

/// Names, kinds, sizes and probes of the method of [`RecordSpec::small`].
const CONSTANTS: [(&str, i64, [i64; 2]); 4] = [
    ("a.weight", 0, [4, 3]),
    ("b.weight", 0, [2, 8]),
    ("scale", 1, [1, 5]),
    ("cache", 2, [2, 2]),
];

pub const BUILD_ID: &str = "00112233445566778899aabbccddeeff";

impl RecordSpec {
    /// A method of two weights (the first read twice), a direct and a mutable constant, all float32.
    pub fn small() -> Self {
        let digest = "5".repeat(64);
        let mut spec = RecordSpec {
            method: "forward".to_owned(),
            fields: Vec::new(),
        };
        spec.set_ints("format_version", &[4]);
        spec.set_strings("method", &["forward"]);
        spec.set_strings("build_id", &[BUILD_ID]);
        spec.set_strings("so_key", &[&format!("weightstream_so_{digest}")]);
        spec.set_ints("offload", &[1]);
        spec.set_strings("device", &["cpu"]);
        spec.set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", ""]);
        spec.set_strings("fqns", &CONSTANTS.map(|row| row.0));
        spec.set_ints("kinds", &CONSTANTS.map(|row| row.1));
        spec.set_ints("dtypes", &[6; 4]);
        let bytes: Vec<Vec<u8>> = (0..CONSTANTS.len()).map(Self::bytes_of).collect();
        spec.set_ints(
            "nbytes",
            &bytes
                .iter()
                .map(|bytes| bytes.len() as i64)
                .collect::<Vec<_>>(),
        );
        let crcs: Vec<i64> = bytes
            .iter()
            .map(|bytes| i64::from(crc32fast::hash(bytes)))
            .collect();
        spec.set_ints("crc32", &crcs);
        let layouts = CONSTANTS.map(|(_, _, [rows, columns])| [2, rows, columns, columns, 1]);
        spec.set_ints("layouts", &layouts.concat());
        spec.set_ints("probes", &[0, 1, 0]);
        spec.set_ints("access_order", &[0, 1, 0]);
        // probe 0, kernel 0, probe 1, kernel 1, release 0, probe 2, kernel 2, release 1 (2 stays open)
        spec.set_ints("trace", &[0, 1, 4, 5, 2, 8, 9, 6]);
        spec.set_ints("floor", &[256]);
        spec.set_ints("hard_minimum", &[192]);
        spec.set_ints("activations", &[320]);
        spec.set_ints("inputs", &[6, 2, 1, 8, 0, 3, 3, -1]);
        spec.set_strings("input_names", &["x"]);
        spec.set_ints("outputs", &[6, 2]);
        spec.set_strings("symbols", &["n"]);
        spec
    }

    /// A program for a GPU that reads one weight of 64 MiB after the other, and says nothing else that counts here.
    pub fn gpu_chain(weights: i64) -> Self {
        let mut record = RecordSpec::small();
        let numbers: Vec<i64> = (0..weights).collect();
        let fqns: Vec<String> = numbers
            .iter()
            .map(|n| format!("layers.{n}.weight"))
            .collect();
        let fqns: Vec<&str> = fqns.iter().map(String::as_str).collect();
        let same = |value: i64| vec![value; weights as usize];
        record.set_strings("device", &["cuda"]);
        record.set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "90"]);
        record.set_strings("fqns", &fqns);
        record.set_ints("kinds", &same(0));
        record.set_ints("dtypes", &same(6));
        record.set_ints("nbytes", &same(64 << 20));
        record.set_ints("crc32", &same(0));
        record.set_ints(
            "layouts",
            &[2, 4096, 4096, 4096, 1].repeat(weights as usize),
        );
        record.set_ints("probes", &numbers);
        record.set_ints("access_order", &numbers);
        let read = |n: &i64| [4 * n, 4 * n + 1, 4 * n + 2];
        record.set_ints("trace", &numbers.iter().flat_map(read).collect::<Vec<_>>());
        record
    }

    /// Bytes of constant `index` of [`RecordSpec::small`].
    pub fn bytes_of(index: usize) -> Vec<u8> {
        let [rows, columns] = CONSTANTS[index].2;
        pattern((rows * columns * 4) as usize, index as u8 * 17)
    }

    /// The `.ptd` that belongs to [`RecordSpec::small`].
    pub fn small_ptd() -> PtdSpec {
        let mut spec = PtdSpec::default();
        for (index, (fqn, _, sizes)) in CONSTANTS.iter().enumerate() {
            spec.add(
                fqn,
                Some((6, sizes.map(|size| size as i32).to_vec())),
                Self::bytes_of(index),
            );
        }
        let id = u128::from_str_radix(BUILD_ID, 16).unwrap().to_be_bytes();
        spec.add("weightstream_build_id_forward", None, id.to_vec());
        spec
    }

    /// Replaces or adds a field of integers.
    pub fn set_ints(&mut self, name: &str, values: &[i64]) -> &mut Self {
        self.set(name, FieldValue::Ints(values.to_vec()))
    }

    /// Replaces or adds a field of strings.
    pub fn set_strings(&mut self, name: &str, values: &[&str]) -> &mut Self {
        self.set(
            name,
            FieldValue::Strings(values.iter().map(|value| (*value).to_owned()).collect()),
        )
    }

    /// The integers of a field, to be changed.
    pub fn ints_mut(&mut self, name: &str) -> &mut Vec<i64> {
        match self.fields.iter_mut().find(|field| field.0 == name) {
            Some((_, FieldValue::Ints(ints))) => ints,
            other => panic!("no integers '{name}': {other:?}"),
        }
    }

    /// Removes a field.
    pub fn remove(&mut self, name: &str) -> &mut Self {
        self.fields.retain(|field| field.0 != name);
        self
    }

    fn set(&mut self, name: &str, value: FieldValue) -> &mut Self {
        match self.fields.iter_mut().find(|field| field.0 == name) {
            Some(field) => field.1 = value,
            None => self.fields.push((name.to_owned(), value)),
        }
        self
    }
}

/// Writes the delegate's payload.
pub fn payload(spec: &RecordSpec) -> Vec<u8> {
    payload_of(spec, &[])
}

/// The same with the records of the program's other methods.
pub fn payload_of(own: &RecordSpec, others: &[&RecordSpec]) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let fbb = &mut fbb;
    let mut all: Vec<_> = others
        .iter()
        .map(|spec| record(fbb, spec, Slot::Absent))
        .collect();
    let others = match all.is_empty() {
        true => Slot::Absent,
        false => tables(fbb, &std::mem::take(&mut all)),
    };
    let root = record(fbb, own, others);
    fbb.finish(root, Some("WSR1"));
    fbb.finished_data().to_vec()
}

fn record<'a>(
    fbb: &mut FlatBufferBuilder<'a>,
    spec: &RecordSpec,
    others: Slot,
) -> WIPOffset<TableFinishedWIPOffset> {
    let mut fields = Vec::new();
    for (name, value) in &spec.fields {
        let (mut ints, mut strings) = (Slot::Absent, Slot::Absent);
        match value {
            FieldValue::Ints(values) => ints = reference(fbb.create_vector(values)),
            FieldValue::Strings(values) => {
                let values: Vec<_> = values
                    .iter()
                    .map(|value| fbb.create_string(value))
                    .collect();
                strings = reference(fbb.create_vector(&values));
            }
        }
        let name = string(fbb, name);
        fields.push(table(fbb, &[name, ints, strings]));
    }
    let fields = tables(fbb, &fields);
    table(fbb, &[fields, others])
}
