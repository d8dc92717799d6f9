//! Whose memory goes last: one order for stores, eager modules and ranges. What is held until its owner gives it up, as graph
//! pools and segments are, comes before all of them.

use std::sync::atomic::{AtomicI64, Ordering};

/// A place in that order. Memory of a lower one goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Rank {
    priority: i64,
    /// Among equal numbers: who was put first or last, and when. 0 for who never was.
    turn: i64,
}

/// How a place in the order changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reorder {
    /// To this number, with those that nobody put first or last.
    To(i64),
    /// Before all of the same number.
    First,
    /// Behind all of the same number.
    Last,
    /// A place that somebody kept: see [`Rank::at`].
    Place(Rank),
}

impl Rank {
    /// Behind everybody.
    pub(super) const LAST: Rank = Rank {
        priority: i64::MIN,
        turn: i64::MIN,
    };

    /// The place that a number gives.
    pub fn of(priority: i64) -> Rank {
        Rank { priority, turn: 0 }
    }

    /// The place of a number and a turn of [`next_turn`]; behind all of this number, if the turn is negative.
    pub fn at(priority: i64, turn: i64) -> Rank {
        Rank { priority, turn }
    }

    /// The number.
    pub fn priority(self) -> i64 {
        self.priority
    }

    /// Whether it was put first or last among those of its number.
    pub fn is_put(self) -> bool {
        self.turn != 0
    }

    /// Another place.
    pub fn reordered(self, to: Reorder) -> Rank {
        match to {
            Reorder::To(priority) => Rank::of(priority),
            Reorder::First => Rank::at(self.priority, next_turn()),
            Reorder::Last => Rank::at(self.priority, -next_turn()),
            Reorder::Place(rank) => rank,
        }
    }
}

/// Who takes it comes before all that took one earlier, of the same number.
pub fn next_turn() -> i64 {
    static TURNS: AtomicI64 = AtomicI64::new(0);
    TURNS.fetch_add(1, Ordering::Relaxed) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_before_turns() {
        let (a, b) = (Rank::of(0), Rank::of(1));
        assert!(a.reordered(Reorder::First) < b.reordered(Reorder::Last));
        assert!(a.reordered(Reorder::Last) < a && a < a.reordered(Reorder::First));
    }

    #[test]
    fn who_was_put_first_last_comes_first() {
        let one = Rank::default().reordered(Reorder::First);
        let other = Rank::default().reordered(Reorder::First);
        assert!(one < other);
        let [one, other] = [one, other].map(|rank| rank.reordered(Reorder::Last));
        assert!(other < one);
        assert_eq!(one.reordered(Reorder::To(0)), Rank::default());
    }
}
