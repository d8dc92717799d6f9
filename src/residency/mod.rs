//! Which weights are on the device. Policies are pure: sizes, trace and leases in, actions out. They know no
//! device. The store carries the actions out, in order, on the copy stream.
#![deny(unsafe_code)]

mod all_resident;
mod hot_rows;
mod layout;
mod list;
mod lru;
#[cfg(feature = "sim")]
mod most_recent;
pub(crate) mod moves;
mod offer;
pub mod planned;
mod policies;
mod reads;

pub use all_resident::AllResident;
pub use hot_rows::{HotRows, Round};
pub use layout::{Backing, Layout};
pub use lru::Lru;
#[cfg(feature = "sim")]
pub use most_recent::MostRecent;
pub use offer::{Request, Residency};
pub use policies::{choose, choose_elastic, is_cheaper, least_elastic, replan};

use crate::error::Result;
use crate::schedule::{ProbeId, WeightIndex};
use std::ops::Range;

/// What has to be done, in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Give up what copies of passes brought of a weight, after its last reader. What was loaded at the start stays.
    Evict {
        /// The weight.
        weight: WeightIndex,
    },
    /// Copy bytes of a weight to the device.
    Load {
        /// The weight.
        weight: WeightIndex,
        /// Which of its bytes.
        range: Range<u64>,
        /// The window through which it is seen then; 0 where the layout has none.
        window: u32,
        /// Issued for a read that comes later, not for the one being served.
        ahead: bool,
    },
}

/// Whether a read found its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// They were there, or on their way.
    Hit,
    /// They had to be copied on demand.
    Miss,
}

/// Decides which weights are on the device.
///
/// Reads are named by the probe ids of the current method, since a policy may give each read of one weight its own place. In
/// a pass each probe is demanded once, in the order of the trace, and followed by its lease.
///
/// Two rules hold for every policy: a weight with an open lease is never evicted, nor is one that was
/// loaded or kept for a read that is not yet served.
pub trait Policy: Send {
    /// What messages call it.
    fn name(&self) -> &'static str;

    /// Whether all weights are loaded at load and keep their places. Then nobody is told or asked of reads and leases.
    fn everything_stays(&self) -> bool {
        false
    }

    /// Whether a complete pass leaves the device as it found it, so that it can be captured and replayed.
    fn is_periodic(&self) -> bool {
        false
    }

    /// What is loaded at load, before the first pass.
    fn start(&mut self, _actions: &mut Vec<Action>) {}

    /// The read of probe `id` is next: appends what must be issued before its address is valid.
    fn demand(&mut self, id: ProbeId, actions: &mut Vec<Action>) -> Result<Served>;

    /// The address of probe `id` is handed out.
    fn lease(&mut self, id: ProbeId);

    /// The lease of probe `id` ended. Returns its weight if this was its last lease and its memory may be
    /// given up one day: then the point in the compute stream must be kept.
    fn release(&mut self, id: ProbeId) -> Option<WeightIndex>;

    /// Appends the copies for later reads, as deep as the budget allows.
    fn ahead(&mut self, actions: &mut Vec<Action>);

    /// The passes that come are of this method; nothing is leased. A policy of one method has nothing to do.
    fn turn_to(&mut self, _method: usize) {}

    /// Appends what brings back the state that had this [`Policy::fingerprint`], between two passes of the current method.
    /// `false` if it cannot be had: then nothing is planned.
    fn return_to(&mut self, _fingerprint: &[u32], _actions: &mut Vec<Action>) -> bool {
        false
    }

    /// The pass ended before its trace did: the next demand is the first probe's. Open leases stay.
    fn abort(&mut self);

    /// The pool has the bytes, but not in one piece: gives up one more weight that nobody holds. `false` if
    /// there is none.
    fn make_room(&mut self, actions: &mut Vec<Action>) -> bool;

    /// The load of `weight` could not be carried out: nothing of it is there. What was planned after it was not carried out
    /// either, and is named in calls of its own before this one: the last action first.
    fn load_failed(&mut self, weight: WeightIndex);

    /// The eviction of `weight` could not be carried out: what copies brought of it is still there.
    fn evict_failed(&mut self, weight: WeightIndex);

    /// What the decisions of the next pass depend on, beside which weights are present: equal after two passes
    /// means that the passes after them are equal.
    fn fingerprint(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Pool bytes that the loaded weights occupy, as the policy has it.
    fn pool_bytes(&self) -> u64;

    /// Recounts everything; a text says what does not add up.
    fn validate(&self) -> std::result::Result<(), String>;
}
