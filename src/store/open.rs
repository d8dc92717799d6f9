//! From checked constants and the bytes of the weights to a store that can be loaded.

use super::{in_place, Constants, DeviceWeight, Method, Methods, Store};
use crate::config::{PolicyKind, BUDGET_MB};
use crate::counters::Stats;
use crate::device::{Device, DevicePtr, HostBytes, PageAccess, Source};
use crate::error::{bytes_text, Error, Result};
use crate::figures::{Link, PackedResidents};
use crate::memory::StreamOrdered;
use crate::residency::{self, Request, Residency};
use crate::schedule::{Floor, KernelTimes, WeightSpec};

/// What the user chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// Device bytes for weights and direct constants; `None` means the floor.
    pub budget: Option<u64>,
    /// The residency policy.
    pub policy: PolicyKind,
    /// How long kernels run, if that is known. Otherwise they are timed, on devices that can tell.
    pub times: Option<KernelTimes>,
    /// Whether stored bytes of packed weights stay on the device, which decodes them.
    pub packed: PackedResidents,
    /// The budget will change often: everything is planned on pages, also where the budget covers all.
    pub elastic: bool,
    /// Kernels may write to weights: what they wrote lasts until a copy of the weight, and the caller sees to the rest.
    pub kernels_write: bool,
}

/// A store without memory, and what the caller has to know of it.
pub(crate) struct Opened<D: Device> {
    pub store: Store<D>,
    /// The methods, with their reads in place.
    pub methods: Vec<Method>,
    /// What copies cost, where that is known.
    pub link: Option<Link>,
}

impl<D: Device> Store<D> {
    /// Checks the budget, tells the device, has the bytes made ready, and chooses who is on the device. `source` is called
    /// once the budget was accepted, since making bytes ready may cost time and memory. `least` says which budgets are
    /// refused: those below the floor. Nothing is allocated if the budget is refused.
    pub(crate) fn open(
        mut device: D,
        methods: Methods,
        source: impl FnOnce(&mut D) -> Result<Vec<Source>>,
        options: &StoreOptions,
        least: fn(&Floor) -> u64,
    ) -> Result<Opened<D>> {
        methods.check()?;
        let granule = device.granule();
        let floor = methods.floor(granule)?;
        let everything = methods.everything(granule);
        let needed = match options.elastic {
            true => everything_in_pages(&methods, &device, floor.direct),
            false => everything,
        };
        let covered = options.budget.is_some_and(|budget| budget >= needed);
        let (methods, tables) = methods.in_place(covered)?;
        let everything = methods.everything(granule);
        let budget = options.budget.unwrap_or(floor.bytes());
        let mut stats = accepted(&floor, budget, everything, least(&floor))?;
        let constants = &methods.constants;
        stats.gathered_bytes = in_place::bytes(&methods, &tables);
        let told = device.set_budget(budget);
        told.map_err(|error| error.during(|| format!("the budget of {}", bytes_text(budget))))?;
        let mut bytes = source(&mut device)?;
        let own = constants.specs.len() - tables.len();
        check_bytes(&constants.specs[..own], &bytes)?;
        let places = in_place::addresses(&mut device, constants, &tables, &bytes)?;
        let (residency, link) = choose(&mut device, &methods, &bytes, &floor, budget, options)?;
        bytes.resize(constants.specs.len(), HostBytes::from_static(&[]).into());
        let count = constants.specs.len();
        let mut weights: Vec<_> = (0..count).map(|_| DeviceWeight::empty()).collect();
        for (weight, at) in places {
            weights[weight as usize].in_place = Some(at);
        }
        let access = match options.kernels_write {
            true => PageAccess::ReadWrite,
            false => PageAccess::Read,
        };
        let mut store = Store {
            device,
            access,
            pool: Box::new(StreamOrdered::new(budget, access)),
            policy: residency.policy(),
            residency,
            weights,
            tables,
            rows: Default::default(),
            packed: options.packed,
            bytes,
            floor,
            budget,
            direct: DevicePtr::EMPTY,
            block: DevicePtr::EMPTY,
            rehearsing: false,
            actions: Vec::new(),
            batch: Default::default(),
            poisoned: None,
            stats,
            fragmentation_misses: 0,
            compactions: 0,
            checksums: None,
            is_loaded: false,
            gave_way: false,
            generation: 0,
            constants: methods.constants.clone(),
        };
        store.know_rows(&methods)?;
        store.actions = Vec::with_capacity(store.most_actions(&methods.all));
        Ok(Opened {
            store,
            methods: methods.all,
            link,
        })
    }
}

/// What a store of this program can do with that many bytes of a device that other stores share.
#[derive(Debug, Clone, Copy)]
pub struct ElasticBytes {
    /// The least budget: the floor, or what a plan takes on the device's pages.
    pub least: u64,
    /// Everything is resident then.
    pub everything: u64,
    /// Bytes of a page.
    pub page: u64,
}

