//! Tables that are read in place: kernels that look a few rows up find them in host memory, through the address that the
//! device has for it. Such a read takes nothing of the budget, and nothing is copied for it.

use super::Program;
use crate::config::PolicyKind;
use crate::device::{Device, DevicePtr, HostBytes};
use crate::error::{Error, Result};
use crate::schedule::{floor, Floor, ProbeId, Trace, WeightIndex, WeightKind};

/// A table that is read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The constant that stands for these reads: it has no bytes on the device.
    pub stands: WeightIndex,
    /// The table.
    pub table: WeightIndex,
}

impl Program {
    /// This program with the reads of `gather` in place: they read constants of their own, of no bytes, behind all others.
    /// A table that is read otherwise too (tied embeddings) stays a weight for those reads.
    pub fn in_place(&self) -> Result<(Program, Vec<Table>)> {
        let mut program = self.clone();
        let mut tables: Vec<Table> = Vec::new();
        let mut probes = self.trace.probes().to_vec();
        for id in std::mem::take(&mut program.gather) {
            let probe = probes.get_mut(id as usize).ok_or_else(|| unknown(id))?;
            let found = tables.iter().find(|table| table.table == *probe);
            *probe = match found {
                Some(table) => table.stands,
                None => {
                    let table = Table {
                        stands: program.weights.len() as WeightIndex,
                        table: *probe,
                    };
                    program.stand_for(table.table);
                    tables.push(table);
                    table.stands
                }
            };
        }
        if !tables.is_empty() {
            let events = self.trace.events().to_vec();
            program.trace = Trace::new(events, probes, program.weights.len())?;
        }
        Ok((program, tables))
    }

    fn stand_for(&mut self, table: WeightIndex) {
        let mut spec = self.weights[table as usize].clone();
        spec.bytes = 0;
        self.weights.push(spec);
        self.layouts.push(self.layouts[table as usize].clone());
    }

    /// The floor, with the reads of `gather` in place.
    pub fn floor(&self, policy: PolicyKind, granule: u64) -> Result<Floor> {
        let (program, _) = self.in_place()?;
        Ok(floor(&program.trace, &program.weights, policy, granule))
    }

    /// Bytes of direct constants and of all weights that are read, as they count. Saturates.
    pub fn everything(&self, granule: u64) -> u64 {
        let mut read = vec![false; self.weights.len()];
        for &weight in self.trace.probes() {
            read[weight as usize] = true;
        }
        let counts = self.weights.iter().zip(read);
        counts
            .filter(|(spec, read)| *read || spec.kind != WeightKind::Weight)
            .fold(0, |sum, (spec, _)| {
                sum.saturating_add(spec.occupied(granule))
            })
    }
}

/// Where kernels find each table.
pub(super) fn addresses<D: Device>(
    device: &mut D,
    program: &Program,
    tables: &[Table],
    bytes: &[HostBytes],
) -> Result<Vec<(WeightIndex, DevicePtr)>> {
    let one = |table: &Table| {
        let fqn = &program.weights[table.table as usize].fqn;
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

#[cold]
fn unknown(id: ProbeId) -> Error {
    Error::Internal(format!("probe {id} gathers, and there is no such probe"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Event, WeightSpec};
    use crate::session::Layout;

    /// A table that is looked up first and multiplied with last, and two weights between; each kernel reads one.
    fn tied(gather: &[ProbeId]) -> Program {
        let spec = |(index, bytes)| WeightSpec {
            fqn: format!("w{index}"),
            bytes,
            kind: WeightKind::Weight,
        };
        let layout = |rows| Layout {
            sizes: vec![rows],
            ..Layout::default()
        };
        let each = |id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)];
        let events = (0..4).flat_map(each).collect();
        Program {
            weights: [6400, 640, 704].into_iter().enumerate().map(spec).collect(),
            layouts: [100, 10, 11].map(layout).to_vec(),
            trace: Trace::new(events, vec![0, 1, 2, 0], 3).unwrap(),
            gather: gather.to_vec(),
        }
    }

    #[test]
    fn a_table_that_is_read_otherwise_too_stays_a_weight_there() {
        let (program, tables) = tied(&[0]).in_place().unwrap();
        assert_eq!(
            tables,
            [Table {
                stands: 3,
                table: 0
            }]
        );
        assert_eq!(program.trace.probes(), [3, 1, 2, 0]);
        let stands = &program.weights[3];
        assert_eq!((stands.fqn.as_str(), stands.bytes), ("w0", 0));
        assert_eq!(program.layouts[3].sizes, [100]);
        assert_eq!(program.everything(64), 6400 + 640 + 704);
        // Both reads share one stand-in.
        let (both, tables) = tied(&[0, 3]).in_place().unwrap();
        assert_eq!((both.trace.probes(), tables.len()), (&[3, 1, 2, 3][..], 1));
        assert_eq!(both.everything(64), 640 + 704);
    }

    #[test]
    fn a_read_in_place_takes_nothing_of_the_floor() {
        let floor = |gather: &[ProbeId]| tied(gather).floor(PolicyKind::Lru, 64).unwrap();
        let bytes = |gather: &[ProbeId]| (floor(gather).hard_minimum, floor(gather).bytes());
        assert_eq!(bytes(&[]), (6400, 6400 + 640 + 704));
        assert_eq!(bytes(&[0]), (6400, 6400 + 640 + 704));
        assert_eq!(bytes(&[0, 3]), (704, 640 + 704));
        assert!(
            !floor(&[0, 3]).to_string().contains("w0"),
            "{}",
            floor(&[0, 3])
        );
        assert!(matches!(tied(&[4]).in_place(), Err(Error::Internal(_))));
    }
}
