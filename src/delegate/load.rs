//! Load of one method: every check in order, the cheap ones and those that explain most first.
#![deny(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::sync::Arc;

use super::code::MethodCode;
use super::delegate_device::{self, DelegateDevice};
use super::engine::Engine;
use super::graph_shapes::shapes_of;
use super::open::open as open_program;
use super::option_checks::{
    check_graph, check_link, check_no_pin, check_offloads, check_shared, check_stream, check_sync,
};
use super::request::LoadRequest;
use super::shared::{self, Found, Shared};
use super::tenant;
use super::{signature_of, Delegate, Live};
use crate::config::{Applies, Budget, Options};
#[cfg(any(test, feature = "sim"))]
use crate::device::faulty::{Faults, Faulty};
use crate::device::{host_storage, CallerStream};
use crate::error::{bytes_text, Error, Result};
use crate::format::Record;
use crate::weights::{check_target, Host};

/// What of a record decides which options apply; `has_data` where the file of the weights is known without them.
pub fn applies(record: &Record, has_data: bool) -> Applies<'_> {
    Applies {
        method: &record.method,
        gpu: record.device != "cpu",
        offload: record.offload,
        has_data,
    }
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
        let mut engine = engine(open, &request, options, stream)?;
        let (records, record) = (&request.records, request.records.own());
        let shapes = shapes_of(records, record, options)?;
        engine.capture_shapes(
            &record.method,
            signature_of(record, &request.wiring),
            &shapes,
        )?;
        let gpu = request.records.own().device != "cpu";
        Ok(Delegate {
            records: request.records,
            wiring: request.wiring,
            live: Live::new(Box::new(engine)),
            inputs_copied: AtomicU64::new(0),
            options: options.to_json(gpu),
        })
    }
}

/// The method over what its program shares; that is loaded if no method of it was before.
fn engine<D: DelegateDevice + 'static>(
    open: impl FnOnce() -> Result<D>,
    request: &LoadRequest<'_>,
    options: &Options,
    stream: Option<CallerStream>,
) -> Result<Engine<D>> {
    let (records, record) = (&request.records, request.records.own());
    check_offloads(record, options)?;
    check_shared(options)?;
    if record.device == "cpu" {
        let whose = format!("method '{}' was exported for 'cpu'", record.method);
        host_storage::check_on_cpu(options, &whose)?;
    }
    check_sync(record, options)?;
    check_link(record, options)?;
    check_graph(record, options)?;
    // Before anything is opened.
    shapes_of(records, record, options)?;
    let mut code: Option<MethodCode<D>> = None;
    let load = || {
        let opened = open_program(open()?, request, options, stream, |device| {
            code = Some(MethodCode::open(device, request)?);
            Ok(())
        })?;
        let shared = Arc::new(opened);
        tenant::attach(&shared);
        Ok(shared)
    };
    let (found, state) = match (request.beside, request.place) {
        (Some(beside), _) => {
            let (shared, state) = shared::of(beside, record)?;
            (Found::Before(shared), state)
        }
        (None, Some(place)) if records.all().len() > 1 => {
            (shared::find_or_load(place, record.build_id, load)?, None)
        }
        _ => (Found::Now(load()?), None),
    };
    let shared = match found {
        Found::Now(shared) => {
            log_floor(record, options, &shared);
            shared
        }
        Found::Before(shared) => {
            shared.check_options(options, stream)?;
            shared
        }
    };
    Engine::new(code, shared, state, request, options)
}

fn log_floor<D: DelegateDevice>(record: &Record, options: &Options, shared: &Shared<D>) {
    if options.budget == Budget::Floor && record.offload {
        log::info!(
            "method '{}': no budget was given, so its weights get the least possible one, {}",
            record.method,
            bytes_text(super::locked(&shared.stats).budget_bytes)
        );
    }
}

fn check_machine(record: &Record) -> Result<()> {
    if !["cpu", "cuda"].contains(&record.device.as_str()) {
        return Err(Error::Unsupported(format!(
            "method '{}' was exported for the device '{}'; this build runs 'cpu' and 'cuda'",
            record.method, record.device
        )));
    }
    check_target(
        &format!("method '{}'", record.method),
        &record.target,
        &Host::current(),
    )
}
