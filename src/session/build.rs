//! From a checked record and the bytes of its weights to a session that is ready for its first pass.

use super::{choose::residency_of, copies::Run, gather, in_flight, probe_table::ProbeTable};
use super::{DeviceWeight, Session, Stats};
use crate::config::PolicyKind;
use crate::device::{Device, DevicePtr, HostBytes};
use crate::error::{bytes_text, Error, Result};
use crate::residency::{Memory, StreamOrdered};
use crate::schedule::{
    Floor, Follower, KernelTimes, ProbeId, Trace, WeightIndex, WeightKind, WeightSpec,
};

/// Layout of what a probe of a constant returns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// Scalar type in the numbering of ExecuTorch and PyTorch (`ScalarType`).
    pub dtype: i32,
    /// Sizes, outermost first.
    pub sizes: Vec<i64>,
    /// Strides in elements, outermost first.
    pub strides: Vec<i64>,
}

/// What the record says of one method.
#[derive(Debug, Clone)]
pub struct Program {
    /// All constants; their index is the weight index.
    pub weights: Vec<WeightSpec>,
    /// Layout of each constant, by index.
    pub layouts: Vec<Layout>,
    /// The events of one pass.
    pub trace: Trace,
    /// Reads that take some rows of a table, ascending: where the budget does not cover everything they are done in place.
    pub gather: Vec<ProbeId>,
}

/// What the user chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// Device bytes for weights and direct constants; `None` means the floor.
    pub budget: Option<u64>,
    /// The residency policy.
    pub policy: PolicyKind,
    /// How long kernels run, if that is known. Otherwise they are timed, on devices that can tell.
    pub times: Option<KernelTimes>,
}

/// Whether the constant is read through probes.
pub(super) fn is_probed(spec: &WeightSpec) -> bool {
    spec.kind == WeightKind::Weight
}

/// A probe in a message: its id and its weight's name.
pub(super) fn probe_name(program: &Program, id: i64) -> String {
    let index = usize::try_from(id)
        .ok()
        .and_then(|id| program.trace.probes().get(id));
    match index {
        Some(&weight) => format!("{id} ('{}')", program.weights[weight as usize].fqn),
        None => format!("{id} (unknown)"),
    }
}

/// A weight in a message.
pub(super) fn weight_name(program: &Program, weight: WeightIndex) -> String {
    format!("'{}'", program.weights[weight as usize].fqn)
}

impl<D: Device> Session<D> {
    /// Checks the budget, allocates, loads the direct constants, and everything else if the budget covers
    /// it. `bytes` are the bytes of each constant, by index; they must outlive the session. Nothing is
    /// allocated if the budget is below the floor.
    pub fn new(
        device: D,
        program: Program,
        bytes: Vec<HostBytes>,
        options: SessionOptions,
    ) -> Result<Self> {
        Session::with_source(device, program, |_| Ok(bytes), options)
    }

    /// The same, with `source` called for the bytes once the budget was accepted, and the device has taken it:
    /// making bytes ready may cost time and memory.
    pub fn with_source(
        device: D,
        program: Program,
        source: impl FnOnce(&mut D) -> Result<Vec<HostBytes>>,
        options: SessionOptions,
    ) -> Result<Self> {
        Session::with_least(device, program, source, options, Floor::bytes)
    }

    /// For tests of the floor: a budget below it is accepted, down to what the direct constants need.
    #[cfg(feature = "sim")]
    pub fn with_any_budget(
        device: D,
        program: Program,
        bytes: Vec<HostBytes>,
        options: SessionOptions,
    ) -> Result<Self> {
        Session::with_least(
            device,
            program,
            |_| Ok(bytes),
            options,
            |floor| floor.direct,
        )
    }

