//! Rows of weights that are read in place, and lie on the device all the same: the head of a weight stays there for the methods that
//! stream it, and methods that read rows put those there that they ask for most. A constant says of each row where it is, and kernels go
//! by that. They count there, too, how often they read each row.
//!
//! ```text
//!  device       [ row 0 ][ row 7 ]                       the head of the weight, and a row in the place of another one
//!  host memory  [ row 0 ][ row 1 ][ row 2 ] … [ row n ]  the address that a read is given
//!  places           ▲        └ row       └ 2 · row             bytes from that address
//!                   └ on the device
//! ```
//! Before a method reads the whole weight, the head gets its own rows back.

use super::{Constants, Method, Methods, RowPlaces, Store};
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::residency::{Action, HotRows};
use crate::schedule::WeightIndex;
use std::ops::Range;

/// Passes of a round, once it is known which rows are asked for, and of the first one: a few passes are over before it is worth anything.
const ROUND: u64 = 16;
const FIRST: u64 = 4;

/// All such rows.
#[derive(Debug, Default)]
pub(super) struct AllRows {
    pub(super) each: Vec<Rows>,
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

/// Rows of one weight.
#[derive(Debug)]
pub(super) struct Rows {
    /// The constants that say where they are: methods may have some of their own, and all of them say the same.
    told_by: Vec<WeightIndex>,
    /// Bytes of a row.
    pub(super) bytes: u64,
    /// The constant that stands for the read, and the weight; `None` where it is read where all others are.
    pub(super) read: Option<(WeightIndex, WeightIndex)>,
    /// Where the weight's head is.
    pub(super) head: DevicePtr,
    pub(super) hot: HotRows,
}

impl AllRows {
    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    fn begin_anew(&mut self) {
        (self.passes, self.due) = (0, FIRST);
    }

    /// The constants, in the order in which they lie on the device, each with what it tells of.
    pub(super) fn constants(&self) -> Vec<(WeightIndex, usize)> {
        let each = self.each.iter().enumerate();
        let all =
            each.flat_map(|(at, one)| one.told_by.iter().map(move |&constant| (constant, at)));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all
    }

    /// Where rows are on the device, nobody knows them any more.
    pub(super) fn forget(&mut self) {
        for one in &mut self.each {
            one.hot.go_home();
        }
    }
}

/// A constant and what it tells of.
type Told = (RowPlaces, Option<(WeightIndex, WeightIndex)>);

impl<D: Device> Store<D> {
    /// Which rows methods read, as they read now.
    pub(super) fn know_rows(&mut self, methods: &Methods) -> Result<()> {
        self.rows_go_home()?;
        let mut each: Vec<Rows> = Vec::new();
        for (of, read) in self.told(methods)? {
            match { each.iter_mut() }.find(|other| read.is_some() && other.read == read) {
                Some(other) if other.bytes != of.row_bytes => {
                    let name = methods.constants.name(of.constant);
                    return Err(two_sizes(&name, other.bytes, of.row_bytes));
                }
                // rule: tables-of-one-weight-say-the-same
                Some(other) => other.told_by.push(of.constant),
                None => each.push(Rows {
                    told_by: vec![of.constant],
                    bytes: of.row_bytes,
                    read,
                    head: DevicePtr::EMPTY,
                    hot: HotRows::default(),
                }),
            }
        }
        for one in &mut each {
            let mut before = self.rows.each.iter_mut();
            if let Some(before) = before.find(|before| before.told_by == one.told_by) {
                one.hot = std::mem::take(&mut before.hot);
            }
        }
        let reads = methods.all.iter().map(|method| reads(method, &each));
        self.rows = AllRows {
            methods: reads.collect(),
            each,
            ..AllRows::default()
        };
        Ok(())
    }

    /// The constants, and what is read by them where this is read in host memory.
    fn told(&self, methods: &Methods) -> Result<Vec<Told>> {
        let mut told: Vec<Told> = Vec::new();
        for method in &methods.all {
            for &of in &method.places {
                let reads = method.trace.probes().get(of.probe as usize);
                let table = { self.tables.iter() }.find(|one| reads == Some(&one.stands));
                let table = table.filter(|one| !methods.constants.is_pinned(one.table));
                let read = table.map(|one| (one.stands, one.table));
                match { told.iter_mut() }.find(|(other, _)| other.constant == of.constant) {
                    None => told.push((of, read)),
                    Some((other, _)) if other.row_bytes != of.row_bytes => {
                        let name = methods.constants.name(of.constant);
                        return Err(two_sizes(&name, other.row_bytes, of.row_bytes));
                    }
                    // They lie one after the other for both.
                    // So neither is told another place.
                    Some((_, other)) if *other != read => *other = None,
                    Some(_) => {}
                }
            }
        }
        Ok(told)
    }

    /// Between passes, when everything that stays is there: tells kernels where rows are from now on.
    pub(super) fn tell_rows(&mut self) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let staying = self.staying();
        for one in &mut self.rows.each {
            let rows = one
                .told_by
                .first()
                .map_or(0, |&constant| rows_of(&self.constants, constant));
            let stays = one.read.map(|(_, table)| {
                one.head = self.weights[table as usize].at;
                staying[table as usize].clone()
            });
            // A head begins with the first row.
            let stays = stays.filter(|range| range.start == 0);
            let places = stays.map_or(0, |range| range.end / one.bytes);
            one.hot = std::mem::take(&mut one.hot).with_places(rows, places as usize);
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
        let bytes = one.bytes;
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

    /// Whether this constant says where rows are.
    pub(super) fn tells_rows(&self, constant: WeightIndex) -> bool {
        self.rows
            .each
            .iter()
            .any(|one| one.told_by.contains(&constant))
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

/// What passes of a method do with these rows.
fn reads(method: &Method, each: &[Rows]) -> Reads {
    let moving = || each.iter().filter(|one| one.read.is_some());
    let whole = |weight: &WeightIndex| {
        moving().any(|one| one.read.is_some_and(|(_, table)| table == *weight))
    };
    let told = |of: &RowPlaces| moving().any(|one| one.told_by.contains(&of.constant));
    match () {
        () if method.trace.probes().iter().any(whole) => Reads::Whole,
        () if method.places.iter().any(told) => Reads::Rows,
        () => Reads::Nothing,
    }
}

/// Of how many rows a constant tells.
pub(super) fn rows_of(constants: &Constants, constant: WeightIndex) -> usize {
    constants.specs[constant as usize].bytes as usize / 16
}

#[cold]
fn two_sizes(name: &str, one: u64, other: u64) -> Error {
    Error::Internal(format!(
        "{name} has the places of rows of {one} and of {other} bytes"
    ))
}
