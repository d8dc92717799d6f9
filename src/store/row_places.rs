//! Rows of weights that are read in place, and lie on the device all the same: the head of a weight stays there for the methods that
//! stream it, and methods that read rows put those there that they ask for most. A constant says of each row where it is, and kernels go
//! by that. They count there, too, how often they read each row.
//!
//! ```text
//!  device       [ row 0 ][ row 7 ]                       the head of the weight, and a row in the place of another one
//!  host memory  [ row 0 ][ row 1 ][ row 2 ] … [ row n ]  the address that a read is given
//!  places           ▲        └ row       └ 2 · row             bytes from that address
//!                   └ on the device
//!
//!  the constant     places of n rows | address of the counts | n counts           each of 8 bytes
//! ```
//! Before a method reads the whole weight, the head gets its own rows back.

use super::{Methods, RowPlaces, Store};
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::residency::{Action, HotRows};
use crate::schedule::WeightIndex;
use std::ops::Range;

/// Passes of a round, once it is known which rows are asked for; the first rounds are shorter.
const ROUND: u64 = 16;

/// All such rows.
#[derive(Debug, Default)]
pub(super) struct AllRows {
    each: Vec<Rows>,
    /// What passes of each method do.
    methods: Vec<Reads>,
    /// Passes that read rows since something else was on the device.
    passes: u64,
    /// After so many of these a round ends.
    due: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    Nothing,
    Rows,
    /// Of a weight that others read by row.
    Whole,
}

/// Rows of one read.
#[derive(Debug, Clone)]
struct Rows {
    /// The constant that says where they are, and the bytes of each.
    of: RowPlaces,
    /// The constant that stands for the read, and its weight; `None` where the weight is read where all others are.
    read: Option<(WeightIndex, WeightIndex)>,
    /// Where the weight's head is.
    head: DevicePtr,
    hot: HotRows,
}

impl AllRows {
    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    fn begin_anew(&mut self) {
        (self.passes, self.due) = (0, 1);
    }
}

