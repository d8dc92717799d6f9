//! Pages that are taken, and given back, along a pass.
//!
//! What a pass needs is found by counting; which pages they are is asked only once that is worth it, and takes much longer, since
//! what is taken falls into pieces.

use super::super::free_list::FreeList;
use std::collections::BTreeMap;
use std::ops::Range;

/// Some pages: how many, or which.
pub(super) trait Pages: Clone + Default {
    /// Pages that nobody had before.
    fn new(pages: Range<u64>) -> Self;

    fn is_empty(&self) -> bool;

    fn count(&self) -> u64;

    fn add(&mut self, more: Self);

    /// Takes some of them: so many, or all.
    fn part(&mut self, most: u64) -> Self;
}

impl Pages for u64 {
    fn new(pages: Range<u64>) -> Self {
        pages.end - pages.start
    }

    fn is_empty(&self) -> bool {
        *self == 0
    }

    fn count(&self) -> u64 {
        *self
    }

    fn add(&mut self, more: Self) {
        *self += more;
    }

    fn part(&mut self, most: u64) -> Self {
        let part = most.min(*self);
        *self -= part;
        part
    }
}

/// Which pages.
#[derive(Clone, Default)]
pub(super) struct Which(FreeList);

impl Which {
    /// In order; no two of them touch.
    pub(super) fn pieces(&self) -> Vec<Range<u64>> {
        self.0.iter().map(|(at, count)| at..at + count).collect()
    }

    fn first(&self) -> Option<(u64, u64)> {
        self.0.iter().next()
    }
}

impl Pages for Which {
    fn new(pages: Range<u64>) -> Self {
        let mut which = Which::default();
        if !pages.is_empty() {
            which.0.give(pages.start, pages.end - pages.start);
        }
        which
    }

    fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    fn add(&mut self, more: Self) {
        more.0.iter().for_each(|(at, count)| self.0.give(at, count));
    }

    fn part(&mut self, mut most: u64) -> Self {
        let mut part = Which::default();
        while let Some((at, count)) = self.first().filter(|_| most > 0) {
            let some = count.min(most);
            // The first piece is as long as that, so that it is the one.
            self.0.take(some);
            part.0.give(at, some);
            most -= some;
        }
        part
    }
}

/// Pages along a pass. Some have an owner, with whom they are from a moment on.
pub(super) struct Memory<P> {
    /// How many there are, and may be.
    pages: u64,
    most: u64,
    /// What is free, by when its owner takes it back.
    free: BTreeMap<usize, P>,
    /// What is taken, by when it is given back, and then free until its owner takes it.
    taken: BTreeMap<usize, Vec<(usize, P)>>,
}

/// What nobody takes back is free until then.
const NOBODY: usize = usize::MAX;

impl<P: Pages> Memory<P> {
    /// Without pages. It may grow to so many.
    pub(super) fn new(most: u64) -> Self {
        Memory {
            pages: 0,
            most,
            free: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }

    /// How many there are.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// New pages. `None` if there may not be so many.
    pub(super) fn grow(&mut self, pages: u64) -> Option<P> {
        let start = self.pages;
        self.pages += pages;
        (self.pages <= self.most).then(|| P::new(start..self.pages))
    }

    /// Pages that are free from a moment on, and with their owner from another one on.
    pub(super) fn lend(&mut self, from: usize, until: usize, pages: P) {
        self.taken.entry(from).or_default().push((until, pages));
    }

    /// What is over at this moment is free.
    pub(super) fn give_back(&mut self, now: usize) {
        while let Some(entry) = self.taken.first_entry().filter(|entry| *entry.key() <= now) {
            for (until, pages) in entry.remove() {
                self.free.entry(until).or_default().add(pages);
            }
        }
    }

    /// What owners take at this moment is not free any more.
    pub(super) fn back_with_owners(&mut self, now: usize) {
        self.free.remove(&now);
    }

    /// So many pages up to a moment: those that their owners take soonest, but not before it, and new ones.
    pub(super) fn take(&mut self, size: u64, to: usize) -> Option<P> {
        let mut all = P::default();
        let mut left = size;
        while left > 0 {
            let (until, part) = match self.free.range_mut(to..).next() {
                Some((&until, free)) => {
                    let part = free.part(left);
                    if free.is_empty() {
                        self.free.remove(&until);
                    }
                    (until, part)
                }
                None => (NOBODY, self.grow(left)?),
            };
            left -= part.count();
            all.add(part.clone());
            self.lend(to, until, part);
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The first page of each piece, and the one behind it.
    fn ends(which: &Which) -> Vec<(u64, u64)> {
        let pieces = which.pieces().into_iter();
        pieces.map(|piece| (piece.start, piece.end)).collect()
    }

    #[test]
    fn what_owners_want_soonest_is_lent_first_but_not_longer() {
        let mut memory: Memory<Which> = Memory::new(20);
        let (late, soon) = (memory.grow(4).unwrap(), memory.grow(4).unwrap());
        memory.lend(1, 9, late);
        memory.lend(1, 5, soon);
        memory.give_back(1);
        assert_eq!(ends(&memory.take(3, 5).unwrap()), [(4, 7)]);
        // One is left of those that go back at 5, which is too soon; two of the others are behind it.
        assert_eq!(ends(&memory.take(6, 6).unwrap()), [(0, 4), (8, 10)]);
        memory.give_back(5);
        memory.back_with_owners(5);
        assert_eq!(ends(&memory.take(1, 5).unwrap()), [(10, 11)]);
        assert_eq!(memory.pages(), 11);
        assert!(memory.take(10, 7).is_none());
    }

    #[test]
    fn pieces_that_touch_are_one() {
        let mut which = Which::new(4..6);
        which.add(Which::new(0..2));
        which.add(Which::new(8..9));
        which.add(Which::new(2..4));
        which.add(Which::new(6..8));
        assert_eq!(ends(&which), [(0, 9)]);
        assert_eq!(ends(&which.part(4)), [(0, 4)]);
        assert_eq!((ends(&which), which.count()), (vec![(4, 9)], 5));
        assert!(Which::new(3..3).is_empty());
    }

    proptest! {
        /// Counting gives the number of pages that are taken.
        #[test]
        fn as_many_are_counted_as_are_taken(
            owned in prop::collection::vec((0..9usize, 11..20usize, 0..5u64), 0..6),
            others in prop::collection::vec((0..20usize, 1..9usize, 1..6u64), 0..30),
            most in 0..80u64,
        ) {
            fn run<P: Pages>(owned: &[(usize, usize, u64)], others: &[(usize, usize, u64)], most: u64) -> Option<(u64, Vec<P>)> {
                let mut memory = Memory::<P>::new(most);
                for &(from, until, size) in owned {
                    let pages = memory.grow(size)?;
                    memory.lend(from, until, pages);
                }
                let mut by_time = others.to_vec();
                by_time.sort_unstable();
                let mut taken = Vec::new();
                for (from, long, size) in by_time {
                    memory.give_back(from);
                    memory.back_with_owners(from);
                    taken.push(memory.take(size, from + long)?);
                }
                Some((memory.pages(), taken))
            }
            let counted = run::<u64>(&owned, &others, most);
            let placed = run::<Which>(&owned, &others, most);
            prop_assert_eq!(counted.as_ref().map(|one| one.0), placed.as_ref().map(|one| one.0));
            for (count, which) in counted.iter().flat_map(|one| &one.1).zip(placed.iter().flat_map(|one| &one.1)) {
                prop_assert_eq!(*count, which.count());
            }
        }
    }
}
