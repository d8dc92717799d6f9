//! The command `weightstream`: what a budget will cost, what the files hold, and what options and counters mean.
//! Nothing is loaded. One command writes: it packs the weights of a data file.
#![deny(unsafe_code)]
#![allow(
    missing_docs,
    reason = "clap's help is made of these comments, and clippy knows no others"
)]

mod cost;
mod explain;
mod graphs;
mod inspect;
mod model;
mod pack;
mod picture;
mod plan;
mod reference;
mod size;
mod tables;
mod together;

use crate::Error;
use clap::{Parser, Subcommand};
use std::ffi::OsString;

#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
/// Tells what a budget will cost and what a program's files hold, and packs its weights. Nothing is loaded and no GPU is needed.
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What a pass copies at a budget, under each policy, and how long a link takes for it.
    Plan(plan::PlanArguments),
    /// What a program and its weights hold: method, target, inputs, constants, floor.
    Inspect(inspect::InspectArguments),
    /// Codes the floating-point weights of a data file without loss, of bf16 in about two thirds of their bytes.
    Pack(pack::PackArguments),
    /// The options of a load: what each takes, its default, its environment variable.
    Options(reference::ReferenceArguments),
    /// What each counter of `stats` counts.
    Counters(reference::ReferenceArguments),
}

/// What a command has to say, and its exit status.
pub struct Outcome {
    /// For standard output, or after a failure for standard error.
    pub text: String,
    /// 0, or that of a failure.
    pub status: u8,
}

impl Outcome {
    /// Whether the text is that of an error.
    pub fn failed(&self) -> bool {
        self.status != 0
    }
}

/// Runs the command called `name` with these arguments.
pub fn run(name: &str, arguments: impl IntoIterator<Item = OsString>) -> Outcome {
    let whole = std::iter::once(OsString::from(name)).chain(arguments);
    let outcome = match Arguments::try_parse_from(whole).map(|parsed| parsed.command) {
        Ok(Command::Plan(arguments)) => plan::run(&arguments),
        Ok(Command::Inspect(arguments)) => inspect::run(&arguments),
        Ok(Command::Pack(arguments)) => pack::run(&arguments),
        Ok(Command::Options(arguments)) => Ok(reference::options(&arguments)),
        Ok(Command::Counters(arguments)) => Ok(reference::counters(&arguments)),
        Err(usage) => {
            return Outcome {
                text: usage.render().to_string(),
                status: usage.exit_code() as u8,
            }
        }
    };
    match outcome {
        Ok(text) => Outcome { text, status: 0 },
        Err(error) => Outcome {
            // An argument that is wrong by what it says, as those that clap refuses.
            status: match error {
                Error::Option { .. } => 2,
                _ => 1,
            },
            text: format!("{name}: {error}\n"),
        },
    }
}
