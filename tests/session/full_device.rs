//! A device that has no memory left for an activation: others are asked for it.

use crate::session_support::chain;
use std::sync::{Arc, Mutex};
use weightstream::aoti::hooks::PassHooks;
use weightstream::device::faulty::{Fault, Faults, Faulty};
use weightstream::device::HostDevice;
use weightstream::session::Session;
use weightstream::Error;

const BYTES: u64 = 1000;

/// A session whose n-th call that takes memory finds none, if it can be loaded.
fn session(fault: Fault) -> Option<Session<Faulty<HostDevice>>> {
    let device = Faulty::new(HostDevice::new().unwrap(), &Faults::new(fault));
    chain(&[64]).session(device, None).ok()
}

/// One whose first activation finds none.
fn full() -> Session<Faulty<HostDevice>> {
    let after_load = (1..).map(Fault::Memory).find_map(session);
    after_load.unwrap()
}

#[test]
fn others_are_asked_as_long_as_they_give() {
    for (given, works) in [(1, true), (0, false)] {
        let mut session = full();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        session.when_full(Box::new(move |bytes| {
            seen.lock().unwrap().push(bytes);
            given
        }));
        let taken = session.alloc_activation(BYTES);
        assert_eq!(*asked.lock().unwrap(), [BYTES]);
        match taken {
            Ok(ptr) => session.free_activation(ptr, BYTES),
            Err(ref error) => assert!(matches!(error, Error::OutOfMemory { .. }), "{error}"),
        }
        assert_eq!(taken.is_ok(), works);
        assert_eq!(session.activation_bytes(), 0);
    }
}

#[test]
fn without_others_it_is_an_error() {
    let error = full().alloc_activation(BYTES).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("taking an activation of 1000 bytes"),
        "{error}"
    );
}
