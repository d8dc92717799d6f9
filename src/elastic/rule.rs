//! Three orders of value, and what a pass may take from whom.
//!
//! No order wins always. The newest tenant is worth most in long phases, and copies everything where models alternate. A rate
//! or a prediction is right there, and follows slowly where phases change.

use super::tenant::{History, TenantState, SHADOWS};
use std::cmp::Ordering;

/// Whose bytes are worth most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Of the tenant that passed last.
    Newest,
    /// Of the tenant that passes most often.
    Rate,
    /// Of the tenant that is expected to pass next.
    Predicted,
}

/// A rate is clearly lower if it is below this share of another one.
const CLEARLY: f64 = 0.8;

/// Shares are about equal if one is not above the other by this factor.
const ABOUT: f64 = 1.0 + 1.0 / 16.0;

/// What a tenant that passes may take from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    Nothing,
    /// Until both hold the same share of what they can hold above their floors.
    Even,
    /// All that is above its floor.
    All,
}

impl Rule {
    pub(super) const ALL: [Rule; SHADOWS] = [Rule::Newest, Rule::Rate, Rule::Predicted];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Newest => "newest first",
            Rule::Rate => "pass rate",
            Rule::Predicted => "predicted next pass",
        }
    }

    pub(super) fn number(self) -> usize {
        self as usize
    }

    /// The tenant of a higher value keeps its bytes longer.
    pub(super) fn value(self, history: &History, now: u64) -> f64 {
        match self {
            Rule::Newest => history.last.map_or(-1.0, |last| last as f64),
            Rule::Rate => history.rate,
            Rule::Predicted => -history.next(now),
        }
    }

    /// What `passing`, whose pass begins, may take from `other`.
    pub(super) fn claim(self, passing: &TenantState, other: &TenantState, now: u64) -> Claim {
        match other.rank.cmp(&passing.rank) {
            Ordering::Less => return Claim::All,
            Ordering::Greater => return Claim::Nothing,
            Ordering::Equal => {}
        }
        let (mine, theirs) = (&passing.history, &other.history);
        let lower = match self {
            Rule::Rate => theirs.rate < CLEARLY * mine.rate,
            _ => self.value(theirs, now) < self.value(mine, now),
        };
        // Equal tenants would take turns with the same bytes. Half for each costs as little, and serves both.
        match lower {
            true => Claim::All,
            false if CLEARLY * theirs.rate <= mine.rate => Claim::Even,
            false => Claim::Nothing,
        }
    }
}

/// What `from` gives to `to`, so that both hold the same share of what they can hold above their floors. Each is what the
/// tenant holds above its floor, and what it can hold. Shares that are about equal stay.
pub(super) fn even((to, room): (u64, u64), (from, its_room): (u64, u64)) -> u64 {
    let (to, room, from_now, its_room) = (to as f64, room as f64, from as f64, its_room as f64);
    if from_now * room <= ABOUT * to * its_room {
        return 0;
    }
    let share = (from_now + to) / (room + its_room);
    from.saturating_sub((share * its_room).ceil() as u64)
}
