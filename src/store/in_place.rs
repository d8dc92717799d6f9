//! Tables that are read in place: kernels that look a few rows up find them in host memory, through the address that the
//! device has for it. Such a read takes nothing of the budget, and nothing is copied for it.

use super::{Constants, Table};
use crate::device::{Device, DevicePtr, HostBytes};
use crate::error::{Error, Result};
use crate::schedule::WeightIndex;

/// Where kernels find each table.
pub(super) fn addresses<D: Device>(
    device: &mut D,
    constants: &Constants,
    tables: &[Table],
    bytes: &[HostBytes],
) -> Result<Vec<(WeightIndex, DevicePtr)>> {
    let one = |table: &Table| {
        let fqn = &constants.specs[table.table as usize].fqn;
        let found = device.in_place(bytes[table.table as usize]);
        let found = found.map_err(|error| error.during(|| format!("reading '{fqn}' in place")))?;
        match found {
            Some(at) => Ok((table.stands, at)),
            None => Err(Error::Unsupported(format!(
                "the kernels of {} cannot read '{fqn}' in place: its bytes are not registered with the device",
                device.name()
            ))),
        }
    };
    tables.iter().map(one).collect()
}
