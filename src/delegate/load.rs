//! Load of one method: every check in order, the cheap ones and those that explain most first.
#![deny(unsafe_code)]

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use super::budget::AutoBudget;
use super::compiled::{check_signature, compiled, match_constants, open};
use super::delegate_device::{self, DelegateDevice};
use super::engine::{Data, Engine};
use super::gather;
use super::host_storage::{self, HostStorage, Needs};
use super::option_checks::{
    check_budget_has_effect, check_graph, check_link, check_no_pin, check_stream, check_sync,
    no_graph,
};
use super::run_pass::RunPass;
use super::{times, Delegate, Live};
use crate::config::{Applies, Budget, HostMemory, Options, Verify, BUDGET, DATA, HOST, VERIFY};
#[cfg(any(test, feature = "sim"))]
use crate::device::faulty::{Faults, Faulty};
use crate::device::CallerStream;
use crate::error::{bytes_text, Error, Result};
use crate::format::{ConstantKind, Record, Wiring};
use crate::schedule::{Floor, Trace, WeightKind, WeightSpec};
use crate::store::{Constants, Method, StoreOptions, WeightLayout};
use crate::system_memory;
use crate::weights::{check_target, verify_crc, Catalog, Host, MappedPtd, NamedData};

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
    /// In memory that the caller has read them into, and keeps for as long as the delegate lives.
    Kept(&'a dyn NamedData),
}

/// What a load needs beside the options.
pub struct LoadRequest<'a> {
    /// What the export recorded about the method.
    pub record: Record,
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
        let record = &request.record;
        check_no_pin(options)?;
        check_machine(record)?;
        match record.device.as_str() {
            "cpu" => Delegate::on(
                delegate_device::open_host(record, options, stream)?,
                request,
                options,
            ),
            _ => {
                check_stream(options, stream)?;
                Delegate::on(
                    delegate_device::open_cuda(record, options, stream)?,
                    request,
                    options,
                )
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
        let record = &request.record;
        check_no_pin(options)?;
        check_machine(record)?;
        match record.device.as_str() {
            "cpu" => {
                let device = delegate_device::open_host(record, options, None)?;
                Delegate::on(Faulty::new(device, faults), request, options)
            }
            _ => {
                let device = delegate_device::open_cuda(record, options, None)?;
                Delegate::on(Faulty::new(device, faults), request, options)
            }
        }
    }

    fn on<D: DelegateDevice + 'static>(
        device: D,
        request: LoadRequest<'_>,
        options: &Options,
    ) -> Result<Delegate> {
        let engine: Box<dyn RunPass> = Box::new(engine(device, &request, options)?);
        let (record, wiring) = (request.record, request.wiring);
        let gpu = record.device != "cpu";
        if options.budget == Budget::Floor && record.offload {
            log::info!(
                "method '{}': no budget was given, so its weights get the least possible one, {}",
                record.method,
                bytes_text(engine.stats().budget_bytes)
            );
        }
        Ok(Delegate {
            record,
            wiring,
            live: Live::new(engine),
            inputs_copied: AtomicU64::new(0),
            options: options.to_json(gpu),
            keeps_named_data: matches!(request.data, DataSource::Kept(_)),
        })
    }
}

