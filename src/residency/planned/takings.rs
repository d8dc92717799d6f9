//! Pages that are taken, and given back, along a pass.
//!
//! What a pass needs is found by counting; which pages they are is asked only once that is worth it, and takes much longer, since
//! what is taken falls into pieces.

use std::collections::BTreeMap;
use std::ops::Range;

/// Some pages: how many, or which.
pub(super) trait Pages: Clone + Default {
    /// Pages that nobody had before.
    fn new(pages: Range<u64>) -> Self;

    fn count(&self) -> u64;

    fn add(&mut self, more: Self);

    /// Takes some of them: so many, or all.
    fn part(&mut self, most: u64) -> Self;
}

impl Pages for u64 {
    fn new(pages: Range<u64>) -> Self {
        pages.end - pages.start
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

/// Which pages: the beginnings and ends of pieces that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Which(BTreeMap<u64, u64>);

impl Which {
    /// In order.
    pub(super) fn pieces(&self) -> Vec<Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end).collect()
    }

    /// The first one of each piece, and the one behind it.
    #[cfg(test)]
    fn ends(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|(&start, &end)| (start, end)).collect()
    }

    fn insert(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, &touches)) = self.0.range(..start).next_back() {
            if touches == start {
                start = before;
            }
        }
        if let Some(behind) = self.0.remove(&end) {
            end = behind;
        }
        self.0.insert(start, end);
    }
}

impl Pages for Which {
    fn new(pages: Range<u64>) -> Self {
        let some = (!pages.is_empty()).then_some((pages.start, pages.end));
        Which(some.into_iter().collect())
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    fn add(&mut self, more: Self) {
        match self.0.is_empty() {
            true => *self = more,
            false => more
                .0
                .into_iter()
                .for_each(|(start, end)| self.insert(start, end)),
        }
    }

    fn part(&mut self, mut most: u64) -> Self {
        let mut part = Which::default();
        while let Some(first) = self.0.first_entry().filter(|_| most > 0) {
            let (start, end) = (*first.key(), *first.get());
            first.remove();
            let until = end.min(start + most);
            part.0.insert(start, until);
            most -= until - start;
            if until < end {
                self.0.insert(until, end);
            }
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
                    if free.count() == 0 {
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

    #[test]
    fn what_owners_want_soonest_is_lent_first_but_not_longer() {
        let mut memory: Memory<Which> = Memory::new(20);
        let (late, soon) = (memory.grow(4).unwrap(), memory.grow(4).unwrap());
        memory.lend(1, 9, late);
        memory.lend(1, 5, soon);
        memory.give_back(1);
        assert_eq!(memory.take(3, 5).unwrap().ends(), [(4, 7)]);
        // One is left of those that go back at 5, which is too soon; two of the others are behind it.
        assert_eq!(memory.take(6, 6).unwrap().ends(), [(0, 4), (8, 10)]);
        memory.give_back(5);
        memory.back_with_owners(5);
        assert_eq!(memory.take(1, 5).unwrap().ends(), [(10, 11)]);
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
        assert_eq!(which.ends(), [(0, 9)]);
        assert_eq!(which.part(4).ends(), [(0, 4)]);
        assert_eq!((which.ends(), which.count()), (vec![(4, 9)], 5));
        assert_eq!(Which::new(3..3).ends(), []);
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
