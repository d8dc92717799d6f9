//! A device that fails for good: which weights kernels may have been using.

use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::faulty::{Fault, Faults, Faulty};
use weightstream::device::{Device, HostBytes, HostDevice};
use weightstream::error::Result;
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::schedule::{Trace, WeightKind, WeightSpec};
use weightstream::session::Session;
use weightstream::store::{Constants, Method, StoreOptions, WeightLayout};

static BYTES: [u8; 1000] = [7; 1000];
const NAMES: [&str; 3] = ["early", "long", "short"];

/// `long` is read by the second kernel and by the last one, `short` by one in between.
fn program() -> (Constants, Method) {
    let spec = |name: &str| WeightSpec {
        fqn: name.to_owned(),
        bytes: BYTES.len() as u64,
        stored: BYTES.len() as u64,
        kind: WeightKind::Weight,
    };
    let events = vec![
        Probe(0),
        Kernel(0),
        Release(0),
        Probe(1),
        Kernel(1),
        Probe(2),
        Kernel(2),
        Release(2),
        Kernel(3),
        Release(1),
    ];
    Method::with_constants(
        NAMES.map(spec).to_vec(),
        vec![WeightLayout::default(); NAMES.len()],
        Trace::new(events, vec![0, 1, 2], NAMES.len()).unwrap(),
    )
}

fn session(faults: &Faults) -> Result<Session<Faulty<HostDevice>>> {
    let device = Faulty::new(HostDevice::new()?, faults);
    let bytes = NAMES.map(|_| HostBytes::from_static(&BYTES)).to_vec();
    let options = StoreOptions {
        budget: Some(1 << 20),
        policy: PolicyKind::Planned,
        ..StoreOptions::default()
    };
    Session::new(device, program(), bytes, options)
}

/// One pass, and the wait behind it.
fn pass(session: &mut Session<Faulty<HostDevice>>) -> Result<()> {
    session.begin_pass()?;
    let events = program().1.trace.events().to_vec();
    let ran = events.into_iter().try_for_each(|event| match event {
        Probe(id) => session.probe(i64::from(id)).map(|_| ()),
        Release(id) => {
            session.release(i64::from(id));
            Ok(())
        }
        Kernel(_) => Ok(()),
    });
    // What the compiled code holds when it is left by an error.
    if ran.is_err() {
        session.release(1);
    }
    let ended = session.end_pass(ran.is_ok());
    let waited = session.finish_kernels();
    ran.and(ended).and(waited)
}

/// The weights that are named, for each wait of a pass that could be the one that fails, in order.
fn named(every_kernel: bool) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for call in 1.. {
        let faults = Faults::new(Fault::From(call));
        let Ok(mut session) = session(&faults) else {
            continue;
        };
        if every_kernel {
            session.wait_for_every_kernel();
        }
        let outcome = pass(&mut session);
        if faults.failed().is_empty() {
            assert_eq!(outcome, Ok(()));
            return found;
        }
        assert!(outcome.is_err() && session.device().is_lost());
        if faults.failed()[0] == "finish_compute" {
            found.push(session.weights_in_use());
        }
    }
    unreachable!("a pass has an end")
}

#[test]
fn without_waits_all_weights_of_the_pass_are_named() {
    assert_eq!(named(false), [NAMES]);
}

#[test]
fn with_a_wait_for_every_kernel_those_are_named_that_it_may_have_read() {
    let expected: [&[&str]; 7] = [
        // Before each read, and behind the last kernel of each lease.
        &[],
        &["early"],
        &[],
        &["long"],
        &["long", "short"],
        &["long"],
        // Behind the pass: everything had ended.
        &[],
    ];
    assert_eq!(named(true), expected);
}

#[test]
fn nothing_is_in_use_behind_a_pass_that_was_waited_for() {
    for every_kernel in [false, true] {
        let mut session = session(&Faults::default()).unwrap();
        if every_kernel {
            session.wait_for_every_kernel();
        }
        pass(&mut session).unwrap();
        assert_eq!(session.weights_in_use(), Vec::<String>::new());
    }
}
