//! The memory of one device that several stores share: who holds how much of it, and how bytes change hands.
//!
//! ```text
//! pass of a begins:   arbiter: grants ──► b holds more than its grant, and no pass of it runs: b shrinks
//!                     a holds its grant, or what the others leave of the cap
//! pass of a ends:     b began in the meantime and was promised some of a: a shrinks
//! ```
//!
//! Invariants:
//! - What all tenants hold together stays within the cap. What a tenant will hold is counted before it grows, and what it held
//!   until it has shrunk.
//! - A tenant changes between its own passes only. Nobody waits for a pass of another tenant.
//! - A tenant whose pass runs keeps all that it holds.

use super::arbiter::Arbiter;
use super::cap::Cap;
use super::member::Tenant;
use super::range_share::{AskedRanges, RangeShare};
use super::rank::Rank;
use super::tenant::TenantId;
use crate::error::{bytes_text, Error, Result};
use crate::figures::DeviceId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A device's memory for the weights of all tenants.
pub struct DevicePool {
    pub(super) device: String,
    state: Mutex<PoolState>,
}

pub(super) struct PoolState {
    pub(super) arbiter: Arbiter,
    pub(super) cap: Cap,
    pub(super) members: BTreeMap<TenantId, Member>,
    pub(super) ranges: RangeShare,
}

pub(super) struct Member {
    pub name: String,
    pub rank: Rank,
    pub floor: u64,
    pub total: u64,
    /// What it takes beside its weights: activations, inputs, a reserve.
    pub beside: u64,
    pub held: u64,
    pub passes: u64,
    /// A pass of it runs.
    pub running: bool,
    /// That pass gives memory away when it is asked.
    pub gives_way: bool,
    /// Set once it can be asked to shrink.
    pub tenant: Option<Weak<dyn Tenant>>,
}

impl Member {
    /// The bytes that are of use to it, and the least.
    pub(super) fn wants(&self) -> (u64, u64) {
        (self.total, self.floor)
    }
}

/// The pools of this process, by device. A child has its own: it cannot use what its parent has loaded.
static POOLS: Mutex<BTreeMap<(u32, DeviceId), Arc<DevicePool>>> = Mutex::new(BTreeMap::new());

impl DevicePool {
    /// The pool of a device.
    pub fn of(device: DeviceId) -> Arc<DevicePool> {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry((std::process::id(), device));
        pool.or_insert_with(|| Arc::new(DevicePool::new(&device.to_string())))
            .clone()
    }

    /// A pool that nobody else finds.
    pub fn new(device: &str) -> DevicePool {
        DevicePool {
            device: device.to_owned(),
            state: Mutex::new(PoolState {
                arbiter: Arbiter::new(0, 1),
                cap: Cap::default(),
                members: BTreeMap::new(),
                ranges: RangeShare::default(),
            }),
        }
    }

