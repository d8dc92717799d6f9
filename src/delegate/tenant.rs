//! A program as a tenant of its device's pool: it joins at load, holds its grant in each pass, and shrinks between passes when
//! others are granted more.
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use super::budget::{AutoBudget, RESERVE};
use super::delegate_device::DelegateDevice;
use super::request::{DataSource, LoadRequest};
use super::shared::Shared;
use crate::config::{Options, BUDGET};
use crate::elastic::{DevicePool, DeviceState, Membership, Tenant, Wants};
use crate::error::{Error, Result};
use crate::figures::DeviceId;
use crate::session::Session;
use crate::store::{ElasticBytes, Methods};

/// A place in the pool of the device for a program that is about to be loaded.
pub(super) fn join<D: DelegateDevice>(
    device: &D,
    request: &LoadRequest<'_>,
    methods: &Methods,
    options: &Options,
) -> Result<Membership> {
    let bytes = ElasticBytes::of(methods, device)?;
    let (free, granule) = (device.free_bytes()?, device.granule());
    let beside = request.records.all().iter().map(|record| {
        // Without bounds on its shapes nobody knows; the reserve is for what nobody knows.
        let auto = AutoBudget::new(record, bytes.everything, free, granule);
        auto.map_or(RESERVE, |auto| auto.headroom())
    });
    let joining = Joining {
        device: device.id(),
        name: name_of(request),
        priority: options.priority,
        total: bytes.everything,
        floor: bytes.least,
        page: bytes.page,
        headroom: beside.max(),
    };
    join_pool(device, joining)
}

/// What joins the pool of its device.
pub(crate) struct Joining {
    /// The device.
    pub device: DeviceId,
    /// What reports call it.
    pub name: String,
    /// Whose bytes come first.
    pub priority: i64,
    /// Bytes that are of use to it.
    pub total: u64,
    /// The least.
    pub floor: u64,
    /// Bytes of a page.
    pub page: u64,
    /// What it takes of the device beside that, if it is known.
    pub headroom: Option<u64>,
}

/// A place in the pool of the device.
pub(crate) fn join_pool<D: DelegateDevice>(device: &D, joining: Joining) -> Result<Membership> {
    let name = joining.device;
    if device.page().is_none() {
        return Err(Error::Unsupported(format!(
            "{BUDGET} = 'shared' moves pages between stores, and '{name}' maps no memory (on a GPU: \
             CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED is 0): give each store a budget of its own"
        )));
    }
    let wants = Wants {
        name: joining.name,
        total: joining.total,
        floor: joining.floor,
        priority: joining.priority,
    };
    let state = DeviceState {
        page: joining.page,
        beside: joining.headroom.unwrap_or(RESERVE),
        free: device.free_bytes()?,
    };
    DevicePool::of(name).join(wants, &state)
}

/// The methods, and the file of the weights.
fn name_of(request: &LoadRequest<'_>) -> String {
    let methods = request.records.names().join("+");
    match &request.data {
        DataSource::File(path) => {
            let file = path.file_name().unwrap_or(path.as_os_str());
            format!("{methods} of {}", file.to_string_lossy())
        }
        DataSource::Kept(..) => methods,
    }
}

/// From now on others can have it shrink.
pub(super) fn attach<D: DelegateDevice + 'static>(shared: &Arc<Shared<D>>) {
    if let Some(membership) = &shared.membership {
        let tenant: Weak<Shared<D>> = Arc::downgrade(shared);
        membership.attach(tenant);
    }
}

impl<D: DelegateDevice> Tenant for Shared<D> {
    fn shrink_to(&self, bytes: u64) -> Option<Result<()>> {
        let mut running = self.turn_now()?;
        let changed = running.session.set_budget(bytes);
        *super::locked(&self.stats) = running.stats();
        Some(changed)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.turn_now()?.session.device().free_bytes().ok()
    }
}

/// A pass begins: the store holds its grant, less what the tenant has `beside` its weights.
pub(crate) fn take_grant<D: DelegateDevice>(
    membership: Option<&Membership>,
    session: &mut Session<D>,
    beside: u64,
) -> Result<()> {
    let Some(membership) = membership else {
        return Ok(());
    };
    // Both look at the session, one after the other.
    let session = RefCell::new(session);
    membership.begin_pass(
        || session.borrow().device().free_bytes(),
        |bytes| {
            let weights = bytes.saturating_sub(beside);
            session.borrow_mut().set_budget(weights)
        },
    )
}

/// The pass is over: the store gives what others were promised of it.
pub(crate) fn settle_grant<D: DelegateDevice>(
    membership: Option<&Membership>,
    session: &mut Session<D>,
    beside: u64,
) {
    let Some(membership) = membership else {
        return;
    };
    let change = |bytes: u64| session.set_budget(bytes.saturating_sub(beside));
    if let Err(error) = membership.end_pass(change) {
        log::warn!("memory could not be given to others after a pass: {error}");
    }
}
