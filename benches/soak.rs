//! Loads, runs and destroys exported models for minutes on end, from several threads at changing budgets, and watches
//! that memory, descriptors and threads stay as they are: `soak [--minutes N] [--threads N] FOLDER NAME...`.
//!
//! Each thread has one handle at a time. Every output of every pass is compared, bit for bit, with that of the first
//! load of its model. For a sample all threads stop with nothing loaded: then there must be exactly as many descriptors
//! and threads as after the first loads, and no more than [`GROWTH`] bytes of anonymous memory more than at the end of
//! the warm-up, the first fifth of the time. The last line is `N passed, N failed`; a pass and a figure of a sample
//! count as one each.
#![deny(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use weightstream::config::{Options, Spec, SpecValue};
use weightstream::delegate::{Delegate, InputTensor, Memory, Program};
use weightstream::format::{InputSpec, ScalarType};
use weightstream::Result;

/// Bytes that the process may grow after the warm-up: the C library's allocator keeps freed memory for threads that
/// come and go, more or less of it from sample to sample (about 1 MB). In half an hour there are tens of thousands of
/// passes: a leak of a hundred bytes in each is past this.
const GROWTH: u64 = 8 << 20;
/// Passes behind each load, at most. State in mutable buffers makes each of them another one.
const PASSES: usize = 6;
/// Messages that are printed in full.
const MESSAGES: u64 = 20;

/// One exported model, its inputs, and what it has answered in the passes of its first load.
struct Model {
    name: String,
    pte: PathBuf,
    ptd: PathBuf,
    inputs: Vec<(ScalarType, Vec<i64>, Vec<u8>)>,
    floor: u64,
    everything: u64,
    expected: Vec<Vec<Vec<u8>>>,
}

impl Model {
    fn open(folder: &Path, name: &str) -> Result<Model> {
        let (pte, ptd) = (
            folder.join(format!("{name}.pte")),
            folder.join(format!("{name}.ptd")),
        );
        let mut model = Model {
            name: name.to_owned(),
            inputs: Vec::new(),
            pte,
            ptd,
            floor: 0,
            everything: 0,
            expected: Vec::new(),
        };
        let delegate = model.load(None, "lru")?;
        let specs = (0..delegate.num_inputs()).filter_map(|index| delegate.input(index));
        model.inputs = specs.enumerate().map(input).collect();
        let stats = delegate.stats().unwrap();
        model.floor = stats.floor_bytes;
        model.everything = stats.total_weight_bytes + stats.direct_bytes;
        model.expected = (0..PASSES)
            .map(|_| model.run(&delegate))
            .collect::<Result<_>>()?;
        Ok(model)
    }

    fn load(&self, budget: Option<u64>, policy: &str) -> Result<Delegate> {
        let spec = |key: &str, value: String| Spec {
            key: key.to_owned(),
            value: SpecValue::Text(value),
        };
        let bytes = budget.map(|bytes| spec("weight_offload_budget_bytes", bytes.to_string()));
        let policy = spec("weight_offload_policy", policy.to_owned());
        let specs: Vec<_> = bytes.into_iter().chain([policy]).collect();
        Program::open(&self.pte)?.load("forward", self.ptd.clone(), &Options::parse(&specs)?)
    }

    /// The outputs of one pass, each as dense bytes.
    fn run(&self, delegate: &Delegate) -> Result<Vec<Vec<u8>>> {
        let inputs: Vec<_> = self
            .inputs
            .iter()
            .map(|(dtype, sizes, bytes)| InputTensor {
                dtype: dtype.number(),
                sizes,
                strides: None,
                memory: Memory::Host(bytes),
            })
            .collect();
        let mut outputs = Vec::new();
        delegate.execute(&inputs, &mut |_, output| {
            let mut bytes = vec![0; output.nbytes()];
            output.copy_to_dense(&mut bytes)?;
            outputs.push(bytes);
            Ok(())
        })?;
        Ok(outputs)
    }

