//! What a pass copies.

use super::super::{Action, Lru, Policy};
use crate::schedule::{Event, ProbeId, Trace, WeightSpec};

/// Passes that are played at most before the LRU's state has to have come back.
const PASSES: usize = 8;

/// What one pass costs, once the first ones are over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// Bytes that are copied.
    pub bytes: u64,
    /// Copies. Each costs a link some time beyond that of its bytes.
    pub copies: u64,
}

impl Price {
    /// In bytes, where a copy costs the time of `per_copy` bytes beyond its own.
    pub fn in_bytes(&self, per_copy: u64) -> u64 {
        self.bytes
            .saturating_add(self.copies.saturating_mul(per_copy))
    }
}

/// The price of a pass under the LRU with `capacity` bytes for weights, by playing it. `None` if it cannot serve a
/// read.
pub fn lru_price(
    trace: &Trace,
    weights: &[WeightSpec],
    granule: u64,
    capacity: u64,
) -> Option<Price> {
    let mut lru = Lru::new(trace, weights, granule, capacity);
    let mut seen: Vec<Vec<u32>> = Vec::new();
    let mut least: Option<Price> = None;
    for pass in 0..PASSES {
        let price = play(&mut lru, trace)?;
        // The first pass starts with nothing.
        if pass > 0 && least.is_none_or(|least| price.bytes < least.bytes) {
            least = Some(price);
        }
        let state = lru.fingerprint();
        if pass > 0 && seen.contains(&state) {
            break;
        }
        seen.push(state);
    }
    least
}

fn play(lru: &mut Lru, trace: &Trace) -> Option<Price> {
    let mut price = Price::default();
    let mut actions = Vec::new();
    let mut open: Vec<ProbeId> = Vec::new();
    for event in &trace.events()[..trace.tail()] {
        match *event {
            Event::Kernel(_) => continue,
            Event::Probe(id) => {
                lru.demand(id, &mut actions).ok()?;
                lru.lease(id);
                open.push(id);
            }
            Event::Release(id) => {
                open.retain(|&other| other != id);
                lru.release(id);
            }
        }
        lru.ahead(&mut actions);
        count(&mut actions, &mut price);
    }
    // As a session does: what lasts to the end of the pass ends in access order.
    for id in open {
        lru.release(id);
    }
    lru.ahead(&mut actions);
    count(&mut actions, &mut price);
    Some(price)
}

fn count(actions: &mut Vec<Action>, price: &mut Price) {
    for action in actions.drain(..) {
        if let Action::Load { range, .. } = action {
            price.bytes += range.end - range.start;
            price.copies += 1;
        }
    }
}
