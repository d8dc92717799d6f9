//! The cost of one probe that hits, with its release: the session alone, and through the C functions that
//! compiled code calls (handle, recorded layout, panic boundary). And the cost of a plan for a very large program.

#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use criterion::{criterion_group, criterion_main, Criterion};
use std::time::{Duration, Instant};
use weightstream::aoti::hooks::PassHooks;
use weightstream::aoti::measure::ProbeCalls;
use weightstream::config::PolicyKind;
use weightstream::device::{HostBytes, HostDevice};
use weightstream::figures::{DeviceModel, Link};
use weightstream::residency::planned::{lru_price, plan, quickest, Clocks};
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::schedule::{Trace, WeightKind, WeightSpec};
use weightstream::session::Session;
use weightstream::store::{Constants, Method, StoreOptions, WeightLayout};

/// About as many weights as a model of some 40 layers has.
const WEIGHTS: u32 = 300;
/// Reads of each weight, one after the other, so that nearly all hit under any policy.
const READS: u32 = 64;
const BYTES: u64 = 64;
/// Four weights of this size frame the others; only three of them fit.
const LARGE: u64 = 1 << 20;

/// One large weight is leased over all reads of the small ones; three more are read behind them.
fn program() -> (Constants, Method) {
    let small = WEIGHTS * READS;
    let spec = |i| WeightSpec {
        fqn: format!("layers.{i}.weight"),
        bytes: if i < WEIGHTS { BYTES } else { LARGE },
        stored: if i < WEIGHTS { BYTES } else { LARGE },
        kind: WeightKind::Weight,
    };
    let probes = (0..small)
        .map(|id| id / READS)
        .chain(WEIGHTS..WEIGHTS + 4)
        .collect();
    let mut events = vec![Probe(small), Kernel(0)];
    (0..small).for_each(|id| events.extend([Probe(id), Kernel(id + 1), Release(id)]));
    events.push(Release(small));
    let last = small + 1..small + 4;
    last.for_each(|id| events.extend([Probe(id), Kernel(id + 1), Release(id)]));
    Method::with_constants(
        (0..WEIGHTS + 4).map(spec).collect(),
        vec![WeightLayout::default(); WEIGHTS as usize + 4],
        Trace::new(events, probes, WEIGHTS as usize + 4).expect("a valid trace"),
    )
}

fn session(policy: PolicyKind, budget: u64) -> Session<HostDevice> {
    let program = program();
    let bytes: &'static [u8] = vec![7; LARGE as usize].leak();
    let bytes = HostBytes::from_static(bytes);
    let bytes = program
        .0
        .specs
        .iter()
        .map(|w| bytes.slice(0..w.bytes))
        .collect();
    let device = HostDevice::new().expect("a copy thread");
    let options = StoreOptions {
        budget: Some(budget),
        policy,
        ..StoreOptions::default()
    };
    Session::new(device, program, bytes, options).expect("a budget above the floor")
}

/// The same through the C functions.
fn time_c(session: &mut Session<HostDevice>, calls: &mut ProbeCalls, probes: u64) -> Duration {
    let framing = i64::from(WEIGHTS * READS);
    let mut spent = Duration::ZERO;
    let mut left = probes;
    while left > 0 {
        let here = left.min(framing as u64);
        session.begin_pass().expect("an idle session");
        session.probe(framing).expect("a right probe");
        let start = Instant::now();
        calls.run(session, 0..here as i64).expect("right probes");
        spent += start.elapsed();
        session.release(framing);
        session.end_pass(false).expect("an idle session");
        left -= here;
    }
    spent
}

/// Time of `probes` probes and releases of small weights, without what begins and ends a pass.
fn time(session: &mut Session<HostDevice>, probes: u64) -> Duration {
    let framing = i64::from(WEIGHTS * READS);
    let mut spent = Duration::ZERO;
    let mut left = probes;
    while left > 0 {
        let here = left.min(framing as u64);
        session.begin_pass().expect("an idle session");
        session.probe(framing).expect("a right probe");
        let start = Instant::now();
        for id in 0..here as i64 {
            std::hint::black_box(session.probe(id).expect("a right probe"));
            session.release(id);
        }
        spent += start.elapsed();
        session.release(framing);
        session.end_pass(false).expect("an idle session");
        left -= here;
    }
    spent
}

/// Bytes that are written between two passes, so that little of the first one is in the core's caches for the second: what
/// kernel launches do there.
const ELSEWHERE: usize = 8 << 20;

