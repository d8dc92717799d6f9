//! Load, execute and destroy one delegate.
//!
//! | file | what it does |
//! |---|---|
//! | `program` | a `.pte` as a file or as bytes, for callers without ExecuTorch |
//! | `load` | every check of a load of a method, in order, and what is made of it |
//! | `request` | what a load is asked for |
//! | `open` | the load of a program: what its methods share |
//! | `shared` | a loaded program, and how its methods find it |
//! | `tenant` | such a program as a tenant of its device's pool |
//! | `code` | the compiled code of one method, and what its constants are bound to |
//! | `compiled` | the compiled library, held against record and data |
//! | `budget` | the budget that `auto` chooses |
//! | `keep` | which weights always stay, and which never do |
//! | `packing` | which constants may be stored packed |
//! | `inputs` | the check of a call's inputs and of the room for its outputs |
//! | `sizes` | what the sizes of a call come to, held against the record's relations and guards |
//! | `tensor` | views of both |
//! | `graph_shapes` | the shapes whose graphs are captured at load, held against the record |
//! | `engine` | the compiled code and its session, joined for a pass; the only unsafe code here |
//! | `delegate_device` | what the two kinds of devices do differently here |
//! | `place` | which loaded program an address of ExecuTorch's belongs to |
//! | `mapped` | which file an address of ExecuTorch's named data belongs to |

mod budget;
mod code;
mod compiled;
mod delegate_device;
mod engine;
#[cfg(any(test, feature = "sim"))]
mod faulty;
pub(crate) mod gather;
pub mod graph_shapes;
mod inputs;
mod keep;
mod load;
pub mod mapped;
mod open;
mod option_checks;
#[cfg(feature = "cli")]
pub(crate) mod packing;
pub mod place;
pub mod program;
mod request;
mod run_pass;
mod shared;
mod sizes;
mod tenant;
mod tensor;
mod times;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::config::BUDGET;
use crate::elastic::Reorder;
use crate::error::{Error, Result};
use crate::format::{InputSpec, Record, Records, Wiring};
use crate::process::OfProcess;
use crate::session::Stats;
use inputs::Signature;
pub use run_pass::TakeOutputs;
use run_pass::{Parts, RunPass};
use sizes::CallSizes;

pub use keep::mark;
pub use load::applies;
pub use open::{know_packed, program_of};
#[cfg(feature = "cli")]
pub(crate) use option_checks::differs;
pub use place::ProgramPlace;
pub use program::Program;
pub use request::{Beside, DataSource, LoadRequest};
pub use tensor::{contiguous_strides, pack, InputTensor, Memory, OutputTensor, Room};

/// One loaded method. May be shared between threads; one of them executes at a time.
pub struct Delegate {
    records: Records,
    wiring: Wiring,
    live: OfProcess<Live>,
    /// Inputs that the caller copied, and not the engine.
    inputs_copied: AtomicU64,
    /// The options that hold, as JSON.
    options: String,
}

/// What runs.
struct Live {
    engine: Mutex<CallState>,
    /// For other methods and sessions of the program.
    parts: Parts,
    /// The program's counters after its last pass, so that asking for them never waits for a running one.
    stats: Arc<Mutex<Stats>>,
}

/// What one call at a time has.
struct CallState {
    engine: Box<dyn RunPass>,
    sizes: CallSizes,
}

