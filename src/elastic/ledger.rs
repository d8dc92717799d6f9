//! Who holds how much, in the real residency and in the shadows; and how bytes move under the cap.

use super::rank::Rank;
use super::rule::{even, Claim, Rule};
use super::tenant::{Lane, TenantId, TenantState};

#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) cap: u64,
    /// Grants move in multiples of it.
    pub(super) unit: u64,
    /// Passes of all tenants.
    pub(super) now: u64,
    /// By id.
    pub(super) tenants: Vec<TenantState>,
    /// Indices of tenants that may lose bytes. Its memory is taken when tenants join.
    losers: Vec<usize>,
}

impl Ledger {
    pub(super) fn new(cap: u64, unit: u64) -> Ledger {
        Ledger {
            cap,
            unit: unit.max(1),
            now: 0,
            tenants: Vec::new(),
            losers: Vec::new(),
        }
    }

    /// The tenant holds its floor, for which there is room.
    pub(super) fn push(&mut self, tenant: TenantState) {
        self.tenants.push(tenant);
        self.losers.reserve(self.tenants.len());
    }

    pub(super) fn find(&self, id: TenantId) -> Option<usize> {
        self.tenants.binary_search_by_key(&id, |one| one.id).ok()
    }

    /// Below this cap a floor or a lease has no room.
    pub(super) fn least_cap(&self) -> u64 {
        let lowest = |tenant: &TenantState| tenant.lowest(Lane::GRANTS, self.unit);
        let sizes = self.tenants.iter().map(lowest);
        sizes.fold(0, u64::saturating_add)
    }

    /// Bytes under the cap that nobody holds.
    pub(super) fn free(&self, lane: Lane) -> u64 {
        let held: u64 = self.tenants.iter().map(|one| one.held(lane)).sum();
        self.cap.saturating_sub(held)
    }

    /// Writes down what each tenant would give to the one that passes. Without need nobody gives.
    pub(super) fn offers(&mut self, at: usize, lane: Lane, rule: Rule) {
        for tenant in &mut self.tenants {
            tenant.gives = 0;
        }
        let mut need = self.tenants[at]
            .missing(lane)
            .saturating_sub(self.free(lane));
        if need == 0 {
            return;
        }
        self.list(lane, rule, Some(at));
        let mut losers = std::mem::take(&mut self.losers);
        losers.retain(|&loser| self.gives(rule, at, loser, (lane, need)) > 0);
        self.losers = losers;
        while need > 0 {
            let Some(loser) = self.next_loser() else {
                break;
            };
            let gives = self.gives(rule, at, loser, (lane, need));
            need = need.saturating_sub(gives);
            self.tenants[loser].gives = gives;
        }
    }

    /// What `loser` gives to a tenant that passes and needs so much, besides what others give.
    fn gives(&self, rule: Rule, at: usize, loser: usize, (lane, need): (Lane, u64)) -> u64 {
        let (passing, loser) = (&self.tenants[at], &self.tenants[loser]);
        let (held, unit) = (loser.held(lane), self.unit_of(lane));
        let left = match rule.claim(passing, loser, self.now) {
            Claim::Nothing => held,
            Claim::All => loser.down(held - need.min(held), unit),
            Claim::Even => {
                let above = |tenant: &TenantState, held: u64| {
                    (
                        held.saturating_sub(tenant.floor),
                        tenant.total - tenant.floor,
                    )
                };
                let got = passing.total - need;
                let part = even(above(passing, got), above(loser, held));
                loser.up(held - part.min(need), unit)
            }
        };
        held.saturating_sub(left.max(loser.lowest(lane, unit)))
    }

    /// Fills `losers` with all that hold more than they must, but for one.
    fn list(&mut self, lane: Lane, rule: Rule, except: Option<usize>) {
        let (unit, now) = (self.unit_of(lane), self.now);
        self.losers.clear();
        for (at, tenant) in self.tenants.iter_mut().enumerate() {
            if Some(at) != except && tenant.spare(lane, unit) > 0 {
                tenant.value = rule.value(&tenant.history, now);
                self.losers.push(at);
            }
        }
    }

    /// Takes out the one that loses its bytes first. Few are asked for, so sorting all of them takes longer.
    fn next_loser(&mut self) -> Option<usize> {
        let order = |one: usize, other: usize| self.tenants[one].order(&self.tenants[other]);
        let all = 0..self.losers.len();
        let first = all.min_by(|&one, &other| order(self.losers[one], self.losers[other]))?;
        Some(self.losers.swap_remove(first))
    }

    /// What the tenant that passes holds once it took what others offer.
    pub(super) fn grown(&self, at: usize, lane: Lane) -> u64 {
        let tenant = &self.tenants[at];
        let room = self.free(lane).saturating_add(self.given());
        let most = tenant.held(lane).saturating_add(room);
        tenant.down(most, self.unit_of(lane)).max(tenant.held(lane))
    }

    pub(super) fn given(&self) -> u64 {
        self.tenants.iter().map(|one| one.gives).sum()
    }

    /// Moves what others offer to the tenant that passes.
    pub(super) fn take(&mut self, at: usize, lane: Lane) {
        let grown = self.grown(at, lane);
        if grown == self.tenants[at].held(lane) {
            return;
        }
        for tenant in &mut self.tenants {
            tenant.set_held(lane, tenant.held(lane) - tenant.gives);
        }
        self.tenants[at].set_held(lane, grown);
    }

    /// Tenants of the lowest value shrink, until `need` bytes are free or all but one hold their least.
    pub(super) fn make_room(
        &mut self,
        (lane, rule): (Lane, Rule),
        need: u64,
        except: Option<usize>,
    ) {
        self.list(lane, rule, except);
        let held: u64 = self.tenants.iter().map(|one| one.held(lane)).sum();
        let over = held.saturating_add(need).saturating_sub(self.cap);
        self.take_from_losers(lane, over);
    }

    /// Tenants below a rank shrink by `bytes` together, or to their least.
    pub(super) fn give(&mut self, (lane, rule): (Lane, Rule), bytes: u64, below: Option<Rank>) {
        self.list(lane, rule, None);
        let tenants = &self.tenants;
        self.losers.retain(|&loser| tenants[loser].is_below(below));
        self.take_from_losers(lane, bytes);
    }

    /// Those in `losers` shrink in their order.
    fn take_from_losers(&mut self, lane: Lane, mut over: u64) {
        let unit = self.unit_of(lane);
        while over > 0 {
            let Some(loser) = self.next_loser() else {
                break;
            };
            let tenant = &mut self.tenants[loser];
            let held = tenant.held(lane);
            let left = tenant
                .down(held - over.min(held), unit)
                .max(tenant.lowest(lane, unit));
            tenant.set_held(lane, left);
            over = over.saturating_sub(held - left);
        }
    }

    /// One tenant wants other bytes than before: it holds at least its floor, and no more than is of use to it.
    pub(super) fn fit(&mut self, at: usize, (lane, rule): (Lane, Rule)) {
        let (held, unit) = (self.tenants[at].held(lane), self.unit_of(lane));
        let lowest = self.tenants[at].lowest(lane, unit);
        if held < lowest {
            self.make_room((lane, rule), lowest - held, Some(at));
        }
        let tenant = &mut self.tenants[at];
        tenant.set_held(lane, tenant.down(held.max(lowest), unit));
    }

    fn unit_of(&self, lane: Lane) -> u64 {
        match lane {
            Lane::GRANTS => self.unit,
            _ => 1,
        }
    }
}
