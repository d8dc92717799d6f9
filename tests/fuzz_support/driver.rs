//! Many executions of one target in one process. Each is known by its seed and its number, and can be run alone.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use super::bytes::Rng;
use super::files::Target;
use super::memory::most_held;
use super::mutate;

/// Bytes that a parser and the questions to its result may hold at one time: so many, and so many for each byte
/// of the file. Where the factor comes from: the verifier lets tables name shared parts as long as the whole
/// looks no larger than 32 times the file (`format/flat.rs`); four bytes of that (an output's number) become a
/// reference of sixteen at most; and a list that grows holds its old half and its new one.
pub const CAP_BASE: usize = 64 << 10;
pub const CAP_PER_BYTE: usize = 32 * 4 * 3;

/// One execution longer than this is a hang. Files are a few kilobytes.
pub const HANG: Duration = Duration::from_secs(2);

/// An execution longer than this is done again: on a busy machine the scheduler takes longer than any file.
const SLOW: Duration = Duration::from_millis(2);

/// So many executions damage files of one lot.
const LOT: u64 = 4096;
/// Files of one lot.
const FILES: usize = 48;

/// What a number of executions came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    pub executions: u64,
    pub accepted: u64,
    /// The most bytes held for a byte of the file, beyond [`CAP_BASE`] not counted.
    pub most_per_byte: f64,
    pub slowest: Duration,
}

/// The files of one lot, and their damage.
pub struct Cases {
    target: Target,
    seed: u64,
    lot: Option<u64>,
    files: Vec<Vec<u8>>,
    scratch: Vec<u8>,
}

impl Cases {
    pub fn new(target: Target, seed: u64) -> Cases {
        Cases {
            target,
            seed,
            lot: None,
            files: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// The input of execution `number`.
    pub fn input(&mut self, number: u64) -> &[u8] {
        let lot = number / LOT;
        if self.lot != Some(lot) {
            let mut rng = Rng::new(self.seed, !lot);
            self.files = (0..FILES)
                .map(|_| mutate::file(self.target, &mut rng))
                .collect();
            self.lot = Some(lot);
        }
        let mut rng = Rng::new(self.seed, number);
        self.scratch.clear();
        let file = &self.files[rng.below(FILES)];
        self.scratch.extend_from_slice(file);
        if !rng.one_in(64) {
            mutate::damage(self.target, &mut self.scratch, &mut rng);
        }
        &self.scratch
    }
}

/// Runs one input; the text says what is wrong with it.
pub fn execute(target: Target, input: &[u8], report: &mut Report) -> Result<(), String> {
    let mut outcome = Ok(false);
    let mut once = || {
        let started = Instant::now();
        let held = most_held(|| {
            outcome = catch_unwind(AssertUnwindSafe(|| target.run(input)));
        });
        (started.elapsed(), held)
    };
    let (mut took, held) = once();
    for _ in 0..5 {
        if took > SLOW {
            took = took.min(once().0);
        }
    }
    report.executions += 1;
    report.slowest = report.slowest.max(took);
    report.accepted += u64::from(matches!(outcome, Ok(true)));
    let per_byte = held as f64 / input.len().max(1) as f64;
    report.most_per_byte = report.most_per_byte.max(per_byte);
    let cap = CAP_BASE + CAP_PER_BYTE * input.len();
    match outcome {
        Err(_) => Err("it panicked".to_owned()),
        Ok(_) if held > cap => Err(format!(
            "it held {held} bytes for a file of {}",
            input.len()
        )),
        Ok(_) if took > HANG => Err(format!("it took {took:?}")),
        Ok(_) => Ok(()),
    }
}

/// Runs executions `numbers` of `seed`; panics at the first that is wrong, naming it.
pub fn run(target: Target, seed: u64, numbers: std::ops::Range<u64>, report: &mut Report) {
    let mut cases = Cases::new(target, seed);
    for number in numbers {
        let input = cases.input(number);
        if let Err(what) = execute(target, input, report) {
            panic!(
                "target {}, seed {seed}, execution {number}: {what}",
                target.name()
            );
        }
    }
}