    /// `least` says which budgets are refused.
    fn with_least(
        mut device: D,
        program: Program,
        source: impl FnOnce(&mut D) -> Result<Vec<HostBytes>>,
        options: SessionOptions,
        least: fn(&Floor) -> u64,
    ) -> Result<Self> {
        check(&program)?;
        let granule = device.granule();
        let floor = program.floor(options.policy, granule)?;
        let everything = program.everything(granule);
        let (program, tables) = match options.budget.is_some_and(|budget| budget >= everything) {
            true => (program, Vec::new()),
            false => program.in_place()?,
        };
        let mut stats = accepted(&program, &floor, options.budget, granule, least(&floor))?;
        let in_place = tables
            .iter()
            .map(|one| program.weights[one.table as usize].bytes);
        stats.gathered_bytes = in_place.fold(0, u64::saturating_add);
        let budget = device.set_budget(stats.budget_bytes);
        budget.map_err(|error| {
            error.during(|| format!("the budget of {}", bytes_text(stats.budget_bytes)))
        })?;
        let mut bytes = source(&mut device)?;
        let own = program.weights.len() - tables.len();
        check_bytes(&program.weights[..own], &bytes)?;
        let places = gather::addresses(&mut device, &program, &tables, &bytes)?;
        let (residency, refine) = residency_of(&mut device, &program, &bytes, &stats, &options)?;
        bytes.resize(program.weights.len(), HostBytes::from_static(&[]));
        let policy = || residency.policy();
        let constants = program.weights.len();
        let reads = program.trace.probes().len();
        let mut session = Session {
            device,
            pool: Box::new(StreamOrdered::new(stats.budget_bytes)),
            policy: policy(),
            layout: residency.layout.clone(),
            follower: Follower::new(&program.trace),
            tenants: (0..constants).map(|_| DeviceWeight::empty()).collect(),
            tables,
            leased: vec![false; reads],
            ended: vec![false; reads],
            reads: ProbeTable::new(&program.trace, &program.layouts),
            program,
            bytes,
            floor,
            direct: DevicePtr::EMPTY,
            block: DevicePtr::EMPTY,
            rehearsing: false,
            empty_after: None,
            passes_since_empty: 0,
            // The most one call plans: every read loaded, and as much evicted besides what was there.
            actions: Vec::with_capacity(constants + 2 * reads),
            run: Run::default(),
            open_leases: 0,
            in_pass: false,
            failed: None,
            kept: None,
            poisoned: None,
            stats,
            fragmentation_misses: 0,
            compactions: 0,
            copied_before_pass: 0,
            activation_bytes: 0,
            activation_peak: 0,
            in_flight: in_flight::InFlight::default(),
            refine,
            times: None,
            capture: None,
            checksums: None,
        };
        for (weight, at) in places {
            session.tenants[weight as usize].in_place = Some(at);
        }
        session.choose_pool(&policy)?;
        session.load()?;
        Ok(session)
    }

    /// Everything that happens once the pool is there: direct constants, the policy's block and first loads, warm-up.
    fn load(&mut self) -> Result<()> {
        self.load_direct()?;
        self.take_block()?;
        self.load_resident()?;
        self.stats.prefetches = 0;
        Ok(())
    }

    /// The memory in which the policy places weights itself.
    pub(super) fn take_block(&mut self) -> Result<()> {
        let block = match self.layout.view() {
            Some(view) => self.pool.map(&mut self.device, view),
            None => self.pool.take(&mut self.device, self.layout.bytes()),
        };
        self.block =
            block.map_err(|error| error.during(|| "taking memory for all weights".into()))?;
        Ok(())
    }

    /// The policy's first loads: what stays. What streams is copied by the passes.
    pub(super) fn load_resident(&mut self) -> Result<()> {
        let mut actions = std::mem::take(&mut self.actions);
        self.policy.start(&mut actions);
        self.actions = actions;
        let started = self.carry_out();
        if self.layout.memory == Memory::PerWeight {
            let granule = self.device.granule();
            let read = self.program.trace.probes().iter();
            let specs = read.map(|&weight| &self.program.weights[weight as usize]);
            let mut sizes: Vec<_> = specs.map(|w| w.occupied(granule)).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            sizes.dedup();
            sizes.retain(|&size| size > 0);
            let warm = self.pool.warm_up(&mut self.device, &sizes);
            warm.map_err(|error| {
                error.during(|| "the first use of the memory for all weights".into())
            })?;
        }
        started?;
        // Direct constants are read without a wait, and what is resident from now on needs none.
        let done = self.device.synchronize();
        done.map_err(|error| error.during(|| "waiting for the first loads".into()))?;
        for tenant in &mut self.tenants {
            tenant.ready = None;
            // What stays is never given up.
            tenant.copied = 0..0;
        }
        match self.policy.everything_stays() {
            true => {
                let weights = self.program.trace.probes().iter();
                let places = weights.map(|&weight| self.tenants[weight as usize].address());
                self.reads.stay(places);
            }
            false => self.reads.move_on(),
        }
        Ok(())
    }

