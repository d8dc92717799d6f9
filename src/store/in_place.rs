//! What kernels always find at one address. A table lies in host memory if kernels only look a few rows up. They read it
//! through the address that the device has for it: this takes nothing of the budget, and nothing is copied. A pinned weight
//! lies with the direct constants (`memory.rs`).

use super::{Constants, DeviceWeight, Method, Methods, Store, Table};
use crate::device::{Device, DevicePtr, HostBytes, Source};
use crate::error::{Error, Result};
use crate::schedule::{Floor, WeightIndex};

/// Where kernels find each table.
pub(super) fn addresses<D: Device>(
    device: &mut D,
    constants: &Constants,
    tables: &[Table],
    bytes: &[Source],
) -> Result<Vec<(WeightIndex, DevicePtr)>> {
    let one = |table: &Table| {
        let fqn = &constants.specs[table.table as usize].fqn;
        let bytes = bytes[table.table as usize].as_stored().ok_or_else(|| {
            Error::Unsupported(format!(
                "'{fqn}' is read in place, and its bytes are decoded"
            ))
        })?;
        let found = device.in_place(bytes);
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

/// Bytes of the tables that methods read in host memory.
pub(super) fn bytes(methods: &Methods, tables: &[Table]) -> u64 {
    let constants = &methods.constants;
    let is_read = |one: &&Table| {
        let mut all = methods.all.iter();
        all.any(|method| method.trace.probes().contains(&one.stands))
    };
    let each = in_host_memory(constants, tables).filter(is_read);
    each.map(|one| constants.specs[one.table as usize].bytes)
        .fold(0, u64::saturating_add)
}

impl<D: Device> Store<D> {
    /// Reads of other tables are to be in place: `constants` are those that the store has and some that stand for these reads,
    /// and `tables` begin with those that it knows. Nobody reads them before the weights were moved.
    pub(crate) fn know_tables(&mut self, constants: Constants, tables: Vec<Table>) -> Result<()> {
        let new = &tables[self.tables.len()..];
        let places = addresses(&mut self.device, &constants, new, &self.bytes)?;
        let count = constants.specs.len();
        self.bytes.resize(count, HostBytes::from_static(&[]).into());
        self.weights.resize_with(count, DeviceWeight::empty);
        for (weight, at) in places {
            self.weights[weight as usize].in_place = Some(at);
        }
        for one in new.iter().filter(|one| constants.is_pinned(one.table)) {
            let at = self.weights[one.table as usize].at;
            self.weights[one.stands as usize].in_place = Some(at);
        }
        self.constants = constants;
        self.tables = tables;
        Ok(())
    }

    /// These are the methods from now on: what follows from them for counters, and for what a call plans at most.
    pub(crate) fn serve(&mut self, methods: &Methods, floor: Floor) -> Result<()> {
        let everything = methods.everything(self.device.granule());
        self.stats.floor_bytes = floor.bytes();
        self.stats.hard_minimum_bytes = floor.hard_minimum;
        self.stats.total_weight_bytes = everything.saturating_sub(floor.direct);
        self.stats.gathered_bytes = bytes(methods, &self.tables);
        self.floor = floor;
        let most = self.most_actions(&methods.all);
        self.actions.reserve(most);
        self.know_rows(methods)?;
        self.tell_rows()
    }

    /// The most that one call plans: every read loaded, and as much evicted besides what was there.
    pub(super) fn most_actions(&self, methods: &[Method]) -> usize {
        let reads = methods.iter().map(|one| one.trace.probes().len());
        self.weights.len() + 2 * reads.max().unwrap_or(0)
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
