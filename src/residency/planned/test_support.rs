//! Programs for tests of plans.

use crate::figures::DeviceModel;
use crate::schedule::{Event, Trace, WeightKind, WeightSpec};
use proptest::prelude::*;

/// Bytes of a page in these tests.
pub(super) const PAGE: u64 = 256;

/// A device with pages of these tests.
pub(super) fn model(bytes_per_copy: u64) -> DeviceModel {
    DeviceModel {
        granule: 64,
        bytes_per_copy,
        page: Some(PAGE),
        apart: 0,
        whole_pages: false,
        packed: Default::default(),
    }
}

/// Weights of these sizes.
pub(super) fn weights(sizes: &[u64]) -> Vec<WeightSpec> {
    let spec = |(index, &bytes)| WeightSpec {
        fqn: format!("w{index}"),
        bytes,
        stored: bytes,
        kind: WeightKind::Weight,
    };
    sizes.iter().enumerate().map(spec).collect()
}

/// Each kernel reads one weight, in this order.
pub(super) fn chain(reads: &[u32], constants: usize) -> Trace {
    let one = |(at, _)| [Event::Probe(at), Event::Kernel(at), Event::Release(at)];
    let events = (0..).zip(reads).flat_map(one).collect();
    Trace::new(events, reads.to_vec(), constants).unwrap()
}

/// Each weight is read by one kernel, in order.
pub(super) fn in_turn(count: usize) -> Trace {
    chain(&(0..count as u32).collect::<Vec<_>>(), count)
}

/// Each kernel reads these weights.
pub(super) fn kernels(reads: &[Vec<u32>], constants: usize) -> Trace {
    let (mut events, mut probes) = (Vec::new(), Vec::new());
    for (number, weights) in (0..).zip(reads) {
        let first = probes.len() as u32;
        probes.extend(weights);
        let ids = first..probes.len() as u32;
        events.extend(ids.clone().map(Event::Probe));
        events.push(Event::Kernel(number));
        events.extend(ids.map(Event::Release));
    }
    Trace::new(events, probes, constants).unwrap()
}

/// Kernels with up to three weights each, of up to 12 pages; some are read again.
pub(super) fn programs() -> impl Strategy<Value = (Vec<WeightSpec>, Trace)> {
    let sizes = prop::collection::vec(1..12 * PAGE, 2..16);
    sizes.prop_flat_map(|sizes| {
        let count = sizes.len();
        let reads = prop::collection::vec(prop::collection::vec(0..count as u32, 1..4), 1..24);
        reads.prop_map(move |mut reads| {
            for list in &mut reads {
                list.sort_unstable();
                list.dedup();
            }
            (weights(&sizes), kernels(&reads, sizes.len()))
        })
    })
}