/// Everything that comes after the device, which is there and is one that the program was compiled for.
fn engine<D: DelegateDevice>(
    device: D,
    request: &LoadRequest<'_>,
    options: &Options,
) -> Result<Engine<D>> {
    let record = &request.record;
    check_budget_has_effect(record, options)?;
    host_storage::check(record, options)?;
    check_sync(record, options)?;
    check_link(record, options)?;
    check_graph(record, options)?;
    let (times, times_file) = times::open(record, options, device.full_name())?;
    let (constants, mut method) = constants_and_method(record)?;
    check_floor(record, (&constants, &method), device.granule())?;
    let (file, catalog) = match &request.data {
        DataSource::File(path) => {
            let file = MappedPtd::open(path)?;
            let catalog = Catalog::build(record, &file)?;
            (Some(file), catalog)
        }
        DataSource::Kept(named) => (None, Catalog::build(record, *named)?),
    };
    let held = match &file {
        Some(file) => hold(&device, record, options, file, &catalog)?,
        None => keep(record, options, &catalog)?,
    };
    if options.cuda_graph && matches!(held, HostStorage::Staged { .. }) {
        return Err(no_graph(
            "weights are held 'staged' on the host here, which fills the ring during each pass; hold them otherwise \
             (weight_offload_host), or leave it out",
        ));
    }
    method.gather = gather::choose(record, options, &held)?;
    let floor = method.floor(&constants, device.granule())?;
    check_data(record, options, &catalog)?;
    let name = device.torch_name();
    let container = compiled(&device.scope(), "loading", || {
        open(record, &name, request.library)
    })?;
    check_signature(record, &container)?;
    let bound = match_constants(&catalog, container.constants())?;
    let choices = StoreOptions {
        budget: match options.budget {
            Budget::Floor => None,
            Budget::Bytes(bytes) => Some(bytes),
            Budget::Auto => Some(choose_budget(record, &constants, &floor, &device, options)?),
        },
        policy: options.policy,
        times,
    };
    let data = Data {
        catalog,
        file,
        held,
        verify: options.verify,
        sync: options.sync,
        graph: options.cuda_graph,
        times_file,
    };
    let program = (constants, method);
    Engine::new(device, container, program, data, &bound, choices)
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

/// The bytes in the file, as far as they are to be compared with their checksums.
fn check_data(record: &Record, options: &Options, catalog: &Catalog) -> Result<()> {
    match options.verify {
        Verify::Off => Ok(()),
        // rule: data-is-verified-when-asked
        Verify::Load => verify_crc(catalog),
        Verify::EveryRead => {
            log::warn!(
                "method '{}': {VERIFY} = every_read: each weight is read back from the device and compared with its \
                 checksum before each read, so that passes are slow; this is for debugging and tests",
                record.method
            );
            verify_crc(catalog)
        }
    }
}

/// How the weights are held for the device's copies.
fn hold<D: DelegateDevice>(
    device: &D,
    record: &Record,
    options: &Options,
    file: &MappedPtd,
    catalog: &Catalog,
) -> Result<HostStorage> {
    let copier = device.copier();
    let asked = || "asking how copies of all weights can be held on the host".to_owned();
    let Some(copier) = copier.map_err(|error| error.during(asked))? else {
        return Ok(HostStorage::Mapped);
    };
    let mapped = file.file();
    let needs = Needs {
        file: mapped.name(),
        file_bytes: mapped.bytes().len() as u64,
        in_memory: mapped.is_in_memory(),
        used_bytes: catalog.distinct_bytes(),
    };
    let (held, why) = host_storage::choose(options, &needs, &copier, &system_memory::available()?)?;
    log::info!(
        "method '{}': weights are held '{}' on the host: {why}",
        record.method,
        held.name()
    );
    Ok(held)
}

/// Weights that are in memory already stay where they are.
fn keep(record: &Record, options: &Options, catalog: &Catalog) -> Result<HostStorage> {
    if matches!(options.host, HostMemory::Pinned | HostMemory::Staged) {
        return Err(Error::Option {
            key: HOST.to_owned(),
            what: format!(
                "'pinned' and 'staged' start from the file, and ExecuTorch has read the weights of method '{}' into memory; \
                 load it with LoadMode::Mmap, or name the file in {DATA}",
                record.method
            ),
        });
    }
    log::info!(
        "method '{}': {} of weights stay in memory, where ExecuTorch read them; with LoadMode::Mmap, or {DATA}, they would \
         stay in the file",
        record.method,
        bytes_text(catalog.distinct_bytes())
    );
    Ok(HostStorage::Mapped)
}

/// What a store and a pass have to know of a method, from its record. Tables are read in place by the record's rule.
pub fn constants_and_method(record: &Record) -> Result<(Constants, Method)> {
    let constants = &record.constants;
    let weights = constants.iter().map(|constant| WeightSpec {
        fqn: constant.fqn.clone(),
        bytes: constant.nbytes,
        kind: match constant.kind {
            ConstantKind::Weight => WeightKind::Weight,
            ConstantKind::Direct => WeightKind::Direct,
            ConstantKind::Mutable => WeightKind::Mutable,
        },
    });
    let layouts = constants.iter().map(|constant| WeightLayout {
        dtype: constant.dtype.number(),
        sizes: constant.sizes.clone(),
        strides: constant.strides.clone(),
    });
    let method = Method {
        layouts: layouts.collect(),
        trace: Trace::new(record.trace.clone(), record.probes.clone(), constants.len())?,
        gather: gather::by_rule(record),
    };
    let specs = weights.collect();
    Ok((Constants { specs }, method))
}

/// The recorded floor is what `required_budget` tells; it must be the one that is enforced.
fn check_floor(
    record: &Record,
    (constants, method): (&Constants, &Method),
    granule: u64,
) -> Result<()> {
    let floor = method.floor(constants, granule)?;
    let recorded = [
        ("floor", record.floor, floor.bytes()),
        ("hard minimum", record.hard_minimum, floor.hard_minimum),
    ];
    for (fact, recorded, computed) in recorded {
        // rule: recorded-floor-is-computed-again
        if recorded != computed {
            return Err(Error::Mismatch {
                name: record.method.clone(),
                fact,
                expected: format!("{computed} bytes, by the recorded trace"),
                found: format!("{recorded} bytes in the record"),
            });
        }
    }
    Ok(())
}

/// What `auto` comes to on this device now. The device's context is there, and the compiled library's bytes
/// are loaded; the weights are not.
fn choose_budget<D: DelegateDevice>(
    record: &Record,
    constants: &Constants,
    floor: &Floor,
    device: &D,
    options: &Options,
) -> Result<u64> {
    let granule = device.granule();
    let occupied = constants.specs.iter().map(|spec| spec.occupied(granule));
    let everything = occupied.fold(0, u64::saturating_add);
    let free = device.free_bytes();
    let free = free.map_err(|error| error.during(|| format!("the budget of {BUDGET} = auto")))?;
    let auto = AutoBudget::new(record, everything, free, granule)?;
    let auto = match options.cuda_graph {
        true => auto.with_graph(),
        false => auto,
    };
    log::info!("method '{}': {BUDGET} = auto: {auto}", record.method);
    auto.accepted(floor)
}
