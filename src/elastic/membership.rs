//! A tenant's place in the pool of its device: what its passes hold.

use super::member::{DeviceState, Tenant};
use super::pool::{DevicePool, Member};
use super::rank::{Rank, Reorder};
use super::tenant::{TenantId, Wants};
use crate::error::{Error, Result};
use std::sync::{Arc, Weak};

/// What a pass needs beside weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassNeeds {
    /// Bytes of the device that are to be left for it.
    pub room: u64,
    /// It gives memory away while it runs, if it asks for its reads.
    pub gives_way: bool,
    /// It asks for its reads, also where everything stays.
    pub by_reads: bool,
}

/// A tenant's place in its pool. Dropped, it leaves: by then its memory is given back.
pub struct Membership {
    pub(super) pool: Arc<DevicePool>,
    pub(super) id: TenantId,
}

impl DevicePool {
    /// A new tenant, which holds its floor.
    ///
    /// Errors: the floors do not fit under the cap ([`Error::CapTooSmall`]), or running passes hold what is missing for this one.
    pub fn join(self: &Arc<Self>, wants: Wants, device: &DeviceState) -> Result<Membership> {
        let (mut asked, mut ranges) = (Vec::new(), Vec::new());
        let mut state = self.lock();
        let DeviceState { page, beside, free } = *device;
        state.arbiter.set_unit(page);
        let name = state.own_name(wants.name);
        let wants = Wants { name, ..wants };
        let member = Member {
            name: wants.name.clone(),
            rank: Rank::of(wants.priority),
            floor: wants.floor,
            total: wants.total.max(wants.floor),
            beside,
            held: wants.floor,
            passes: 0,
            running: false,
            gives_way: false,
            tenant: None,
        };
        if state.cap.follows() {
            state.follow(free, beside)?;
        }
        let id = state.arbiter.join(wants)?;
        state.shrink_others(Some(id), &mut asked);
        state.room_from_ranges(member.held, None, true, &mut ranges);
        state.press_idle(member.held, None, &mut asked);
        let room = state.room();
        let joined = match member.held <= room {
            true => {
                state.members.insert(id, member);
                Ok(Membership {
                    pool: self.clone(),
                    id,
                })
            }
            false => {
                state.arbiter.leave(id);
                Err(Error::OutOfMemory {
                    what: format!(
                        "the floor of '{}', of which {room} bytes are left under the cap of {} on {}; {}",
                        member.name,
                        state.arbiter.cap(),
                        self.device,
                        state.who_holds()
                    ),
                    bytes: member.held,
                })
            }
        };
        drop(state);
        drop((asked, ranges));
        joined
    }
}

impl Membership {
    /// From now on the tenant can be asked to shrink.
    pub fn attach(&self, tenant: Weak<dyn Tenant>) {
        if let Some(member) = self.pool.lock().members.get_mut(&self.id) {
            member.tenant = Some(tenant);
        }
    }

    /// Another place in the order, which counts from the next pass of any tenant on.
    pub fn reorder(&self, to: Reorder) {
        let mut state = self.pool.lock();
        let Some(member) = state.members.get_mut(&self.id) else {
            return;
        };
        member.rank = member.rank.reordered(to);
        let rank = member.rank;
        state.arbiter.set_rank(self.id, rank);
    }

    /// Its place in the order of the device.
    pub fn rank(&self) -> Rank {
        let state = self.pool.lock();
        state
            .members
            .get(&self.id)
            .map_or(Rank::LAST, |one| one.rank)
    }

    /// Bytes that the tenant holds.
    pub fn held(&self) -> u64 {
        self.pool
            .lock()
            .members
            .get(&self.id)
            .map_or(0, |member| member.held)
    }

