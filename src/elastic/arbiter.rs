//! Who may hold how much.
//!
//! Three shadow residencies, one for each rule, are kept in numbers. Each counts what its passes would have copied lately. The
//! grants follow the rule whose shadow copied least.

use super::rule::{even, Claim, Rule, RULES};
use super::tenant::{Lane, Tenant, TenantId, Wants, LANES};
use crate::error::bytes_text;
use crate::{Error, Result};

/// What a shadow copied fades by this with each pass.
const FADE: f64 = 1.0 - 1.0 / 32.0;

/// Another rule is followed once its shadow copied less than this share.
const BETTER: f64 = 0.9;

/// A grant grows by at least one of so many parts of the total.
const SMALL: u64 = 32;

/// Rates look back on this many passes of each tenant.
const WINDOW: f64 = 16.0;

/// Hands out grants under a cap. See the module.
#[derive(Debug)]
pub struct Arbiter {
    cap: u64,
    unit: u64,
    /// Passes of all tenants.
    now: u64,
    joined: u64,
    /// By id.
    tenants: Vec<Tenant>,
    rule: Rule,
    /// What each rule's shadow copied lately.
    copied: [f64; RULES],
    /// Indices of tenants that may lose bytes. Its memory is taken when tenants join.
    losers: Vec<usize>,
}

impl Arbiter {
    /// Grants together stay within `cap`, and move in whole units.
    pub fn new(cap: u64, unit: u64) -> Arbiter {
        Arbiter {
            cap,
            unit: unit.max(1),
            now: 0,
            joined: 0,
            tenants: Vec::new(),
            rule: Rule::Rate,
            copied: [0.0; RULES],
            losers: Vec::new(),
        }
    }

    /// A new tenant, which holds its floor. Others give what is missing for it.
    pub fn join(&mut self, wants: Wants) -> Result<TenantId> {
        let id = TenantId(self.joined);
        let tenant = Tenant::new(id, wants);
        let least = self.least_cap().saturating_add(tenant.floor);
        if least > self.cap {
            return Err(self.too_small(self.cap, least, Some(&tenant)));
        }
        for lane in self.lanes() {
            self.make_room(lane, tenant.floor, None);
        }
        self.joined += 1;
        self.tenants.push(tenant);
        self.losers.reserve(self.tenants.len());
        Ok(id)
    }

    /// The tenant holds nothing any more. The others grow at their next passes.
    pub fn leave(&mut self, id: TenantId) {
        if let Some(at) = self.find(id) {
            self.tenants.remove(at);
        }
    }

    /// Another cap. Under a lower one the tenants of the lowest value shrink.
    pub fn set_cap(&mut self, cap: u64) -> Result<()> {
        let least = self.least_cap();
        if cap < least {
            return Err(self.too_small(cap, least, None));
        }
        self.cap = cap;
        for lane in self.lanes() {
            self.make_room(lane, 0, None);
        }
        Ok(())
    }

    /// Another priority, which counts from the next pass on.
    pub fn set_priority(&mut self, id: TenantId, priority: i64) {
        if let Some(at) = self.find(id) {
            self.tenants[at].priority = priority;
        }
    }

    /// What open leases hold. The grant stays at or above it; where it is below, others give. What they cannot give does not
    /// count.
    pub fn set_least(&mut self, id: TenantId, bytes: u64) {
        let Some(at) = self.find(id) else {
            return;
        };
        self.tenants[at].least = bytes.min(self.tenants[at].total);
        let held = self.tenants[at].held(Lane::GRANTS);
        let wanted = self.tenants[at].lowest(Lane::GRANTS, self.unit);
        if wanted <= held {
            return;
        }
        let lane = (Lane::GRANTS, self.rule);
        self.make_room(lane, wanted - held, Some(at));
        let room = held + self.free(Lane::GRANTS);
        let tenant = &mut self.tenants[at];
        let grant = tenant.down(room.min(wanted), self.unit).max(held);
        tenant.set_held(Lane::GRANTS, grant);
        tenant.least = tenant.least.min(grant);
    }