    /// One block for all of them: they come and go together.
    fn load_direct(&mut self) -> Result<()> {
        let granule = self.device.granule();
        let mut at = self.direct;
        for (index, spec) in self.program.weights.iter().enumerate() {
            if is_probed(spec) {
                continue;
            }
            let copied = self.device.copy_to_device(at, self.bytes[index]);
            copied.map_err(|error| error.during(|| format!("copying '{}'", spec.fqn)))?;
            self.stats.bytes_copied += spec.bytes;
            self.tenants[index].at = at;
            at = at.offset(spec.occupied(granule));
        }
        Ok(())
    }
}

impl<E> DeviceWeight<E> {
    fn empty() -> Self {
        DeviceWeight {
            at: DevicePtr::EMPTY,
            in_place: None,
            pooled: false,
            copied: 0..0,
            ready: None,
            last_read: None,
        }
    }

    /// Where a kernel reads it.
    #[inline]
    pub(super) fn address(&self) -> DevicePtr {
        self.in_place.unwrap_or(self.at)
    }

    /// Its memory is gone, and everything that was issued for it has ended.
    pub(super) fn move_out(&mut self) {
        *self = DeviceWeight {
            in_place: self.in_place,
            ..DeviceWeight::empty()
        };
    }
}

/// The lists must fit each other; the record's own checks come before.
fn check(program: &Program) -> Result<()> {
    let Program {
        weights,
        layouts,
        trace,
        ..
    } = program;
    if weights.len() != layouts.len() {
        return Err(Error::Internal(format!(
            "{} constants, {} layouts",
            weights.len(),
            layouts.len()
        )));
    }
    let direct = trace
        .probes()
        .iter()
        .position(|&w| !is_probed(&weights[w as usize]));
    match direct {
        Some(probe) => Err(Error::Mismatch {
            name: weights[trace.probes()[probe] as usize].fqn.clone(),
            fact: "kind",
            expected: format!("a weight, as probe {probe} reads it"),
            found: "a direct constant (record)".to_string(),
        }),
        None => Ok(()),
    }
}

fn check_bytes(weights: &[WeightSpec], bytes: &[HostBytes]) -> Result<()> {
    if weights.len() != bytes.len() {
        return Err(Error::Internal(format!(
            "{} constants, {} byte ranges",
            weights.len(),
            bytes.len()
        )));
    }
    for (spec, bytes) in weights.iter().zip(bytes) {
        if spec.bytes != bytes.len() {
            return Err(Error::Mismatch {
                name: spec.fqn.clone(),
                fact: "number of bytes",
                expected: format!("{} (record)", spec.bytes),
                found: format!("{} (data)", bytes.len()),
            });
        }
    }
    Ok(())
}

/// Refuses a budget below `least`, which is the floor; otherwise the counters at load.
fn accepted(
    program: &Program,
    floor: &Floor,
    budget: Option<u64>,
    granule: u64,
    least: u64,
) -> Result<Stats> {
    let budget = budget.unwrap_or(floor.bytes());
    if budget < least {
        return Err(Error::BudgetTooSmall {
            budget,
            floor: floor.bytes(),
            parts: floor.to_string(),
        });
    }
    let total = program.everything(granule).saturating_sub(floor.direct);
    Ok(Stats {
        budget_bytes: budget,
        floor_bytes: floor.bytes(),
        hard_minimum_bytes: floor.hard_minimum,
        direct_bytes: floor.direct,
        total_weight_bytes: total,
        ..Stats::default()
    })
}
