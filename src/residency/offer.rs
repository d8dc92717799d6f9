//! What a policy is asked for, and what it offers.

use super::layout::{Backing, Layout};
use super::planned::{Plan, Planned};
use super::Policy;
use crate::config::PolicyKind;
use crate::figures::{DeviceModel, Link};
use crate::schedule::{KernelTimes, MethodTrace, WeightSpec};
use std::sync::Arc;

/// A program, a device and a budget.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The policy that the user asked for.
    pub kind: PolicyKind,
    /// The methods of the program.
    pub methods: &'a [MethodTrace<'a>],
    /// All constants.
    pub weights: &'a [WeightSpec],
    /// The device, beside the direct constants ([`DeviceModel::beside`]).
    pub model: &'a DeviceModel,
    /// Bytes for weights.
    pub capacity: u64,
    /// What copies cost, if that was measured or given.
    pub link: Option<Link>,
    /// How long kernels run, by method, of those of which it is known. Where some are, the others' kernels count as if they took no
    /// time: their passes take what their copies do.
    pub times: &'a [Option<&'a KernelTimes>],
}

impl Request<'_> {
    /// Occupied bytes of all weights that are read.
    pub fn total(&self) -> u64 {
        let read = self.weights.iter().zip(self.is_read());
        let sizes = read.map(|(weight, read)| match read {
            true => self.model.occupied(weight.occupied(self.model.granule)),
            false => 0,
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// Whether all weights fit, and none is to be copied in each pass.
    pub(crate) fn all_may_stay(&self) -> bool {
        let mut read = self.weights.iter().zip(self.is_read());
        self.total() <= self.capacity && !read.any(|(weight, read)| read && weight.is_streamed())
    }

    /// Whether a method reads each weight.
    pub(super) fn is_read(&self) -> Vec<bool> {
        let mut read = vec![false; self.weights.len()];
        for &weight in self.methods.iter().flat_map(|one| one.trace.probes()) {
            read[weight as usize] = true;
        }
        read
    }
}

/// A policy that was chosen, and where memory lies for it.
#[derive(Clone)]
pub struct Residency {
    /// Where memory lies.
    pub layout: Layout,
    /// Why it was chosen, for the log and `weightstream plan`.
    pub why: String,
    plan: Option<Arc<Plan>>,
    fresh: Arc<dyn Fresh>,
}

/// A policy that has seen nothing.
trait Fresh: Send + Sync {
    fn fresh(&self) -> Box<dyn Policy>;
}

impl<P: Policy + Clone + Sync + 'static> Fresh for P {
    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

impl Residency {
    /// By this policy, which has seen nothing.
    pub fn new(policy: impl Policy + Clone + Sync + 'static, layout: Layout) -> Residency {
        Residency {
            layout,
            why: "as asked for".to_owned(),
            plan: None,
            fresh: Arc::new(policy),
        }
    }

    /// By a plan for a program with these constants, whose methods have so many probes.
    pub fn of_plan(plan: Plan, weights: &[WeightSpec], probes: &[usize]) -> Residency {
        let layout = Layout {
            memory: Backing::Mapped(plan.view.clone()),
            windows: plan.windows.clone(),
        };
        let policy = Planned::new(&plan, weights.len(), probes);
        Residency {
            plan: Some(Arc::new(plan)),
            ..Residency::new(policy, layout)
        }
    }

    /// The same, chosen for this reason.
    pub(super) fn because(self, why: String) -> Residency {
        Residency { why, ..self }
    }

    /// A policy that has seen nothing.
    pub fn policy(&self) -> Box<dyn Policy> {
        self.fresh.fresh()
    }

    /// The plan that it carries out, if it is a planned one.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_deref()
    }
}
