//! The load of a program: what its methods share, made by the first of them that is loaded.
#![deny(unsafe_code)]

use super::budget::AutoBudget;
use super::delegate_device::DelegateDevice;
use super::engine::new_session;
use super::gather;
use super::graph_shapes::graph_room;
use super::keep;
use super::request::{Data, DataSource, LoadRequest};
use super::shared::Shared;
use super::tenant;
use super::times;
use crate::config::{Budget, HostMemory, Options, Verify, BUDGET, DATA, HOST, VERIFY};
use crate::device::host_storage::{choose, Needs};
use crate::device::{self, CallerStream, HostStorage};
use crate::elastic::{DevicePool, Membership};
use crate::error::{bytes_text, Error, Result};
use crate::format::{ConstantKind, Places, Record, Records, UnionConstants};
use crate::schedule::{Floor, Trace, WeightIndex, WeightKind, WeightSpec};
use crate::store::{code_of, Constants, Method, Methods, RowPlaces, StoreOptions, WeightLayout};
use crate::system_memory;
use crate::weights::{verify_crc, Catalog, MappedPtd};

/// Everything that the methods of a program share, on a device that is there and is one that it was compiled for. `check_code` is
/// called before any weight is loaded.
pub(super) fn open<D: DelegateDevice>(
    device: D,
    request: &LoadRequest<'_>,
    options: &Options,
    stream: Option<CallerStream>,
    check_code: impl FnOnce(&D) -> Result<()>,
) -> Result<Shared<D>> {
    let (records, record) = (&request.records, request.records.own());
    let (times, times_file) = times::open(record, options, device.full_name())?;
    let (union, mut methods) = program_of(records)?;
    let shares = options.shares_of(&records.names())?;
    for (method, share) in methods.all.iter_mut().zip(shares) {
        method.share = share;
    }
    check_floors(records, &methods, device.granule())?;
    keep::mark(records, &union, options, &mut methods.constants)?;
    let (file, catalog) = match &request.data {
        DataSource::File(path) => {
            let file = MappedPtd::open(path)?;
            let catalog = Catalog::of_program(record, &union.constants, &file)?;
            (Some(file), catalog)
        }
        DataSource::Kept(named, _) => {
            let catalog = Catalog::of_program(record, &union.constants, *named)?;
            (None, catalog)
        }
    };
    know_packed(&mut methods.constants, &catalog, device.name());
    let held = match &file {
        Some(file) => hold(&device, record, options, file, &catalog)?,
        None => keep(record, options, &catalog)?,
    };
    let gathers = gather::choose_all(records, options, &held)?;
    for (method, gather) in methods.all.iter_mut().zip(gathers) {
        method.gather = gather;
    }
    let floor = methods.floor(device.granule())?;
    check_data(record, options, &catalog)?;
    check_code(&device)?;
    let membership = match options.budget {
        Budget::Shared => Some(tenant::join(&device, request, &methods, options)?),
        _ => None,
    };
    let choices = StoreOptions {
        budget: match options.budget {
            Budget::Floor => None,
            Budget::Bytes(bytes) => Some(bytes),
            Budget::Shared => membership.as_ref().map(Membership::held),
            Budget::Auto => Some(choose_budget(
                records,
                &methods.constants,
                &floor,
                &device,
                options,
            )?),
        },
        policy: options.policy,
        times,
        packed: methods.constants.packed_residents(options.packed_residents),
        elastic: membership.is_some(),
        kernels_write: false,
    };
    let data = Data {
        catalog,
        file,
        keeper: request.data.keeper(),
        held,
        times_file,
    };
    let pool = DevicePool::of(device.id());
    let mut session = new_session(device, methods, &data, choices, options)?;
    session.when_full(Box::new(move |bytes| pool.make_room(bytes)));
    let shared = Shared::new(session, data, union, options, stream);
    Ok(shared.in_pool(membership))
}

/// Has the plan know what copies of packed weights bring, and what decoding them takes on the device of this name.
pub fn know_packed(constants: &mut Constants, catalog: &Catalog, device: &str) {
    let mut packed = Vec::new();
    for (spec, constant) in constants.specs.iter_mut().zip(catalog.constants()) {
        let segment = catalog.segment(constant.segment);
        spec.stored = segment.bytes.len();
        packed.extend(segment.packed.as_deref().map(code_of));
    }
    constants.staging = device::staging_bytes(device, packed);
}

