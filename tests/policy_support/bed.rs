//! A policy at work: a bed does with its actions what the store does, and checks the rules that hold for every policy.

use super::draw::Draw;
use super::oracle::Oracle;
use super::played::Played;
use super::programs::Program;
use std::sync::Arc;
use weightstream::config::PolicyKind;
use weightstream::device::{DevicePtr, PageAccess};
use weightstream::memory::MappedView;
use weightstream::residency::{
    choose, Action, Backing, Layout, Policy, Request, Residency, Served,
};
use weightstream::schedule::Event::{self, Kernel, Probe, Release};
use weightstream::schedule::{floor, ProbeId, WeightIndex};

/// What a device holds of one weight.
pub(super) struct Held<E> {
    /// Memory of its own, if each weight takes its own.
    pub(super) own: DevicePtr,
    /// After its copy; `None` once a kernel has waited for it.
    pub(super) ready: Option<Arc<E>>,
    /// After the last kernel that read it.
    pub(super) last_read: Option<E>,
    /// It was copied for a read that is not yet served.
    pub(super) claimed: bool,
}

pub struct PolicyBed<D: Played> {
    // Dropped first: copies read the contents of weights.
    pub(super) device: D,
    pub policy: Box<dyn Policy>,
    residency: Residency,
    pub(super) oracle: Oracle,
    pub(super) program: Program,
    open_before: Vec<Vec<ProbeId>>,
    capacity: u64,
    /// The block, or the first address of the view.
    pub(super) block: DevicePtr,
    pub(super) held: Vec<Held<D::Event>>,
    open: Vec<ProbeId>,
    /// In the access order.
    position: usize,
    pub(super) copied: u64,
}

impl<D: Played> PolicyBed<D> {
    /// A random program on a device, with any budget from the hard minimum to more than everything.
    pub fn new(kind: PolicyKind, draw: &mut impl Draw) -> PolicyBed<D> {
        let mut device = D::open(draw);
        let program = Program::drawn(draw, device.page().unwrap_or(64));
        let (capacity, direct) = capacity(&program, device.granule(), draw);
        let (times, link) = program.times(draw);
        let timed = draw.one_in(3);
        let residency = choose(&Request {
            kind,
            methods: &[(&program.trace).into()],
            weights: &program.weights,
            model: &device.model().beside(direct),
            capacity,
            link: timed.then_some(link),
            times: &[timed.then_some(&times)],
        });
        device.set_budget(capacity).unwrap();
        let bytes = residency.layout.bytes();
        assert!(
            bytes <= capacity,
            "{bytes} bytes are taken, {capacity} may be"
        );
        let block = match &residency.layout.memory {
            Backing::PerWeight => DevicePtr::EMPTY,
            Backing::Block(bytes) => device.alloc(*bytes).unwrap(),
            Backing::Mapped(view) => {
                let access = PageAccess::Read;
                MappedView::open(&mut device, view, access).unwrap().at()
            }
        };
        let held = || Held {
            own: DevicePtr::EMPTY,
            ready: None,
            last_read: None,
            claimed: false,
        };
        let mut bed = PolicyBed {
            policy: residency.policy(),
            oracle: Oracle::new(&residency.layout, program.weights.len()),
            open_before: program.open_before(),
            held: program.weights.iter().map(|_| held()).collect(),
            device,
            residency,
            program,
            capacity,
            block,
            open: Vec::new(),
            position: 0,
            copied: 0,
        };
        bed.start();
        bed
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.residency.layout
    }

    fn start(&mut self) {
        let mut actions = Vec::new();
        self.policy.start(&mut actions);
        for action in actions {
            assert!(
                matches!(action, Action::Load { .. }),
                "{action:?} at the start"
            );
            self.perform(&action, true);
        }
        self.device.synchronize().unwrap();
        self.held.iter_mut().for_each(|one| one.ready = None);
        self.copied = 0;
        self.check();
    }

