//! The cost of one probe that hits on a GPU, with its release: the session alone, and through the C functions that compiled code
//! calls. Prints nanoseconds; `benches/probe.rs` measures the same on the host.
//!
//! `gpu_probe [MOST_NS]`: ends with status 1 if one costs more than that.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use weightstream::aoti::hooks::PassHooks;
use weightstream::aoti::measure::ProbeCalls;
use weightstream::config::PolicyKind::{self, Lru, Planned};
use weightstream::device::{CudaDevice, HostBytes};
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::schedule::{Trace, WeightKind, WeightSpec};
use weightstream::session::Session;
use weightstream::store::{Constants, Method, StoreOptions, WeightLayout};

/// As many weights as a model of some 40 layers has.
const WEIGHTS: u32 = 300;
/// Reads of each weight, one after the other: all but the first hit under any policy.
const READS: u32 = 64;
/// Small: what is measured is the call.
const BYTES: u64 = 512;
/// Passes that are measured; as many before them are not.
const PASSES: u32 = 20;

fn program() -> (Constants, Method) {
    let spec = |i| WeightSpec {
        fqn: format!("layers.{i}.weight"),
        bytes: BYTES,
        stored: BYTES,
        kind: WeightKind::Weight,
    };
    let probes: Vec<u32> = (0..WEIGHTS * READS).map(|id| id / READS).collect();
    let events = (0..WEIGHTS * READS)
        .flat_map(|id| [Probe(id), Kernel(id), Release(id)])
        .collect();
    Method::with_constants(
        (0..WEIGHTS).map(spec).collect(),
        vec![WeightLayout::default(); WEIGHTS as usize],
        Trace::new(events, probes, WEIGHTS as usize).expect("a valid trace"),
    )
}

/// A session on the first GPU. One weight less than all of them is a budget under which every weight is copied once per pass.
fn session(policy: PolicyKind, budget: u64) -> weightstream::Result<Session<CudaDevice>> {
    let program = program();
    let bytes: &'static [u8] = vec![7; BYTES as usize].leak();
    let bytes = vec![HostBytes::from_static(bytes); WEIGHTS as usize];
    let options = StoreOptions {
        budget: Some(budget),
        policy,
        ..StoreOptions::default()
    };
    Session::new(CudaDevice::new(0)?, program, bytes, options)
}

/// Time of the hits of one pass: the first read of each weight, which may miss, is left out.
fn pass(
    session: &mut Session<CudaDevice>,
    calls: &mut Option<ProbeCalls>,
) -> weightstream::Result<Duration> {
    let mut spent = Duration::ZERO;
    session.begin_pass()?;
    for weight in 0..i64::from(WEIGHTS) {
        let first = weight * i64::from(READS);
        let hits = first + 1..first + i64::from(READS);
        session.probe(first)?;
        session.release(first);
        let start = Instant::now();
        match calls {
            Some(calls) => calls.run(session, hits)?,
            None => {
                for id in hits {
                    std::hint::black_box(session.probe(id)?);
                    session.release(id);
                }
            }
        }
        spent += start.elapsed();
    }
    session.end_pass(true)?;
    Ok(spent)
}

/// Nanoseconds per hit, median of the passes.
fn nanoseconds(policy: PolicyKind, budget: u64, through_c: bool) -> weightstream::Result<f64> {
    let mut session = session(policy, budget)?;
    let mut calls = match through_c {
        true => Some(ProbeCalls::new(1)?),
        false => None,
    };
    let mut times = Vec::new();
    for number in 0..2 * PASSES {
        let spent = pass(&mut session, &mut calls)?;
        if number >= PASSES {
            times.push(spent);
        }
    }
    times.sort_unstable();
    let hits = f64::from(WEIGHTS * (READS - 1));
    Ok(times[times.len() / 2].as_nanos() as f64 / hits)
}

fn main() -> ExitCode {
    let most: f64 = match std::env::args().nth(1).map(|text| text.parse()) {
        None => f64::INFINITY,
        Some(Ok(most)) => most,
        Some(Err(_)) => {
            eprintln!("usage: gpu_probe [MOST_NS]");
            return ExitCode::from(2);
        }
    };
    let whole = u64::from(WEIGHTS) * BYTES;
    let cases = [
        ("everything resident", Lru, whole, false),
        ("everything resident, through C", Lru, whole, true),
        ("lru", Lru, whole / 2, false),
        ("lru, through C", Lru, whole / 2, true),
        ("planned", Planned, whole / 2, false),
        ("planned, through C", Planned, whole / 2, true),
    ];
    let mut right = true;
    for (name, policy, budget, through_c) in cases {
        match nanoseconds(policy, budget, through_c) {
            Ok(ns) => {
                println!("{name}: {ns:.0} ns per probe that hits");
                right &= ns <= most;
            }
            Err(error) => {
                eprintln!("{name}: {error}");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::from(u8::from(!right))
}
