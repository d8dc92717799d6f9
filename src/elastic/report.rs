//! Who has what of a device, and why.

use super::member::Tenant;
use super::pool::{DevicePool, Member, PoolState};
use super::range_share::{Holding, RangeMemory};
use super::rank::Rank;
use super::tenant::TenantId;
use crate::config::quoted;
use std::sync::{Arc, Weak};

/// The state of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// As `cpu` or `cuda:0`.
    pub device: String,
    /// Bytes that all tenants may hold together; where it follows what is free and no pass has looked yet, what a pass would find.
    pub cap: u64,
    /// `false` where it follows what is free, and nobody is there who could look.
    pub cap_is_known: bool,
    /// The cap follows what is free on the device.
    pub follows_free: bool,
    /// The rule that grants follow now.
    pub rule: &'static str,
    /// Bytes that ranges hold: what the tenants leave.
    pub ranges: u64,
    /// Name and bytes of each range that holds some, and of each holder beside them.
    pub each_range: Vec<(String, u64)>,
    /// Everybody, whose memory goes last first.
    pub order: Vec<Ranked>,
    /// In the order in which they joined.
    pub tenants: Vec<TenantReport>,
}

/// A place in the order of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranked {
    /// The tenant, the range or the holder.
    pub name: String,
    /// `model`, `range`, or `held` for memory that its owner gives up itself.
    pub kind: &'static str,
    /// `None` for what is held.
    pub rank: Option<Rank>,
    /// Bytes that it holds.
    pub held: u64,
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantReport {
    /// Its methods, and the file of its weights.
    pub name: String,
    /// As the load said, or a later call.
    pub priority: i64,
    /// The least bytes with which it runs.
    pub floor: u64,
    /// Bytes with which its passes copy nothing.
    pub total: u64,
    /// Bytes that it may hold.
    pub grant: u64,
    /// Bytes that it holds.
    pub held: u64,
    /// Passes that began.
    pub passes: u64,
    /// A pass of it runs.
    pub running: bool,
    /// The grant, in a sentence.
    pub why: String,
}

impl Report {
    /// As JSON, in one line.
    pub fn to_json(&self) -> String {
        let tenants: Vec<String> = self.tenants.iter().map(TenantReport::to_json).collect();
        let range = |(name, bytes): &(String, u64)| {
            format!("{{\"name\": {}, \"held_bytes\": {bytes}}}", quoted(name))
        };
        let ranges: Vec<String> = self.each_range.iter().map(range).collect();
        let cap = match self.cap_is_known {
            true => self.cap.to_string(),
            false => "null".to_owned(),
        };
        format!(
            "{{\"device\": {}, \"cap_bytes\": {}, \"follows_free_memory\": {}, \"held_bytes\": {}, \
             \"range_bytes\": {}, \"ranges\": [{}], \"order\": [{}], \"rule\": {}, \"tenants\": [{}]}}",
            quoted(&self.device),
            cap,
            self.follows_free,
            self.tenants.iter().map(|tenant| tenant.held).sum::<u64>(),
            self.ranges,
            ranges.join(", "),
            self.order.iter().map(Ranked::to_json).collect::<Vec<_>>().join(", "),
            quoted(self.rule),
            tenants.join(", ")
        )
    }
}

impl Ranked {
    fn to_json(&self) -> String {
        let rank = self.rank;
        let priority = rank.map_or("null".to_owned(), |rank| rank.priority().to_string());
        format!(
            "{{\"name\": {}, \"kind\": {}, \"priority\": {priority}, \"held_bytes\": {}}}",
            quoted(&self.name),
            quoted(self.kind),
            self.held
        )
    }
}

impl TenantReport {
    fn to_json(&self) -> String {
        format!(
            "{{\"name\": {}, \"priority\": {}, \"floor_bytes\": {}, \"total_bytes\": {}, \"grant_bytes\": {}, \
             \"held_bytes\": {}, \"passes\": {}, \"running\": {}, \"why\": {}}}",
            quoted(&self.name),
            self.priority,
            self.floor,
            self.total,
            self.grant,
            self.held,
            self.passes,
            self.running,
            quoted(&self.why)
        )
    }
}

impl PoolState {
    /// Everybody in the order of the device. Among equal ranks stores come before ranges: these give when a pass begins.
    fn order(&self, others: Vec<Holding>) -> Vec<Ranked> {
        let store = |member: &Member| Ranked {
            name: member.name.clone(),
            kind: "model",
            rank: Some(member.rank),
            held: member.held,
        };
        let other = |one: Holding| Ranked {
            kind: if one.rank.is_some() { "range" } else { "held" },
            name: one.name,
            rank: one.rank,
            held: one.bytes,
        };
        let mut order: Vec<Ranked> = self.members.values().map(store).collect();
        order.extend(others.into_iter().map(other));
        order.sort_by_key(|one| {
            std::cmp::Reverse(one.rank.map_or((1, Rank::default()), |rank| (0, rank)))
        });
        order
    }
}

type Members = (Option<Arc<dyn RangeMemory>>, Vec<Arc<dyn Tenant>>);

impl DevicePool {
    /// Who has what, and why.
    pub fn report(&self) -> Report {
        // They end after the lock is gone, and are asked before it is taken: they take it themselves.
        let (ranges, tenants) = self.members();
        let others = ranges.as_ref().map_or(vec![], |ranges| ranges.holders());
        let known = self.lock().cap.is_known();
        let free = match known {
            true => None,
            false => tenants
                .iter()
                .find_map(|tenant| tenant.free_bytes())
                .or_else(|| ranges.as_ref().and_then(|ranges| ranges.free_bytes())),
        };
        let state = self.lock();
        let seen = free.map(|free| state.available(free, 0));
        let one = |(id, member): (&TenantId, &Member)| TenantReport {
            name: member.name.clone(),
            priority: member.rank.priority(),
            floor: member.floor,
            total: member.total,
            grant: state.arbiter.grant(*id),
            held: member.held,
            passes: member.passes,
            running: member.running,
            why: state.arbiter.explain(*id),
        };
        Report {
            device: self.device.clone(),
            cap: seen.unwrap_or(state.arbiter.cap()),
            cap_is_known: known || seen.is_some(),
            follows_free: state.cap.follows(),
            rule: state.arbiter.rule().name(),
            ranges: state.ranges.held,
            each_range: { others.iter() }
                .filter(|one| one.bytes > 0)
                .map(|one| (one.name.clone(), one.bytes))
                .collect(),
            order: state.order(others),
            tenants: state.members.iter().map(one).collect(),
        }
    }

    /// The ranges, and all tenants that can be asked.
    fn members(&self) -> Members {
        let state = self.lock();
        let tenants = state.members.values();
        let tenants = tenants.filter_map(|one| one.tenant.as_ref().and_then(Weak::upgrade));
        (state.ranges.memory(), tenants.collect())
    }

    /// The cap, and the bytes that each tenant holds.
    pub(super) fn holders(&self) -> (u64, Vec<(String, u64)>) {
        let state = self.lock();
        let one = |member: &Member| (format!("'{}'", member.name), member.held);
        let all = state.members.values().map(one).collect();
        (state.arbiter.cap(), all)
    }
}
