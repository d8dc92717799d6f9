//! The constants of a program, and what a method reads of them.

use crate::error::{Error, Result};
use crate::schedule::{floor, Floor, ProbeId, Trace, WeightIndex, WeightKind, WeightSpec};

/// All constants of a program; their index is the weight index. Its methods share them.
#[derive(Debug, Clone)]
pub struct Constants {
    /// Name, size and kind of each.
    pub specs: Vec<WeightSpec>,
}

impl Constants {
    /// The name of a weight, in a message.
    pub fn name(&self, weight: WeightIndex) -> String {
        format!("'{}'", self.specs[weight as usize].fqn)
    }

    /// Whether the constant is read through probes.
    pub fn is_probed(&self, weight: WeightIndex) -> bool {
        self.specs[weight as usize].kind == WeightKind::Weight
    }

    /// Bytes of the budget that a weight takes while it is on the device.
    pub(super) fn occupied(&self, weight: WeightIndex, granule: u64) -> u64 {
        self.specs[weight as usize].occupied(granule)
    }
}

/// The layout of what a probe returns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightLayout {
    /// Scalar type in the numbering of ExecuTorch and PyTorch (`ScalarType`).
    pub dtype: i32,
    /// Sizes, outermost first.
    pub sizes: Vec<i64>,
    /// Strides in elements, outermost first.
    pub strides: Vec<i64>,
}

/// What the record says of one method.
#[derive(Debug, Clone)]
pub struct Method {
    /// Layout of each constant as this method reads it, by weight index.
    pub layouts: Vec<WeightLayout>,
    /// The events of one pass.
    pub trace: Trace,
    /// Reads that take some rows of a table, ascending: where the budget does not cover everything they are done in place.
    pub gather: Vec<ProbeId>,
}

/// A table that is read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The constant that stands for these reads: it has no bytes on the device.
    pub stands: WeightIndex,
    /// The table.
    pub table: WeightIndex,
}

impl Method {
    /// The constants of a program of one method that reads no rows of tables, and that method.
    pub fn with_constants(
        specs: Vec<WeightSpec>,
        layouts: Vec<WeightLayout>,
        trace: Trace,
    ) -> (Constants, Method) {
        let method = Method {
            layouts,
            trace,
            gather: Vec::new(),
        };
        (Constants { specs }, method)
    }

    /// A probe in a message: its id and its weight's name.
    pub fn probe_name(&self, constants: &Constants, id: i64) -> String {
        let index = usize::try_from(id).ok();
        match index.and_then(|id| self.trace.probes().get(id)) {
            Some(&weight) => format!("{id} ({})", constants.name(weight)),
            None => format!("{id} (unknown)"),
        }
    }

    /// This method with the reads of `gather` in place: they read constants of their own, of no bytes, after all others.
    /// A table that is read otherwise too (tied embeddings) stays a weight for those reads.
    pub fn in_place(&self, constants: &Constants) -> Result<(Constants, Method, Vec<Table>)> {
        let (mut constants, mut method) = (constants.clone(), self.clone());
        let mut tables: Vec<Table> = Vec::new();
        let mut probes = self.trace.probes().to_vec();
        for id in std::mem::take(&mut method.gather) {
            let probe = probes.get_mut(id as usize).ok_or_else(|| unknown(id))?;
            let found = tables.iter().find(|table| table.table == *probe);
            *probe = match found {
                Some(table) => table.stands,
                None => {
                    let stands = constants.specs.len() as WeightIndex;
                    let table = *probe;
                    method.stand_for(&mut constants, table);
                    tables.push(Table { stands, table });
                    stands
                }
            };
        }
        if !tables.is_empty() {
            let events = self.trace.events().to_vec();
            method.trace = Trace::new(events, probes, constants.specs.len())?;
        }
        Ok((constants, method, tables))
    }

    fn stand_for(&mut self, constants: &mut Constants, table: WeightIndex) {
        let mut spec = constants.specs[table as usize].clone();
        spec.bytes = 0;
        constants.specs.push(spec);
        self.layouts.push(self.layouts[table as usize].clone());
    }

    /// The floor, with the reads of `gather` in place.
    pub fn floor(&self, constants: &Constants, granule: u64) -> Result<Floor> {
        let (constants, method, _) = self.in_place(constants)?;
        Ok(floor(&method.trace, &constants.specs, granule))
    }

    /// Bytes of direct constants and of all weights that are read, as they count. Saturates.
    pub fn everything(&self, constants: &Constants, granule: u64) -> u64 {
        let mut read = vec![false; constants.specs.len()];
        for &weight in self.trace.probes() {
            read[weight as usize] = true;
        }
        let counts = constants.specs.iter().zip(read);
        counts
            .filter(|(spec, read)| *read || spec.kind != WeightKind::Weight)
            .fold(0, |sum, (spec, _)| {
                sum.saturating_add(spec.occupied(granule))
            })
    }

    /// The lists must fit each other; the record's own checks come before.
    pub(crate) fn check(&self, constants: &Constants) -> Result<()> {
        if constants.specs.len() != self.layouts.len() {
            return Err(Error::Internal(format!(
                "{} constants, {} layouts",
                constants.specs.len(),
                self.layouts.len()
            )));
        }
        let mut probes = (0..).zip(self.trace.probes());
        // rule: probe-reads-no-direct-constant
        match probes.find(|(_, &weight)| !constants.is_probed(weight)) {
            Some((probe, &weight)) => Err(Error::Mismatch {
                name: constants.specs[weight as usize].fqn.clone(),
                fact: "kind",
                expected: format!("a weight, as probe {probe} reads it"),
                found: "a direct constant (record)".to_string(),
            }),
            None => Ok(()),
        }
    }
}

#[cold]
fn unknown(id: ProbeId) -> Error {
    Error::Internal(format!("probe {id} gathers, and there is no such probe"))
}

#[cfg(test)]
#[path = "constants_tests.rs"]
mod tests;
