//! Loading: budgets, refusals, direct constants, programs without probes, counters.

use crate::session_support::{chain, model, play, Pass};
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{Device, HostDevice, Sim, Source};
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::session::Session;
use weightstream::store::StoreOptions;
use weightstream::Error;

#[test]
fn a_budget_one_byte_below_the_floor_is_refused_with_its_parts() {
    let mut model = chain(&[1 << 20, 3 << 20, 64, 64, (3 << 20) - 64]);
    let refused = model
        .session(Sim::new(Order::CopiesFirst), Some((7 << 20) - 1))
        .err()
        .unwrap();
    assert!(
        matches!(refused, Error::BudgetTooSmall { budget, floor, .. } if budget == floor - 1 && floor == 7 << 20)
    );
    let text = refused.to_string();
    for part in [
        "7340031 bytes",
        "at least 7340032 bytes",
        "weight_offload_budget_mb = 7",
        "kernels 0 and 1 4194304 bytes (4.0 MB) [Weight.0: 1048576, Weight.1: 3145728]",
        "largest copy in flight 3145728 bytes (3.0 MB) [Weight.1]",
    ] {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
    model.constants.specs[2].bytes = 64;
    assert_eq!(model.host(Some(7 << 20)).stats().floor_bytes, 7 << 20);
}

/// Making bytes ready may mean to pin all of them.
#[test]
fn bytes_are_made_ready_only_for_a_budget_that_was_accepted() {
    let model = chain(&[1 << 20; 4]);
    let asked = std::cell::Cell::new(0);
    let load = |budget| {
        let source = |_: &mut Sim| {
            asked.set(asked.get() + 1);
            Ok(model.host_bytes().into_iter().map(Source::from).collect())
        };
        let options = StoreOptions {
            budget: Some(budget),
            policy: PolicyKind::Lru,
            ..StoreOptions::default()
        };
        let sim = Sim::new(Order::CopiesFirst);
        Session::with_source(sim, model.program(), source, options)
    };
    let refused = load((3 << 20) - 1).err().unwrap();
    assert!(matches!(refused, Error::BudgetTooSmall { .. }), "{refused}");
    assert_eq!(asked.get(), 0);
    assert!(load(3 << 20).is_ok());
    assert_eq!(asked.get(), 1);
}

#[test]
fn without_a_budget_the_floor_is_the_budget() {
    let model = chain(&[100, 200, 300]);
    let stats = model.host(None).stats();
    assert_eq!((stats.budget_bytes, stats.floor_bytes), (704, 704));
    assert_eq!(
        (stats.total_weight_bytes, stats.hard_minimum_bytes),
        (704, 320)
    );
}

#[test]
fn a_budget_for_everything_loads_everything_once_and_packed() {
    let model = chain(&[100, 0, 200, 300]);
    let mut session = model.sim(Order::CopiesFirst, Some(1 << 20));
    let at_load = session.stats();
    assert_eq!(
        (at_load.bytes_copied, at_load.peak_bytes),
        (600, 128 + 256 + 320)
    );
    for _ in 0..3 {
        play(&model, &mut session, Pass::Complete).unwrap();
    }
    let stats = session.stats();
    assert_eq!((stats.bytes_copied, stats.bytes_copied_last_pass), (600, 0));
    assert_eq!(
        (stats.hits, stats.misses, stats.evictions, stats.prefetches),
        (12, 0, 0, 0)
    );
}

/// A weight that stays records no event: the call would fail here.
#[test]
fn what_never_leaves_records_no_events() {
    let model = chain(&[100, 200]);
    let mut session = model.sim(Order::CopiesFirst, Some(1 << 20));
    for call in ["record_compute", "compute_wait", "copy_wait", "record_copy"] {
        session.device_mut().fail_call(call, 0);
        play(&model, &mut session, Pass::Complete).unwrap();
    }
}

#[test]
fn streaming_counts_what_it_copies() {
    let model = chain(&[640; 8]);
    let mut session = model.sim(Order::Random(7), None);
    for _ in 0..5 {
        play(&model, &mut session, Pass::Complete).unwrap();
    }
    let stats = session.stats();
    // A cycle through LRU copies everything in each pass.
    assert_eq!(stats.bytes_copied_last_pass, 8 * 640);
    assert_eq!((stats.passes, stats.hits + stats.misses), (5, 40));
    assert_eq!(stats.bytes_copied, (stats.misses + stats.prefetches) * 640);
    assert!(stats.peak_bytes <= stats.budget_bytes);
}

#[test]
fn a_program_without_probes_runs() {
    let model = model(&[], &[100, 0, 4096], &[], &[Kernel(0), Kernel(1)]);
    for budget in [None, Some(1 << 20)] {
        let mut session = model.host(budget);
        play(&model, &mut session, Pass::Complete).unwrap();
        let stats = session.stats();
        assert_eq!(
            (stats.direct_bytes, stats.floor_bytes, stats.bytes_copied),
            (4224, 4224, 4196)
        );
        assert_eq!(stats.passes, 1);
        assert!(
            session.store().direct_address(0).is_some()
                && session.store().direct_address(3).is_none()
        );
    }
}

#[test]
fn weights_without_bytes_have_an_address() {
    let events = [
        Probe(0),
        Probe(1),
        Kernel(0),
        Release(0),
        Release(1),
        Probe(2),
        Kernel(1),
    ];
    let model = model(&[0, 64, 6400], &[0], &[0, 1, 2], &events);
    let mut session = model.host(None);
    session.begin_pass().unwrap();
    let empty = session.probe(0).unwrap();
    assert!(empty.0 != 0 && empty.0.is_multiple_of(64));
    session.release(0);
    session.end_pass(false).unwrap();
    play(&model, &mut session, Pass::Complete).unwrap();
}

#[test]
fn data_that_does_not_fit_the_record_is_refused_by_name() {
    let mut model = chain(&[64, 128]);
    model.bytes[1].pop();
    match model.session(HostDevice::new().unwrap(), None) {
        Err(Error::Mismatch {
            name,
            fact: "number of bytes",
            expected,
            found,
        }) => {
            assert_eq!(
                (name.as_str(), expected.as_str()),
                ("Weight.1", "128 (record)")
            );
            assert_eq!(found, "127 (data)");
        }
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn a_probe_of_a_direct_constant_is_refused_by_name() {
    let model = model(&[64], &[64], &[0, 1], &[Probe(0), Probe(1), Kernel(0)]);
    match model.session(HostDevice::new().unwrap(), None) {
        Err(Error::Mismatch {
            name, fact: "kind", ..
        }) => assert_eq!(name, "Direct.0"),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn lists_of_different_lengths_are_refused() {
    let model = chain(&[64, 128]);
    let mut bytes = model.host_bytes();
    bytes.pop();
    let device = HostDevice::new().unwrap();
    let options = StoreOptions::default();
    let refused = Session::new(device, model.program(), bytes, options);
    assert!(matches!(refused.err(), Some(Error::Internal(_))));
}

#[test]
fn the_layout_is_that_of_the_probed_weight() {
    let model = model(&[64, 128], &[], &[1, 0], &[Probe(1), Probe(0), Kernel(0)]);
    let session = model.host(None);
    let layout = session.probe_layout(0).unwrap();
    assert_eq!(
        (layout.dtype, layout.sizes, layout.strides),
        (0, &[128][..], &[1][..])
    );
    for unknown in [-1, 2, i64::MAX] {
        assert!(session.probe_layout(unknown).is_err());
    }
}

#[test]
fn activations_are_counted_apart_from_the_budget() {
    let model = chain(&[64]);
    let mut session = model.host(None);
    let a = session.alloc_activation(1000).unwrap();
    let b = session.alloc_activation(24).unwrap();
    session.free_activation(a, 1000);
    assert_eq!(
        (session.activation_bytes(), session.activation_peak_bytes()),
        (24, 1024)
    );
    assert_eq!((a.0 % 64, b.0 % 64), (0, 0));
    session.free_activation(b, 24);
    assert_eq!(session.activation_bytes(), 0);
}

#[test]
fn misuse_is_an_error() {
    let model = chain(&[64]);
    let mut session = model.host(None);
    let internal = |r: Result<(), Error>| assert!(matches!(r, Err(Error::Internal(_))), "{r:?}");
    internal(session.end_pass(true));
    internal(session.probe(0).map(drop));
    session.begin_pass().unwrap();
    internal(session.begin_pass());
    session.release(0);
    internal(session.end_pass(false));
    session.begin_pass().unwrap();
    session.release(-1);
    internal(session.end_pass(true));
    play(&model, &mut session, Pass::Complete).unwrap();
}

#[test]
fn a_failure_at_load_is_returned() {
    let model = model(
        &[64, 128],
        &[64],
        &[0, 1],
        &[Probe(0), Kernel(0), Probe(1), Kernel(1)],
    );
    for call in ["alloc", "bring", "synchronize"] {
        let mut device = Sim::new(Order::CopiesFirst);
        device.fail_call(call, 0);
        assert_eq!(device.name(), "sim");
        match model.session(device, None).err() {
            Some(Error::Device { call: failed, .. }) => assert_eq!(failed, call),
            other => panic!("{other:?}"),
        }
    }
}
