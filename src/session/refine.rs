//! The plan is made anew, once, when it is known how long kernels run.
//!
//! The pass behind the first complete one is timed: marks on the compute stream, in front of each wait for a copy, behind
//! it, and where each lease ends. What lies between a wait's two marks is no kernel's time. When that pass is over, nothing
//! runs and nothing is leased, so that all weights may move: the memory goes back, and is taken as the new plan shows it.

use super::choose::capacity;
use super::{build, Program, Session};
use crate::config::PolicyKind;
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::figures::{DeviceModel, Link};
#[cfg(feature = "sim")]
use crate::residency::planned::Plan;
use crate::residency::{replan, Request, Residency};
use crate::schedule::{Event, KernelTimes, ProbeId};

/// Until the plan is final.
pub(super) struct Refine {
    residency: Residency,
    figures: DeviceModel,
    link: Link,
    /// What the kernels behind each mark of the pass belong to, if they are any; `None` outside of the timed pass.
    marks: Option<Vec<Option<Event>>>,
}

impl Refine {
    /// Of a session that begins with this, if something streams by a plan.
    pub(super) fn new(
        figures: DeviceModel,
        residency: &Residency,
        link: Option<Link>,
    ) -> Option<Refine> {
        let link = link.filter(|_| residency.plan().is_some_and(|p| !p.streamed.is_empty()))?;
        Some(Refine {
            residency: residency.clone(),
            figures,
            link,
            marks: None,
        })
    }

    /// A residency by which passes are shorter, if there is one, for kernels of these times.
    fn better(&self, program: &Program, capacity: u64, times: &KernelTimes) -> Option<Residency> {
        let request = Request {
            kind: PolicyKind::Planned,
            trace: &program.trace,
            weights: &program.weights,
            model: &self.figures,
            capacity,
            link: Some(self.link),
            times: Some(times),
        };
        replan(&request, &self.residency)
    }
}

impl<D: Device> Session<D> {
    /// In front of a wait for the copy of a read.
    #[inline]
    pub(super) fn mark_wait(&mut self) {
        if self.refine.is_some() {
            self.mark(None);
        }
    }

    /// Behind the wait of a read.
    #[inline]
    pub(super) fn mark_read(&mut self, id: ProbeId) {
        if self.refine.is_some() {
            self.mark(Some(Event::Probe(id)));
        }
    }

    /// Where the lease of a read ends.
    #[inline]
    pub(super) fn mark_end(&mut self, id: ProbeId) {
        if self.refine.is_some() {
            self.mark(Some(Event::Release(id)));
        }
    }

    #[cold]
    fn mark(&mut self, what: Option<Event>) {
        let marks = self.refine.as_mut().and_then(|one| one.marks.as_mut());
        let Some(marks) = marks else { return };
        match self.device.mark() {
            Ok(()) => marks.push(what),
            Err(error) => self.stop_refining(&error),
        }
    }

    /// The plan stays as it is. The pass is none the worse for it.
    #[cold]
    fn stop_refining(&mut self, error: &Error) {
        log::warn!("kernels could not be timed, so the plan stays as it was made at load: {error}");
        self.refine = None;
    }

    /// Behind a pass that was not completed: its times are worth nothing.
    pub(super) fn forget_marks(&mut self) {
        let timed = self.refine.as_mut().and_then(|one| one.marks.as_mut());
        let Some(marks) = timed else { return };
        marks.clear();
        if let Err(error) = self.device.take_marks() {
            self.stop_refining(&error);
        }
    }

    /// Behind a complete pass: times the next one, or makes use of what was timed. A failure that leaves the weights without
    /// memory is one of all later passes; the one that has ended is right.
    pub(super) fn refine_when_due(&mut self) {
        match self.refine.take() {
            Some(mut refine) if refine.marks.is_none() => {
                refine.marks = Some(Vec::with_capacity(3 * self.leased.len() + 1));
                self.refine = Some(refine);
            }
            Some(mut refine) => {
                let marks = refine.marks.take().unwrap_or_default();
                match self.take_times(&marks) {
                    Ok(times) => {
                        self.replan(*refine, &times);
                        self.times = Some(times);
                    }
                    Err(error) => self.stop_refining(&error),
                }
            }
            None => {}
        }
    }

    /// How long kernels ran. `marks` are those of a complete pass.
    fn take_times(&mut self, marks: &[Option<Event>]) -> Result<KernelTimes> {
        self.device.mark()?;
        self.device.synchronize()?;
        let spans = self.device.take_marks()?;
        if spans.len() != marks.len() {
            return Err(Error::Internal(format!(
                "{} marks, and {} times between them and the end",
                marks.len(),
                spans.len()
            )));
        }
        let mut times = KernelTimes::new(self.program.trace.probes().len());
        for (mark, span) in marks.iter().zip(spans) {
            if let Some(event) = *mark {
                times.add(event, span);
            }
        }
        Ok(times)
    }

    /// For tests of plans that no planner made: between passes, all weights move to where `plan` has them.
    #[cfg(feature = "sim")]
    pub fn use_plan(&mut self, plan: &Plan) -> Result<()> {
        let probes = self.leased.len();
        let residency = Residency::of_plan(plan.clone(), &self.program.weights, probes);
        self.move_weights(&residency)
    }

    fn replan(&mut self, refine: Refine, times: &KernelTimes) {
        let Some(plan) = refine.better(&self.program, capacity(&self.stats), times) else {
            return;
        };
        let Err(error) = self.move_weights(&plan) else {
            self.stats.replans += 1;
            return;
        };
        log::warn!("the plan that was made anew could not be used, so the first one is: {error}");
        if let Err(again) = self.move_weights(&refine.residency) {
            self.poison(format!(
                "the weights could not be moved for a plan that was made anew ({error}), nor back: {again}"
            ));
        }
    }

    /// Between passes: gives the memory of all weights back, and loads what stays by `plan`.
    fn move_weights(&mut self, residency: &Residency) -> Result<()> {
        self.finish_replays()?;
        self.device.synchronize()?;
        if self.block != DevicePtr::EMPTY {
            match self.layout.view() {
                Some(view) => self.pool.unmap(&mut self.device, self.block, view)?,
                None => {
                    let bytes = self.layout.bytes();
                    self.pool.give(&mut self.device, self.block, bytes)?;
                }
            }
        }
        self.block = DevicePtr::EMPTY;
        for (tenant, spec) in self.tenants.iter_mut().zip(&self.program.weights) {
            if build::is_probed(spec) {
                tenant.move_out();
            }
        }
        self.policy = residency.policy();
        self.layout = residency.layout.clone();
        self.take_block()?;
        // What stays is loaded ahead of no probe of a pass.
        let prefetches = self.stats.prefetches;
        let loaded = self.load_resident();
        self.stats.prefetches = prefetches;
        loaded
    }
}