/// The bytes in the file, as far as they are to be compared with their checksums.
fn check_data(record: &Record, options: &Options, catalog: &Catalog) -> Result<()> {
    match options.verify {
        Verify::Off => Ok(()),
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
    let access = device.host_access();
    let asked = || "asking how copies of all weights can be held on the host".to_owned();
    let Some(access) = access.map_err(|error| error.during(asked))? else {
        return Ok(HostStorage::Mapped);
    };
    let mapped = file.file();
    let needs = Needs {
        file: mapped.name(),
        file_bytes: mapped.bytes().len() as u64,
        in_memory: mapped.is_in_memory(),
        used_bytes: catalog.distinct_bytes(),
    };
    let (held, why) = choose(options, &needs, &access, &system_memory::available()?)?;
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

/// What `auto` comes to on this device now. The device's context is there, and the compiled library's bytes
/// are loaded; the weights are not.
fn choose_budget<D: DelegateDevice>(
    records: &Records,
    constants: &Constants,
    floor: &Floor,
    device: &D,
    options: &Options,
) -> Result<u64> {
    let granule = device.granule();
    let occupied = constants.specs.iter().map(|spec| spec.occupied(granule));
    let everything = occupied.fold(constants.staging, u64::saturating_add);
    let free = device.free_bytes();
    let free = free.map_err(|error| error.during(|| format!("the budget of {BUDGET} = auto")))?;
    let mut most: Option<AutoBudget> = None;
    for record in records.all() {
        let auto = AutoBudget::new(record, everything, free, granule)?;
        if most.is_none_or(|most| most.headroom() < auto.headroom()) {
            most = Some(auto);
        }
    }
    let auto = most.ok_or_else(|| Error::Internal("a program without a method".to_owned()))?;
    let auto = match options.cuda_graph {
        true => auto.with_graphs(graph_room(records, options)?),
        false => auto,
    };
    log::info!("method '{}': {BUDGET} = auto: {auto}", records.own().method);
    auto.accepted(floor)
}

/// What a store and its passes have to know of a program. Tables are read in place by the records' rule.
pub fn program_of(records: &Records) -> Result<(UnionConstants, Methods)> {
    let union = records.union()?;
    let weights = union.constants.iter().map(|constant| WeightSpec {
        fqn: constant.fqn.clone(),
        bytes: constant.nbytes,
        stored: constant.nbytes,
        kind: match constant.kind {
            ConstantKind::Weight => WeightKind::Weight,
            ConstantKind::Direct => WeightKind::Direct,
            ConstantKind::Mutable => WeightKind::Mutable,
        },
    });
    let constants = Constants {
        specs: weights.collect(),
        staging: 0,
    };
    let methods = records.all().iter().zip(&union.index);
    let all = methods.map(|(record, index)| method_of(record, index, union.constants.len()));
    let all = all.collect::<Result<Vec<Method>>>()?;
    Ok((union, Methods { constants, all }))
}

/// `index` has the program's index of each constant of the method.
fn method_of(record: &Record, index: &[WeightIndex], constants: usize) -> Result<Method> {
    let mut layouts = vec![WeightLayout::default(); constants];
    for (constant, &at) in record.constants.iter().zip(index) {
        layouts[at as usize] = WeightLayout {
            dtype: constant.dtype.number(),
            sizes: constant.sizes.clone(),
            strides: constant.strides.clone(),
        };
    }
    let probes = record.probes.iter().map(|&own| index[own as usize]);
    let places = |one: &Places| RowPlaces {
        probe: one.probe,
        constant: index[one.constant as usize],
        row_bytes: one.row_bytes,
    };
    Ok(Method {
        layouts,
        trace: Trace::new(record.trace.clone(), probes.collect(), constants)?,
        gather: gather::by_rule(record),
        places: record.places.iter().map(places).collect(),
        share: 1,
    })
}

/// The recorded floors are what `required_budget` tells; they must be the ones that are enforced.
fn check_floors(records: &Records, methods: &Methods, granule: u64) -> Result<()> {
    for (record, floor) in records.all().iter().zip(methods.floors(granule)?) {
        check_floor(record, &floor)?;
    }
    Ok(())
}

fn check_floor(record: &Record, floor: &Floor) -> Result<()> {
    let recorded = [
        ("floor", record.floor, floor.bytes()),
        ("hard minimum", record.hard_minimum, floor.hard_minimum),
    ];
    for (fact, recorded, computed) in recorded {
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
