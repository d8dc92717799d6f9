//! Builder of a `.pte`.

use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};

use super::{
    insert_header, lay_out, payload, reference, round_up, string, table, tables, FieldValue,
    RecordSpec, Slot,
};

/// One delegate of a method.
#[derive(Debug, Clone)]
pub struct Compiled {
    pub method: String,
    pub backend: String,
    pub processed: Vec<u8>,
    pub compile_specs: Vec<(String, Vec<u8>)>,
    /// Inline data (location 0) instead of a segment.
    pub inline: bool,
}

/// What the methods with delegates do, by numbers of values.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub inputs: Vec<i32>,
    pub outputs: Vec<i32>,
    /// Values with which a delegate is called, one list per call.
    pub calls: Vec<Vec<i32>>,
    /// Further instructions, of other kinds.
    pub kernels: usize,
    /// Values that are no tensors, and their numbers in the union of values.
    pub others: Vec<(i32, u8)>,
    /// How many values there are; `None`: as many as are named.
    pub values: Option<i32>,
}

/// A `.pte` to write.
#[derive(Debug, Clone, Default)]
pub struct PteSpec {
    pub version: u32,
    pub delegates: Vec<Compiled>,
    pub plan: Plan,
    pub named: Vec<(String, Vec<u8>)>,
    /// Constant methods.
    pub constants: Vec<(String, FieldValue)>,
    /// Constant methods that wrongly have an input.
    pub with_input: Vec<String>,
    /// Offset and size of each segment; `None`: as laid out.
    pub rows: Option<Vec<(u64, u64)>>,
    /// Segment that every named entry names; `None`: its own.
    pub named_segment: Option<u32>,
    /// Location and index of every delegate's data; `None`: its own.
    pub processed_at: Option<(u8, u32)>,
}

impl PteSpec {
    /// A program with the record twice, one delegate, and `so` as its compiled library.
    pub fn new(record: &RecordSpec, so: &[u8]) -> Self {
        let mut spec = PteSpec::default();
        spec.delegates.push(Compiled {
            method: record.method.clone(),
            backend: "WeightStreamBackend".to_owned(),
            processed: payload(record),
            compile_specs: vec![("method_name".to_owned(), record.method.clone().into_bytes())],
            inline: false,
        });
        spec.plan = Plan {
            inputs: vec![0],
            outputs: vec![1],
            calls: vec![vec![0, 1]],
            ..Plan::default()
        };
        for (name, value) in &record.fields {
            if name == "so_key" {
                let FieldValue::Strings(key) = value else {
                    continue;
                };
                let key = key.first().cloned().unwrap_or_default();
                spec.named.push((key, so.to_vec()));
            }
            spec.constants.push((
                format!("{}__weight_offload__{name}", record.method),
                value.clone(),
            ));
        }
        spec
    }
}

/// Numbers in the union of values.
const INT: u8 = 2;
const TENSOR: u8 = 5;
const STRING: u8 = 6;
/// Numbers in the union of instructions.
const KERNEL_CALL: u8 = 1;
const DELEGATE_CALL: u8 = 2;

/// Writes the file. Without segments it has no extended header, as the writer has it.
pub fn pte(spec: &PteSpec) -> Vec<u8> {
    let mut segments: Vec<Vec<u8>> = Vec::new();
    let in_segments = spec.delegates.iter().filter(|delegate| !delegate.inline);
    segments.extend(in_segments.map(|delegate| delegate.processed.clone()));
    let first_named = segments.len() as u32;
    segments.extend(spec.named.iter().map(|named| named.1.clone()));
    let (rows, data) = lay_out(&segments, 128);
    let flatbuffer = tables_of(spec, spec.rows.as_ref().unwrap_or(&rows), first_named);
    if segments.is_empty() {
        return flatbuffer;
    }
    let padded_header = 32;
    let end = flatbuffer.len() + padded_header;
    let base = round_up(end, 128);
    let mut header = Vec::new();
    header.extend(b"eh00");
    header.extend(32u32.to_le_bytes());
    for number in [end, base, data.len()] {
        header.extend((number as u64).to_le_bytes());
    }
    let mut file = insert_header(&flatbuffer, &header);
    file.resize(base, 0);
    file.extend(data);
    file
}

fn tables_of(spec: &PteSpec, rows: &[(u64, u64)], first_named: u32) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let fbb = &mut fbb;
    let mut plans = delegate_plans(fbb, spec);
    for (name, value) in &spec.constants {
        plans.push(constant_plan(
            fbb,
            name,
            value,
            spec.with_input.contains(name),
        ));
    }
    let plans = tables(fbb, &plans);
    let mut inline = Vec::new();
    for delegate in spec.delegates.iter().filter(|delegate| delegate.inline) {
        let data = reference(fbb.create_vector(&delegate.processed));
        inline.push(table(fbb, &[data]));
    }
    let inline = tables(fbb, &inline);
    let rows: Vec<_> = rows
        .iter()
        .map(|(offset, size)| table(fbb, &[Slot::U64(*offset), Slot::U64(*size)]))
        .collect();
    let rows = tables(fbb, &rows);
    let mut named = Vec::new();
    for (index, (key, _)) in spec.named.iter().enumerate() {
        let key = string(fbb, key);
        let segment = spec.named_segment.unwrap_or(first_named + index as u32);
        named.push(table(fbb, &[key, Slot::U32(segment)]));
    }
    let named = tables(fbb, &named);
    // version, execution_plan, constant_buffer, backend_delegate_data, segments, constant_segment,
    // mutable_data_segments, named_data
    let slots = [
        Slot::U32(spec.version),
        plans,
        Slot::Absent,
        inline,
        rows,
        Slot::Absent,
        Slot::Absent,
        named,
    ];
    let root = table(fbb, &slots);
    fbb.finish(root, Some("ET12"));
    fbb.finished_data().to_vec()
}