impl ElasticBytes {
    /// Of a program on a device with pages, in whole ones: direct constants lie in pages of their own.
    pub fn of<D: Device>(methods: &Methods, device: &D) -> Result<ElasticBytes> {
        let (granule, page) = (device.granule(), device.page().unwrap_or(1));
        let floor = methods.floor(granule)?;
        let (methods, _) = methods.in_place(false)?;
        let model = device.model().beside(floor.direct).in_whole_pages();
        let traced = methods.traced();
        let request = Request {
            kind: PolicyKind::Planned,
            methods: &traced,
            weights: &methods.constants.specs,
            model: &model,
            capacity: floor.bytes() - floor.direct,
            link: None,
            times: &[],
        };
        let least = residency::least_elastic(&request);
        Ok(ElasticBytes {
            least: whole(floor.direct, page).saturating_add(whole(least, page)),
            everything: everything_in_pages(&methods, device, floor.direct),
            page,
        })
    }
}

/// Everything that methods read as a weight is resident in so many bytes, with the direct constants: all in whole pages.
fn everything_in_pages<D: Device>(methods: &Methods, device: &D, direct: u64) -> u64 {
    let model = device.model().beside(direct).in_whole_pages();
    let traced = methods.traced();
    let request = Request {
        kind: PolicyKind::Planned,
        methods: &traced,
        weights: &methods.constants.specs,
        model: &model,
        capacity: 0,
        link: None,
        times: &[],
    };
    let page = device.page().unwrap_or(1);
    whole(direct, page).saturating_add(whole(request.total(), page))
}

fn whole(bytes: u64, page: u64) -> u64 {
    bytes.div_ceil(page).saturating_mul(page)
}

/// Who is on the device at this budget. What copies cost is asked where a plan depends on it.
fn choose<D: Device>(
    device: &mut D,
    methods: &Methods,
    bytes: &[Source],
    floor: &Floor,
    budget: u64,
    options: &StoreOptions,
) -> Result<(Residency, Option<Link>)> {
    let model = |device: &D| {
        let model = device.model().beside(floor.direct);
        model.with_packed(options.packed)
    };
    let (traced, before) = (methods.traced(), model(device));
    // They are those of the only method.
    let times = [options.times.as_ref()];
    let mut request = Request {
        kind: options.policy,
        methods: &traced,
        weights: &methods.constants.specs,
        model: &before,
        capacity: budget - floor.direct,
        link: None,
        times: &times,
    };
    let streams = !request.all_may_stay() || options.elastic;
    if streams && options.policy.plans() {
        request.link = calibrate(device, &methods.constants, bytes, request.capacity)?;
    }
    // The device knows what a copy costs from here on.
    let model = model(device);
    let request = Request {
        model: &model,
        ..request
    };
    let residency = match options.elastic {
        true => residency::choose_elastic(&request).map_err(Error::Unsupported)?,
        false => residency::choose(&request),
    };
    log::info!("policy '{}': {}", options.policy.name(), residency.why);
    Ok((residency, request.link))
}

/// What copies cost, if the device was told or can tell: it copies the largest weight, or what of it fits into the budget,
/// as long as no memory is taken.
fn calibrate<D: Device>(
    device: &mut D,
    constants: &Constants,
    bytes: &[Source],
    capacity: u64,
) -> Result<Option<Link>> {
    let Some((weight, largest)) = (0..).zip(bytes).max_by_key(|(_, bytes)| bytes.len()) else {
        return Ok(None);
    };
    let stored = largest.stored();
    let some = stored.slice(0..stored.len().min(capacity));
    let link = device.calibrate(some).map_err(|error| {
        error.during(|| {
            format!(
                "measuring what copies cost, with {}",
                constants.name(weight)
            )
        })
    })?;
    if let Some(link) = link {
        log::info!(
            "the link carries {link}, which plans take for {}",
            bytes_text(device.bytes_per_copy())
        );
    }
    Ok(link)
}

fn check_bytes(weights: &[WeightSpec], bytes: &[Source]) -> Result<()> {
    if weights.len() != bytes.len() {
        return Err(Error::Internal(format!(
            "{} constants, {} byte ranges",
            weights.len(),
            bytes.len()
        )));
    }
    for (spec, bytes) in weights.iter().zip(bytes) {
        let sizes = [
            ("number of bytes", spec.bytes, bytes.len()),
            ("number of stored bytes", spec.stored, bytes.stored_bytes()),
        ];
        for (fact, expected, found) in sizes {
            if expected != found {
                return Err(Error::Mismatch {
                    name: spec.fqn.clone(),
                    fact,
                    expected: format!("{expected} (record)"),
                    found: format!("{found} (data)"),
                });
            }
        }
    }
    Ok(())
}

/// Refuses a budget below `least`, which is the floor; otherwise the counters at load.
fn accepted(floor: &Floor, budget: u64, everything: u64, least: u64) -> Result<Stats> {
    if budget < least {
        return Err(Error::BudgetTooSmall {
            budget,
            floor: floor.bytes(),
            parts: floor.to_string(),
            option: BUDGET_MB,
        });
    }
    Ok(Stats {
        floor_bytes: floor.bytes(),
        hard_minimum_bytes: floor.hard_minimum,
        direct_bytes: floor.direct,
        pinned_bytes: floor.pinned,
        total_weight_bytes: everything.saturating_sub(floor.direct),
        ..Stats::default()
    })
}
