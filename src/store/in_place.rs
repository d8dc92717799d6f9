//! What kernels always find at one address. A table lies in host memory if kernels only look a few rows up. They read it
//! through the address that the device has for it: this takes nothing of the budget, and nothing is copied. A pinned weight
//! lies with the direct constants (`memory.rs`).

use super::{Constants, DeviceWeight, Store, Table};
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

/// Bytes of the tables that lie in host memory.
pub(super) fn bytes(constants: &Constants, tables: &[Table]) -> u64 {
    let each = in_host_memory(constants, tables);
    each.map(|one| constants.specs[one.table as usize].bytes)
        .fold(0, u64::saturating_add)
}

impl<D: Device> Store<D> {
    /// The budget covers everything no more: `constants` are those that the store has and some that stand for reads in place, and
    /// `tables` begin with those that it knows. The weights have to be moved next.
    pub(crate) fn read_in_place(&mut self, constants: Constants, tables: Vec<Table>) -> Result<()> {
        let new = &tables[self.tables.len()..];
        let places = addresses(&mut self.device, &constants, new, &self.bytes)?;
        let count = constants.specs.len();
        self.bytes.resize(count, HostBytes::from_static(&[]));
        self.weights.resize_with(count, DeviceWeight::empty);
        for (weight, at) in places {
            self.weights[weight as usize].in_place = Some(at);
        }
        self.actions.reserve(self.actions.capacity() + new.len());
        self.stats.gathered_bytes = bytes(&constants, &tables);
        self.constants = constants;
        self.tables = tables;
        Ok(())
    }
}

/// The tables, without the pinned weights.
fn in_host_memory<'a>(
    constants: &'a Constants,
    tables: &'a [Table],
) -> impl Iterator<Item = &'a Table> {
    let tables = tables.iter();
    tables.filter(|one| !constants.is_pinned(one.table))
}
