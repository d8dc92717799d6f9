//! Who has what of a device, and why.

use super::member::Tenant;
use super::pool::{DevicePool, Member};
use super::range_share::RangeMemory;
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
    /// Name and bytes of each range that holds some.
    pub each_range: Vec<(String, u64)>,
    /// In the order in which they joined.
    pub tenants: Vec<TenantReport>,
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantReport {
    /// Its methods, and the file of its weights.
    pub name: String,
    /// As the load said.
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
             \"range_bytes\": {}, \"ranges\": [{}], \"rule\": {}, \"tenants\": [{}]}}",
            quoted(&self.device),
            cap,
            self.follows_free,
            self.tenants.iter().map(|tenant| tenant.held).sum::<u64>(),
            self.ranges,
            ranges.join(", "),
            quoted(self.rule),
            tenants.join(", ")
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

type Members = (Option<Arc<dyn RangeMemory>>, Vec<Arc<dyn Tenant>>);

impl DevicePool {
    /// Who has what, and why.
    pub fn report(&self) -> Report {
        // They end after the lock is gone, and are asked before it is taken: they take it themselves.
        let (ranges, tenants) = self.members();
        let each_range = ranges.as_ref().map_or(vec![], |ranges| ranges.holders());
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
            priority: member.priority,
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
            each_range,
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
