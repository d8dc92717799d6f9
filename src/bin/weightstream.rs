//! The program `weightstream`.
#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    let outcome = weightstream::command::run("weightstream", arguments);
    match outcome.failed() {
        false => print!("{}", outcome.text),
        true => eprint!("{}", outcome.text),
    }
    ExitCode::from(outcome.status)
}
