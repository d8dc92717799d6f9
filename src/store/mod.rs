//! The weights of one program on one device: memory, residency, and who is there now.
//!
//! A [`Policy`] says what to load and evict; the store carries it out on the copy stream. A pass asks it for a weight
//! (`Store::bring`, `Store::address`) and tells it when a lease ends (`Store::end_lease`).
//!
//! Both rules of stream order are kept here, and nowhere else:
//! - a copy into device bytes starts only after every kernel that reads their previous contents has finished: the copy
//!   stream waits for the event of the last lease's end before the bytes are given up (`actions.rs`);
//! - a kernel reads a weight only after its copy: the compute stream waits for the copy's event before the address is handed
//!   out (`Store::address`).
#![deny(unsafe_code)]

mod actions;
mod checksums;
mod constants;
mod copies;
mod copy_batch;
mod device_weight;
mod in_place;
mod memory;
mod open;
mod packed;
mod row_places;
mod row_tables;
mod verify;

pub use constants::{Constants, Method, Methods, RowPlaces, Table, WeightLayout};
pub use open::{ElasticBytes, StoreOptions};
pub use packed::{code_of, source_of};

use crate::counters::Stats;
use crate::device::{Device, DevicePtr, PageAccess, Source};
use crate::error::{Error, Result};
use crate::figures::{DeviceModel, PackedResidents};
use crate::memory::Pool;
use crate::residency::{Action, Layout, Policy, Residency, Served};
use crate::schedule::{Floor, ProbeId, WeightIndex};
use checksums::Checksums;
use copy_batch::CopyBatch;
use device_weight::DeviceWeight;

/// The weights of one program on one device. The bytes that it was built over must outlive it ([`HostBytes::new`](crate::device::HostBytes::new)).
pub struct Store<D: Device> {
    pub(crate) device: D,
    pool: Box<dyn Pool<D>>,
    /// What kernels may do with mapped weights.
    access: PageAccess,
    residency: Residency,
    policy: Box<dyn Policy>,
    constants: Constants,
    weights: Vec<DeviceWeight<D::Event>>,
    /// What is read in place, and what is pinned.
    tables: Vec<Table>,
    /// Rows of these that may lie apart.
    rows: row_places::AllRows,
    /// What plans do with packed weights.
    packed: PackedResidents,
    /// The bytes of each constant, by index.
    bytes: Vec<Source>,
    floor: Floor,
    /// Bytes that weights and direct constants may occupy.
    budget: u64,
    /// Memory of the direct constants and of the pinned weights.
    direct: DevicePtr,
    /// Where the addresses of the layout's windows start.
    block: DevicePtr,
    /// Passes are played without copies, at load.
    pub(crate) rehearsing: bool,
    /// Filled by the policy and emptied here; kept, so that nothing allocates in a pass.
    actions: Vec<Action>,
    /// Loads whose copy is not issued yet; empty between calls.
    batch: CopyBatch,
    poisoned: Option<String>,
    pub(crate) stats: Stats,
    /// How often the pool had the bytes for a copy, but not in one piece.
    fragmentation_misses: u64,
    /// How often the device had to wait and tidy up for a read.
    compactions: u64,
    /// The CRC-32 of each constant, if every read is verified.
    checksums: Option<Checksums>,
    /// What stays is there, or its copy issued.
    is_loaded: bool,
    /// Memory was taken from a pass: the weights have to be moved before the next one.
    gave_way: bool,
    /// How often the weights were moved: what was captured before a move is not replayed after it.
    generation: u64,
}

impl<D: Device> Store<D> {
    /// The constants, with those that stand for reads in place.
    pub fn constants(&self) -> &Constants {
        &self.constants
    }

    /// What is read in place, and what is pinned.
    pub(crate) fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The floor of this program and its parts.
    pub fn floor(&self) -> &Floor {
        &self.floor
    }

    /// How often the pool had the bytes for a copy, but not in one piece.
    pub fn fragmentation_misses(&self) -> u64 {
        self.fragmentation_misses
    }

    /// How often a read was served only after the device had waited for its copies and tidied up.
    pub fn compactions(&self) -> u64 {
        self.compactions
    }

    /// Whether all weights lie in one block, which falls into the same pieces in every run.
    pub fn is_one_block(&self) -> bool {
        self.pool.is_one_block()
    }

    /// The policy at work.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// The device, as plans have to know it.
    pub(crate) fn model(&self) -> DeviceModel {
        let model = self.device.model().beside(self.floor.direct);
        model.with_packed(self.packed)
    }

    /// What was chosen for this budget.
    pub fn residency(&self) -> &Residency {
        &self.residency
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.residency.layout
    }

    /// Counters since load.
    pub fn stats(&self) -> Stats {
        Stats {
            budget_bytes: self.budget,
            peak_bytes: self.pool.peak_bytes(),
            ..self.stats
        }
    }

    /// Bytes that weights and direct constants may occupy.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes for weights.
    pub fn capacity(&self) -> u64 {
        self.budget - self.floor.direct
    }

