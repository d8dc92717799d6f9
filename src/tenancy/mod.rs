//! Sessions that share a device: how one joins the pool of its device, and holds its grant from the begin of a pass to its end.
//! [`elastic`](crate::elastic) says who gets what.
#![deny(unsafe_code)]

use crate::config::BUDGET;
use crate::device::WeightDevice;
use crate::elastic::{DevicePool, DeviceState, Membership, PassNeeds, Wants};
use crate::error::{Error, Result};
use crate::figures::DeviceId;
use crate::session::Session;
use std::cell::RefCell;

/// Bytes of a device that are left for what nobody can tell beforehand.
pub const RESERVE: u64 = 256 << 20;

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
pub(crate) fn join_pool<D: WeightDevice>(device: &D, joining: Joining) -> Result<Membership> {
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

/// A pass begins: the store holds its grant, less what the tenant has `beside` its weights.
pub(crate) fn take_grant<D: WeightDevice>(
    membership: Option<&Membership>,
    session: &mut Session<D>,
    beside: u64,
    pass: PassNeeds,
) -> Result<()> {
    let Some(membership) = membership else {
        return Ok(());
    };
    // Both look at the session, one after the other.
    let session = RefCell::new(session);
    membership.begin_pass(
        pass,
        || session.borrow().device().free_bytes(),
        |bytes| {
            let weights = bytes.saturating_sub(beside);
            session.borrow_mut().set_budget(weights)
        },
    )
}

/// The pass is over: the store gives what others were promised of it.
pub(crate) fn settle_grant<D: WeightDevice>(
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
