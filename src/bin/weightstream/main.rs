//! `weightstream`: what a budget will cost, and what the files hold, without loading anything.
#![deny(unsafe_code)]

mod cost;
mod inspect;
mod model;
mod picture;
mod plan;
mod size;
mod tables;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "weightstream", version, about, arg_required_else_help = true)]
/// Tells what a budget will cost, and what a program's files hold. Nothing is loaded and no GPU is needed.
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What a pass copies at a budget, under each policy, and how long a link takes for it.
    Plan(plan::Arguments),
    /// What a program and its weights hold: method, target, inputs, constants, floor.
    Inspect(inspect::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
    };
    match outcome {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("weightstream: {error}");
            ExitCode::FAILURE
        }
    }
}