    /// Why nothing runs on this store any more, if that is so.
    pub fn check_usable(&self) -> Result<()> {
        match &self.poisoned {
            None => Ok(()),
            Some(why) => Err(Error::Poisoned(why.clone())),
        }
    }

    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.is_some()
    }

    /// The address of a direct constant, final from load on; `None` for weights that are read through probes.
    pub fn direct_address(&self, index: usize) -> Option<DevicePtr> {
        let known = index < self.constants.specs.len();
        let direct = known && !self.constants.is_probed(index as WeightIndex);
        direct.then(|| self.weights[index].at)
    }

    /// Addresses and bytes of the direct constants: they stay as they are between passes.
    pub(crate) fn direct_range(&self) -> (DevicePtr, u64) {
        (self.direct, self.floor.direct)
    }

    /// Has the weight of read `id` there, or on its way: the policy's decision, carried out.
    #[inline]
    pub(crate) fn bring(&mut self, id: ProbeId) -> Result<Served> {
        let served = self.policy.demand(id, &mut self.actions)?;
        if !self.actions.is_empty() {
            self.carry_out_demand(id)?;
        }
        Ok(served)
    }

    /// Where kernels that are issued from now on read the weight. The compute stream waits for its copy.
    #[inline]
    pub(crate) fn address(&mut self, weight: WeightIndex) -> Result<DevicePtr> {
        let there = &mut self.weights[weight as usize];
        if let Some(event) = &there.ready {
            // rule: kernel-waits-for-copy
            self.device.compute_wait(event)?;
            // One wait orders every later kernel after the copy, so the next probe needs none.
            there.ready = None;
        }
        Ok(there.address())
    }

    /// Where a weight that stays lies.
    pub(crate) fn lasting_address(&self, weight: WeightIndex) -> DevicePtr {
        self.weights[weight as usize].address()
    }

    #[inline]
    pub(crate) fn lease(&mut self, id: ProbeId) {
        self.policy.lease(id);
    }

    /// The lease of read `id` ended. Whether its weight may be given up now.
    #[inline]
    pub(crate) fn end_lease(&mut self, id: ProbeId) -> Option<WeightIndex> {
        self.policy.release(id)
    }

    /// The lease of a weight that may be evicted ended: keeps the point in the compute stream after its last reader.
    pub(crate) fn keep_last_read(&mut self, weight: WeightIndex) -> Result<()> {
        if !self.rehearsing {
            let event = self.device.record_compute()?;
            self.weights[weight as usize].last_read = Some(event);
        }
        Ok(())
    }

    /// Without that point nothing may ever be copied over this weight again.
    #[cold]
    pub(crate) fn lost_last_read(&mut self, weight: WeightIndex, error: Error) -> Error {
        let name = self.constants.name(weight);
        // rule: lost-lease-end-poisons
        self.poison(format!("the end of a lease of {name} was lost: {error}"));
        self.about(weight, "ending a lease of", error)
    }

    /// The passes that come are of this method. Nothing is leased.
    pub(crate) fn turn_to(&mut self, method: usize) {
        self.policy.turn_to(method);
    }

    /// The pass ended before its trace did: the next read is the first one's.
    pub(crate) fn abort(&mut self) {
        self.policy.abort();
    }

    /// Both streams are idle, or what was recorded is void: nobody has to wait for anything.
    pub(crate) fn forget_events(&mut self) {
        for weight in &mut self.weights {
            weight.ready = None;
            weight.last_read = None;
        }
    }

    /// Which copied bytes are where, and what the policy thinks: equal states have equal passes after them.
    pub(crate) fn state(&self) -> StoreState {
        let place = |weight: &DeviceWeight<D::Event>| weight.has_copied().then_some(weight.at);
        StoreState {
            places: self.weights.iter().map(place).collect(),
            policy: self.policy.fingerprint(),
            // rule: graph-is-of-one-plan
            generation: self.generation,
        }
    }

    /// Copies what is not there of a state in which the store was, if its policy can say what that is.
    pub(crate) fn return_to(&mut self, state: &StoreState) -> Result<()> {
        let known = state.generation == self.generation;
        match known && self.policy.return_to(&state.policy, &mut self.actions) {
            true => self.carry_out(),
            false => Ok(()),
        }
    }

    /// How often the weights were moved.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the weights were moved since the store was in this state: it does not come back.
    pub(crate) fn has_moved_since(&self, state: &StoreState) -> bool {
        state.generation != self.generation
    }

    /// The same for weights in memory of their own, whether bytes were copied there or not.
    pub(crate) fn pooled_state(&self) -> StoreState {
        let place = |weight: &DeviceWeight<D::Event>| weight.pooled.then_some(weight.at);
        StoreState {
            places: self.weights.iter().map(place).collect(),
            policy: self.policy.fingerprint(),
            generation: self.generation,
        }
    }

    /// The error of a device call that was made for `weight`.
    #[cold]
    fn about(&self, weight: WeightIndex, doing: &str, error: Error) -> Error {
        error.during(|| format!("{doing} {}", self.constants.name(weight)))
    }

    #[cold]
    pub(crate) fn poison(&mut self, why: String) {
        self.poisoned.get_or_insert(why);
    }

    /// Recounts everything; an error says what does not add up. For tests and bug reports.
    pub fn validate(&self) -> Result<()> {
        self.policy.validate().map_err(Error::Internal)?;
        self.pool.validate().map_err(Error::Internal)?;
        let granule = self.device.granule();
        let pooled = (0..).zip(&self.weights).filter(|(_, w)| w.pooled);
        let pooled: u64 = pooled
            .map(|(weight, _)| self.constants.occupied(weight, granule))
            .sum();
        let used = self.pool.used_bytes();
        let fixed = self.floor.direct + self.layout().bytes();
        let planned = self.policy.pool_bytes();
        match used == fixed + pooled && pooled == planned && used <= self.budget {
            true => Ok(()),
            false => Err(Error::Internal(format!(
                "pool: {used} used, {fixed} fixed, {pooled} by weights, {planned} by the policy"
            ))),
        }
    }
}

/// See `Store::state`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoreState {
    places: Vec<Option<DevicePtr>>,
    policy: Vec<u32>,
    generation: u64,
}
