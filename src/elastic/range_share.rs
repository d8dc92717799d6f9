//! What ranges hold of a device's pool: what its stores leave of the cap.
//!
//! A store that begins a pass gets its grant: ranges up to its rank give what is missing. A fault takes from ranges and stores
//! below its range. What ranges hold is counted before they take it, and until they have given it back.

use super::member::Tenant;
use super::pool::{DevicePool, Member, PoolState};
use super::rank::Rank;
use super::tenant::TenantId;
use crate::error::{bytes_text, Error, Result};
use std::sync::{Arc, Weak};

/// What ranges leave for activations and for the driver, where the cap follows what is free on the device.
const BESIDE: u64 = 256 << 20;

/// The memory of all ranges of a device.
pub(super) trait RangeMemory: Send + Sync {
    /// Holds at most so many bytes, if ranges up to this rank can give that; of any rank, if there is none. What it holds now; `None`
    /// if a call of a range runs: then nothing has changed. With `wait` it waits for kernels that still use the memory.
    fn shrink_to(&self, bytes: u64, up_to: Option<Rank>, wait: bool) -> Option<u64>;

    /// Who holds memory. Ranges have a rank.
    fn holders(&self) -> Vec<Holding>;

    /// What is free on the device now.
    fn free_bytes(&self) -> Option<u64>;
}

/// What a range, or another holder, has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The range, or what holds it.
    pub name: String,
    /// Bytes that it holds.
    pub bytes: u64,
    /// Its place in the order; `None` for memory that stays until its owner gives it up.
    pub rank: Option<Rank>,
}

/// What ranges hold together.
#[derive(Default)]
pub(super) struct RangeShare {
    pub held: u64,
    memory: Option<Weak<dyn RangeMemory>>,
}

/// Ranges that were asked, kept until the pool's lock is gone: the end of the last one takes it.
pub(super) type AskedRanges = Vec<Arc<dyn RangeMemory>>;

impl RangeShare {
    pub(super) fn memory(&self) -> Option<Arc<dyn RangeMemory>> {
        self.memory.as_ref().and_then(Weak::upgrade)
    }

    /// Gives `bytes` bytes of ranges up to a rank up, or what it can.
    fn give(&mut self, bytes: u64, up_to: Option<Rank>, wait: bool, asked: &mut AskedRanges) {
        if bytes == 0 || self.held == 0 {
            return;
        }
        let Some(memory) = self.memory() else {
            return;
        };
        if let Some(held) = memory.shrink_to(self.held.saturating_sub(bytes), up_to, wait) {
            self.held = held;
        }
        asked.push(memory);
    }
}

impl PoolState {
    /// Ranges up to a rank make room for `bytes` bytes of a store.
    pub(super) fn room_from_ranges(
        &mut self,
        bytes: u64,
        up_to: Option<Rank>,
        wait: bool,
        asked: &mut AskedRanges,
    ) {
        let missing = bytes.saturating_sub(self.room());
        self.ranges.give(missing, up_to, wait, asked);
    }

    /// Idle stores below a rank, of any rank if there is none, shrink until `bytes` bytes are left.
    pub(super) fn press_idle(
        &mut self,
        bytes: u64,
        below: Option<Rank>,
        asked: &mut Vec<Arc<dyn Tenant>>,
    ) {
        // A store that holds less than its grant gives less than that loses.
        while self.room() < bytes && self.arbiter.can_give(below) > 0 {
            let missing = bytes - self.room();
            self.arbiter.give(missing, below);
            self.shrink_others(None, asked);
        }
    }

    fn can_press(&self, below: Option<Rank>) -> u64 {
        let gives = |(id, member): (&TenantId, &Member)| match (member.running, below) {
            (false, None) => member.held.saturating_sub(self.arbiter.lowest(*id)),
            (false, Some(below)) if member.rank < below => {
                member.held.saturating_sub(self.arbiter.lowest(*id))
            }
            // Only what is above all ranks stops a pass.
            (true, None) if member.gives_way => member.held.saturating_sub(member.floor),
            _ => 0,
        };
        self.members.iter().map(gives).sum()
    }

    /// Passes that may give way do, those of the lowest rank first, until `bytes` bytes are left.
    fn stop_passes(&mut self, bytes: u64, asked: &mut Vec<Arc<dyn Tenant>>) {
        let mut running: Vec<_> = { self.members.iter() }
            .filter(|(_, member)| member.running && member.gives_way)
            .map(|(id, member)| (member.rank, *id))
            .collect();
        running.sort_unstable_by_key(|(rank, _)| *rank);
        for (_, id) in running {
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            let tenant = member.tenant.as_ref().and_then(Weak::upgrade);
            let Some(tenant) = tenant.filter(|_| member.held > member.floor) else {
                continue;
            };
            match tenant.give_way() {
                Some(Ok(())) => {
                    // Its floor stays its own.
                    (member.held, member.gives_way) = (member.floor, false);
                    self.arbiter.give_way(id);
                }
                Some(Err(error)) => log::warn!("'{}' did not give way: {error}", member.name),
                None => {}
            }
            asked.push(tenant);
            if self.room() >= bytes {
                break;
            }
        }
    }

