//! Many executions of the parser targets in one process, each known by its seed and number.
//!
//! `many TARGET|all EXECUTIONS [SEED]` runs them, with a line every ten seconds; `many TARGET --one NUMBER SEED` runs one,
//! and writes its input to standard output; `many TARGET --corpus FOLDER` writes files for a guided run to start from.
//! The exit status is 1 if an execution panicked, took too long or held too much memory; 2 if it hung.

use std::io::Write;
use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weightstream_fuzz::fuzz_support::bytes::Rng;
use weightstream_fuzz::fuzz_support::driver::{execute, Cases, Report, CAP_BASE, CAP_PER_BYTE};
use weightstream_fuzz::fuzz_support::files::Target;
use weightstream_fuzz::fuzz_support::mutate;

/// Looked at by the watchdog: how many executions have begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// Seconds without an execution's end that make a hang.
const HANG: u64 = 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [target, "--one", number, seed] => one(named(target), int(number), int(seed)),
        [target, "--corpus", folder] => corpus(target, folder),
        ["all", executions] => all(&Target::ALL, int(executions), fresh()),
        ["all", executions, seed] => all(&Target::ALL, int(executions), int(seed)),
        [target, executions] => all(&[named(target)], int(executions), fresh()),
        [target, executions, seed] => all(&[named(target)], int(executions), int(seed)),
        _ => {
            eprintln!("usage: many TARGET|all EXECUTIONS [SEED] | TARGET --one NUMBER SEED | TARGET --corpus FOLDER");
            exit(64);
        }
    }
}

fn int(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| {
        eprintln!("'{text}' is not a number");
        exit(64)
    })
}

fn named(name: &str) -> Target {
    let target = Target::ALL.into_iter().find(|target| target.name() == name);
    target.unwrap_or_else(|| {
        let names = Target::ALL.map(Target::name).join(", ");
        eprintln!("there is no target '{name}' with files; there are {names}");
        exit(64)
    })
}

fn fresh() -> u64 {
    std::time::UNIX_EPOCH
        .elapsed()
        .map_or(1, |since| since.as_nanos() as u64)
}

fn all(targets: &[Target], executions: u64, seed: u64) {
    std::thread::spawn(watch);
    println!("memory: at most {CAP_BASE} bytes and {CAP_PER_BYTE} for each byte of the file");
    for target in targets {
        run(*target, executions, seed);
    }
}

/// Ends the process if one execution does not end.
fn watch() {
    let mut seen = (u64::MAX, 0);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let begun = BEGUN.load(Ordering::Relaxed);
        seen = if seen.0 == begun {
            (begun, seen.1 + 1)
        } else {
            (begun, 0)
        };
        if seen.1 >= HANG {
            eprintln!("execution {} hangs", begun.saturating_sub(1));
            exit(2);
        }
    }
}

fn run(target: Target, executions: u64, seed: u64) {
    let (mut cases, mut report) = (Cases::new(target, seed), Report::default());
    let (started, mut told) = (Instant::now(), Instant::now());
    for number in 0..executions {
        BEGUN.store(number + 1, Ordering::Relaxed);
        let input = cases.input(number);
        if let Err(what) = execute(target, input, &mut report) {
            eprintln!("{}, seed {seed}, execution {number}: {what}", target.name());
            eprintln!("its input: many {} --one {number} {seed}", target.name());
            exit(1);
        }
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            say(target, seed, &report, started.elapsed());
        }
    }
    say(target, seed, &report, started.elapsed());
}

fn say(target: Target, seed: u64, report: &Report, took: Duration) {
    let rate = report.executions as f64 / took.as_secs_f64();
    println!(
        "{:6} seed {seed}: {:>9} executions in {:.0} s, {rate:.0} a second, {:.1} % accepted, at most {:.1} bytes held for a \
         byte of the file, the slowest {:.1} ms",
        target.name(),
        report.executions,
        took.as_secs_f64(),
        100.0 * report.accepted as f64 / report.executions as f64,
        report.most_per_byte,
        report.slowest.as_secs_f64() * 1e3,
    );
}

fn one(target: Target, number: u64, seed: u64) {
    let input = Cases::new(target, seed).input(number).to_vec();
    std::io::stdout()
        .write_all(&input)
        .expect("standard output takes the input");
    let mut report = Report::default();
    let outcome = execute(target, &input, &mut report);
    eprintln!("{outcome:?} {report:?}");
    exit(i32::from(outcome.is_err()));
}

/// A hundred files as they might be; for targets that take plain bytes, bytes.
fn corpus(name: &str, folder: &str) {
    let target = Target::ALL.into_iter().find(|target| target.name() == name);
    for number in 0..100 {
        let mut rng = Rng::new(1, number);
        let content = match target {
            Some(target) => mutate::file(target, &mut rng),
            None => rng.bytes(300),
        };
        let path = std::path::Path::new(folder).join(format!("{number:03}"));
        if let Err(error) = std::fs::write(&path, content) {
            eprintln!("{}: {error}", path.display());
            exit(1);
        }
    }
}
