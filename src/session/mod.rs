//! A loaded program: a [`Store`], and a [`Pass`] over it for each method.
//!
//! The store knows which weights are where; the pass knows where the compiled code stands in its trace and which leases are
//! open. Neither decides about residency: a policy does.
//!
//! ```text
//!   begin_pass ──► probe(id) ──► [follower: is it next?] ──► Store::bring ──► Store::address ──► lease
//!                     ▲                                                                            │
//!                     └───────── copies for later reads (Store::look_ahead) ◄── release(id) ◄──────┘
//!   end_pass: the first error that was kept, a divergence from the trace, a lease that is still open
//! ```
//! After a failure the pass has to be ended with `end_pass(false)`; the next one starts afresh.
#![deny(unsafe_code)]

mod adopt;
mod budget;
mod graphs;
mod hooks;
mod in_flight;
mod join;
mod kernels;
mod pass;
mod probe_table;
mod rehearse;
mod replan;
mod shares;
mod state;
mod timing;

pub use crate::counters::Stats;
pub use graphs::{capture_up_front, UpFront};
pub use graphs::{ByGraph, CapturedPass, Ends, GraphKey, Shapes, GRAPH_BYTES};
pub use pass::Pass;
pub use state::State;

use crate::device::{Device, Source};
use crate::error::{Error, Result};
use crate::schedule::{Floor, KernelTimes, Trace};
use crate::store::{Methods, Store, StoreOptions};
use graphs::PassGraphs;
use timing::Timing;

/// What was found, and how far the passes since are.
#[derive(Debug, Default)]
pub(super) struct Rehearsal {
    /// After so many complete passes the memory is emptied.
    empty_after: Option<usize>,
    passes_since_empty: usize,
}

/// A loaded program on one device. Its passes run one at a time.
pub struct Session<D: Device> {
    /// If passes may be captured as graphs. They end before the memory that they use.
    graphs: Option<PassGraphs<D>>,
    store: Store<D>,
    /// By method.
    passes: Vec<Pass>,
    /// Whose turn it is.
    method: usize,
    timing: Timing,
    /// How many states there have been beside the first one.
    states: u64,
    rehearsal: Rehearsal,
    when_full: Option<WhenFull>,
}

/// Asked for bytes of the device for an activation that found none. How many others gave back.
pub type WhenFull = Box<dyn FnMut(u64) -> u64 + Send>;

impl<D: Device> Session<D> {
    /// Whom it asks where an activation finds no memory.
    pub fn when_full(&mut self, ask: WhenFull) {
        self.when_full = Some(ask);
    }

    /// Checks the budget, allocates, loads the direct constants, and everything else if the budget covers it. `bytes` are
    /// the bytes of each constant, by index; they must outlive the session. Nothing is allocated if the budget is below the
    /// floor.
    pub fn new(
        device: D,
        methods: impl Into<Methods>,
        bytes: Vec<impl Into<Source>>,
        options: StoreOptions,
    ) -> Result<Self> {
        Session::with_least(
            device,
            methods.into(),
            |_| Ok(sources(bytes)),
            options,
            Floor::bytes,
        )
    }

    /// The same, with `source` called for the bytes once the budget was accepted, and the device has taken it: making bytes
    /// ready may cost time and memory.
    pub fn with_source(
        device: D,
        methods: impl Into<Methods>,
        source: impl FnOnce(&mut D) -> Result<Vec<Source>>,
        options: StoreOptions,
    ) -> Result<Self> {
        Session::with_least(device, methods.into(), source, options, Floor::bytes)
    }

    /// For tests of the floor: a budget below it is accepted, down to what the direct constants need.
    #[cfg(feature = "sim")]
    pub fn with_any_budget(
        device: D,
        methods: impl Into<Methods>,
        bytes: Vec<impl Into<Source>>,
        options: StoreOptions,
    ) -> Result<Self> {
        let least = |floor: &Floor| floor.direct;
        Session::with_least(
            device,
            methods.into(),
            |_| Ok(sources(bytes)),
            options,
            least,
        )
    }

    fn with_least(
        device: D,
        methods: Methods,
        source: impl FnOnce(&mut D) -> Result<Vec<Source>>,
        options: StoreOptions,
        least: fn(&Floor) -> u64,
    ) -> Result<Self> {
        let opened = Store::open(device, methods, source, &options, least)?;
        let mut passes: Vec<Pass> = opened.methods.into_iter().map(Pass::new).collect();
        // They are of the only method.
        passes[0].times.clone_from(&options.times);
        let mut session = Session {
            graphs: None,
            passes,
            method: 0,
            timing: Timing::new(&opened.store, opened.link, options.times.is_none()),
            store: opened.store,
            states: 0,
            rehearsal: Rehearsal::default(),
            when_full: None,
        };
        session.choose_pool()?;
        session.store.load()?;
        session.place_weights();
        Ok(session)
    }

    /// The store can be trusted, and the pass before was ended.
    fn check_between_passes(&self) -> Result<()> {
        self.store.check_usable()?;
        self.pass().check_may_begin(self.store.constants())
    }

    fn place_weights(&mut self) {
        for pass in &mut self.passes {
            pass.place_weights(&self.store);
        }
    }

