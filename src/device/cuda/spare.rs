//! Memory that changes hands: while a tenant of a GPU grows, what others give back waits for it.
//!
//! Memory never becomes more by it: what waits and does not fit goes before new memory comes.
#![deny(unsafe_code)]

use std::collections::BTreeMap;

/// Pieces of memory of one GPU that wait for those who grow.
#[derive(Debug)]
pub(super) struct Spare<T> {
    growing: usize,
    by_bytes: BTreeMap<u64, Vec<T>>,
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Spare {
            growing: 0,
            by_bytes: BTreeMap::new(),
        }
    }
}

impl<T> Spare<T> {
    /// One more tenant grows.
    pub fn begin(&mut self) {
        self.growing += 1;
    }

    /// One has grown. What goes: nothing as long as another one grows.
    #[must_use]
    pub fn end(&mut self) -> Vec<T> {
        self.growing = self.growing.saturating_sub(1);
        match self.growing {
            0 => self.empty(),
            _ => Vec::new(),
        }
    }

    /// All that waits goes.
    #[must_use]
    pub fn empty(&mut self) -> Vec<T> {
        let all = std::mem::take(&mut self.by_bytes);
        all.into_values().flatten().collect()
    }

    /// A piece that nobody uses. It comes back if nobody grows.
    #[must_use]
    pub fn give(&mut self, bytes: u64, piece: T) -> Option<T> {
        if self.growing == 0 {
            return Some(piece);
        }
        self.by_bytes.entry(bytes).or_default().push(piece);
        None
    }

    /// A piece of this size; or what goes before a new one comes.
    pub fn take(&mut self, bytes: u64) -> Result<T, Vec<T>> {
        self.remove(bytes).ok_or_else(|| {
            let (mut gone, mut room) = (Vec::new(), 0);
            // rule: spare-memory-makes-room
            while room < bytes {
                let Some((&size, _)) = self.by_bytes.last_key_value() else {
                    break;
                };
                gone.extend(self.remove(size));
                room += size;
            }
            gone
        })
    }

    fn remove(&mut self, bytes: u64) -> Option<T> {
        let pieces = self.by_bytes.get_mut(&bytes)?;
        let piece = pieces.pop();
        if pieces.is_empty() {
            self.by_bytes.remove(&bytes);
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_waits_only_while_somebody_grows() {
        let mut spare = Spare::default();
        assert_eq!(spare.give(4, 'a'), Some('a'));
        spare.begin();
        spare.begin();
        assert_eq!(spare.give(4, 'b'), None);
        assert_eq!(spare.take(4), Ok('b'));
        assert_eq!(spare.give(4, 'c'), None);
        assert!(spare.end().is_empty(), "another one grows");
        assert_eq!(spare.end(), ['c']);
        assert_eq!(spare.give(4, 'd'), Some('d'));
    }

    #[test]
    fn what_does_not_fit_goes_before_new_memory_comes() {
        let mut spare = Spare::default();
        spare.begin();
        for (bytes, piece) in [(2, 'a'), (8, 'b'), (4, 'c'), (4, 'd')] {
            assert_eq!(spare.give(bytes, piece), None);
        }
        assert_eq!(spare.take(9), Err(vec!['b', 'd']));
        assert_eq!(spare.take(8), Err(vec!['c', 'a']));
        assert_eq!(spare.take(8), Err(vec![]));
    }
}
