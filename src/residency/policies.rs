//! Stand-in until the planner comes.
#![allow(missing_docs)]
use super::{AllResident, Layout, Lru, Policy};
use crate::config::PolicyKind;
use crate::figures::{DeviceModel, Link};
use crate::schedule::{KernelTimes, Trace, WeightSpec};

pub struct Request<'a> {
    pub kind: PolicyKind,
    pub trace: &'a Trace,
    pub weights: &'a [WeightSpec],
    pub model: &'a DeviceModel,
    pub capacity: u64,
    pub link: Option<Link>,
    pub times: Option<&'a KernelTimes>,
}
#[derive(Clone)]
pub struct Plan;
#[derive(Clone)]
pub struct Residency {
    pub layout: Layout,
    trace: Trace,
    weights: Vec<WeightSpec>,
    granule: u64,
    capacity: u64,
}
impl Residency {
    pub fn plan(&self) -> Option<&Plan> {
        None
    }
    pub fn policy(&self) -> Box<dyn Policy> {
        match self.layout.is_per_weight() {
            true => Box::new(Lru::new(
                &self.trace,
                &self.weights,
                self.granule,
                self.capacity,
            )),
            false => Box::new(AllResident::new(&self.trace, &self.weights, self.granule)),
        }
    }
}
pub fn choose(r: &Request<'_>) -> Residency {
    let all = AllResident::new(r.trace, r.weights, r.model.granule);
    let layout = all.layout(r.weights.len());
    let layout = match layout.fixed_bytes() <= r.capacity {
        true => layout,
        false => Layout::per_weight(),
    };
    Residency {
        layout,
        trace: r.trace.clone(),
        weights: r.weights.to_vec(),
        granule: r.model.granule,
        capacity: r.capacity,
    }
}
pub fn replan(_: &Request<'_>, _: &Residency) -> Option<Residency> {
    None
}
