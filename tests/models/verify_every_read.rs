//! The verified mode: a copy that arrives with one bit flipped is caught at the first read of its bytes and named.
//! Without the mode the same flip goes unnoticed, so that these tests show something.

use crate::model_support::{options, Model, Outputs};
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::faulty::{Fault, Faults, Faulty};
use weightstream::device::{Device, DevicePtr, HostBytes, HostDevice};
use weightstream::error::{Error, Result};
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::schedule::{Trace, WeightKind, WeightSpec};
use weightstream::session::Session;
use weightstream::store::{Constants, Method, StoreOptions, WeightLayout};

/// So large that two of them are never one copy, and no multiple of what is read back at a time.
const BYTES: u64 = (700 << 10) + 3;
const WEIGHTS: u32 = 5;
/// Two direct constants, the second one mutable, in front of the weights in every list.
const DIRECT: u32 = 2;

fn name(index: u32) -> String {
    format!("layers.{index}")
}

fn program() -> (Constants, Method) {
    let kind = |index| match index {
        0 => WeightKind::Direct,
        1 => WeightKind::Mutable,
        _ => WeightKind::Weight,
    };
    let spec = |index| WeightSpec {
        fqn: name(index),
        bytes: BYTES,
        stored: BYTES,
        kind: kind(index),
    };
    let events = (0..WEIGHTS).flat_map(|id| [Probe(id), Kernel(id), Release(id)]);
    let count = (DIRECT + WEIGHTS) as usize;
    Method::with_constants(
        (0..DIRECT + WEIGHTS).map(spec).collect(),
        vec![WeightLayout::default(); count],
        Trace::new(
            events.collect(),
            (DIRECT..DIRECT + WEIGHTS).collect(),
            count,
        )
        .unwrap(),
    )
}

fn contents(index: u32) -> &'static [u8] {
    static BYTES_OF: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    let byte = |index: u32, at: u64| (u64::from(index) * 37 + at * 11 + at / 256) as u8;
    let one = |index| (0..BYTES).map(|at| byte(index, at)).collect();
    &BYTES_OF.get_or_init(|| (0..DIRECT + WEIGHTS).map(one).collect())[index as usize]
}

/// A session, at the floor or with everything resident; `checked` says whether in the verified mode.
fn session(fault: Fault, all: bool, checked: bool) -> Result<Session<Faulty<HostDevice>>> {
    let device = Faulty::new(HostDevice::new()?, &Faults::new(fault));
    let bytes = (0..DIRECT + WEIGHTS).map(|i| HostBytes::from_static(contents(i)));
    let options = StoreOptions {
        budget: all.then_some(64 << 20),
        policy: PolicyKind::Lru,
        ..StoreOptions::default()
    };
    let mut session = Session::new(device, program(), bytes.collect(), options)?;
    if checked {
        let checksums = (0..DIRECT + WEIGHTS).map(|i| crc32fast::hash(contents(i)));
        session.verify_every_read(checksums.collect())?;
    }
    Ok(session)
}

/// One pass; returns the weights whose bytes a kernel would have read wrongly.
fn pass(session: &mut Session<Faulty<HostDevice>>) -> Result<Vec<String>> {
    session.begin_pass()?;
    let mut wrong = Vec::new();
    for id in 0..WEIGHTS {
        let at = match session.probe(i64::from(id)) {
            Ok(at) => at,
            Err(error) => {
                session.end_pass(false)?;
                return Err(error);
            }
        };
        if read(session, at) != contents(DIRECT + id) {
            wrong.push(name(DIRECT + id));
        }
        session.release(i64::from(id));
    }
    session.end_pass(true)?;
    Ok(wrong)
}

fn read(session: &mut Session<Faulty<HostDevice>>, at: DevicePtr) -> Vec<u8> {
    let mut found = vec![0; BYTES as usize];
    session.device_mut().download(at, &mut found).unwrap();
    found
}

