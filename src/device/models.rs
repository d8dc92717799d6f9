//! What plans need to know of the devices of this build, which need not be there.
#![deny(unsafe_code)]

use super::{cuda, host, BlockCode};
use crate::figures::{DeviceModel, PackedResidents};

/// Bytes of device memory that decoding these weights takes on the device that records call `name`, for as
/// long as they are loaded. On a CPU none: a weight is decoded where it is wanted.
pub fn staging_bytes<'a>(name: &str, weights: impl IntoIterator<Item = BlockCode<'a>>) -> u64 {
    match name {
        "cuda" => cuda::staging_bytes(weights),
        _ => 0,
    }
}

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
        packed: PackedResidents::Off,
    })
}
