//! Which rule is followed, and which change of a grant is worth it.
//!
//! Three shadow residencies, one for each rule, are kept in numbers. Each counts what its passes would have copied lately. The
//! grants follow the rule whose shadow copied least.

use super::ledger::Ledger;
use super::rank::Rank;
use super::rule::Rule;
use super::tenant::{Lane, TenantId, TenantState, Wants, LANES, SHADOWS};
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
    ledger: Ledger,
    /// How many tenants ever joined.
    joined: u64,
    /// At first by rate, which moves no byte to and fro.
    rule: Rule,
    /// What each rule's shadow copied lately.
    copied: [f64; SHADOWS],
}

impl Arbiter {
    /// Grants together stay within `cap`, and move in whole units.
    pub fn new(cap: u64, unit: u64) -> Arbiter {
        Arbiter {
            ledger: Ledger::new(cap, unit),
            joined: 0,
            rule: Rule::Rate,
            copied: [0.0; SHADOWS],
        }
    }

    /// A new tenant, which holds its floor. Others give what is missing for it.
    pub fn join(&mut self, wants: Wants) -> Result<TenantId> {
        let id = TenantId(self.joined);
        let tenant = TenantState::new(id, wants);
        let least = self.ledger.least_cap().saturating_add(tenant.floor);
        // Saturated floors fit under no cap.
        if least > self.ledger.cap || least == u64::MAX {
            return Err(self.too_small(self.ledger.cap, least, Some(&tenant)));
        }
        for lane in self.lanes() {
            self.ledger.make_room(lane, tenant.floor, None);
        }
        self.joined += 1;
        self.ledger.push(tenant);
        Ok(id)
    }

    /// The tenant holds nothing any more. The others grow at their next passes.
    pub fn leave(&mut self, id: TenantId) {
        if let Some(at) = self.ledger.find(id) {
            self.ledger.tenants.remove(at);
        }
    }

    /// Another cap. Under a lower one the tenants of the lowest value shrink.
    pub fn set_cap(&mut self, cap: u64) -> Result<()> {
        let least = self.ledger.least_cap();
        if cap < least {
            return Err(self.too_small(cap, least, None));
        }
        self.ledger.cap = cap;
        for lane in self.lanes() {
            self.ledger.make_room(lane, 0, None);
        }
        Ok(())
    }

    /// Grants move in such units from now on.
    pub fn set_unit(&mut self, unit: u64) {
        self.ledger.unit = unit.max(1);
    }

    /// Another place in the order, which counts from the next pass on.
    pub fn set_rank(&mut self, id: TenantId, rank: Rank) {
        if let Some(at) = self.ledger.find(id) {
            self.ledger.tenants[at].rank = rank;
        }
    }

    /// What tenants below a rank could give up at once; all of them, if there is none.
    pub fn can_give(&self, below: Option<Rank>) -> u64 {
        let unit = self.ledger.unit;
        let tenants = self.ledger.tenants.iter().filter(|one| one.is_below(below));
        tenants.map(|one| one.spare(Lane::GRANTS, unit)).sum()
    }

    /// The pass of a tenant gave way: it holds its floor from now on.
    pub fn give_way(&mut self, id: TenantId) {
        if let Some(at) = self.ledger.find(id) {
            let tenant = &mut self.ledger.tenants[at];
            tenant.least = 0;
            let floor = tenant.lowest(Lane::GRANTS, self.ledger.unit);
            tenant.set_held(Lane::GRANTS, floor);
        }
    }

    /// The least that a tenant may hold now.
    pub fn lowest(&self, id: TenantId) -> u64 {
        let lowest = |at: usize| self.ledger.tenants[at].lowest(Lane::GRANTS, self.ledger.unit);
        self.ledger.find(id).map_or(0, lowest)
    }

    /// Tenants below a rank give up `bytes` bytes of their grants, as far as they can: those of the lowest rank first.
    pub fn give(&mut self, bytes: u64, below: Option<Rank>) {
        self.ledger.give((Lane::GRANTS, self.rule), bytes, below);
    }

    /// The tenant wants other bytes from now on, between its passes. Others give what its grant lacks of the new floor.
    pub fn set_wants(&mut self, id: TenantId, total: u64, floor: u64) -> Result<()> {
        let Some(at) = self.ledger.find(id) else {
            return Ok(());
        };
        let before = self.ledger.tenants[at].want(total, floor);
        let least = self.ledger.least_cap();
        if least > self.ledger.cap || least == u64::MAX {
            let refused = self.too_small(self.ledger.cap, least, None);
            let (total, floor) = before;
            self.ledger.tenants[at].want(total, floor);
            return Err(refused);
        }
        for lane in self.lanes() {
            self.ledger.fit(at, lane);
        }
        Ok(())
    }

    /// What open leases hold, or what leases of the pass that runs may come to hold. The grant stays at or above it; where it
    /// is below, others give. What they cannot give does not count.
    pub fn set_least(&mut self, id: TenantId, bytes: u64) {
        let Some(at) = self.ledger.find(id) else {
            return;
        };
        self.ledger.tenants[at].least = bytes.min(self.ledger.tenants[at].total);
        let held = self.ledger.tenants[at].held(Lane::GRANTS);
        let wanted = self.ledger.tenants[at].lowest(Lane::GRANTS, self.ledger.unit);
        if wanted <= held {
            return;
        }
        let lane = (Lane::GRANTS, self.rule);
        self.ledger.make_room(lane, wanted - held, Some(at));
        let room = held + self.ledger.free(Lane::GRANTS);
        let tenant = &mut self.ledger.tenants[at];
        let grant = tenant.down(room.min(wanted), self.ledger.unit).max(held);
        tenant.set_held(Lane::GRANTS, grant);
        tenant.least = tenant.least.min(grant);
    }

