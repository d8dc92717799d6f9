//! In which order a method reads its weights, and which read of each is the last one of a pass.

use crate::schedule::{Trace, WeightIndex};
use std::collections::HashSet;

/// The reads of one method.
#[derive(Debug, Clone)]
pub(super) struct Reads {
    /// By probe id.
    pub weight_of: Vec<WeightIndex>,
    /// In the order of a pass.
    pub order: Vec<WeightIndex>,
    /// Of each read in this order whether it is its weight's last one.
    pub last: Vec<bool>,
}

impl Reads {
    pub fn of(trace: &Trace) -> Reads {
        let order = trace.order().iter().map(|&id| trace.weight(id));
        let order: Vec<WeightIndex> = order.collect();
        let mut read = HashSet::new();
        let mut last: Vec<bool> = order.iter().rev().map(|one| read.insert(*one)).collect();
        last.reverse();
        Reads {
            weight_of: trace.probes().to_vec(),
            order,
            last,
        }
    }
}
