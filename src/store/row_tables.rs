//! The constants that say where rows of weights are, and in which kernels count how often they read each row.
//!
//! ```text
//!  places of n rows | address of the counts | n counts       each of 8 bytes
//! ```

use super::row_places::{rows_of, Rows};
use super::Store;
use crate::device::{Device, DevicePtr};
use crate::error::Result;
use crate::schedule::WeightIndex;

impl<D: Device> Store<D> {
    /// How often the rows of each weight were read since the places were written.
    pub(super) fn count_reads(&mut self) -> Result<Vec<Vec<u64>>> {
        let rows = self.rows.each.iter();
        let mut counts: Vec<Vec<u64>> = rows.map(|one| vec![0; one.hot.rows()]).collect();
        for run in self.runs() {
            let mut bytes = vec![0; run.bytes as usize];
            let read = self.device.download(run.at, &mut bytes);
            read.map_err(|error| error.during(|| "counting which rows were read".into()))?;
            for (start, constant, of) in run.tables {
                let rows = rows_of(&self.constants, constant);
                let words = bytes[start as usize..].chunks_exact(8).skip(rows + 1);
                for (count, word) in counts[of].iter_mut().zip(words) {
                    *count += u64::from_le_bytes(word.try_into().unwrap_or_default());
                }
            }
        }
        Ok(counts)
    }

    /// Tells kernels where rows are, and has them count anew.
    pub(super) fn write_rows(&mut self) -> Result<()> {
        for run in self.runs() {
            let mut bytes = vec![0; run.bytes as usize];
            for (start, constant, of) in run.tables {
                let table = self.table_of(constant, &self.rows.each[of]);
                bytes[start as usize..][..table.len()].copy_from_slice(&table);
            }
            if let Err(error) = self.device.upload(run.at, &bytes) {
                // What they say now may be of a plan before.
                self.poison(format!("kernels could not be told where rows are: {error}"));
                return Err(error.during(|| "writing where rows are".into()));
            }
        }
        Ok(())
    }

    /// The bytes of the constant.
    fn table_of(&self, constant: WeightIndex, one: &Rows) -> Vec<u8> {
        let at = self.weights[constant as usize].at;
        let read = one
            .read
            .and_then(|(stands, _)| self.weights[stands as usize].in_place);
        let places = one.hot.places();
        let counts = at.0 + 8 * (places.len() as u64 + 1);
        let each = (0..).zip(&places).map(|(row, &place)| {
            let there = place.zip(read).map(|(place, read)| (read, one.head, place));
            place_of(row, one.bytes, there) as u64
        });
        let words = each.chain([counts]).chain(places.iter().map(|_| 0));
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// The constants, each with those that lie right after it: they are read and written in one piece.
    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (constant, of) in self.rows.constants() {
            let at = self.weights[constant as usize].at;
            let bytes = self.constants.occupied(constant, self.device.granule());
            match runs.last_mut() {
                Some(run) if run.at.0 + run.bytes == at.0 => {
                    run.tables.push((run.bytes, constant, of));
                    run.bytes += bytes;
                }
                _ => runs.push(Run {
                    at,
                    bytes,
                    tables: vec![(0, constant, of)],
                }),
            }
        }
        runs
    }
}

/// Constants that lie one after the other.
struct Run {
    at: DevicePtr,
    bytes: u64,
    /// Where each begins, which it is, and of which rows it tells.
    tables: Vec<(u64, WeightIndex, usize)>,
}

/// How many bytes after the address of a read a row lies. `there`: this address, that of the head and the row's place in it.
fn place_of(row: u64, bytes: u64, there: Option<(DevicePtr, DevicePtr, u32)>) -> i64 {
    match there {
        Some((read, head, place)) => {
            let at = head.0.wrapping_sub(read.0);
            at.wrapping_add(u64::from(place) * bytes) as i64
        }
        None => (row * bytes) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_on_the_device_are_read_there() {
        let (read, head) = (DevicePtr(10_000), DevicePtr(4_000));
        assert_eq!(place_of(0, 100, Some((read, head, 0))), -6_000);
        assert_eq!(place_of(7, 100, Some((read, head, 1))), -5_900);
        assert_eq!(place_of(3, 100, None), 300);
    }
}
