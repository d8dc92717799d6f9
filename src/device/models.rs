//! What plans need to know of the devices of this build, which need not be there.
#![deny(unsafe_code)]

use super::{cuda, host};
use crate::figures::DeviceModel;

/// The model of the device that records call `name`: `cpu` or `cuda`. The device need not be there.
pub fn model_of(name: &str) -> Option<DeviceModel> {
    let (granule, bytes_per_copy, page) = match name {
        "cpu" => (host::GRANULE, 0, host::page()),
        "cuda" => (cuda::GRANULE, cuda::BYTES_PER_COPY, Some(cuda::PAGE)),
        _ => return None,
    };
    Some(DeviceModel {
        granule,
        bytes_per_copy,
        page,
        apart: 0,
        whole_pages: false,
    })
}
