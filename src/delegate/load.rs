//! Load of one method: every check in order, the cheap ones and those that explain most first.
#![deny(unsafe_code)]

use std::any::Any;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

use super::delegate_device::{self, DelegateDevice};
use super::engine::{Code, Engine};
use super::host_storage::{self, HostStorage};
use super::open::open as open_program;
use super::option_checks::{
    check_budget_has_effect, check_graph, check_link, check_no_pin, check_stream, check_sync,
};
use super::shared::{self, Found, ProgramPlace, Shared};
use super::times::TimesFile;
use super::{Delegate, Live};
use crate::config::{Applies, Budget, Options};
#[cfg(any(test, feature = "sim"))]
use crate::device::faulty::{Faults, Faulty};
use crate::device::CallerStream;
use crate::error::{bytes_text, Error, Result};
use crate::format::{Record, Records, Wiring};
use crate::weights::{check_target, Catalog, Host, MappedPtd, NamedData};

/// What of a record decides which options apply; `has_data` where the file of the weights is known without them.
pub fn applies(record: &Record, has_data: bool) -> Applies<'_> {
    Applies {
        method: &record.method,
        gpu: record.device != "cpu",
        offload: record.offload,
        has_data,
    }
}

/// Where the bytes of constants are.
#[derive(Clone)]
pub enum DataSource<'a> {
    /// In a `.ptd`, which is opened and checked.
    File(PathBuf),
    /// In memory that the caller has read them into; the second part keeps it for as long as it lives.
    Kept(&'a dyn NamedData, Keeper),
}

/// Keeps memory of the caller's.
pub type Keeper = Arc<dyn Any + Send + Sync>;

impl DataSource<'_> {
    pub(super) fn keeper(&self) -> Option<Keeper> {
        match self {
            DataSource::File(_) => None,
            DataSource::Kept(_, keeper) => Some(keeper.clone()),
        }
    }
}

/// The bytes of a program's constants, and where they are. The order of the fields is the order in which they end.
pub(super) struct Data {
    /// The constants.
    pub catalog: Catalog,
    /// The file that they lie in; `None` where they are in memory that the caller has read them into.
    pub file: Option<MappedPtd>,
    /// Keeps that memory.
    #[allow(dead_code)] // It is kept, and nothing else.
    pub keeper: Option<Keeper>,
    /// How they are held for copies.
    pub held: HostStorage,
    /// Where the times of kernels go, once there are any.
    pub times_file: Option<TimesFile>,
}

/// A method that was loaded before, whose program this load belongs to.
#[derive(Clone, Copy)]
pub enum Beside<'a> {
    /// Another method of its session: both work on one state.
    Session(&'a Delegate),
    /// The first method of a session of its own.
    NewSession(&'a Delegate),
}

/// What a load needs beside the options.
pub struct LoadRequest<'a> {
    /// What the export recorded about the method, and about the others of its program.
    pub records: Records,
    /// Which loaded program the method belongs to, if it has others.
    pub place: Option<ProgramPlace>,
    /// The same, for callers that have a method of it.
    pub beside: Option<Beside<'a>>,
    /// Gives the bytes of the compiled library by its key.
    pub library: &'a dyn Fn(&str) -> Result<&'a [u8]>,
    /// The weights.
    pub data: DataSource<'a>,
    /// How inputs and outputs are given: in the method's order, or straight in the record's.
    pub wiring: Wiring,
}

impl Delegate {
    /// Loads a method: checks the record, this machine, the data and the compiled library against each
    /// other, and then loads what the budget says.
    pub fn load(request: LoadRequest<'_>, options: &Options) -> Result<Delegate> {
        Delegate::load_on(request, options, None)
    }

