//! A doubly linked list of small indices in one vector: no allocation, no hashing, O(1) for everything.

/// No neighbour.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
    linked: bool,
}

/// Indices `0..n`, each at most once, in order of insertion.
#[derive(Debug, Clone)]
pub(super) struct IndexList {
    links: Vec<Link>,
    first: u32,
    last: u32,
}

impl IndexList {
    pub(super) fn new(n: usize) -> Self {
        let link = Link {
            before: NONE,
            after: NONE,
            linked: false,
        };
        IndexList {
            links: vec![link; n],
            first: NONE,
            last: NONE,
        }
    }

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn contains(&self, index: u32) -> bool {
        self.links[index as usize].linked
    }

    /// Appends `index`, which is not in the list.
    pub(super) fn push(&mut self, index: u32) {
        debug_assert!(!self.contains(index));
        let before = self.last;
        self.links[index as usize] = Link {
            before,
            after: NONE,
            linked: true,
        };
        match before {
            NONE => self.first = index,
            _ => self.links[before as usize].after = index,
        }
        self.last = index;
    }

    /// Puts `index` in front of all others. It is not in the list.
    pub(super) fn push_front(&mut self, index: u32) {
        debug_assert!(!self.contains(index));
        let after = self.first;
        self.links[index as usize] = Link {
            before: NONE,
            after,
            linked: true,
        };
        match after {
            NONE => self.last = index,
            _ => self.links[after as usize].before = index,
        }
        self.first = index;
    }

    /// Takes `index` out, which is in the list.
    pub(super) fn remove(&mut self, index: u32) {
        debug_assert!(self.contains(index));
        let Link { before, after, .. } = self.links[index as usize];
        match before {
            NONE => self.first = after,
            _ => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            _ => self.links[after as usize].before = before,
        }
        self.links[index as usize].linked = false;
    }

    /// From the first to the last. Bounded, so that a damaged list ends as well.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let next = |at: &u32| {
            let after = self.links[*at as usize].after;
            (after != NONE).then_some(after)
        };
        std::iter::successors(self.first(), next).take(self.links.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn does_what_a_vector_does(ops in prop::collection::vec((0..8u32, any::<bool>()), 0..100)) {
            let mut list = IndexList::new(8);
            let mut oracle: Vec<u32> = Vec::new();
            for (index, in_front) in ops {
                match oracle.iter().position(|&i| i == index) {
                    Some(at) => {
                        list.remove(index);
                        oracle.remove(at);
                    }
                    None if in_front => {
                        list.push_front(index);
                        oracle.insert(0, index);
                    }
                    None => {
                        list.push(index);
                        oracle.push(index);
                    }
                }
                prop_assert_eq!(list.first(), oracle.first().copied());
                prop_assert!((0..8).all(|i| list.contains(i) == oracle.contains(&i)));
                prop_assert_eq!(list.iter().collect::<Vec<_>>(), oracle.clone());
            }
        }
    }
}