impl Delegate {
    /// Runs the method once. `outputs` is called once for each output, in order, and only if the pass completed;
    /// what it is given lives during the call only. After an error the delegate can be used again, unless
    /// it answers [`Error::Poisoned`], as it does in a child of the process that loaded it.
    pub fn execute(&self, inputs: &[InputTensor<'_>], outputs: TakeOutputs<'_>) -> Result<()> {
        self.call(inputs, |_| Ok(()), outputs)
    }

    /// `check` is asked once the sizes of the call are known, before anything runs.
    fn call(
        &self,
        inputs: &[InputTensor<'_>],
        check: impl FnOnce(&Signature<'_>) -> Result<()>,
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        let live = self.live.get()?;
        let mut turn = live.turn()?;
        let CallState { engine, sizes } = &mut *turn;
        let signature = self.signature();
        inputs::check(&signature, inputs, sizes)?;
        let signature = Signature {
            call: sizes,
            ..signature
        };
        check(&signature)?;
        engine.run(&signature, inputs, outputs)
    }

    /// The buffers that the program writes get their initial bytes back: those of this session, for all its methods.
    pub fn reset_state(&self) -> Result<()> {
        self.live.get()?.turn()?.engine.reset_state()
    }

    /// Another budget for all methods and sessions of the program, from the next pass on. See [`crate::session::Session::set_budget`].
    pub fn set_budget(&self, bytes: u64) -> Result<()> {
        self.live.get()?.turn()?.engine.set_budget(bytes)
    }

    /// Another place of the program in the order of its device. While it executes too.
    pub fn reorder(&self, to: Reorder) -> Result<()> {
        let membership = &self.live.get()?.parts.membership;
        let membership = membership.as_ref().ok_or_else(|| {
            Error::InvalidInput(format!(
                "this program has a budget of its own, and no place in the order of its device: load it with {BUDGET} = 'shared'"
            ))
        })?;
        membership.reorder(to);
        Ok(())
    }

    /// The same with the outputs copied to memory that the caller has, which must not overlap that of the inputs
    /// or of each other. An output that does not fit is an error; those before it are written by then.
    pub fn execute_into(
        &self,
        inputs: &[InputTensor<'_>],
        outputs: &mut [OutputTensor<'_>],
    ) -> Result<()> {
        self.check_process()?;
        inputs::check_rooms(&self.signature(), outputs)?;
        let rooms = RefCell::new(outputs);
        let check = |signature: &Signature<'_>| sizes::check_rooms(signature, &rooms.borrow());
        self.call(inputs, check, &mut |index, output| {
            rooms.borrow_mut()[index]
                .take(output)
                .map_err(|error| error.about(&self.output_name(index)))
        })
    }

    fn record(&self) -> &Record {
        self.records.own()
    }

    fn signature(&self) -> Signature<'_> {
        signature_of(self.record(), &self.wiring)
    }

    /// An error in a child of the process that loaded the method.
    pub fn check_process(&self) -> Result<()> {
        self.live.get().map(drop)
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.record().method
    }

    /// The names of all methods of the program.
    pub fn methods(&self) -> Vec<&str> {
        self.records.names()
    }

    /// The kind of device that the method runs on: `cpu`, `cuda`.
    pub fn device(&self) -> &str {
        &self.record().device
    }

    /// Number of inputs of a call.
    pub fn num_inputs(&self) -> usize {
        self.wiring.inputs
    }

    /// What messages call input `index` of a call.
    pub fn input_name(&self, index: usize) -> String {
        self.signature().input_name(index)
    }

    /// What messages call output `index` of a call.
    pub fn output_name(&self, index: usize) -> String {
        self.signature().output_name(index)
    }

    /// What input `index` of a call must be; `None` if the program does not read it, or has no such input.
    pub fn input(&self, index: usize) -> Option<&InputSpec> {
        self.signature().input(index)
    }

    /// Counters since load. While a pass runs, those from before it.
    pub fn stats(&self) -> Result<Stats> {
        let stats = *locked(&self.live.get()?.stats);
        Ok(Stats {
            inputs_copied: stats.inputs_copied + self.inputs_copied.load(Ordering::Relaxed),
            ..stats
        })
    }

    /// The options of this load and who gave each, as a JSON object; see [`Options::to_json`](crate::config::Options::to_json).
    pub fn options(&self) -> &str {
        &self.options
    }

    /// Counts inputs that the caller has copied to row-major order itself.
    pub fn count_inputs_copied(&self, count: u64) {
        self.inputs_copied.fetch_add(count, Ordering::Relaxed);
    }
}

impl Live {
    fn new(engine: Box<dyn RunPass>) -> OfProcess<Live> {
        OfProcess::new(Live {
            parts: engine.parts(),
            stats: engine.stats(),
            engine: Mutex::new(CallState {
                engine,
                sizes: CallSizes::default(),
            }),
        })
    }

    fn turn(&self) -> Result<MutexGuard<'_, CallState>> {
        match self.engine.try_lock() {
            Ok(engine) => Ok(engine),
            Err(TryLockError::WouldBlock) => Err(Error::Busy),
            Err(TryLockError::Poisoned(_)) => {
                Err(Error::Poisoned("an earlier pass panicked".to_owned()))
            }
        }
    }
}

/// What a call must look like, before its sizes are known.
fn signature_of<'a>(record: &'a Record, wiring: &'a Wiring) -> Signature<'a> {
    Signature {
        inputs: &record.inputs,
        outputs: &record.outputs,
        sizes: &record.sizes,
        wiring,
        call: &sizes::UNKNOWN,
    }
}

/// Counters are plain numbers: a panic elsewhere cannot leave them half-written.
fn locked(stats: &Mutex<Stats>) -> MutexGuard<'_, Stats> {
    stats.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod fork_tests;
#[cfg(test)]
#[path = "../../tests/support/mod.rs"]
mod support;