    /// The same with a stream for kernels and copies of activations, inputs and outputs, on the GPU that the
    /// options name. `None` lets the delegate make one of its own.
    pub fn load_on(
        request: LoadRequest<'_>,
        options: &Options,
        stream: Option<CallerStream>,
    ) -> Result<Delegate> {
        let record = request.records.own().clone();
        check_no_pin(options)?;
        check_machine(&record)?;
        match record.device.as_str() {
            "cpu" => {
                let open = || delegate_device::open_host(&record, options, stream);
                Delegate::on(open, request, options, stream)
            }
            _ => {
                check_stream(options, stream)?;
                let open = || delegate_device::open_cuda(&record, options, stream);
                Delegate::on(open, request, options, stream)
            }
        }
    }

    /// For tests: the same on a device whose calls `faults` may fail.
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn load_faulty(
        request: LoadRequest<'_>,
        options: &Options,
        faults: &Faults,
    ) -> Result<Delegate> {
        let record = request.records.own().clone();
        check_no_pin(options)?;
        check_machine(&record)?;
        let host = || delegate_device::open_host(&record, options, None);
        let cuda = || delegate_device::open_cuda(&record, options, None);
        match record.device.as_str() {
            "cpu" => Delegate::on(|| Ok(Faulty::new(host()?, faults)), request, options, None),
            _ => Delegate::on(|| Ok(Faulty::new(cuda()?, faults)), request, options, None),
        }
    }

    fn on<D: DelegateDevice + 'static>(
        open: impl FnOnce() -> Result<D>,
        request: LoadRequest<'_>,
        options: &Options,
        stream: Option<CallerStream>,
    ) -> Result<Delegate> {
        let (engine, budget) = engine(open, &request, options, stream)?;
        let record = request.records.own();
        let gpu = record.device != "cpu";
        if options.budget == Budget::Floor && record.offload {
            log::info!(
                "method '{}': no budget was given, so its weights get the least possible one, {}",
                record.method,
                bytes_text(budget)
            );
        }
        Ok(Delegate {
            records: request.records,
            wiring: request.wiring,
            live: Live::new(Box::new(engine)),
            inputs_copied: AtomicU64::new(0),
            options: options.to_json(gpu),
        })
    }
}

/// The method over what its program shares; that is loaded if no method of it was before. Also the program's budget.
fn engine<D: DelegateDevice + 'static>(
    open: impl FnOnce() -> Result<D>,
    request: &LoadRequest<'_>,
    options: &Options,
    stream: Option<CallerStream>,
) -> Result<(Engine<D>, u64)> {
    let (records, record) = (&request.records, request.records.own());
    check_budget_has_effect(record, options)?;
    host_storage::check(record, options)?;
    check_sync(record, options)?;
    check_link(record, options)?;
    check_graph(record, options)?;
    let mut code: Option<Code<D>> = None;
    let load = || {
        open_program(open()?, request, options, stream, |device| {
            code = Some(Code::open(device, request)?);
            Ok(())
        })
    };
    let (found, state) = match (request.beside, request.place) {
        (Some(beside), _) => {
            let (shared, state) = shared::of(beside, record)?;
            (Found::Before(shared), state)
        }
        (None, Some(place)) if records.all().len() > 1 => {
            (shared::find_or_load(place, record.build_id, load)?, None)
        }
        _ => (Found::Now(Arc::new(load()?)), None),
    };
    let shared = match found {
        Found::Now(shared) => shared,
        Found::Before(shared) => {
            shared.check_options(options, stream)?;
            shared
        }
    };
    let budget = options_budget(&shared);
    Ok((Engine::new(code, shared, state, request, options)?, budget))
}

fn options_budget<D: DelegateDevice>(shared: &Shared<D>) -> u64 {
    super::locked(&shared.stats).budget_bytes
}

fn check_machine(record: &Record) -> Result<()> {
    if !["cpu", "cuda"].contains(&record.device.as_str()) {
        return Err(Error::Unsupported(format!(
            "method '{}' was exported for the device '{}'; this build runs 'cpu' and 'cuda'",
            record.method, record.device
        )));
    }
    // rule: machine-is-checked-at-load
    check_target(
        &format!("method '{}'", record.method),
        &record.target,
        &Host::current(),
    )
}