    /// A pass of this tenant begins. It copies what the grant up to now lacks. What the grant gains is kept from these copies.
    pub fn pass(&mut self, id: TenantId) {
        let Some(at) = self.find(id) else {
            return;
        };
        self.count(at);
        self.choose();
        for rule in Rule::ALL {
            let lane = Lane::shadow(rule.number());
            self.offers(at, lane, rule);
            self.take(at, lane);
        }
        self.offers(at, Lane::GRANTS, self.rule);
        if !self.is_worth_it(at) {
            // rule: hysteresis-starves-nobody
            if !self.may_take_little(at) {
                return;
            }
            // Rates move no byte to and fro.
            self.offers(at, Lane::GRANTS, Rule::Rate);
        }
        self.take(at, Lane::GRANTS);
    }

    /// Bytes that this tenant may hold; none once it left.
    pub fn grant(&self, id: TenantId) -> u64 {
        self.find(id)
            .map_or(0, |at| self.tenants[at].held(Lane::GRANTS))
    }

    /// All grants, in the order in which tenants joined.
    pub fn grants(&self) -> impl Iterator<Item = (TenantId, u64)> + '_ {
        let grant = |tenant: &Tenant| (tenant.id, tenant.held(Lane::GRANTS));
        self.tenants.iter().map(grant)
    }

    /// Bytes that all grants may have together.
    pub fn cap(&self) -> u64 {
        self.cap
    }

    /// The rule that is followed now.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Why a grant is what it is, in a sentence.
    pub fn explain(&self, id: TenantId) -> String {
        let Some(at) = self.find(id) else {
            return "this tenant left".to_owned();
        };
        let own = &self.tenants[at];
        let value = |tenant: &Tenant| self.rule.value(&tenant.history, self.now);
        let above = |other: &&Tenant| {
            let same = other.priority == own.priority && value(other) > value(own);
            other.priority > own.priority || same
        };
        let above = self.tenants.iter().filter(above);
        let above: Vec<_> = above.map(|tenant| format!("'{}'", tenant.name)).collect();
        format!(
            "'{}' may hold {} of {} (floor {}, priority {}) after {} passes by the rule '{}'; above it: {}",
            own.name,
            bytes_text(own.held(Lane::GRANTS)),
            bytes_text(own.total),
            bytes_text(own.floor),
            own.priority,
            own.history.passes,
            self.rule.name(),
            match above.is_empty() {
                true => "nobody".to_owned(),
                false => above.join(", "),
            }
        )
    }

    fn find(&self, id: TenantId) -> Option<usize> {
        self.tenants.binary_search_by_key(&id, |one| one.id).ok()
    }

    /// Below this cap a floor or a lease has no room.
    fn least_cap(&self) -> u64 {
        let lowest = |tenant: &Tenant| tenant.lowest(Lane::GRANTS, self.unit);
        let sizes = self.tenants.iter().map(lowest);
        sizes.fold(0, u64::saturating_add)
    }

    fn too_small(&self, cap: u64, least: u64, new: Option<&Tenant>) -> Error {
        let lowest = |tenant: &Tenant| {
            let bytes = tenant.lowest(Lane::GRANTS, self.unit);
            let leases = match bytes > tenant.floor {
                true => format!(", open leases {}", bytes_text(bytes)),
                false => String::new(),
            };
            format!("'{}' {}{leases}", tenant.name, bytes_text(tenant.floor))
        };
        let tenants: Vec<_> = self.tenants.iter().chain(new).map(lowest).collect();
        Error::CapTooSmall {
            cap,
            least,
            floors: tenants.join(", "),
        }
    }

    /// Bytes under the cap that nobody holds.
    fn free(&self, lane: Lane) -> u64 {
        let held: u64 = self.tenants.iter().map(|one| one.held(lane)).sum();
        self.cap.saturating_sub(held)
    }

    /// Counts a pass: rates, times, and what it copies in each shadow.
    fn count(&mut self, at: usize) {
        self.now += 1;
        let tenants = self.tenants.len() as f64;
        let fading = (1.0 - 1.0 / (WINDOW * tenants), 4.0 * tenants);
        for (number, tenant) in self.tenants.iter_mut().enumerate() {
            tenant.history.tick(number == at, fading);
        }
        self.tenants[at].history.pass(self.now);
        for rule in Rule::ALL {
            let missing = self.tenants[at].missing(Lane::shadow(rule.number()));
            let copied = &mut self.copied[rule.number()];
            *copied = *copied * FADE + missing as f64;
        }
    }

    /// Follows another rule where that copies clearly less.
    fn choose(&mut self) {
        let copied = |rule: Rule| self.copied[rule.number()];
        let best =
            Rule::ALL
                .into_iter()
                .fold(self.rule, |best, rule| match copied(rule) < copied(best) {
                    true => rule,
                    false => best,
                });
        if copied(best) < BETTER * copied(self.rule) {
            self.rule = best;
        }
    }

    /// Writes down what each tenant would give to the one that passes. Without need nobody gives.
    fn offers(&mut self, at: usize, lane: Lane, rule: Rule) {
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
                let above = |tenant: &Tenant, held: u64| {
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
    fn grown(&self, at: usize, lane: Lane) -> u64 {
        let tenant = &self.tenants[at];
        // rule: grants-stay-under-the-cap
        let room = self.free(lane).saturating_add(self.given());
        let most = tenant.held(lane).saturating_add(room);
        tenant.down(most, self.unit_of(lane)).max(tenant.held(lane))
    }

    fn given(&self) -> u64 {
        self.tenants.iter().map(|one| one.gives).sum()
    }

    /// Whether the tenant that passes gains enough, or all that it lacks without a loss to others.
    fn is_worth_it(&self, at: usize) -> bool {
        let (tenant, grown) = (&self.tenants[at], self.grown(at, Lane::GRANTS));
        let gain = grown - tenant.held(Lane::GRANTS);
        let completes = grown == tenant.total && self.given() == 0;
        gain >= small(tenant) || completes
    }

    /// Whether less is enough: for a tenant that holds little above its least, and from tenants of lower priority.
    fn may_take_little(&self, at: usize) -> bool {
        let (tenant, unit) = (&self.tenants[at], self.unit);
        let gives = |other: &Tenant| {
            other.priority < tenant.priority && other.spare(Lane::GRANTS, unit) > 0
        };
        tenant.spare(Lane::GRANTS, unit) < small(tenant) || self.tenants.iter().any(gives)
    }

    /// Moves what others offer to the tenant that passes.
    fn take(&mut self, at: usize, lane: Lane) {
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
    fn make_room(&mut self, (lane, rule): (Lane, Rule), need: u64, except: Option<usize>) {
        self.list(lane, rule, except);
        let unit = self.unit_of(lane);
        let held: u64 = self.tenants.iter().map(|one| one.held(lane)).sum();
        let mut over = held.saturating_add(need).saturating_sub(self.cap);
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

    fn unit_of(&self, lane: Lane) -> u64 {
        match lane {
            Lane::GRANTS => self.unit,
            _ => 1,
        }
    }

    /// The rule of each residency.
    fn lanes(&self) -> [(Lane, Rule); LANES] {
        let shadow = |rule: Rule| (Lane::shadow(rule.number()), rule);
        let [newest, rate, predicted] = Rule::ALL.map(shadow);
        [newest, rate, predicted, (Lane::GRANTS, self.rule)]
    }
}

/// Bytes that are not worth a change of a grant.
fn small(tenant: &Tenant) -> u64 {
    (tenant.total / SMALL).max(1)
}

#[cfg(test)]
#[path = "arbiter_tests.rs"]
mod tests;
