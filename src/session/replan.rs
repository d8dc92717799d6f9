//! Kernels are timed once, and a better plan is taken where their times show one.
//!
//! Of each method the pass after the first complete one is timed: marks on the compute stream before each wait for a copy, after
//! it, and where each lease ends. What lies between a wait's two marks is no kernel's time. When that pass is over, nothing runs and nothing
//! is leased, so that all weights may move: the memory goes back, and is taken as the new plan needs it.

use super::hooks::Playing;
use super::Session;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::residency::{self, Residency};
use crate::schedule::{Event, KernelTimes};

impl<D: Device> Playing<'_, D> {
    /// Before a wait for a copy; after the wait of a read; where a lease ends. What follows belongs to this event, if to any.
    #[inline]
    pub(super) fn mark(&mut self, what: Option<Event>) {
        if self.pass.marks.is_some() {
            self.mark_now(what);
        }
    }

    #[cold]
    fn mark_now(&mut self, what: Option<Event>) {
        let Some(marks) = &mut self.pass.marks else {
            return;
        };
        match self.store.device.mark() {
            Ok(()) => marks.push(what),
            Err(error) => self.stop_timing(&error),
        }
    }

    /// The plan stays as it is. The pass is none the worse for it.
    #[cold]
    fn stop_timing(&mut self, error: &Error) {
        log::warn!("kernels could not be timed, so the plan stays as it was made at load: {error}");
        self.timing.kernels = false;
        self.pass.marks = None;
    }
}

impl<D: Device> Session<D> {
    /// Graphs of one method would not outlive the plan that times of another one bring.
    pub(super) fn may_time_kernels(&self) -> bool {
        self.timing.kernels && (self.passes.len() == 1 || self.graphs.is_none())
    }

    /// After a pass that was not completed: its times are worth nothing.
    pub(super) fn forget_marks(&mut self) {
        let Some(marks) = &mut self.pass_mut().marks else {
            return;
        };
        marks.clear();
        if let Err(error) = self.store.device.take_marks() {
            self.playing().stop_timing(&error);
        }
    }

    /// After a complete pass: times the next one of its method, or makes use of what was timed. A failure that leaves the weights
    /// without memory is one of all later passes; the one that has ended is right.
    pub(super) fn time_when_due(&mut self) {
        if !self.will_time_kernels() {
            return;
        }
        let Some(marks) = self.pass_mut().marks.take() else {
            let most = 3 * self.pass().leased.len() + 1;
            self.pass_mut().marks = Some(Vec::with_capacity(most));
            return;
        };
        match self.take_times(&marks) {
            Ok(times) => {
                self.pass_mut().times = Some(times);
                self.replan();
            }
            Err(error) => self.playing().stop_timing(&error),
        }
    }

    /// How long kernels of each method run, as far as that is known, but for one method of which nothing is. None, as long as a
    /// method that runs again and again was not timed: then plans go by bytes.
    pub(super) fn known_times(&self, fresh: Option<usize>) -> Vec<Option<&KernelTimes>> {
        let mut known = Vec::with_capacity(self.passes.len());
        for (at, pass) in self.passes.iter().enumerate() {
            let times = pass.times.as_ref().filter(|_| fresh != Some(at));
            if times.is_none() && pass.passes > 1 && fresh != Some(at) {
                return Vec::new();
            }
            known.push(times);
        }
        known
    }

    /// How long kernels ran. `marks` are those of a complete pass.
    fn take_times(&mut self, marks: &[Option<Event>]) -> Result<KernelTimes> {
        self.store.device.mark()?;
        self.store.device.synchronize()?;
        let spans = self.store.device.take_marks()?;
        if spans.len() != marks.len() {
            return Err(Error::Internal(format!(
                "{} marks, and {} times between them and the end",
                marks.len(),
                spans.len()
            )));
        }
        let mut times = KernelTimes::new(self.trace().probes().len());
        for (mark, span) in marks.iter().zip(spans) {
            if let Some(event) = *mark {
                times.add(event, span);
            }
        }
        Ok(times)
    }

    fn replan(&mut self) {
        let before = self.store.residency().clone();
        let methods: Vec<_> = { self.passes.iter() }
            .map(|pass| pass.method().traced())
            .collect();
        let times = self.known_times(None);
        let (constants, budget) = (self.store.constants(), self.store.budget());
        let request = self.request(&methods, constants, budget, &times);
        let Some(better) = residency::replan(&request, &before) else {
            return;
        };
        log::info!("policy '{}': {}", request.kind.name(), better.why);
        let Err(error) = self.move_to(better) else {
            self.store.stats.replans += 1;
            return;
        };
        log::warn!("the new plan could not be used, so the first one is: {error}");
        let back = self.move_to(before);
        self.poison_if_lost(&error, back);
    }

    /// After a move that failed with `error`: without the way back the weights have no memory.
    pub(super) fn poison_if_lost(&mut self, error: &Error, back: Result<()>) {
        if let Err(again) = back {
            // rule: weights-lost-in-a-move-poison
            self.store.poison(format!(
                "the weights could not be moved for a new plan ({error}), nor back: {again}"
            ));
        }
    }

    /// For tests of plans that no planner made: between passes, all weights move to where `residency` has them.
    #[cfg(feature = "sim")]
    pub fn use_residency(&mut self, residency: Residency) -> Result<()> {
        self.move_to(residency)
    }

    pub(super) fn move_to(&mut self, residency: Residency) -> Result<()> {
        self.finish_replays()?;
        // rule: weights-move-when-nothing-runs
        self.store.device.synchronize()?;
        let reads = self.passes[self.method].method().trace.probes();
        let moved = self.store.move_to(residency, reads);
        // rule: new-policy-knows-its-method
        self.store.turn_to(self.method);
        self.place_weights();
        moved
    }
}