fn caught(error: &Error, expected: &str, whose: &str) {
    let Error::Mismatch { name, fact, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(name, expected, "{error}");
    assert_eq!(*fact, "CRC-32 of its bytes on the device");
    let text = error.to_string();
    assert!(
        text.contains(whose) && text.contains("device address 0x"),
        "{text}"
    );
}

#[test]
fn a_flipped_bit_is_caught_at_the_first_read_and_named() {
    for copy in 0..DIRECT + 2 * WEIGHTS {
        let fault = Fault::Bit(u64::from(copy) + 1);
        if copy < DIRECT {
            let error = session(fault, false, true)
                .err()
                .expect("not caught at load");
            caught(&error, &name(copy), "loaded once, before the first pass");
            continue;
        }
        // At the floor all weights are copied in each pass, in the order of their probes.
        let (passes, probe) = ((copy - DIRECT) / WEIGHTS, (copy - DIRECT) % WEIGHTS);
        let mut session = session(fault, false, true).unwrap();
        for _ in 0..passes {
            assert_eq!(pass(&mut session), Ok(vec![]), "copy {copy}");
        }
        let error = pass(&mut session).expect_err("not caught");
        caught(
            &error,
            &name(DIRECT + probe),
            &format!("read by probe {probe}:"),
        );
        assert_eq!(
            pass(&mut session),
            Ok(vec![]),
            "the handle can be used again"
        );
    }
}

#[test]
fn without_the_mode_nobody_notices() {
    for copy in DIRECT..DIRECT + WEIGHTS {
        let mut session = session(Fault::Bit(u64::from(copy) + 1), false, false).unwrap();
        assert_eq!(pass(&mut session), Ok(vec![name(copy)]));
    }
    let mut damaged = session(Fault::Bit(1), false, false).unwrap();
    let at = damaged.store().direct_address(0).unwrap();
    assert_ne!(read(&mut damaged, at), contents(0));
}

/// What is resident stays wrong, so every pass says so.
#[test]
fn resident_bytes_are_checked_at_each_read_too() {
    let mut session = session(Fault::Bit(u64::from(DIRECT) + 3), true, true).unwrap();
    for _ in 0..3 {
        caught(
            &pass(&mut session).unwrap_err(),
            &name(DIRECT + 2),
            "read by probe 2",
        );
    }
}

/// A weight that something writes over, long after its copy.
#[test]
fn a_store_into_a_resident_weight_is_caught() {
    let mut session = session(Fault::None, true, true).unwrap();
    assert_eq!(pass(&mut session), Ok(vec![]));
    session.begin_pass().unwrap();
    let at = session.probe(0).unwrap();
    session
        .device_mut()
        .upload(at.offset(BYTES - 1), &[0xee])
        .unwrap();
    session.release(0);
    session.end_pass(false).unwrap();
    caught(
        &pass(&mut session).unwrap_err(),
        &name(DIRECT),
        "read by probe 0",
    );
}

#[test]
fn mutable_buffers_are_checked_before_the_first_pass_only() {
    let mut session = session(Fault::None, false, true).unwrap();
    let at = session.store().direct_address(1).unwrap();
    session.device_mut().upload(at, &[0xee; 64]).unwrap();
    for _ in 0..2 {
        assert_eq!(pass(&mut session), Ok(vec![]));
    }
}

/// Runs passes with one flipped copy after the other. Returns how many passes gave other outputs than `expected`, and
/// how many were refused.
fn flips(model: &Model, pairs: &[(&str, &str)], expected: &[Outputs]) -> (usize, usize) {
    let (mut wrong, mut refused) = (0, 0);
    for copy in 1.. {
        let faults = Faults::new(Fault::Bit(copy));
        let delegate = match model.load(&options(pairs), &faults) {
            Ok(delegate) => delegate,
            Err(error) => {
                caught_in(model, &error);
                refused += 1;
                continue;
            }
        };
        for (pass, expected) in expected.iter().enumerate() {
            // A pass that was refused is run again: the caches of a model need it. Bytes that stay on the device stay
            // wrong, and are refused each time.
            for _ in 0..2 {
                match model.run(&delegate, pass) {
                    Ok(outputs) => {
                        wrong += usize::from(outputs != *expected);
                        break;
                    }
                    Err(error) => {
                        caught_in(model, &error);
                        refused += 1;
                    }
                }
            }
        }
        // What was copied ahead in the last pass is read by none here.
        if faults.failed().is_empty() {
            return (wrong, refused);
        }
    }
    unreachable!("the number of copies has an end")
}

fn caught_in(model: &Model, error: &Error) {
    let Error::Mismatch { name, fact, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(*fact, "CRC-32 of its bytes on the device");
    assert!(
        model.record.constants.iter().any(|c| c.fqn == *name),
        "{error}"
    );
}

#[test]
fn no_output_of_a_compiled_model_is_computed_from_a_flipped_bit() {
    for name in ["mlp", "kv_decoder", "fact_returned"] {
        let Some(model) = Model::open(name) else {
            return;
        };
        let clean = model.load(&options(&[]), &Faults::default()).unwrap();
        let expected: Vec<_> = (0..2)
            .map(|pass| model.run(&clean, pass).unwrap())
            .collect();
        let (wrong, refused) = flips(&model, &[], &expected);
        println!("{name}: unchecked, {wrong} passes were wrong");
        assert!(
            wrong > 2 && refused == 0,
            "{name}: {wrong} wrong, {refused} refused"
        );
        let (wrong, refused) = flips(
            &model,
            &[("weight_offload_verify", "every_read")],
            &expected,
        );
        println!("{name}: checked, {refused} passes were refused");
        assert!(
            wrong == 0 && refused > 2,
            "{name}: {wrong} wrong, {refused} refused"
        );
    }
}
