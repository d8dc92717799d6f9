//! The cost of one probe that hits, with its release: the session alone, without compiled code.

#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use criterion::{criterion_group, criterion_main, Criterion};
use std::time::{Duration, Instant};
use weightstream::aoti::hooks::PassHooks;
use weightstream::device::{HostBytes, HostDevice};
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::schedule::{Trace, WeightKind, WeightSpec};
use weightstream::session::{Layout, Program, Session, SessionOptions};

/// About as many weights as a model of some 40 layers has.
const WEIGHTS: u32 = 300;

/// `READS` reads of each weight, one after the other, so that nearly all hit under any policy.
const READS: u32 = 64;

fn session(weight_bytes: usize, budget: u64) -> Session<HostDevice> {
    let spec = |i| WeightSpec {
        fqn: format!("layers.{i}.weight"),
        bytes: weight_bytes as u64,
        kind: WeightKind::Weight,
    };
    let probes: Vec<u32> = (0..WEIGHTS * READS).map(|id| id / READS).collect();
    let events = (0..WEIGHTS * READS)
        .flat_map(|id| [Probe(id), Kernel(id), Release(id)])
        .collect();
    let program = Program {
        weights: (0..WEIGHTS).map(spec).collect(),
        layouts: vec![Layout::default(); WEIGHTS as usize],
        trace: Trace::new(events, probes, WEIGHTS as usize).expect("a valid trace"),
    };
    let bytes: &'static [u8] = vec![7; weight_bytes].leak();
    let bytes = vec![HostBytes::from_static(bytes); WEIGHTS as usize];
    let device = HostDevice::new().expect("a copy thread");
    let options = SessionOptions {
        budget: Some(budget),
        ..SessionOptions::default()
    };
    Session::new(device, program, bytes, options).expect("a budget above the floor")
}

/// Time of `probes` probes and releases, in whole passes.
fn time(session: &mut Session<HostDevice>, probes: u64) -> Duration {
    let mut spent = Duration::ZERO;
    let mut left = probes;
    while left > 0 {
        let here = left.min(u64::from(WEIGHTS * READS));
        session.begin_pass().expect("an idle session");
        let start = Instant::now();
        for id in 0..here as i64 {
            std::hint::black_box(session.probe(id).expect("a right probe"));
            session.release(id);
        }
        spent += start.elapsed();
        session
            .end_pass(here == u64::from(WEIGHTS * READS))
            .expect("a right pass");
        left -= here;
    }
    spent
}

fn hit(c: &mut Criterion) {
    let mut group = c.benchmark_group("probe_hit");
    let mut resident = session(64, 1 << 30);
    group.bench_function("everything_resident", |b| {
        b.iter_custom(|n| time(&mut resident, n))
    });
    // A granule less than everything: the policy keeps its list and its window, and one probe in 64 issues
    // a copy, which is part of the figure.
    let mut lru = session(64, u64::from(WEIGHTS) * 64 - 64);
    group.bench_function("lru", |b| b.iter_custom(|n| time(&mut lru, n)));
    group.finish();
}

criterion_group!(benches, hit);
criterion_main!(benches);
