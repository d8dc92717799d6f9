//! `weightstream inspect`.

use super::model::{Files, Form, Model};
use super::size::{grouped, with_megabytes};
use super::tables;
use crate::format::{sizes_text, ConstantKind, InputSpec, Record, RecordedConstant, Target};
use crate::{error::counted, Result};
use clap::Args;
use serde_json::{json, Value};
use std::fmt::Write;

#[derive(Args)]
pub struct InspectArguments {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    form: Form,
}

pub fn run(arguments: &InspectArguments) -> Result<String> {
    let model = Model::open(&arguments.files)?;
    let checked = arguments
        .files
        .ptd
        .as_ref()
        .map(|path| path.display().to_string());
    Ok(match arguments.form.json {
        true => format!("{:#}\n", object(&model, checked.as_deref())),
        false => text(&model, checked.as_deref()),
    })
}

fn kind(constant: &RecordedConstant) -> &'static str {
    match constant.kind {
        ConstantKind::Weight => "weight",
        ConstantKind::Direct => "direct",
        ConstantKind::Mutable => "mutable",
    }
}

/// The constants of the methods that lists are of, and how often each is read in a pass of each of these methods, together.
fn constants(model: &Model) -> Vec<(&RecordedConstant, usize)> {
    let mut reads: Vec<Option<usize>> = vec![None; model.union.constants.len()];
    let picked = model.picked_records().iter();
    for (record, index) in picked.zip(&model.union.index[model.picked()]) {
        for &at in index {
            reads[at as usize].get_or_insert(0);
        }
        for &own in &record.probes {
            *reads[index[own as usize] as usize].get_or_insert(0) += 1;
        }
    }
    let all = model.union.constants.iter().zip(reads);
    all.filter_map(|(one, reads)| Some((one, reads?))).collect()
}

/// What a call of a method takes, as its callers name it.
fn call_text(record: &Record) -> String {
    if record.call.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\nmethod '{}': a call takes, in this order:\n",
        record.method
    );
    for input in &record.call {
        let keyword = if input.place.is_none() {
            " (keyword)"
        } else {
            ""
        };
        let value = input.constant.as_ref();
        let value = value.map_or_else(String::new, |value| format!(": always {value}"));
        let _ = writeln!(text, "    {}{keyword}{value}", input.name);
    }
    text
}

/// What the compiled code of a method takes and gives.
fn signature_text(record: &Record) -> String {
    let mut text = call_text(record);
    let _ = writeln!(
        text,
        "\nmethod '{}': compiled code takes, in its own order:",
        record.method
    );
    for (index, input) in record.inputs.iter().enumerate() {
        let dims = dims_text(record, index, input);
        let _ = writeln!(text, "    {} {} {dims}", input.name, input.dtype);
    }
    text += "and gives:\n";
    for output in &record.outputs {
        let dims = counted(output.ndim as u64, "dimension");
        let _ = writeln!(text, "    {} of {dims}", output.dtype);
    }
    if !record.sizes.guards.is_empty() {
        text += "only for sizes with:\n";
    }
    for guard in &record.sizes.guards {
        let _ = writeln!(text, "    {}", record.sizes.infix(guard));
    }
    text
}

fn signature_object(record: &Record) -> Value {
    let inputs = record.inputs.iter().enumerate().map(|(index, input)| {
        let dims = input.dims.iter().map(|dim| json!([dim.min, dim.max]));
        let names = (0..input.dims.len()).map(|dim| dim_name(record, index, dim));
        json!({
            "name": input.name,
            "dtype": input.dtype.to_string(),
            "dims": dims.collect::<Vec<_>>(),
            "dim_names": names.collect::<Vec<_>>(),
        })
    });
    let call = record
        .call
        .iter()
        .map(|input| json!({"name": input.name, "place": input.place, "constant": input.constant}));
    let guards = record.sizes.guards.iter();
    let guards = guards.map(|guard| record.sizes.infix(guard));
    let outputs = record.outputs.iter();
    let outputs =
        outputs.map(|output| json!({"dtype": output.dtype.to_string(), "ndim": output.ndim}));
    json!({
        "method": record.method,
        "floor_bytes": record.floor,
        "activations_bytes": record.activations,
        "call": call.collect::<Vec<_>>(),
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
        "guards": guards.collect::<Vec<_>>(),
    })
}

/// The symbol that a dimension of an input is, or what it is of symbols; nothing of a fixed size.
fn dim_name(record: &Record, input: usize, dim: usize) -> Option<String> {
    let symbol = record.inputs[input].dims[dim].symbol;
    let related = record.sizes.inputs.iter();
    let mut related = related.filter(|one| (one.index, one.dim) == (input, dim));
    symbol
        .map(|symbol| record.sizes.name(symbol as usize).to_owned())
        .or_else(|| Some(record.sizes.infix(&related.next()?.size)))
}

/// `[1, tokens: 1..512, 8*tokens: 8..4096, 96]`.
fn dims_text(record: &Record, index: usize, input: &InputSpec) -> String {
    let dims = input.dims.iter().enumerate().map(|(number, dim)| {
        let range = match dim.min == dim.max {
            true => dim.min.to_string(),
            false => format!("{}..{}", dim.min, dim.max),
        };
        match dim_name(record, index, number) {
            None => range,
            Some(name) => format!("{name}: {range}"),
        }
    });
    format!("[{}]", dims.collect::<Vec<_>>().join(", "))
}

