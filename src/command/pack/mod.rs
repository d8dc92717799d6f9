//! `weightstream pack`: a data file whose floating-point weights are coded without loss.
//!
//! | file | what it knows |
//! |---|---|
//! | `source` | the files that are read: checked, and what may be packed of them |
//! | `target` | where the file goes; it is there as a whole or not at all |
//! | `write` | segment by segment, packed or as it is |
//! | `report` | what was done, for people and for programs |
//! | `progress` | how far it is, on a terminal |

mod progress;
mod report;
mod source;
mod target;
mod write;

use super::model::Form;
use crate::Result;
use clap::Args;
use source::PackSource;
use std::path::PathBuf;
use target::{NewFile, PackTarget};

#[derive(Args)]
pub struct PackArguments {
    /// The weights. Each that the program names is compared with its checksum.
    #[arg(index = 1, value_name = "WEIGHTS.ptd")]
    weights: PathBuf,
    /// The program that they belong to; without it, the .pte of the same name beside them.
    #[arg(long, value_name = "MODEL.pte")]
    program: Option<PathBuf>,
    /// The file to write; without it, NAME.packed.ptd beside NAME.ptd.
    #[arg(long, short, value_name = "PACKED.ptd", conflicts_with = "in_place")]
    output: Option<PathBuf>,
    /// Replace WEIGHTS.ptd, once the packed file is whole. Older runtimes refuse packed weights.
    #[arg(long)]
    in_place: bool,
    /// Replace the output if it is there already.
    #[arg(long)]
    force: bool,
    /// Smaller weights stay raw, bytes: decoding costs as much as they save.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    least: u64,
    /// How many threads code; without it, one for each core. The file is the same for any number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[command(flatten)]
    form: Form,
}

pub fn run(arguments: &PackArguments) -> Result<String> {
    let source = PackSource::open(&arguments.weights, arguments.program.as_deref())?;
    let target = PackTarget::choose(
        &source,
        arguments.output.as_deref(),
        arguments.in_place,
        arguments.force,
    )?;
    // Nothing is written if it is known before that nothing would be packed.
    let segments = source.segments(arguments.least);
    report::some_may_be_packed(source.name(), &segments)?;
    let file = NewFile::create(target)?;
    let report = write::write(&source, &segments, &file, threads(arguments))?;
    let path = file.keep()?;
    Ok(match arguments.form.json {
        true => format!("{:#}\n", report.object(&path)),
        false => report.text(&path),
    })
}

fn threads(arguments: &PackArguments) -> usize {
    match arguments.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    }
}