    /// Loads at `budget` and compares `passes` passes. Returns how many were right; the text says what was not.
    fn visit(&self, budget: Option<u64>, policy: &str, passes: usize) -> (u64, Option<String>) {
        let about = |what: String| {
            let text = format!(
                "{} at a budget of {budget:?} under '{policy}': {what}",
                self.name
            );
            Some(text)
        };
        let delegate = match self.load(budget, policy) {
            Ok(delegate) => delegate,
            Err(error) => return (0, about(error.to_string())),
        };
        for (pass, expected) in self.expected.iter().take(passes).enumerate() {
            match self.run(&delegate) {
                Ok(outputs) if outputs == *expected => {}
                Ok(_) => return (pass as u64, about(format!("pass {pass} differs"))),
                Err(error) => return (pass as u64, about(format!("pass {pass}: {error}"))),
            }
        }
        let stats = delegate.stats().unwrap();
        let within = stats.peak_bytes <= stats.budget_bytes;
        let over = (!within).then(|| about(format!("it held {} bytes", stats.peak_bytes)));
        (passes as u64, over.flatten())
    }
}

/// An input of the largest size. Integers are 0 and 1: whatever they index has two rows.
fn input((number, spec): (usize, &InputSpec)) -> (ScalarType, Vec<i64>, Vec<u8>) {
    let sizes: Vec<i64> = spec.dims.iter().map(|dim| dim.max).collect();
    let count = sizes.iter().product::<i64>() as usize;
    let bytes = (0..count).flat_map(|at| match spec.dtype {
        ScalarType::F32 => (((at * 37 + number * 11) % 97) as f32 / 97.0 - 0.5)
            .to_le_bytes()
            .to_vec(),
        dtype => {
            let mut bytes = vec![0; dtype.itemsize() as usize];
            bytes[0] = (at % 2) as u8;
            bytes
        }
    });
    (spec.dtype, sizes, bytes.collect())
}

/// What must stay as it is.
#[derive(Clone, Copy)]
struct Sample {
    /// Bytes that no file holds: anonymous, and of memory files.
    anonymous: u64,
    descriptors: usize,
    threads: usize,
}

impl Sample {
    fn take() -> Sample {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let (status, memory) = (read("/proc/self/status"), read("/proc/self/smaps_rollup"));
        let number = |text: &str, key: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        Sample {
            anonymous: (number(&memory, "Pss_Anon:") + number(&memory, "Pss_Shmem:")) << 10,
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            threads: number(&status, "Threads:") as usize,
        }
    }
}

/// What all threads share.
struct Soak {
    models: Vec<Model>,
    /// HostStorage for reading around each visit, for writing around each sample.
    gate: RwLock<()>,
    stop: AtomicBool,
    loads: AtomicU64,
    passed: AtomicU64,
    failed: AtomicU64,
    /// Bytes of memory as samples saw it, for the end.
    curve: Mutex<Vec<u64>>,
}

impl Soak {
    fn fail(&self, what: &str) {
        if self.failed.fetch_add(1, Ordering::Relaxed) < MESSAGES {
            println!("FAILED: {what}");
        }
    }

