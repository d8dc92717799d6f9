//! What kernels always find at one address. A table lies in host memory if kernels only look a few rows up. They read it
//! through the address that the device has for it: this takes nothing of the budget, and nothing is copied. A pinned weight
//! lies with the direct constants (`memory.rs`).

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
    in_host_memory(constants, tables).map(one).collect()
}

/// The tables, without the pinned weights.
pub(super) fn in_host_memory<'a>(
    constants: &'a Constants,
    tables: &'a [Table],
) -> impl Iterator<Item = &'a Table> {
    let tables = tables.iter();
    tables.filter(|one| !constants.is_pinned(one.table))
}