    /// A pass of this tenant begins. It copies what the grant up to now lacks. What the grant gains is kept from these copies.
    pub fn pass(&mut self, id: TenantId) {
        let Some(at) = self.ledger.find(id) else {
            return;
        };
        self.count(at);
        self.choose();
        for rule in Rule::ALL {
            let lane = Lane::shadow(rule.number());
            self.ledger.offers(at, lane, rule);
            self.ledger.take(at, lane);
        }
        self.ledger.offers(at, Lane::GRANTS, self.rule);
        if !self.is_worth_it(at) {
            if !self.may_take_little(at) {
                return;
            }
            // Rates move no byte to and fro.
            self.ledger.offers(at, Lane::GRANTS, Rule::Rate);
        }
        self.ledger.take(at, Lane::GRANTS);
    }

    /// Bytes that this tenant may hold; none once it left.
    pub fn grant(&self, id: TenantId) -> u64 {
        self.ledger
            .find(id)
            .map_or(0, |at| self.ledger.tenants[at].held(Lane::GRANTS))
    }

    /// All grants, in the order in which tenants joined.
    pub fn grants(&self) -> impl Iterator<Item = (TenantId, u64)> + '_ {
        let grant = |tenant: &TenantState| (tenant.id, tenant.held(Lane::GRANTS));
        self.ledger.tenants.iter().map(grant)
    }

    /// Bytes that all grants may have together.
    pub fn cap(&self) -> u64 {
        self.ledger.cap
    }

    /// The least cap: what the floors and the open leases of all tenants need.
    pub fn least_cap(&self) -> u64 {
        self.ledger.least_cap()
    }

    /// The rule that is followed now.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Why a grant is what it is, in a sentence.
    pub fn explain(&self, id: TenantId) -> String {
        let Some(at) = self.ledger.find(id) else {
            return "this tenant left".to_owned();
        };
        let own = &self.ledger.tenants[at];
        let value = |tenant: &TenantState| self.rule.value(&tenant.history, self.ledger.now);
        let above = |other: &&TenantState| {
            let same = other.rank == own.rank && value(other) > value(own);
            other.rank > own.rank || same
        };
        let above = self.ledger.tenants.iter().filter(above);
        let above: Vec<_> = above.map(|tenant| format!("'{}'", tenant.name)).collect();
        format!(
            "'{}' may hold {} of {} (floor {}, priority {}, passes {}) by the rule '{}'; above it: {}",
            own.name,
            bytes_text(own.held(Lane::GRANTS)),
            bytes_text(own.total),
            bytes_text(own.floor),
            own.rank.priority(),
            own.history.passes,
            self.rule.name(),
            match above.is_empty() {
                true => "nobody".to_owned(),
                false => above.join(", "),
            }
        )
    }

    fn too_small(&self, cap: u64, least: u64, new: Option<&TenantState>) -> Error {
        let lowest = |tenant: &TenantState| {
            let bytes = tenant.lowest(Lane::GRANTS, self.ledger.unit);
            let running = match bytes > tenant.floor {
                true => " until its pass has ended",
                false => "",
            };
            format!("'{}' {}{running}", tenant.name, bytes_text(bytes))
        };
        let tenants: Vec<_> = self.ledger.tenants.iter().chain(new).map(lowest).collect();
        Error::CapTooSmall {
            cap,
            least,
            floors: tenants.join(", "),
        }
    }

    /// Counts a pass: rates, times, and what it copies in each shadow.
    fn count(&mut self, at: usize) {
        self.ledger.now += 1;
        let tenants = self.ledger.tenants.len() as f64;
        let fading = (1.0 - 1.0 / (WINDOW * tenants), 4.0 * tenants);
        for (number, tenant) in self.ledger.tenants.iter_mut().enumerate() {
            tenant.history.tick(number == at, fading);
        }
        self.ledger.tenants[at].history.pass(self.ledger.now);
        for rule in Rule::ALL {
            let missing = self.ledger.tenants[at].missing(Lane::shadow(rule.number()));
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

    /// Whether the tenant that passes gains enough, or all that it lacks without a loss to others.
    fn is_worth_it(&self, at: usize) -> bool {
        let (tenant, grown) = (
            &self.ledger.tenants[at],
            self.ledger.grown(at, Lane::GRANTS),
        );
        let gain = grown - tenant.held(Lane::GRANTS);
        let completes = grown == tenant.total && self.ledger.given() == 0;
        gain >= small(tenant) || completes
    }

    /// Whether less is enough: for a tenant that holds little above its least, and from tenants of lower rank.
    fn may_take_little(&self, at: usize) -> bool {
        let (tenant, unit) = (&self.ledger.tenants[at], self.ledger.unit);
        let gives =
            |other: &TenantState| other.rank < tenant.rank && other.spare(Lane::GRANTS, unit) > 0;
        tenant.spare(Lane::GRANTS, unit) < small(tenant) || self.ledger.tenants.iter().any(gives)
    }

    /// The rule of each residency.
    fn lanes(&self) -> [(Lane, Rule); LANES] {
        let shadow = |rule: Rule| (Lane::shadow(rule.number()), rule);
        let [newest, rate, predicted] = Rule::ALL.map(shadow);
        [newest, rate, predicted, (Lane::GRANTS, self.rule)]
    }
}

/// Bytes that are not worth a change of a grant.
fn small(tenant: &TenantState) -> u64 {
    (tenant.total / SMALL).max(1)
}

#[cfg(test)]
#[path = "arbiter_tests.rs"]
mod tests;