    /// A pass of the tenant begins: `change` has it hold its grant, if that is another one than before. If that fails, the pass runs
    /// with what the tenant held. `free` is what is free on the device; `pass` says what the pass needs beside weights.
    pub fn begin_pass(
        &self,
        pass: PassNeeds,
        free: impl FnOnce() -> Result<u64>,
        change: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        let (mut asked, mut ranges) = (Vec::new(), Vec::new());
        let mut state = self.pool.lock();
        if state.cap.follows() {
            let free = free()?;
            state.follow(free, 0)?;
        }
        state.arbiter.pass(self.id);
        state.shrink_others(Some(self.id), &mut asked);
        state.leave_room(self.id, pass.room, &mut asked);
        let grant = state.arbiter.grant(self.id);
        let (held, rank) = (state.member(self.id)?.held, state.member(self.id)?.rank);
        let more = grant.saturating_sub(held);
        state.room_from_ranges(more, Some(rank), false, &mut ranges);
        let room = state.room();
        let member = state.member(self.id)?;
        let before = member.held;
        let most = (before + room).saturating_sub(pass.room).max(member.floor);
        let holds = grant.min(most);
        member.held = holds.max(before);
        member.running = true;
        member.gives_way = pass.gives_way;
        member.passes += 1;
        state.arbiter.set_least(self.id, holds);
        drop(state);
        drop((asked, ranges));
        if holds == before {
            return Ok(());
        }
        let changed = change(holds);
        let held = if changed.is_ok() { holds } else { before };
        let mut state = self.pool.lock();
        state.arbiter.set_least(self.id, held);
        let member = state.member(self.id)?;
        member.held = held;
        if let Err(error) = changed {
            log::warn!(
                "'{}' runs with {held} bytes, not {holds}: {error}",
                member.name
            );
        }
        Ok(())
    }

    /// The tenant wants other bytes from now on, between its passes: `total` are of use to it, `floor` is the least. `change` has it hold
    /// its grant then, which may be what it holds. `free` is what is free on the device.
    ///
    /// Errors: a floor that does not fit under the cap with those of the others ([`Error::CapTooSmall`]), or of which running passes
    /// hold too much; what `change` says. Then it wants and holds what it did before.
    pub fn change_wants(
        &self,
        (total, floor): (u64, u64),
        free: impl FnOnce() -> Result<u64>,
        change: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        let (mut asked, mut ranges) = (Vec::new(), Vec::new());
        let mut state = self.pool.lock();
        let before = state.member(self.id)?.wants();
        if state.member(self.id)?.running {
            return Err(Error::Busy);
        }
        if state.cap.follows() {
            let free = free()?;
            state.follow(free, 0)?;
        }
        state.arbiter.set_wants(self.id, total, floor)?;
        state.shrink_others(Some(self.id), &mut asked);
        let held = state.member(self.id)?.held;
        // Its floor it needs; what is above that comes in the order of ranks.
        state.room_from_ranges(floor.saturating_sub(held), None, true, &mut ranges);
        state.press_idle(floor.saturating_sub(held), None, &mut asked);
        let grant = state.arbiter.grant(self.id);
        let rank = state.member(self.id)?.rank;
        state.room_from_ranges(grant.saturating_sub(held), Some(rank), true, &mut ranges);
        let room = state.room();
        let holds = grant.min(held + room);
        // rule: new-floor-fits-before-it-is-held
        if holds < floor {
            let member = &state.members[&self.id];
            let what = format!(
                "the floor of '{}', of which {} bytes are left; {}",
                member.name,
                held + room,
                state.who_holds()
            );
            state.want_again(self.id, before);
            drop(state);
            drop((asked, ranges));
            return Err(Error::OutOfMemory { what, bytes: floor });
        }
        let member = state.member(self.id)?;
        (member.total, member.floor) = (total.max(floor), floor);
        member.held = holds.max(held);
        drop(state);
        drop((asked, ranges));
        let changed = change(holds);
        let mut state = self.pool.lock();
        state.member(self.id)?.held = if changed.is_ok() { holds } else { held };
        if changed.is_err() {
            state.want_again(self.id, before);
        }
        changed
    }

    /// The pass is over: `change` has the tenant hold less, if others were promised some of it.
    pub fn end_pass(&self, change: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let mut state = self.pool.lock();
        state.arbiter.set_least(self.id, 0);
        let grant = state.arbiter.grant(self.id);
        let member = state.member(self.id)?;
        (member.running, member.gives_way) = (false, false);
        let less = (member.held > grant).then_some(grant);
        drop(state);
        let Some(grant) = less else { return Ok(()) };
        change(grant)?;
        self.pool.lock().member(self.id)?.held = grant;
        Ok(())
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.arbiter.leave(self.id);
        state.members.remove(&self.id);
    }
}