/// A probe through the C functions of which nothing is in the caches but the code: each weight is read once in a pass, and much else
/// happens between two passes.
fn cold(c: &mut Criterion) {
    let layout = WeightLayout {
        dtype: 15,
        sizes: vec![4, 8],
        strides: vec![8, 1],
    };
    let spec = |i| WeightSpec {
        fqn: format!("layers.{i}.weight"),
        bytes: BYTES,
        stored: BYTES,
        kind: WeightKind::Weight,
    };
    let events = (0..WEIGHTS).flat_map(|id| [Probe(id), Kernel(id), Release(id)]);
    let count = WEIGHTS as usize;
    let program = Method::with_constants(
        (0..WEIGHTS).map(spec).collect(),
        vec![layout; count],
        Trace::new(events.collect(), (0..WEIGHTS).collect(), count).expect("a valid trace"),
    );
    let bytes: &'static [u8] = vec![7; BYTES as usize].leak();
    let bytes = vec![HostBytes::from_static(bytes); count];
    let device = HostDevice::new().expect("a copy thread");
    let options = StoreOptions {
        budget: Some(1 << 20),
        ..StoreOptions::default()
    };
    let mut session = Session::new(device, program, bytes, options).expect("a large budget");
    let mut calls = ProbeCalls::new(count).expect("the functions");
    let mut elsewhere = vec![0u8; ELSEWHERE];
    let mut pass = || {
        elsewhere.iter_mut().step_by(64).for_each(|byte| *byte += 1);
        session.begin_pass().expect("an idle session");
        let start = Instant::now();
        calls
            .run(&mut session, 0..i64::from(WEIGHTS))
            .expect("right probes");
        let spent = start.elapsed();
        session.end_pass(true).expect("a complete pass");
        spent
    };
    c.bench_function("probe_hit/everything_resident_through_c_cold", |b| {
        b.iter_custom(|n| {
            let passes = n.div_ceil(u64::from(WEIGHTS)).max(3);
            let spent: Duration = (0..passes).map(|_| pass()).sum();
            spent.mul_f64(n as f64 / (passes * u64::from(WEIGHTS)) as f64)
        })
    });
}

fn hit(c: &mut Criterion) {
    let mut group = c.benchmark_group("probe_hit");
    let mut resident = session(PolicyKind::Lru, 1 << 30);
    group.bench_function("everything_resident", |b| {
        b.iter_custom(|n| time(&mut resident, n))
    });
    let mut calls = ProbeCalls::new(1).expect("the functions");
    group.bench_function("everything_resident_through_c", |b| {
        b.iter_custom(|n| time_c(&mut resident, &mut calls, n))
    });
    for (name, policy) in [("lru", PolicyKind::Lru), ("planned", PolicyKind::Planned)] {
        let mut streams = session(policy, u64::from(WEIGHTS) * BYTES + 3 * LARGE + 4096);
        assert_eq!(streams.policy(), name);
        group.bench_function(name, |b| b.iter_custom(|n| time(&mut streams, n)));
        group.bench_function(format!("{name}_through_c"), |b| {
            b.iter_custom(|n| time_c(&mut streams, &mut calls, n))
        });
    }
    group.finish();
}

/// Decoders of 111 and of 1,111 layers: nine weights a layer, in a few sizes.
fn plans(c: &mut Criterion) {
    for layers in [111, 1111] {
        plan_of(c, layers);
    }
}

