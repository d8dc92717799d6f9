//! Three orders of value, and what a pass may take from whom.
//!
//! No order wins always. The newest tenant is worth most in long phases, and copies everything where models alternate. A rate
//! or a prediction is right there, and follows slowly where phases change.

use super::tenant::{History, Tenant};
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

/// Number of rules.
pub(super) const RULES: usize = 3;

/// A rate is clearly lower if it is below this share of another one.
const CLEARLY: f64 = 0.8;

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
    pub(super) const ALL: [Rule; RULES] = [Rule::Newest, Rule::Rate, Rule::Predicted];

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
    fn value(self, history: &History, now: u64) -> f64 {
        match self {
            Rule::Newest => history.last.map_or(-1.0, |last| last as f64),
            Rule::Rate => history.rate,
            Rule::Predicted => -history.next(now),
        }
    }

    /// The tenant that loses its bytes first comes first.
    pub(super) fn order(self, one: &Tenant, other: &Tenant, now: u64) -> Ordering {
        let value = |tenant: &Tenant| self.value(&tenant.history, now);
        let priorities = one.priority.cmp(&other.priority);
        let values = || value(one).total_cmp(&value(other));
        priorities.then_with(values).then(other.id.cmp(&one.id))
    }

    /// What `passing`, whose pass begins, may take from `other`.
    pub(super) fn claim(self, passing: &Tenant, other: &Tenant, now: u64) -> Claim {
        match other.priority.cmp(&passing.priority) {
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
/// tenant holds above its floor, and what it can hold.
pub(super) fn even((to, room): (u64, u64), (from, its_room): (u64, u64)) -> u64 {
    let wide = u128::from;
    if wide(from) * wide(room) <= wide(to) * wide(its_room) {
        return 0;
    }
    let part = (wide(from) + wide(to)) * wide(its_room) / (wide(room) + wide(its_room));
    from.saturating_sub(part as u64)
}