/// One plan per method that has delegates; methods in order of their first delegate.
fn delegate_plans(
    fbb: &mut FlatBufferBuilder,
    spec: &PteSpec,
) -> Vec<WIPOffset<TableFinishedWIPOffset>> {
    let mut methods: Vec<&str> = spec
        .delegates
        .iter()
        .map(|one| one.method.as_str())
        .collect();
    methods.dedup();
    let (mut inline, mut segment) = (0, 0);
    let mut plans = Vec::new();
    for method in methods {
        let mut delegates = Vec::new();
        for one in spec.delegates.iter().filter(|one| one.method == method) {
            let next = if one.inline {
                &mut inline
            } else {
                &mut segment
            };
            let (location, index) = spec.processed_at.unwrap_or((u8::from(!one.inline), *next));
            *next += 1;
            delegates.push(delegate(fbb, one, location, index));
        }
        let delegates = tables(fbb, &delegates);
        let chains = chains(fbb, &spec.plan);
        let inputs = reference(fbb.create_vector(&spec.plan.inputs));
        let outputs = reference(fbb.create_vector(&spec.plan.outputs));
        let values = values(fbb, &spec.plan);
        let name = string(fbb, method);
        // name, container_meta_type, values, inputs, outputs, chains, operators, delegates
        let slots = [
            name,
            Slot::Absent,
            values,
            inputs,
            outputs,
            chains,
            Slot::Absent,
            delegates,
        ];
        plans.push(table(fbb, &slots));
    }
    plans
}

/// What is named by inputs, outputs and calls: tensors, but for those that are said to be others. Of numbers only the kind is
/// written.
fn values(fbb: &mut FlatBufferBuilder, plan: &Plan) -> Slot {
    let named = plan.inputs.iter().chain(&plan.outputs);
    let last = named.chain(plan.calls.iter().flatten()).max();
    let count = plan.values.unwrap_or(last.map_or(0, |last| last + 1));
    let mut values = Vec::new();
    for value in 0..count {
        let other = plan.others.iter().find(|(of, _)| *of == value);
        let kind = other.map_or(TENSOR, |(_, kind)| *kind);
        let content = reference(table(fbb, &[]));
        values.push(table(fbb, &[Slot::U8(kind), content]));
    }
    tables(fbb, &values)
}

/// One chain of instructions; no instructions, no chain.
fn chains(fbb: &mut FlatBufferBuilder, plan: &Plan) -> Slot {
    let mut instructions = Vec::new();
    for args in &plan.calls {
        let args = reference(fbb.create_vector(args));
        let call = reference(table(fbb, &[Slot::I32(0), args]));
        instructions.push(table(fbb, &[Slot::U8(DELEGATE_CALL), call]));
    }
    for _ in 0..plan.kernels {
        let call = reference(table(fbb, &[]));
        instructions.push(table(fbb, &[Slot::U8(KERNEL_CALL), call]));
    }
    if instructions.is_empty() {
        return Slot::Absent;
    }
    let instructions = tables(fbb, &instructions);
    let chain = table(fbb, &[Slot::Absent, Slot::Absent, instructions]);
    tables(fbb, &[chain])
}

fn delegate(
    fbb: &mut FlatBufferBuilder,
    one: &Compiled,
    location: u8,
    index: u32,
) -> WIPOffset<TableFinishedWIPOffset> {
    let mut specs = Vec::new();
    for (key, value) in &one.compile_specs {
        let value = reference(fbb.create_vector(value));
        let key = string(fbb, key);
        specs.push(table(fbb, &[key, value]));
    }
    let specs = tables(fbb, &specs);
    let processed = reference(table(fbb, &[Slot::U8(location), Slot::U32(index)]));
    let id = string(fbb, &one.backend);
    table(fbb, &[id, processed, specs])
}

fn constant_plan(
    fbb: &mut FlatBufferBuilder,
    name: &str,
    value: &FieldValue,
    with_input: bool,
) -> WIPOffset<TableFinishedWIPOffset> {
    let mut values = Vec::new();
    match value {
        FieldValue::Ints(ints) => {
            for int in ints {
                let int = reference(table(fbb, &[Slot::I64(*int)]));
                values.push(table(fbb, &[Slot::U8(INT), int]));
            }
        }
        FieldValue::Strings(strings) => {
            for text in strings {
                let text = string(fbb, text);
                let text = reference(table(fbb, &[text]));
                values.push(table(fbb, &[Slot::U8(STRING), text]));
            }
        }
    }
    let outputs: Vec<i32> = (0..values.len() as i32).collect();
    let outputs = reference(fbb.create_vector(&outputs));
    let inputs = if with_input {
        reference(fbb.create_vector(&[0i32]))
    } else {
        Slot::Absent
    };
    let values = tables(fbb, &values);
    let name = string(fbb, name);
    table(fbb, &[name, Slot::Absent, values, inputs, outputs])
}