fn plan_of(c: &mut Criterion, layers: usize) {
    const MB: u64 = 1 << 20;
    let layer = [
        8 << 10,
        32 * MB,
        8 * MB,
        8 * MB,
        32 * MB,
        8 << 10,
        112 * MB,
        112 * MB,
        112 * MB,
    ];
    let sizes: Vec<u64> = [250 * MB, 250 * MB]
        .into_iter()
        .chain(layer.repeat(layers))
        .collect();
    let weight = |(at, &bytes): (usize, &u64)| WeightSpec {
        fqn: format!("weights.{at}"),
        bytes,
        stored: bytes,
        kind: WeightKind::Weight,
    };
    let weights: Vec<_> = sizes.iter().enumerate().map(weight).collect();
    let reads: Vec<u32> = (0..weights.len() as u32).collect();
    let events = reads
        .iter()
        .flat_map(|&id| [Probe(id), Kernel(id), Release(id)]);
    let trace = Trace::new(events.collect(), reads.clone(), weights.len()).unwrap();
    let everything: u64 = sizes.iter().sum();
    let figures = DeviceModel {
        apart: 0,
        whole_pages: false,
        packed: Default::default(),
        granule: 512,
        page: Some(2 << 20),
        bytes_per_copy: 192 << 10,
    };
    let mut group = c.benchmark_group(format!("a plan for {} reads", reads.len()));
    group.sample_size(10);
    for percent in [10, 50, 90] {
        group.bench_function(format!("budget {percent} %"), |bencher| {
            bencher.iter(|| {
                plan(
                    &[(&trace).into()],
                    &weights,
                    &figures,
                    everything / 100 * percent,
                )
                .unwrap()
            })
        });
        let capacity = everything / 100 * percent;
        // Attention for half of the time that copies take, so that all rings are tried.
        let missing = (everything - capacity) / 55;
        let each = |at: usize| {
            if at % 27 == 14 {
                missing / 2 / layers as u64
            } else {
                0
            }
        };
        let times: Vec<u64> = (0..trace.events().len()).map(each).collect();
        let link = Link::of_rate(55_000_000_000);
        let clocks = Clocks {
            kernels: &times,
            link,
        };
        group.bench_function(format!("replanned {percent} %"), |bencher| {
            let clocks = (&[clocks][..], u64::MAX);
            bencher.iter(|| quickest(&[(&trace).into()], &weights, &figures, capacity, clocks))
        });
        group.bench_function(format!("the LRU's price {percent} %"), |bencher| {
            bencher.iter(|| lru_price(&trace, &weights, 512, capacity).unwrap())
        });
    }
    group.finish();
}

/// Programs that read weights again, on a device where a copy costs no time of its own: half of them in random order, or all of
/// them ten times in turn.
fn plans_of_repeated_reads(c: &mut Criterion) {
    for reads in [200, 800, 1990, 10_000] {
        let mut draw = Drawn(1);
        let count = reads / 2;
        let again = (0..count).map(|_| draw.below(u64::from(count)) as u32);
        let mut order: Vec<u32> = (0..count).chain(again.collect::<Vec<_>>()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, draw.below(at as u64 + 1) as usize);
        }
        plans_of_order(c, "half of them again", &order, &mut draw);
    }
    for reads in [1000, 10_000] {
        let order: Vec<u32> = (0..reads).map(|at| at % (reads / 10)).collect();
        plans_of_order(c, "each weight ten times in turn", &order, &mut Drawn(1));
    }
}

/// The weights are drawn.
fn plans_of_order(c: &mut Criterion, what: &str, order: &[u32], draw: &mut Drawn) {
    let count = order.iter().max().map_or(0, |&last| last + 1);
    let weight = |at| WeightSpec {
        fqn: format!("weights.{at}"),
        bytes: 64 * (10 + draw.below(100)),
        stored: 64 * (10 + draw.below(100)),
        kind: WeightKind::Weight,
    };
    let weights: Vec<_> = (0..count).map(weight).collect();
    let events = (0..order.len() as u32).flat_map(|id| [Probe(id), Kernel(id), Release(id)]);
    let trace = Trace::new(events.collect(), order.to_vec(), weights.len()).unwrap();
    let everything: u64 = weights.iter().map(|weight| weight.bytes).sum();
    let figures = DeviceModel {
        apart: 0,
        whole_pages: false,
        packed: Default::default(),
        granule: 64,
        page: Some(64),
        bytes_per_copy: 0,
    };
    let mut group = c.benchmark_group(format!("a plan for {} reads, {what}", order.len()));
    group.sample_size(10);
    for percent in [10, 50, 90] {
        group.bench_function(format!("budget {percent} %"), |bencher| {
            bencher.iter(|| {
                plan(
                    &[(&trace).into()],
                    &weights,
                    &figures,
                    everything / 100 * percent,
                )
            })
        });
        let capacity = everything / 100 * percent;
        group.bench_function(format!("the LRU's price {percent} %"), |bencher| {
            bencher.iter(|| lru_price(&trace, &weights, 64, capacity))
        });
    }
    group.finish();
}

/// Numbers that are the same each time.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, end: u64) -> u64 {
        // The multiplier of Knuth's MMIX; any would do.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005) + 1;
        (self.0 >> 33) % end
    }
}

criterion_group!(benches, hit, cold, plans, plans_of_repeated_reads);
criterion_main!(benches);
