//! Programs for tests of plans.

use crate::schedule::{Event, Trace, WeightKind, WeightSpec};

/// Weights of these sizes.
pub(super) fn weights(sizes: &[u64]) -> Vec<WeightSpec> {
    let spec = |(index, &bytes)| WeightSpec {
        fqn: format!("w{index}"),
        bytes,
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