    /// Ranges and stores fit under a new cap. Where pages of ranges cannot go, stores shrink more.
    pub(super) fn fit_ranges(&mut self, cap: u64, asked: &mut AskedRanges) -> Result<()> {
        let over = (self.held().saturating_add(self.ranges.held)).saturating_sub(cap);
        self.ranges.give(over, None, true, asked);
        let left = self.ranges.held;
        if self.held().saturating_add(left) <= cap {
            return Ok(());
        }
        let least = left.saturating_add(self.arbiter.least_cap());
        match least <= cap {
            true => self.arbiter.set_cap(cap - left),
            false => Err(Error::CapTooSmall {
                cap,
                least,
                floors: format!(
                    "ranges, graph pools and activations {}, models {}",
                    bytes_text(left),
                    bytes_text(least - left)
                ),
            }),
        }
    }
}

impl DevicePool {
    pub(super) fn attach_ranges(&self, memory: Weak<dyn RangeMemory>) {
        self.lock().ranges.memory = Some(memory);
    }

    /// Bytes by which ranges and stores hold more than the cap, which is looked at again where it follows `free`.
    pub(super) fn excess(&self, free: impl FnOnce() -> Result<u64>) -> Result<u64> {
        let mut state = self.lock();
        if state.cap.follows() {
            let free = free()?;
            state.follow(free, BESIDE)?;
        }
        let held = state.held().saturating_add(state.ranges.held);
        Ok(held.saturating_sub(state.arbiter.cap()))
    }

    /// Bytes for ranges, at most `wanted`. They count as held from now on.
    pub(super) fn claim(&self, wanted: u64) -> u64 {
        let mut state = self.lock();
        let granted = wanted.min(state.room());
        state.ranges.held += granted;
        granted
    }

    /// What stores below a rank could give up now; all stores, if there is none. Those whose pass runs give nothing.
    pub(super) fn can_press(&self, below: Option<Rank>) -> u64 {
        let state = self.lock();
        state.can_press(below)
    }

    /// Idle stores below a rank give up memory, the lowest first, so that `bytes` bytes are left for who asks. They count as held
    /// by ranges from now on. How many it became.
    pub(super) fn press(&self, bytes: u64, below: Option<Rank>) -> u64 {
        let mut asked = Vec::new();
        let mut state = self.lock();
        state.press_idle(bytes, below, &mut asked);
        if below.is_none() && state.room() < bytes {
            state.stop_passes(bytes, &mut asked);
        }
        let granted = bytes.min(state.room());
        state.ranges.held += granted;
        drop(state);
        drop(asked);
        granted
    }

    /// Others give `bytes` bytes of their weights back to the device, or what they can, those of the lowest rank first. How many
    /// they gave. What is left under the cap counts for nothing: who asks has found that the device is full.
    pub fn make_room(&self, bytes: u64) -> u64 {
        let (mut asked, mut ranges) = (Vec::new(), Vec::new());
        let ranks = self.ranks();
        let mut state = self.lock();
        let before = state.held().saturating_add(state.ranges.held);
        let wanted = state.room().saturating_add(bytes);
        for rank in ranks {
            state.press_idle(wanted, Some(rank), &mut asked);
            state.room_from_ranges(wanted, Some(rank), true, &mut ranges);
        }
        state.press_idle(wanted, None, &mut asked);
        if state.room() < wanted {
            state.stop_passes(wanted, &mut asked);
        }
        let after = state.held().saturating_add(state.ranges.held);
        drop(state);
        drop((asked, ranges));
        before.saturating_sub(after)
    }

    /// The ranks of ranges, the lowest first.
    fn ranks(&self) -> Vec<Rank> {
        // A fault of a range takes the pool's lock: it is not held while ranges are asked.
        let memory = self.lock().ranges.memory();
        let holders = memory.iter().flat_map(|memory| memory.holders());
        let mut ranks: Vec<Rank> = holders.filter_map(|holding| holding.rank).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Ranges have given so many bytes back.
    pub(super) fn unclaim(&self, bytes: u64) {
        let mut state = self.lock();
        state.ranges.held = state.ranges.held.saturating_sub(bytes);
    }
}
