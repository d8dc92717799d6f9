//! A program as a tenant of its device's pool: it joins at load, holds its grant in each pass, and shrinks between passes when
//! others are granted more.
#![deny(unsafe_code)]

use std::sync::{Arc, Weak};

use super::budget::AutoBudget;
use super::delegate_device::DelegateDevice;
use super::request::{DataSource, LoadRequest};
use super::shared::Shared;
use crate::config::Options;
use crate::elastic::{Membership, Tenant};
use crate::error::Result;
use crate::store::{ElasticBytes, Methods};
use crate::tenancy::{join_pool, Joining, RESERVE};

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
