//! Weights of a module that runs call by call in the caller's own framework, on the planner's layout.
//!
//! The caller has entries: modules that are called from outside, as a model, its encoder, a decoder. Of each it records one pass: which
//! weights each call of a layer reads, in which order. From the first one comes a [`Session`](crate::session::Session), as from
//! compiled code; the others join it as its methods do. The caller plays the part of the compiled code:
//!
//! ```text
//!  begin(entry) ──► read(calls' reads) ──► addresses ──► the caller's kernels ──► release(the same reads) ──► … ──► end
//!    │
//!    └─ resident: everything stays. No read is asked for, and all addresses are known beforehand
//! ```
//!
//! Invariants:
//! - Entries share weights, budget and what stays. Each has an order of its own.
//! - One pass at a time, of any entry. While it runs, memory does not move, whoever else wants some.
//! - A pass that did not go as recorded ends as one that failed: the next one starts afresh.
//! - The caller's kernels may write to a weight. The caller sees that, brings the bytes to the host, and says so with [`Eager::copy_again`].
//!   One with a packed copy becomes a raw one: the caller starts anew without that copy.
//! - The budget covers what the caller holds beside the weights ([`Recorded::beside`]).
#![deny(unsafe_code)]

mod entries;
mod files;
mod join;
mod open;
mod shares;
mod weights;

pub use entries::{Entry, EntryStats};
pub use files::{WeightFile, WeightFiles};

use crate::counters::Stats;
use crate::device::{CallerStream, CudaDevice, HostBytes, HostDevice};
use crate::elastic::{PassNeeds, Reorder};
use crate::error::Result;
use crate::figures::DeviceId;
use crate::schedule::WeightIndex;
use crate::weights::PackedWeight;
use std::ops::Range;
use std::sync::Arc;
use weights::Weights;

/// What the caller has recorded, and what it wants.
pub struct Recorded {
    /// What messages and reports call the module.
    pub name: String,
    /// Where they are read.
    pub device: DeviceId,
    /// The stream on which kernels read. Not looked at on the CPU.
    pub stream: CallerStream,
    /// Those of all entries.
    pub weights: Vec<RecordedWeight>,
    /// Files that some weights lie in.
    pub files: WeightFiles,
    /// The first entry.
    pub entry: Entry,
    /// Bytes for weights, and for what lies beside them.
    pub budget: OffloadBudget,
    /// Whose bytes come first, where the budget is shared.
    pub priority: i64,
    /// Device bytes of the budget that the caller holds itself: buffers.
    pub beside: u64,
}

/// A weight and its bytes on the host.
pub struct RecordedWeight {
    /// For messages.
    pub name: String,
    /// The bytes as kernels read them.
    pub bytes: HostBytes,
    /// A packed copy of them, and its stored bytes: these are brought, and decoded on the way.
    pub packed: Option<(HostBytes, Arc<PackedWeight>)>,
}

impl RecordedWeight {
    /// Without a packed copy.
    pub fn new(name: String, bytes: HostBytes) -> RecordedWeight {
        RecordedWeight {
            name,
            bytes,
            packed: None,
        }
    }

    /// What copies bring.
    fn stored(&self) -> HostBytes {
        { self.packed.as_ref() }.map_or(self.bytes, |(stored, _)| *stored)
    }
}

/// Bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadBudget {
    /// The least that does.
    Floor,
    /// A number.
    Bytes(u64),
    /// What the device's pool grants.
    Shared,
}

/// A pass that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunPass {
    /// Another one than before: weights lie elsewhere.
    pub generation: u64,
    /// Everything stays: [`Eager::addresses`] says where, and the pass asks for no reads.
    pub resident: bool,
}

/// What a read has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The weights, where they were before.
    Same,
    /// The weights, one of them at another address.
    Moved,
    /// Nothing: memory was needed, and the weights of this pass gave way. No read has begun, and none will.
    Gone,
}

/// The weights of one module on its device.
pub struct Eager(Arc<dyn Passes>);