/// What the files lack where `save` did not write them.
fn writers(model: &Model) -> &'static str {
    match model.has_program_crc {
        true => "the program's tables are as `save` wrote them",
        false => {
            "written by ExecuTorch's own writers: without a checksum of the program's tables, and without segments that begin at \
             pages, which `weightstream.save` gives"
        }
    }
}

/// `GPU: compute capability 9.0, not tuned`; nothing for a program of the CPU.
fn gpu_text(target: &Target) -> String {
    if target.sms.is_empty() {
        return String::new();
    }
    let sms = target.sms.iter();
    let sms: Vec<_> = sms.map(|sm| format!("{}.{}", sm / 10, sm % 10)).collect();
    let tuned = match target.tuned {
        true => "tuned",
        false => "not tuned (no GPU was there at export)",
    };
    format!("GPU: compute capability {}, {tuned}\n", sms.join(", "))
}

fn text(model: &Model, checked: Option<&str>) -> String {
    let record = &model.record;
    let target = &record.target;
    let mut text = format!(
        "{}: {}, build {}\n\
         compiled for {} on {} {}, {}, torch {}\n\
         {}constants of the program: {}, without tables that are read in place; floor {} bytes, hard minimum {} bytes\n\
         {}\n",
        model.name,
        model.names(),
        record.build_id,
        record.device,
        target.os,
        target.arch,
        target.isa,
        target.torch,
        gpu_text(target),
        with_megabytes(model.everything()),
        grouped(model.floor.bytes()),
        grouped(model.floor.hard_minimum),
        match checked {
            Some(ptd) => format!(
                "{ptd} belongs to it and holds every constant (the bytes themselves were not compared); {}",
                writers(model)
            ),
            None => "no WEIGHTS.ptd was given to check".to_owned(),
        }
    );
    if !record.offload {
        text += "exported with offload=False: everything is resident\n";
    }
    for method in model.picked_records() {
        text += &signature_text(method);
    }
    let _ = writeln!(
        text,
        "\n{:>16} {:>5}  {:8} constant",
        "bytes", "reads", "kind"
    );
    for (constant, reads) in constants(model) {
        let _ = writeln!(
            text,
            "{:>16} {reads:>5}  {:8} {} {}",
            grouped(constant.nbytes),
            kind(constant),
            constant.fqn,
            elements(constant)
        );
    }
    text + &tables::text(model)
}

/// Whether a constant has two elements to a byte: the export names them so (`_export/passes/quantized.py`).
fn is_packed(constant: &RecordedConstant) -> bool {
    constant.fqn.ends_with(".int4") && constant.nbytes == numel(constant)
}

fn numel(constant: &RecordedConstant) -> u64 {
    constant
        .sizes
        .iter()
        .map(|&size| size.max(0) as u64)
        .product()
}

/// Bits of an element.
fn bits(constant: &RecordedConstant) -> u64 {
    match is_packed(constant) {
        true => 4,
        false => (8 * constant.nbytes)
            .checked_div(numel(constant))
            .unwrap_or(0),
    }
}

/// The type and the sizes of what is stored.
fn elements(constant: &RecordedConstant) -> String {
    let mut sizes = constant.sizes.clone();
    match sizes.last_mut().filter(|_| is_packed(constant)) {
        Some(last) => {
            *last *= 2;
            format!("int4 {}, two to a byte", sizes_text(&sizes))
        }
        None => format!("{} {}", constant.dtype, sizes_text(&sizes)),
    }
}

fn object(model: &Model, checked: Option<&str>) -> Value {
    let record = &model.record;
    let constants = constants(model).into_iter().map(|(constant, reads)| {
        json!({
            "fqn": constant.fqn,
            "kind": kind(constant),
            "dtype": constant.dtype.to_string(),
            "bits": bits(constant),
            "sizes": constant.sizes,
            "strides": constant.strides,
            "bytes": constant.nbytes,
            "crc32": constant.crc32,
            "reads": reads,
        })
    });
    let own = model.one_name().map(|_| signature_object(record));
    let own = own.unwrap_or_else(|| json!({}));
    let methods = model.picked_records().iter().map(signature_object);
    json!({
        "method": model.one_name(),
        "build_id": record.build_id.to_string(),
        "device": record.device,
        "target": {
            "os": record.target.os,
            "arch": record.target.arch,
            "isa": record.target.isa,
            "torch": record.target.torch,
            "sms": record.target.sms,
            "tuned": record.target.tuned,
        },
        "offload": record.offload,
        "weights_checked": checked,
        "program_checksum": model.has_program_crc,
        "everything_bytes": model.everything(),
        "floor_bytes": model.floor.bytes(),
        "hard_minimum_bytes": model.floor.hard_minimum,
        "direct_bytes": model.floor.direct,
        "pinned_bytes": model.floor.pinned,
        "activations_bytes": own["activations_bytes"],
        "tables": tables::object(model),
        "inputs": own["inputs"],
        "outputs": own["outputs"],
        "methods": methods.collect::<Vec<_>>(),
        "constants": constants.collect::<Vec<_>>(),
    })
}