    /// One call of the policy, or some.
    pub fn step(&mut self, draw: &mut impl Draw) {
        match draw.below(16) {
            0..7 => self.read(draw),
            7..11 if !self.open.is_empty() => {
                let at = draw.below(self.open.len() as u64) as usize;
                self.release(self.open[at]);
            }
            11 | 12 => self.look_ahead(&mut |all| failure(draw, all)),
            13 if draw.one_in(2) => self.make_room(draw),
            14 if draw.one_in(4) => self.abort(),
            15 if draw.one_in(2) => self.kernel(),
            _ => {}
        }
    }

    /// The next read, as the code does it.
    fn read(&mut self, draw: &mut impl Draw) {
        if self.position == self.order().len() {
            self.end_pass(draw);
        }
        // Leases of a pass that was aborted may be open. A probe has one lease at a time.
        let id = self.order()[self.position];
        if self.open.contains(&id) {
            return;
        }
        if self.probe(&mut |all| failure(draw, all)).is_some() {
            self.look_ahead(&mut |all| failure(draw, all));
        }
    }

    fn order(&self) -> &[ProbeId] {
        self.program.trace.order()
    }

    /// What is open ends before the next pass, in any order.
    fn end_pass(&mut self, draw: &mut impl Draw) {
        while !self.open.is_empty() {
            let at = draw.below(self.open.len() as u64) as usize;
            self.release(self.open[at]);
            self.check();
        }
        self.position = 0;
    }

    /// Serves the next read. `fails` says from which action on nothing is carried out. `None` if the read was not served.
    fn probe(&mut self, fails: &mut dyn FnMut(usize) -> usize) -> Option<Served> {
        let id = self.order()[self.position];
        let weight = self.program.trace.weight(id);
        let mut actions = Vec::new();
        let served = match self.policy.demand(id, &mut actions) {
            Ok(served) => served,
            Err(error) => {
                assert_eq!(actions, [], "something was planned in vain");
                // Only leases that the trace has ended by then can be in the way.
                let expected = &self.open_before[self.position];
                let others = self.open.iter().any(|id| !expected.contains(id));
                assert!(others, "read {id} was refused: {error}");
                return None;
            }
        };
        let loads =
            |action: &Action| matches!(action, Action::Load { weight: one, .. } if *one == weight);
        let expected = match actions.iter().any(loads) {
            true => Served::Miss,
            false => Served::Hit,
        };
        assert_eq!(served, expected, "read {id}: {actions:?}");
        if !self.carry_out(&actions, fails) {
            return None;
        }
        self.lease(id, weight);
        Some(served)
    }

    fn lease(&mut self, id: ProbeId, weight: WeightIndex) {
        let bytes = self.program.weights[weight as usize].bytes;
        self.oracle.check_read(weight, bytes);
        let held = &mut self.held[weight as usize];
        if let Some(event) = held.ready.take() {
            self.device.compute_wait(&event).unwrap();
        }
        held.claimed = false;
        self.policy.lease(id);
        self.open.push(id);
        self.position += 1;
        self.kernel();
    }

    /// A kernel reads everything that is leased.
    fn kernel(&mut self) {
        let weights = self.open.iter().map(|&id| self.program.trace.weight(id));
        let reads: Vec<_> = weights
            .filter(|&weight| self.program.weights[weight as usize].bytes > 0)
            .map(|weight| (self.address(weight), self.bytes(weight)))
            .collect();
        self.device.kernel_reads(&reads);
    }

    fn release(&mut self, id: ProbeId) {
        self.open.retain(|&other| other != id);
        let weight = self.program.trace.weight(id);
        let still_read = self.is_leased(weight);
        if let Some(told) = self.policy.release(id) {
            assert_eq!(told, weight);
            let event = self.device.record_compute().unwrap();
            self.held[weight as usize].last_read = Some(event);
        } else if !still_read {
            assert!(
                !self.oracle.is_copied(weight),
                "nobody knows when weight {weight} was read last"
            );
        }
    }

    pub(super) fn is_leased(&self, weight: WeightIndex) -> bool {
        let mut open = self.open.iter();
        open.any(|&id| self.program.trace.weight(id) == weight)
    }

    fn look_ahead(&mut self, fails: &mut dyn FnMut(usize) -> usize) {
        let mut actions = Vec::new();
        self.policy.ahead(&mut actions);
        self.carry_out(&actions, fails);
    }