    /// Of the method whose turn it is.
    #[inline]
    fn pass(&self) -> &Pass {
        &self.passes[self.method]
    }

    #[inline]
    fn pass_mut(&mut self) -> &mut Pass {
        &mut self.passes[self.method]
    }

    /// The pass that comes is of this method, and so are all until the next call. Between passes only.
    pub fn turn_to(&mut self, method: usize) -> Result<()> {
        if method == self.method {
            return self.store.place_rows_for(method);
        }
        if method >= self.passes.len() {
            return Err(Error::Internal(format!("there is no method {method}")));
        }
        self.pass().check_may_begin(self.store.constants())?;
        self.store.place_rows_for(method)?;
        self.method = method;
        self.store.turn_to(method);
        if self.store.layout().is_per_weight() {
            // Only passes that begin with empty memory were rehearsed.
            // rule: switch-begins-with-empty-memory
            self.start_afresh();
        }
        Ok(())
    }

    /// The weights.
    pub fn store(&self) -> &Store<D> {
        &self.store
    }

    /// The name of the policy at work: `all_resident` where the budget covers everything, whatever was asked for.
    pub fn policy(&self) -> &'static str {
        self.store.policy().name()
    }

    /// Whether the kernels of the method whose turn it is will be timed, in its second complete pass. Not where everything stays.
    pub fn will_time_kernels(&self) -> bool {
        let waits = !self.pass().probes.all_stay();
        waits && self.may_time_kernels() && self.pass().times.is_none()
    }

    /// How long its kernels ran, once they were timed here.
    pub fn kernel_times(&self) -> Option<&KernelTimes> {
        let times = self.pass().times.as_ref();
        times.filter(|_| self.timing.kernels)
    }

    /// The trace of the method whose turn it is.
    pub fn trace(&self) -> &Trace {
        &self.pass().method().trace
    }

    /// The trace of a method, one of [`Session::methods_count`].
    pub fn trace_of(&self, method: usize) -> &Trace {
        &self.passes[method].method().trace
    }

    /// How many methods there are.
    pub fn methods_count(&self) -> usize {
        self.passes.len()
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.store.device
    }

    /// The device, for what runs on its compute stream between probes.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.store.device
    }

    /// Counters since load.
    pub fn stats(&self) -> Stats {
        let graphs = self.graphs.as_ref();
        Stats {
            graph_block_bytes: graphs.map_or(0, |graphs| graphs.scratch.block.bytes()),
            ..self.store.stats()
        }
    }

    /// Bytes of activations that are allocated now.
    pub fn activation_bytes(&self) -> u64 {
        self.pass().activations.now
    }

    /// Most bytes of activations that were ever allocated at one time.
    pub fn activation_peak_bytes(&self) -> u64 {
        let peaks = self.passes.iter().map(|pass| pass.activations.peak);
        peaks.max().unwrap_or(0)
    }

    /// From now on every weight is compared with its CRC-32 at each of its probes, before its address is handed out, and
    /// every direct constant is now. See [`Store::verify_every_read`].
    pub fn verify_every_read(&mut self, expected: Vec<u32>) -> Result<()> {
        self.store.verify_every_read(expected)
    }

    /// Starts a pass. An error if the last one was not ended, if a lease of it is still open, or if the store cannot be
    /// trusted any more.
    pub fn begin_pass(&mut self) -> Result<()> {
        // rule: poisoned-store-begins-no-pass
        self.store.check_usable()?;
        self.pass().check_may_begin(self.store.constants())?;
        if self.store.has_given_way() {
            return Err(Error::Internal(
                "a pass began before its weights came back".to_owned(),
            ));
        }
        self.finish_replays()?;
        if let Some(graphs) = &mut self.graphs {
            graphs.scratch.begin();
        }
        let on = self.playing();
        // No pass is timed any more once that has failed in another one.
        on.pass.marks.take_if(|_| !on.timing.kernels);
        on.pass.begin(on.store.stats.bytes_copied);
        Ok(())
    }

    /// Ends a pass; `completed` says that the compiled code returned without an error. Returns the first error that was kept
    /// during the pass; of a completed one also a divergence from the trace, and a lease that is still open.
    pub fn end_pass(&mut self, completed: bool) -> Result<()> {
        self.pass_mut().end()?;
        self.playing().end_tail();
        let (pass, stats) = (&mut self.passes[self.method], &mut self.store.stats);
        stats.bytes_copied_last_pass = stats.bytes_copied - pass.copied_before;
        let outcome = pass.outcome(completed, self.store.constants());
        match completed && outcome.is_ok() {
            true => {
                self.store.stats.passes += 1;
                pass.passes = pass.passes.saturating_add(1);
                // Before the weights may move: passes do not begin with the ring as a move leaves it.
                self.keep_steady();
                self.empty_when_due();
                self.time_when_due();
            }
            false => {
                self.forget_marks();
                // rule: failed-pass-starts-afresh
                self.start_afresh();
            }
        }
        outcome
    }

    /// Recounts everything; an error says what does not add up. For tests and bug reports.
    pub fn validate(&self) -> Result<()> {
        self.store.validate()?;
        self.pass().validate().map_err(Error::Internal)
    }
}

fn sources(bytes: Vec<impl Into<Source>>) -> Vec<Source> {
    bytes.into_iter().map(Into::into).collect()
}