    /// At most so many bytes for all tenants; `None` lets the pool follow what is free on the device. It holds at once for tenants
    /// whose pass does not run, and for the others when it ends.
    ///
    /// Errors: a cap below the sum of the floors, with the least one ([`Error::CapTooSmall`]). Then the cap is what it was.
    pub fn set_cap(&self, cap: Option<u64>) -> Result<()> {
        let (mut asked, mut ranges) = (Vec::new(), Vec::new());
        let changed = self.lock().set_cap(cap, &mut asked, &mut ranges);
        // A tenant that ends here leaves the pool, which takes the lock.
        drop((asked, ranges));
        changed
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// The name, with a number where another tenant has it: `a.pte`, `a.pte #2`.
    pub(super) fn own_name(&self, name: String) -> String {
        let taken = |name: &str| self.members.values().any(|member| member.name == name);
        let mut own = name.clone();
        let mut number = 1u64;
        while taken(&own) {
            number += 1;
            own = format!("{name} #{number}");
        }
        own
    }

    fn set_cap(
        &mut self,
        cap: Option<u64>,
        asked: &mut Vec<Arc<dyn Tenant>>,
        ranges: &mut AskedRanges,
    ) -> Result<()> {
        let Some(bytes) = cap else {
            self.cap.follow_free();
            return Ok(());
        };
        let before = self.arbiter.cap();
        self.arbiter.set_cap(bytes)?;
        self.shrink_others(None, asked);
        let fits = self.fit_ranges(bytes, ranges);
        self.shrink_others(None, asked);
        // It holds again for the stores too, once what is leased of ranges is free.
        self.arbiter
            .set_cap(if fits.is_ok() { bytes } else { before })?;
        if fits.is_ok() {
            self.cap.fix(bytes);
        }
        fits
    }

    /// The cap by what is free now, if it follows that. `joins` is what a new tenant takes beside its weights.
    pub(super) fn follow(&mut self, free: u64, joins: u64) -> Result<()> {
        let available = self.available(free, joins);
        match self.cap.observe(available) {
            Some(cap) => self.arbiter.set_cap(cap),
            None => Ok(()),
        }
    }

    /// What is there for the tenants where so much is free.
    pub(super) fn available(&self, free: u64, joins: u64) -> u64 {
        let held = self.held().saturating_add(self.ranges.held);
        let beside = self.members.values().map(|member| member.beside);
        let headroom = beside.fold(joins, u64::max);
        // What the tenants hold is free for them.
        let available = free.saturating_add(held).saturating_sub(headroom);
        available.max(self.arbiter.least_cap())
    }

    /// Bytes that stores hold.
    pub(super) fn held(&self) -> u64 {
        self.members.values().map(|member| member.held).sum()
    }

    /// Bytes that no tenant holds.
    pub(super) fn room(&self) -> u64 {
        let held = self.held().saturating_add(self.ranges.held);
        self.arbiter.cap().saturating_sub(held)
    }

    /// Tenants that hold more than their grant shrink, but for `but` and those that are busy. `asked` keeps them until the lock is
    /// gone.
    pub(super) fn shrink_others(
        &mut self,
        but: Option<TenantId>,
        asked: &mut Vec<Arc<dyn Tenant>>,
    ) {
        for (id, member) in &mut self.members {
            let grant = self.arbiter.grant(*id);
            if Some(*id) == but || member.held <= grant {
                continue;
            }
            let Some(tenant) = member.tenant.as_ref().and_then(Weak::upgrade) else {
                continue;
            };
            match tenant.shrink_to(grant) {
                Some(Ok(())) => member.held = grant,
                Some(Err(error)) => log::warn!("'{}' did not shrink: {error}", member.name),
                None => {}
            }
            asked.push(tenant);
        }
    }

    /// Who holds the memory that is missing, and what helps.
    pub(super) fn who_holds(&self) -> String {
        let mut words: Vec<String> = { self.members.values() }
            .map(|member| {
                let running = if member.running {
                    ", its pass runs"
                } else {
                    ""
                };
                format!(
                    "'{}' holds {}{running}",
                    member.name,
                    bytes_text(member.held)
                )
            })
            .collect();
        if self.ranges.held > 0 {
            let held = bytes_text(self.ranges.held);
            words.push(format!("ranges, graph pools and activations hold {held}"));
        }
        format!(
            "{}: try again once some of it is given back, or raise the device's budget",
            words.join(", ")
        )
    }

    /// So many bytes are to be left once a tenant holds its grant: grants shrink for them, the lowest first.
    pub(super) fn leave_room(
        &mut self,
        id: TenantId,
        bytes: u64,
        asked: &mut Vec<Arc<dyn Tenant>>,
    ) {
        let own = self.members.get(&id).map_or(0, |member| member.held);
        let others = self.held().saturating_add(self.ranges.held) - own;
        let wanted = others
            .saturating_add(self.arbiter.grant(id))
            .saturating_add(bytes);
        let over = wanted.saturating_sub(self.arbiter.cap());
        if bytes > 0 && over > 0 {
            self.arbiter.give(over, None);
            self.shrink_others(Some(id), asked);
        }
    }

    /// A tenant could not hold what it wanted: it wants what it did before.
    pub(super) fn want_again(&mut self, id: TenantId, (total, floor): (u64, u64)) {
        if let Err(error) = self.arbiter.set_wants(id, total, floor) {
            log::warn!("a grant follows at the next pass: {error}");
        }
        if let Some(member) = self.members.get_mut(&id) {
            (member.total, member.floor) = (total, floor);
        }
    }

    pub(super) fn member(&mut self, id: TenantId) -> Result<&mut Member> {
        let member = self.members.get_mut(&id);
        member.ok_or_else(|| Error::Internal("a tenant left its pool before its last pass".into()))
    }
}