    /// One thread's work, to the end.
    fn work(&self, thread: u64) {
        let mut state = thread + 1;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below.max(1)
        };
        while !self.stop.load(Ordering::Relaxed) {
            let model = &self.models[random(self.models.len() as u64) as usize];
            let span = model.everything.saturating_sub(model.floor);
            // Now and then none at all, and now and then more than everything.
            let budget = (random(8) > 0).then(|| model.floor + random(span + span / 8 + 1));
            let policy = ["lru", "planned"][random(2) as usize];
            let passes = 1 + random(PASSES as u64) as usize;
            let _open = self.gate.read();
            let (right, wrong) = model.visit(budget, policy, passes);
            self.loads.fetch_add(1, Ordering::Relaxed);
            self.passed.fetch_add(right, Ordering::Relaxed);
            if let Some(what) = wrong {
                self.fail(&what);
            }
        }
    }

    /// Stops everybody for a moment, and compares with `first`, and with `warm` once there is one.
    fn sample(&self, since: Duration, first: Sample, warm: Option<Sample>) -> Sample {
        let closed = self.gate.write();
        let now = Sample::take();
        drop(closed);
        let check = |good: bool, what: String| match good {
            true => drop(self.passed.fetch_add(1, Ordering::Relaxed)),
            false => self.fail(&what),
        };
        let (fds, threads) = (now.descriptors, now.threads);
        let text = format!("{fds} descriptors, {} at first", first.descriptors);
        check(fds == first.descriptors, text);
        let text = format!("{threads} threads, {} at first", first.threads);
        check(threads == first.threads, text);
        if let Some(warm) = warm {
            let text = format!("{} bytes, {} when warm", now.anonymous, warm.anonymous);
            check(now.anonymous <= warm.anonymous + GROWTH, text);
        }
        println!(
            "{:5.1} min: {} loads, {} right, {} wrong; {:.1} MB anonymous memory, {fds} descriptors, {threads} threads",
            since.as_secs_f64() / 60.0,
            self.loads.load(Ordering::Relaxed),
            self.passed.load(Ordering::Relaxed),
            self.failed.load(Ordering::Relaxed),
            now.anonymous as f64 / f64::from(1 << 20),
        );
        if let Ok(mut curve) = self.curve.lock() {
            curve.push(now.anonymous);
        }
        now
    }

    /// Samples until the time is over.
    fn watch(&self, total: Duration, first: Sample) {
        let started = Instant::now();
        let every = Duration::from_secs(60).min(total / 10);
        let mut warm = None;
        while started.elapsed() < total {
            std::thread::sleep(every.min(total.saturating_sub(started.elapsed())));
            let now = self.sample(started.elapsed(), first, warm);
            if warm.is_none() && started.elapsed() >= total / 5 {
                warm = Some(now);
            }
        }
    }
}

fn main() -> ExitCode {
    let (mut minutes, mut threads, mut rest) = (30.0_f64, 4_u64, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<f64>().ok());
        match argument.as_str() {
            "--minutes" => minutes = number().unwrap_or(0.0),
            "--threads" => threads = number().unwrap_or(0.0) as u64,
            _ => rest.push(argument),
        }
    }
    let usable = minutes > 0.0 && minutes < 1e6 && (1..1000).contains(&threads);
    let (Some((folder, names)), true) = (rest.split_first(), usable) else {
        eprintln!("usage: soak [--minutes N] [--threads N] FOLDER NAME...");
        return ExitCode::from(64);
    };
    let models = names
        .iter()
        .map(|name| Model::open(Path::new(folder), name))
        .collect::<Result<Vec<_>>>();
    let models = match models {
        Ok(models) if !models.is_empty() => models,
        Ok(_) => {
            eprintln!("no model was named");
            return ExitCode::from(64);
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    soak(models, Duration::from_secs_f64(60.0 * minutes), threads)
}

fn soak(models: Vec<Model>, total: Duration, threads: u64) -> ExitCode {
    for model in &models {
        println!(
            "{}: {} to {} bytes of budget",
            model.name, model.floor, model.everything
        );
    }
    let soak = Soak {
        models,
        gate: RwLock::new(()),
        stop: AtomicBool::new(false),
        loads: AtomicU64::new(0),
        passed: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        curve: Mutex::new(Vec::new()),
    };
    let mut first = Sample::take();
    // Those that are to come.
    first.threads += threads as usize;
    std::thread::scope(|scope| {
        let shared = &soak;
        for thread in 0..threads {
            scope.spawn(move || shared.work(thread));
        }
        soak.watch(total, first);
        soak.stop.store(true, Ordering::Relaxed);
    });
    let curve = soak.curve.into_inner().unwrap_or_default();
    let mb: Vec<_> = curve
        .iter()
        .map(|bytes| format!("{:.1}", *bytes as f64 / f64::from(1 << 20)))
        .collect();
    println!("anonymous memory, MB: {}", mb.join(" "));
    let (passed, failed) = (soak.passed.into_inner(), soak.failed.into_inner());
    println!("{passed} passed, {failed} failed");
    ExitCode::from(u8::from(failed > 0 || passed == 0))
}