impl<D: Device> Store<D> {
    /// Which rows methods read, as they read now.
    pub(super) fn know_rows(&mut self, methods: &Methods) -> Result<()> {
        self.rows_go_home()?;
        let mut each: Vec<Rows> = Vec::new();
        for method in &methods.all {
            for &of in &method.places {
                let reads = method.trace.probes().get(of.probe as usize);
                let table = { self.tables.iter() }.find(|one| reads == Some(&one.stands));
                let table = table.filter(|one| !methods.constants.is_pinned(one.table));
                let read = table.map(|one| (one.stands, one.table));
                match { each.iter_mut() }.find(|other| other.of.constant == of.constant) {
                    None => each.push(Rows {
                        of,
                        read,
                        head: DevicePtr::EMPTY,
                        hot: HotRows::default(),
                    }),
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
        let by_row = |weight: &WeightIndex| {
            let mut tables = each.iter().filter_map(|one| one.read);
            tables.any(|(_, table)| table == *weight)
        };
        let is_told = |of: &RowPlaces| {
            let mut told = each.iter().filter(|one| one.read.is_some());
            told.any(|one| one.of.constant == of.constant)
        };
        let reads = |method: &super::Method| match () {
            () if method.trace.probes().iter().any(by_row) => Reads::Whole,
            () if method.places.iter().any(is_told) => Reads::Rows,
            () => Reads::Nothing,
        };
        let methods = methods.all.iter().map(reads).collect();
        self.rows = AllRows {
            each,
            methods,
            ..AllRows::default()
        };
        Ok(())
    }

    /// Between passes, when everything that stays is there: tells kernels where rows are from now on.
    pub(super) fn tell_rows(&mut self) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let staying = self.staying();
        for one in &mut self.rows.each {
            let rows = self.constants.specs[one.of.constant as usize].bytes / 16;
            let stays = one.read.map(|(_, table)| {
                one.head = self.weights[table as usize].at;
                staying[table as usize].clone()
            });
            // A head begins with the first row.
            let stays = stays.filter(|range| range.start == 0);
            let places = stays.map_or(0, |range| range.end / one.of.row_bytes);
            one.hot = HotRows::new(rows as usize, places as usize);
        }
        self.rows.begin_anew();
        self.write_rows()
    }

    /// A pass of this method comes, and none is under way. Where it reads rows, those that were asked for most come to the device in the
    /// course of time; where it reads all of them, each lies where it does in the weight.
    pub(crate) fn place_rows_for(&mut self, method: usize) -> Result<()> {
        if self.rows.is_empty() || self.rehearsing || self.gave_way || self.is_poisoned() {
            return Ok(());
        }
        match self.rows.methods.get(method) {
            Some(Reads::Rows) => {
                let ends = self.rows.passes == self.rows.due;
                self.rows.passes += 1;
                if ends {
                    self.rows.due += self.rows.due.min(ROUND);
                    self.end_round()?;
                }
                Ok(())
            }
            Some(Reads::Whole) => self.rows_go_home(),
            _ => Ok(()),
        }
    }

    /// Counts what was read, and has rows copied that are to be there from the next round on.
    fn end_round(&mut self) -> Result<()> {
        let asked = self.count_reads()?;
        let mut moves = Vec::new();
        let coming = self.rows.each.iter().any(|one| one.hot.any_coming());
        for (at, (one, asked)) in self.rows.each.iter_mut().zip(asked).enumerate() {
            let round = one.hot.end_round(&asked);
            self.stats.row_hits += round.hits;
            self.stats.row_misses += round.misses;
            moves.extend(round.moves.into_iter().map(|(place, row)| (at, place, row)));
        }
        let moved = self.move_rows(coming, &moves);
        self.or_lose_rows(moved)
    }

    fn move_rows(&mut self, coming: bool, moves: &[(usize, u32, u32)]) -> Result<()> {
        if coming {
            // rule: kernel-waits-for-its-rows
            self.compute_waits_for_copies()?;
        }
        self.write_rows()?;
        if moves.is_empty() {
            return Ok(());
        }
        // Whoever read what was there has ended: its reads were counted.
        for &(at, place, row) in moves {
            self.copy_rows(at, place, row..row + 1)?;
        }
        Ok(())
    }

    /// Each head gets its rows back, for what is issued from now on.
    pub(super) fn rows_go_home(&mut self) -> Result<()> {
        let rows = self.rows.each.iter_mut().enumerate();
        let homes =
            rows.flat_map(|(at, one)| one.hot.go_home().into_iter().map(move |run| (at, run)));
        let homes: Vec<(usize, Range<u32>)> = homes.collect();
        self.rows.begin_anew();
        if homes.is_empty() {
            return Ok(());
        }
        let moved = self.bring_home(homes);
        self.or_lose_rows(moved)
    }

    fn bring_home(&mut self, homes: Vec<(usize, Range<u32>)>) -> Result<()> {
        let readers = self.device.record_compute()?;
        // rule: heads-wait-for-readers-of-rows
        self.device.copy_wait(&readers)?;
        for (at, run) in homes {
            self.copy_rows(at, run.start, run)?;
        }
        // rule: kernel-waits-for-the-head
        self.compute_waits_for_copies()?;
        self.write_rows()
    }

    /// Starts a copy of rows to a place of the head and those after it.
    fn copy_rows(&mut self, at: usize, place: u32, rows: Range<u32>) -> Result<()> {
        let one = &self.rows.each[at];
        let Some((_, table)) = one.read else {
            return Ok(());
        };
        let bytes = one.of.row_bytes;
        let to = one.head.offset(u64::from(place) * bytes);
        let range = u64::from(rows.start) * bytes..u64::from(rows.end) * bytes;
        let part = self.bytes[table as usize].part(range);
        self.stats.bytes_copied += part.stored_bytes();
        self.stats.rows_moved += u64::from(rows.end - rows.start);
        let copied = self.device.bring(to, part);
        copied.map_err(|error| self.about(table, "copying rows of", error))
    }

    fn compute_waits_for_copies(&mut self) -> Result<()> {
        let event = self.device.record_copy()?;
        self.device.compute_wait(&event)
    }

    /// After a failure nobody knows which rows are where.
    fn or_lose_rows(&mut self, moved: Result<()>) -> Result<()> {
        // rule: lost-rows-poison
        moved.inspect_err(|error| {
            self.poison(format!("rows of weights were moved, and lost: {error}"));
        })
    }

    /// How often each row was read since the places were written.
    fn count_reads(&mut self) -> Result<Vec<Vec<u64>>> {
        let mut counts = Vec::new();
        for run in self.runs() {
            let mut bytes = vec![0; run.bytes as usize];
            let read = self.device.download(run.at, &mut bytes);
            read.map_err(|error| error.during(|| "counting which rows were read".into()))?;
            for (start, rows) in run.tables {
                let words = bytes[start as usize..]
                    .chunks_exact(8)
                    .skip(rows as usize + 1);
                let words = words.take(rows as usize);
                counts.push(
                    words
                        .map(|one| u64::from_le_bytes(one.try_into().unwrap_or_default()))
                        .collect(),
                );
            }
        }
        Ok(counts)
    }

    /// Tells kernels where rows are, and has them count anew.
    fn write_rows(&mut self) -> Result<()> {
        let mut tables = self
            .rows
            .each
            .iter()
            .map(|one| self.table_of(one))
            .collect::<Vec<_>>()
            .into_iter();
        for run in self.runs() {
            let mut bytes = vec![0; run.bytes as usize];
            for ((start, _), table) in run.tables.into_iter().zip(&mut tables) {
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
    fn table_of(&self, one: &Rows) -> Vec<u8> {
        let at = self.weights[one.of.constant as usize].at;
        let read = one
            .read
            .and_then(|(stands, _)| self.weights[stands as usize].in_place);
        let places = one.hot.places();
        let counts = at.0 + 8 * (places.len() as u64 + 1);
        let bytes = one.of.row_bytes;
        let each = (0..).zip(&places).map(|(row, &place)| {
            let there = place.zip(read).map(|(place, read)| (read, one.head, place));
            place_of(row, bytes, there) as u64
        });
        let words = each.chain([counts]).chain(places.iter().map(|_| 0));
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// The constants, each with those that lie right after it: they are read and written in one piece.
    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for one in &self.rows.each {
            let at = self.weights[one.of.constant as usize].at;
            let bytes = self
                .constants
                .occupied(one.of.constant, self.device.granule());
            let rows = self.constants.specs[one.of.constant as usize].bytes / 16;
            match runs.last_mut() {
                Some(run) if run.at.0 + run.bytes == at.0 => {
                    run.tables.push((run.bytes, rows));
                    run.bytes += bytes;
                }
                _ => runs.push(Run {
                    at,
                    bytes,
                    tables: vec![(0, rows)],
                }),
            }
        }
        runs
    }

    /// Whether this constant says where rows are.
    pub(super) fn tells_rows(&self, constant: WeightIndex) -> bool {
        self.rows.each.iter().any(|one| one.of.constant == constant)
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

/// Constants that lie one after the other.
struct Run {
    at: DevicePtr,
    bytes: u64,
    /// Where each begins, and of how many rows it tells.
    tables: Vec<(u64, u64)>,
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