/// The same on any device.
trait Passes: Send + Sync {
    fn add_entry(&self, entry: Entry) -> Result<u32>;
    fn replace_entry(&self, at: u32, entry: Entry) -> Result<()>;
    fn begin(&self, entry: u32, needs: PassNeeds) -> Result<BegunPass>;
    fn read(&self, reads: Range<u32>, at: &mut [u64]) -> Result<ReadOutcome>;
    fn release(&self, reads: Range<u32>) -> Result<()>;
    fn end(&self, completed: bool) -> Result<()>;
    fn addresses(&self, entry: u32, at: &mut [u64]) -> Result<()>;
    fn set_budget(&self, bytes: u64) -> Result<()>;
    fn reorder(&self, to: Reorder) -> Result<()>;
    fn copy_again(&self, changed: &[WeightIndex]) -> Result<()>;
    fn stats(&self) -> Result<Stats>;
    fn entry_stats(&self) -> Result<Vec<EntryStats>>;
    fn close(&self);
}

impl Eager {
    /// Plans, takes the memory, and loads what stays.
    ///
    /// Errors: a budget below the least one, which is named ([`BudgetTooSmall`](crate::Error::BudgetTooSmall)); a device that maps no
    /// memory.
    pub fn new(recorded: Recorded) -> Result<Eager> {
        match recorded.device {
            DeviceId::Cpu => {
                let device = HostDevice::new()?;
                Ok(Eager(Weights::open(device, recorded)?))
            }
            DeviceId::Cuda(index) => {
                let mut device = CudaDevice::on_stream(index, recorded.stream)?;
                device.time_link();
                Ok(Eager(Weights::open(device, recorded)?))
            }
        }
    }

    /// One more entry, which reads some of the weights. Its number; the first one is 0. Between passes: weights move.
    ///
    /// Errors: a budget in bytes that is below the new least one ([`BudgetTooSmall`](crate::Error::BudgetTooSmall)), or a device whose
    /// cap does not cover it ([`CapTooSmall`](crate::Error::CapTooSmall)). Then everything is as it was.
    /// [`OffloadBudget::Floor`] follows the least budget.
    pub fn add_entry(&self, entry: Entry) -> Result<u32> {
        self.0.add_entry(entry)
    }

    /// Another order in the place of this entry's. As [`Eager::add_entry`].
    pub fn replace_entry(&self, at: u32, entry: Entry) -> Result<()> {
        self.0.replace_entry(at, entry)
    }

    /// A pass of this entry begins; one at a time.
    pub fn begin(&self, entry: u32) -> Result<BegunPass> {
        self.begin_with(entry, PassNeeds::default())
    }

    /// The same with what the pass needs beside its weights.
    pub fn begin_with(&self, entry: u32, needs: PassNeeds) -> Result<BegunPass> {
        self.0.begin(entry, needs)
    }

    /// The next reads of the pass: kernels that are issued from now on find each weight at the address that is written to `at`.
    /// On an error none of these reads has begun.
    pub fn read(&self, reads: Range<u32>, at: &mut [u64]) -> Result<ReadOutcome> {
        self.0.read(reads, at)
    }

    /// What was issued so far uses these weights, and nothing later does.
    pub fn release(&self, reads: Range<u32>) -> Result<()> {
        self.0.release(reads)
    }

    /// The pass is over; `completed` says that it went as recorded.
    pub fn end(&self, completed: bool) -> Result<()> {
        self.0.end(completed)
    }

    /// Where each read of this entry finds its weight in every pass, if everything stays. It holds as long as the generation does.
    pub fn addresses(&self, entry: u32, at: &mut [u64]) -> Result<()> {
        self.0.addresses(entry, at)
    }

    /// Another budget, from the next pass on.
    pub fn set_budget(&self, bytes: u64) -> Result<()> {
        self.0.set_budget(bytes)
    }

    /// Another place in the order of the device, which is shared. While a pass runs too.
    pub fn reorder(&self, to: Reorder) -> Result<()> {
        self.0.reorder(to)
    }

    /// The bytes of these weights on the host have changed, and lie where they did: what the device has of them is copied again.
    /// Between passes; the plan stays.
    pub fn copy_again(&self, changed: &[WeightIndex]) -> Result<()> {
        self.0.copy_again(changed)
    }

    /// Counters.
    pub fn stats(&self) -> Result<Stats> {
        self.0.stats()
    }

    /// Counters of each entry, by its number.
    pub fn entry_stats(&self) -> Result<Vec<EntryStats>> {
        self.0.entry_stats()
    }
}

impl Drop for Eager {
    /// The bytes on the host are the caller's: whoever else knows of these weights at this moment, nothing reads them any more.
    fn drop(&mut self) {
        self.0.close();
    }
}
