//! Rows of weights that are read in place, and lie on the device all the same: the head of a weight stays there for the methods that
//! stream it. A constant says of each row where it is, and kernels go by that.
//!
//! ```text
//!  device       [ row 0 ][ row 1 ]                       the head of the weight, as the plan has it
//!  host memory  [ row 0 ][ row 1 ][ row 2 ] … [ row n ]  the address that a read is given
//!  places           ▲        ▲        └ 2 · row             bytes from that address
//!                   └────────┴─ on the device
//! ```

use super::{Methods, RowPlaces, Store};
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::residency::Action;
use crate::schedule::WeightIndex;
use std::ops::Range;

/// Rows of one read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// The constant that says where they are, and the bytes of each.
    of: RowPlaces,
    /// The constant that stands for the read, and its weight; `None` where the weight is read where all others are.
    read: Option<(WeightIndex, WeightIndex)>,
}

impl<D: Device> Store<D> {
    /// Which rows methods read, as they read now.
    pub(super) fn know_rows(&mut self, methods: &Methods) -> Result<()> {
        let mut rows: Vec<Rows> = Vec::new();
        for method in &methods.all {
            for &of in &method.places {
                let reads = method.trace.probes().get(of.probe as usize);
                let table = { self.tables.iter() }.find(|one| reads == Some(&one.stands));
                let table = table.filter(|one| !methods.constants.is_pinned(one.table));
                let read = table.map(|one| (one.stands, one.table));
                let told = |other: &&mut Rows| other.of.constant == of.constant;
                match rows.iter_mut().find(told) {
                    None => rows.push(Rows { of, read }),
                    Some(other) if other.of.row_bytes != of.row_bytes => {
                        return Err(Error::Internal(format!(
                            "{} has the places of rows of {} and of {} bytes",
                            methods.constants.name(of.constant),
                            other.of.row_bytes,
                            of.row_bytes
                        )));
                    }
                    // They lie one after the other for both.
                    // So neither is told another place.
                    Some(other) if other.read != read => other.read = None,
                    Some(_) => {}
                }
            }
        }
        self.rows = rows;
        Ok(())
    }

    /// Between passes, when everything that stays is there: tells kernels where rows are from now on.
    pub(super) fn tell_rows(&mut self) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let staying = self.staying();
        for one in self.rows.clone() {
            let count = self.constants.specs[one.of.constant as usize].bytes / 8;
            let there = one.read.and_then(|(stands, table)| {
                let at = self.weights[stands as usize].in_place?;
                Some((
                    at,
                    self.weights[table as usize].at,
                    &staying[table as usize],
                ))
            });
            let places: Vec<u8> = (0..count)
                .flat_map(|row| place(row, one.of.row_bytes, there).to_le_bytes())
                .collect();
            let to = self.weights[one.of.constant as usize].at;
            if let Err(error) = self.device.upload(to, &places) {
                let error = self.about(one.of.constant, "writing", error);
                // What they say now may be of a plan before.
                self.poison(format!("kernels could not be told where rows are: {error}"));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether this constant says where rows are.
    pub(super) fn tells_rows(&self, constant: WeightIndex) -> bool {
        self.rows.iter().any(|one| one.of.constant == constant)
    }

    /// Of each weight the bytes that stay at its address, none where it has no such.
    fn staying(&self) -> Vec<Range<u64>> {
        let mut start = Vec::new();
        self.residency.policy().start(&mut start);
        let mut staying = vec![0..0; self.weights.len()];
        // Nothing stays for good of what has memory of its own.
        if !self.layout().is_per_weight() {
            for action in start {
                if let Action::Load { weight, range, .. } = action {
                    staying[weight as usize] = range;
                }
            }
        }
        staying
    }
}

/// How many bytes after the address of a read a row lies. `there`: this address, and the weight's with the bytes that stay there.
fn place(row: u64, bytes: u64, there: Option<(DevicePtr, DevicePtr, &Range<u64>)>) -> i64 {
    let own = row * bytes;
    let moved = there.filter(|(_, _, stay)| stay.start <= own && own + bytes <= stay.end);
    match moved {
        Some((read, weight, _)) => weight.0.wrapping_sub(read.0).wrapping_add(own) as i64,
        None => own as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_stay_as_a_whole_are_read_there() {
        let (read, weight) = (DevicePtr(10_000), DevicePtr(4_000));
        let of = |row, stay: Range<u64>| place(row, 100, Some((read, weight, &stay)));
        assert_eq!(of(0, 0..100), -6_000);
        assert_eq!(of(1, 0..250), -5_900);
        // Some of its bytes come and go.
        assert_eq!(of(2, 0..250), 200);
        assert_eq!(of(0, 50..250), 0);
        assert_eq!(of(1, 0..0), 100);
        assert_eq!(place(3, 100, None), 300);
    }
}
