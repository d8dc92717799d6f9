//! Which rows of a weight are on the device where a plan keeps the head of it there: those that passes ask for most.
//!
//! ```text
//!  places    0      1      2      3                 room for four rows
//!  holds   row 0  row 9  row 2  row 7 (coming)      the head has rows 0 to 3, which methods that read all of them find there
//! ```
//! Passes are counted in rounds. After each a row that is not there takes the place of the one that was asked for least, if it was asked
//! for so much more often that this is no accident. No more rows move than passes had to read in host memory in that round. So moving
//! them costs at most as much again, and as much a third time where the head gets its own rows back.

use std::ops::Range;

/// One request in a score. A sixteenth of each score is forgotten in each round.
const ONE: u64 = 256;
const FORGOTTEN: u64 = 16;

/// By so many standard deviations the requests for two rows must differ. With three, what is asked for a little more often comes late;
/// with two, one of four hundred requests moves a row where all are asked for equally often.
const DEVIATIONS: u64 = 2;

/// The rows of one weight.
#[derive(Debug, Clone, Default)]
pub struct HotRows {
    /// The row of each place.
    holds: Vec<u32>,
    /// Whether that row's copy was issued in this round: it is read in host memory until the next one.
    coming: Vec<bool>,
    /// How often each row was asked for lately.
    scores: Vec<u64>,
}

/// What a round has shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Requests for rows that were on the device.
    pub hits: u64,
    /// Requests for the others.
    pub misses: u64,
    /// Places, and the row that each gets.
    pub moves: Vec<(u32, u32)>,
}

impl HotRows {
    /// Of `rows` rows the first `places` are on the device.
    pub fn new(rows: usize, places: usize) -> HotRows {
        HotRows {
            holds: (0..places.min(rows) as u32).collect(),
            coming: vec![false; places.min(rows)],
            scores: vec![0; rows],
        }
    }

    /// The same for another number of places, which have the first rows: what is known of requests stays known.
    pub fn with_places(self, rows: usize, places: usize) -> HotRows {
        let scores = Some(self.scores).filter(|scores| scores.len() == rows);
        let new = HotRows::new(rows, places);
        HotRows {
            scores: scores.unwrap_or_else(|| vec![0; rows]),
            ..new
        }
    }

    /// The place of each row that is on the device.
    pub fn places(&self) -> Vec<Option<u32>> {
        let mut places = vec![None; self.scores.len()];
        for (place, (&row, coming)) in (0..).zip(self.holds.iter().zip(&self.coming)) {
            if !coming {
                places[row as usize] = Some(place);
            }
        }
        places
    }

    /// How many there are.
    pub fn rows(&self) -> usize {
        self.scores.len()
    }

    /// Whether a row is on its way.
    pub fn any_coming(&self) -> bool {
        self.coming.contains(&true)
    }

    /// A round has ended, in which each row was asked for so often. What was on its way is there now.
    pub fn end_round(&mut self, asked: &[u64]) -> Round {
        let there = self.places();
        let mut round = Round::default();
        for (there, &asked) in there.iter().zip(asked) {
            match there {
                Some(_) => round.hits += asked,
                None => round.misses += asked,
            }
        }
        self.coming.fill(false);
        for (score, asked) in self.scores.iter_mut().zip(asked) {
            *score = *score - *score / FORGOTTEN + asked * ONE;
        }
        round.moves = self.choose(asked, round.misses);
        for &(place, row) in &round.moves {
            self.holds[place as usize] = row;
            self.coming[place as usize] = true;
        }
        round
    }

    /// The rows that were asked for most, of those in host memory, and the places of those that were asked for least.
    fn choose(&self, asked: &[u64], most: u64) -> Vec<(u32, u32)> {
        let mut absent = vec![true; self.scores.len()];
        for &row in &self.holds {
            absent[row as usize] = false;
        }
        let score = |row: u32| self.scores[row as usize];
        let rows = 0..self.scores.len() as u32;
        let mut rows: Vec<u32> = rows
            .filter(|&row| absent[row as usize] && asked[row as usize] > 0)
            .collect();
        rows.sort_by_key(|&row| (std::cmp::Reverse(score(row)), row));
        let mut places: Vec<u32> = (0..self.holds.len() as u32).collect();
        places.sort_by_key(|&place| (score(self.holds[place as usize]), place));
        let better =
            |&(place, row): &(u32, u32)| differ(score(row), score(self.holds[place as usize]));
        let pairs = places.into_iter().zip(rows).take(most as usize);
        pairs.take_while(better).collect()
    }

    /// Every place gets the row that it has in the head again. The places whose bytes have to be copied for that.
    pub fn go_home(&mut self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for ((place, row), coming) in (0..).zip(&mut self.holds).zip(&self.coming) {
            // One that is on its way home may not have arrived.
            // rule: rows-on-their-way-are-not-home
            if *row == place && !coming {
                continue;
            }
            *row = place;
            match runs.last_mut() {
                Some(run) if run.end == place => run.end += 1,
                _ => runs.push(place..place + 1),
            }
        }
        self.coming.fill(false);
        runs
    }
}

/// Whether a row was asked for more often than another, and not by accident: requests are counts, whose variance is their mean.
fn differ(more: u64, less: u64) -> bool {
    let by = more.saturating_sub(less);
    u128::from(by) * u128::from(by)
        > u128::from(DEVIATIONS * DEVIATIONS * ONE) * u128::from(more + less)
}

#[cfg(test)]
#[path = "hot_rows_tests.rs"]
mod tests;
