//! `weightstream inspect`.

use super::model::{Files, Model};
use super::size::{grouped, with_megabytes};
use super::tables;
use crate::format::{sizes_text, ConstantKind, InputSpec, RecordedConstant, Target};
use crate::Result;
use clap::Args;
use serde_json::{json, Value};
use std::fmt::Write;

#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    files: Files,
}

pub fn run(arguments: &Arguments) -> Result<String> {
    let model = Model::open(&arguments.files)?;
    let checked = arguments
        .files
        .ptd
        .as_ref()
        .map(|path| path.display().to_string());
    Ok(match arguments.files.json {
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

/// How often each constant is read in a pass.
fn reads(model: &Model) -> Vec<usize> {
    let mut reads = vec![0; model.record.constants.len()];
    model
        .record
        .probes
        .iter()
        .for_each(|&weight| reads[weight as usize] += 1);
    reads
}

/// `[1, 1..512, 96]`.
fn dims_text(input: &InputSpec) -> String {
    let dims = input.dims.iter().map(|dim| match dim.min == dim.max {
        true => dim.min.to_string(),
        false => format!("{}..{}", dim.min, dim.max),
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
        "{}: method '{}', build {}\n\
         compiled for {} on {} {}, {}, torch {}\n\
         {}constants: {}, without tables that are read in place; floor {} bytes, hard minimum {} bytes\n\
         {}\n",
        model.name,
        record.method,
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
    text += "\ncompiled code takes, in its own order:\n";
    for input in &record.inputs {
        let _ = writeln!(
            text,
            "    {} {} {}",
            input.name,
            input.dtype,
            dims_text(input)
        );
    }
    text += "and gives:\n";
    for output in &record.outputs {
        let _ = writeln!(text, "    {} of {} dimensions", output.dtype, output.ndim);
    }
    let _ = writeln!(
        text,
        "\n{:>16} {:>5}  {:8} constant",
        "bytes", "reads", "kind"
    );
    for (constant, reads) in record.constants.iter().zip(reads(model)) {
        let _ = writeln!(
            text,
            "{:>16} {reads:>5}  {:8} {} {} {}",
            grouped(constant.nbytes),
            kind(constant),
            constant.fqn,
            constant.dtype,
            sizes_text(&constant.sizes)
        );
    }
    text + &tables::text(model)
}

fn object(model: &Model, checked: Option<&str>) -> Value {
    let record = &model.record;
    let constants = record.constants.iter().zip(reads(model));
    let constants = constants.map(|(constant, reads)| {
        json!({
            "fqn": constant.fqn,
            "kind": kind(constant),
            "dtype": constant.dtype.to_string(),
            "sizes": constant.sizes,
            "strides": constant.strides,
            "bytes": constant.nbytes,
            "crc32": constant.crc32,
            "reads": reads,
        })
    });
    let inputs = record.inputs.iter().map(|input| {
        let dims = input.dims.iter().map(|dim| json!([dim.min, dim.max]));
        json!({"name": input.name, "dtype": input.dtype.to_string(), "dims": dims.collect::<Vec<_>>()})
    });
    let outputs = record.outputs.iter();
    let outputs =
        outputs.map(|output| json!({"dtype": output.dtype.to_string(), "ndim": output.ndim}));
    json!({
        "method": record.method,
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
        "activations_bytes": record.activations,
        "tables": tables::object(model),
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
        "constants": constants.collect::<Vec<_>>(),
    })
}
