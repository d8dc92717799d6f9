//! The constants of a program, and what a method reads of them.

use crate::error::{Error, Result};
use crate::figures::PackedResidents;
use crate::schedule::{
    floor, Floor, MethodTrace, ProbeId, Trace, WeightIndex, WeightKind, WeightSpec,
};

/// All constants of a program; their index is the weight index. Its methods share them.
#[derive(Debug, Clone)]
pub struct Constants {
    /// Name, size and kind of each.
    pub specs: Vec<WeightSpec>,
    /// Bytes of the budget that decoding packed weights takes on the device, as long as they are loaded.
    pub staging: u64,
}

impl Constants {
    /// The name of a weight, in a message.
    pub fn name(&self, weight: WeightIndex) -> String {
        format!("'{}'", self.specs[weight as usize].fqn)
    }

    /// What is to be done with packed residents: weights stay packed only where the device decodes them.
    pub fn packed_residents(&self, wanted: PackedResidents) -> PackedResidents {
        match self.staging {
            0 => PackedResidents::Off,
            _ => wanted,
        }
    }

    /// Whether the constant is read through probes.
    pub fn is_probed(&self, weight: WeightIndex) -> bool {
        self.specs[weight as usize].kind.comes_and_goes()
    }

    /// Whether it is a weight that always stays.
    pub fn is_pinned(&self, weight: WeightIndex) -> bool {
        self.specs[weight as usize].kind == WeightKind::Pinned
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
#[derive(Debug, Clone, Default)]
pub struct Method {
    /// Layout of each constant as this method reads it, by weight index.
    pub layouts: Vec<WeightLayout>,
    /// The events of one pass.
    pub trace: Trace,
    /// Reads that take some rows of a table, ascending: where the budget does not cover everything they are done in place.
    pub gather: Vec<ProbeId>,
    /// Reads of these whose rows may lie apart, with the constant that says where each is.
    pub places: Vec<RowPlaces>,
    /// Passes of this method among so many as the shares of all methods are together.
    pub share: u32,
}

/// A read of some rows of a table that need not lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlaces {
    /// The read.
    pub probe: ProbeId,
    /// The direct constant of two int64 for each row and one more: how many bytes after the read's address each lies, where the
    /// counts are, and how often each was read.
    pub constant: WeightIndex,
    /// Bytes of a row.
    pub row_bytes: u64,
}

/// A weight whose reads find it at an address that it always has: a table that is read in place, in host memory, or a pinned
/// weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The constant that stands for these reads: it has no bytes that come and go.
    pub stands: WeightIndex,
    /// The weight.
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
            places: Vec::new(),
            share: 1,
        };
        let constants = Constants { specs, staging: 0 };
        (constants, method)
    }

    /// A probe in a message: its id and its weight's name.
    pub fn probe_name(&self, constants: &Constants, id: i64) -> String {
        let index = usize::try_from(id).ok();
        match index.and_then(|id| self.trace.probes().get(id)) {
            Some(&weight) => format!("{id} ({})", constants.name(weight)),
            None => format!("{id} (unknown)"),
        }
    }

    /// Has the reads of `gather` and of pinned weights done in place: they read constants of their own, of no bytes, after all
    /// others. A table that is read otherwise too (tied embeddings) stays a weight for those reads. Where everything is `covered`,
    /// tables are read like all other weights, also those that were read in place before.
    fn in_place(
        &mut self,
        constants: &mut Constants,
        tables: &mut Vec<Table>,
        covered: bool,
    ) -> Result<()> {
        let mut probes = self.trace.probes().to_vec();
        if let Some(&id) = { self.gather.iter() }.find(|&&id| id as usize >= probes.len()) {
            return Err(unknown(id));
        }
        for (id, probe) in (0..).zip(&mut probes) {
            let known = tables.iter().find(|known| known.stands == *probe);
            let table = known.map_or(*probe, |known| known.table);
            let in_place = match constants.specs[table as usize].kind {
                WeightKind::Pinned => true,
                WeightKind::Streamed => self.gather.contains(&id),
                _ => !covered && self.gather.contains(&id),
            };
            *probe = match in_place {
                true => self.stand_in(table, constants, tables),
                false => table,
            };
        }
        if probes != self.trace.probes() {
            let events = self.trace.events().to_vec();
            self.trace = Trace::new(events, probes, constants.specs.len())?;
        }
        Ok(())
    }

    /// The constant that stands for reads of this one in place.
    fn stand_in(
        &mut self,
        table: WeightIndex,
        constants: &mut Constants,
        tables: &mut Vec<Table>,
    ) -> WeightIndex {
        let found = tables.iter().find(|known| known.table == table);
        let stands = found.map_or(constants.specs.len() as WeightIndex, |known| known.stands);
        if found.is_none() {
            let mut spec = constants.specs[table as usize].clone();
            (spec.bytes, spec.stored) = (0, 0);
            spec.kind = WeightKind::Weight;
            constants.specs.push(spec);
            tables.push(Table { stands, table });
        }
        self.layouts
            .resize(constants.specs.len(), WeightLayout::default());
        self.layouts[stands as usize] = self.layouts[table as usize].clone();
        stands
    }

    /// For residency.
    pub fn traced(&self) -> MethodTrace<'_> {
        MethodTrace {
            trace: &self.trace,
            share: self.share,
        }
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
        let direct = |weight| !constants.is_probed(weight) && !constants.is_pinned(weight);
        match probes.find(|(_, &weight)| direct(weight)) {
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

/// All constants of a program, and its methods.
#[derive(Debug, Clone)]
pub struct Methods {
    /// They share them.
    pub constants: Constants,
    /// In the order of their names. At least one.
    pub all: Vec<Method>,
}

impl From<(Constants, Method)> for Methods {
    fn from((constants, method): (Constants, Method)) -> Self {
        Methods {
            constants,
            all: vec![method],
        }
    }
}

impl Methods {
    /// The same with the reads of `gather` and of pinned weights in place, and what is read so. Where the budget covers
    /// everything, tables are weights like all others, but for those that never stay.
    pub fn in_place(&self, covered: bool) -> Result<(Methods, Vec<Table>)> {
        self.in_place_beside(&[], covered)
    }

    /// The same where these are read in place already, by some of the methods or by others before.
    pub(crate) fn in_place_beside(
        &self,
        known: &[Table],
        covered: bool,
    ) -> Result<(Methods, Vec<Table>)> {
        let (mut methods, mut tables) = (self.clone(), known.to_vec());
        for method in &mut methods.all {
            method.in_place(&mut methods.constants, &mut tables, covered)?;
        }
        let count = methods.constants.specs.len();
        for method in &mut methods.all {
            method.layouts.resize(count, WeightLayout::default());
        }
        Ok((methods, tables))
    }

    /// The floor of each method, with the reads of `gather` in place. The direct constants and pinned weights of all methods
    /// count in each.
    pub fn floors(&self, granule: u64) -> Result<Vec<Floor>> {
        let (methods, _) = self.in_place(false)?;
        Ok(methods.floors_as_they_read(granule).collect())
    }

    fn floors_as_they_read(&self, granule: u64) -> impl Iterator<Item = Floor> + '_ {
        let (specs, each) = (&self.constants.specs, self.all.iter());
        each.map(move |one| {
            let floor = floor(&one.trace, specs, granule);
            floor.with_staging(self.constants.staging)
        })
    }

    /// The floor of the program: that of the method that needs most.
    pub fn floor(&self, granule: u64) -> Result<Floor> {
        let (methods, _) = self.in_place(false)?;
        methods.floor_as_they_read(granule)
    }

    /// The same of methods whose reads are in place already.
    pub(crate) fn floor_as_they_read(&self, granule: u64) -> Result<Floor> {
        let floors = self.floors_as_they_read(granule);
        let most = floors.reduce(|most, next| match next.bytes() > most.bytes() {
            true => next,
            false => most,
        });
        most.ok_or_else(|| Error::Internal("a program without a method".to_owned()))
    }

    /// Bytes of direct constants and of all weights that are read, as they count. Saturates.
    pub fn everything(&self, granule: u64) -> u64 {
        let specs = &self.constants.specs;
        let mut read = vec![false; specs.len()];
        for &weight in self.all.iter().flat_map(|one| one.trace.probes()) {
            read[weight as usize] = true;
        }
        let counts = specs.iter().zip(read);
        counts
            .filter(|(spec, read)| *read || !spec.kind.comes_and_goes())
            .fold(self.constants.staging, |sum, (spec, _)| {
                sum.saturating_add(spec.occupied(granule))
            })
    }

    /// What residency has to know of each.
    pub fn traced(&self) -> Vec<MethodTrace<'_>> {
        self.all.iter().map(Method::traced).collect()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.all.is_empty() {
            return Err(Error::Internal("a program without a method".to_owned()));
        }
        let mut methods = self.all.iter();
        methods.try_for_each(|method| method.check(&self.constants))
    }
}

#[cold]
fn unknown(id: ProbeId) -> Error {
    Error::Internal(format!("probe {id} gathers, and there is no such probe"))
}

#[cfg(test)]
#[path = "constants_tests.rs"]
mod tests;