    fn make_room(&mut self, draw: &mut impl Draw) {
        let mut actions = Vec::new();
        let made = self.policy.make_room(&mut actions);
        let evicts = matches!(actions[..], [Action::Evict { .. }]);
        assert!(evicts == made && made != actions.is_empty(), "{actions:?}");
        self.carry_out(&actions, &mut |all| failure(draw, all));
    }

    fn abort(&mut self) {
        self.policy.abort();
        self.held.iter_mut().for_each(|one| one.claimed = false);
        self.position = 0;
    }

    /// The books of policy, oracle and device agree.
    pub fn check(&self) {
        assert_eq!(self.policy.validate(), Ok(()));
        self.oracle.check();
        let all = 0..self.program.weights.len() as WeightIndex;
        let pooled = match self.layout().memory {
            Backing::PerWeight => all
                .filter(|&weight| self.oracle.is_copied(weight))
                .map(|weight| self.occupied(weight))
                .sum(),
            _ => 0,
        };
        assert_eq!(self.policy.pool_bytes(), pooled);
        let used = pooled + self.layout().bytes();
        assert!(used <= self.capacity, "{used} bytes of {}", self.capacity);
        for &id in &self.open {
            let weight = self.program.trace.weight(id);
            let bytes = self.program.weights[weight as usize].bytes;
            self.oracle.check_read(weight, bytes);
        }
    }

    /// Ends the play with complete passes, each as the trace says: those of a policy that calls itself periodic come to be
    /// equal.
    pub fn end(&mut self) {
        self.release_all();
        self.abort();
        let mut passes: Vec<_> = (0..4).map(|_| self.quiet_pass()).collect();
        if self.policy.is_periodic() {
            let (last, before) = (passes.pop(), passes.pop());
            assert_eq!(last, before, "two passes of '{}'", self.policy.name());
            let planned = self.residency.plan().map(|plan| plan.copied(0));
            let copied = last.map(|pass| (pass.misses, pass.copied));
            assert_eq!(copied, Some((0, planned.unwrap_or(0))), "misses, and bytes");
        }
        self.device.judge();
    }

    /// A pass in which nothing fails.
    fn quiet_pass(&mut self) -> Pass {
        let (mut misses, before) = (0, self.copied);
        for event in self.program.trace.events().to_vec() {
            misses += usize::from(self.quiet_event(event));
            self.check();
        }
        self.release_all();
        self.look_ahead(&mut |all| all);
        self.check();
        self.position = 0;
        Pass {
            misses,
            copied: self.copied - before,
            left: self.oracle.state(),
            fingerprint: self.policy.fingerprint(),
        }
    }

    fn release_all(&mut self) {
        for id in self.open.clone() {
            self.release(id);
        }
    }

    /// Whether it was a read that missed.
    fn quiet_event(&mut self, event: Event) -> bool {
        let served = match event {
            Probe(_) => Some(
                self.probe(&mut |all| all)
                    .expect("nothing fails, and nothing is in the way"),
            ),
            Release(id) => {
                self.release(id);
                None
            }
            Kernel(_) => {
                self.kernel();
                return false;
            }
        };
        self.look_ahead(&mut |all| all);
        served == Some(Served::Miss)
    }
}

/// How a complete pass went, and what it left.
#[derive(Debug, PartialEq, Eq)]
struct Pass {
    misses: usize,
    copied: u64,
    left: Vec<(u64, Option<u32>)>,
    fingerprint: Vec<u32>,
}

/// The number of actions that are carried out: mostly all of them.
fn failure(draw: &mut impl Draw, all: usize) -> usize {
    match draw.one_in(6) {
        true => draw.below(all as u64) as usize,
        false => all,
    }
}

/// Bytes for weights that are read, and those of direct constants.
fn capacity(program: &Program, granule: u64, draw: &mut impl Draw) -> (u64, u64) {
    let Program { trace, weights, .. } = program;
    let floor = floor(trace, weights, granule);
    let (least, most) = (floor.hard_minimum - floor.direct, floor.everything);
    let room = most - least;
    let capacity = match draw.below(8) {
        0 => least,
        1 => most + granule * draw.below(2),
        _ => least + draw.below(room / granule + 1) * granule,
    };
    (capacity, floor.direct)
}
