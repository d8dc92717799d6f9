//! Passes of one module, and who may take its memory.

use super::*;
use crate::device::{CallerStream, HostBytes, HostDevice};
use crate::eager::{Eager, Recorded, RecordedWeight, WeightFiles};
use crate::elastic::PassNeeds;
use crate::figures::DeviceId;
use crate::schedule::Event;
use std::sync::Arc;

#[allow(unsafe_code)]
fn opened(budget: OffloadBudget) -> Arc<Weights<HostDevice>> {
    let recorded = Recorded {
        name: "m".to_owned(),
        device: DeviceId::Cpu,
        // SAFETY: null is the default stream.
        stream: unsafe { CallerStream::new(std::ptr::null_mut()) },
        weights: vec![RecordedWeight::new(
            "w".to_owned(),
            HostBytes::from_static(&[7; 100]),
        )],
        files: WeightFiles::default(),
        entry: Entry {
            reads: vec![0],
            events: vec![Event::Probe(0), Event::Kernel(0), Event::Release(0)],
            gather: Vec::new(),
        },
        budget,
        priority: 0,
        beside: 0,
    };
    Weights::open(HostDevice::new().unwrap(), recorded).unwrap()
}

#[test]
fn a_resident_pass_keeps_its_memory() {
    let weights = opened(OffloadBudget::Bytes(1 << 20));
    assert!(weights.begin(0, PassNeeds::default()).unwrap().resident);
    assert!(weights.shrink_to(1 << 20).is_none());
    weights.end(false).unwrap();
    assert!(weights.shrink_to(1 << 20).is_some());
}

/// The pool may be about to ask for memory when the owner frees the bytes on the host.
#[test]
fn weights_end_when_their_owner_ends_them() {
    let weights = opened(OffloadBudget::Floor);
    let known = weights.clone();
    assert!(known.shrink_to(1 << 20).is_some());
    drop(Eager(weights));
    assert!(known.shrink_to(1 << 20).is_none());
    assert!(known.lock().unwrap().session.is_none());
    assert!(matches!(
        known.begin(0, PassNeeds::default()),
        Err(Error::Internal(_))
    ));
}
