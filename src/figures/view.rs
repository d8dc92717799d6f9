//! Memory that is seen at several addresses: pages, and where each of them shows.

use crate::error::{Error, Result};
use std::ops::Range;

/// Neighbouring pages, and where they are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Bytes from the view's start.
    pub at: u64,
    /// Bytes from the start of the memory behind it.
    pub memory: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Piece {
    /// Where it ends in memory. Saturates: views are checked before they are mapped.
    fn end(&self) -> u64 {
        self.memory.saturating_add(self.bytes)
    }
}

/// Neighbouring pages that keep what they hold when memory is seen in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptPages {
    /// Bytes from the start of the old memory.
    pub from: u64,
    /// Bytes from the start of the new memory.
    pub to: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Addresses, and the memory that is behind them. One part of the memory may show at several addresses: a write through
/// one is seen through all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Bytes of addresses.
    pub bytes: u64,
    /// Bytes of memory that are used, and that count. The last page may be used in part: the rest of it is nobody's.
    pub memory: u64,
    /// By address, without a gap.
    pub pieces: Vec<Piece>,
}

impl View {
    /// Refuses what cannot be mapped with pages of `page` bytes. Without addresses there is no memory.
    pub fn check(&self, page: u64) -> Result<()> {
        let mut end = 0;
        let most = self.memory.checked_next_multiple_of(page);
        for piece in &self.pieces {
            let whole =
                [piece.at, piece.memory, piece.bytes].map(|bytes| bytes.is_multiple_of(page));
            let inside = piece
                .memory
                .checked_add(piece.bytes)
                .is_some_and(|end| Some(end) <= most);
            if piece.at != end || piece.bytes == 0 || whole != [true; 3] || !inside {
                return Err(Error::Internal(format!(
                    "a view of {} bytes of memory, in pages of {page}, has {piece:?} behind address {end}",
                    self.memory
                )));
            }
            end += piece.bytes;
        }
        let seen = self.bytes > 0 || self.memory == 0;
        let pages = Some(self.whole()) == most;
        match end == self.bytes && pages && seen {
            true => Ok(()),
            false => Err(Error::Internal(format!(
                "a view of {} bytes, in pages of {page}, ends at {end}; {} bytes of memory",
                self.bytes, self.memory
            ))),
        }
    }

    /// Bytes of memory in whole pages.
    pub fn whole(&self) -> u64 {
        let ends = self.pieces.iter().map(Piece::end);
        ends.fold(self.memory, u64::max)
    }

    /// The memory behind addresses, in their order; neighbours in memory are one range. `None` if some are not of the view.
    pub fn behind(&self, addresses: Range<u64>) -> Option<Vec<Range<u64>>> {
        if addresses.start > addresses.end || addresses.end > self.bytes {
            return None;
        }
        let from = self
            .pieces
            .partition_point(|piece| piece.at + piece.bytes <= addresses.start);
        let mut all: Vec<Range<u64>> = Vec::new();
        for piece in self.pieces[from..]
            .iter()
            .take_while(|piece| piece.at < addresses.end)
        {
            let start = addresses.start.max(piece.at) - piece.at + piece.memory;
            let end = addresses.end.min(piece.at + piece.bytes) - piece.at + piece.memory;
            match all.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => all.push(start..end),
            }
        }
        Some(all)
    }

    /// Where pieces begin and end in memory, ascending, each once, from 0 to the memory's end: no piece crosses one, so
    /// that what lies between two of them can be one allocation.
    pub fn borders(&self) -> Vec<u64> {
        let ends = self
            .pieces
            .iter()
            .flat_map(|piece| [piece.memory, piece.end()]);
        let mut all: Vec<u64> = ends.chain([0, self.whole()]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "one range of memory is what is meant"
)]
mod tests {
    use super::*;

    /// Two weights of three pages, a head of one and two pages, and one ring of two pages behind both.
    fn two() -> View {
        let piece = |(at, memory, bytes)| Piece { at, memory, bytes };
        View {
            bytes: 24,
            memory: 20,
            pieces: [(0, 0, 4), (4, 12, 8), (12, 4, 8), (20, 16, 4)]
                .map(piece)
                .to_vec(),
        }
    }

    #[test]
    fn addresses_lead_to_memory() {
        let view = two();
        view.check(4).unwrap();
        assert_eq!(view.behind(0..12), Some(vec![0..4, 12..20]));
        assert_eq!(view.behind(5..7), Some(vec![13..15]));
        assert_eq!(view.behind(13..24), Some(vec![5..12, 16..20]));
        assert_eq!(view.behind(7..7), Some(vec![15..15]));
        assert_eq!(view.behind(20..25), None);
        assert_eq!(view.borders(), [0, 4, 12, 16, 20]);
    }

    #[test]
    fn the_last_page_may_be_used_in_part() {
        let part = |memory| View { memory, ..two() };
        for memory in 17..=20 {
            let view = part(memory);
            view.check(4).unwrap();
            assert_eq!((view.whole(), view.borders()[4]), (20, 20));
        }
        // A page that is not there, and a part of one that nobody sees.
        for memory in [16, 21, u64::MAX] {
            assert!(part(memory).check(4).is_err(), "{memory}");
        }
    }

    #[test]
    fn what_cannot_be_mapped_is_refused() {
        let wrong = |change: fn(&mut View)| {
            let mut view = two();
            change(&mut view);
            assert!(matches!(view.check(4), Err(Error::Internal(_))), "{view:?}");
        };
        wrong(|view| view.pieces[1].at = 8);
        wrong(|view| view.pieces[3].memory = 20);
        wrong(|view| view.pieces[3].memory = u64::MAX - 3);
        wrong(|view| view.pieces[2].memory = 5);
        wrong(|view| view.pieces[3].bytes = 0);
        wrong(|view| view.bytes = 28);
        assert!(two().check(8).is_err());
        let unseen = View {
            memory: 4096,
            ..View::default()
        };
        assert!(unseen.check(4096).is_err());
        View::default().check(4096).unwrap();
    }
}
