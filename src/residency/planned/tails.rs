//! How much of each weight streams through a ring of some length.
//!
//! At each moment of a pass the tails of what is wanted then lie in the ring, one beside the other. So each tail is as long as
//! the moments at which it is wanted leave it, and there are many ways to share.

/// Rounds in which what is left of the ring is shared.
const ROUNDS: usize = 4;

/// How a ring is shared.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    /// In rounds, in each of which everyone gets a part of what is left.
    Shared {
        /// An equal part; otherwise less, and the rest to one after the other.
        evenly: bool,
        /// First those that are copied least often.
        rare_first: bool,
    },
    /// Everyone wants all of itself, and from one moment to the next those yield that are wanted longest from there on. Where
    /// intervals on a line are taken so that no more than some are open at a time, that keeps the most of them (a greedy rule
    /// that is known to be optimal; Carlisle and Lloyd, "On the k-coloring of intervals", 1995); a pass is a circle, so it is
    /// begun at some moments.
    Swept {
        /// Those that are copied most often yield first.
        often_first: bool,
        /// The moment at which to begin, in quarters of the pass.
        quarter: usize,
    },
}

/// All ways. None is always best: what is read again, and how much is wanted at one time, decide.
pub(super) fn ways() -> impl Iterator<Item = Way> {
    let both = [true, false];
    let shared = both
        .into_iter()
        .flat_map(move |evenly| both.map(|rare_first| Way::Shared { evenly, rare_first }));
    let swept = both.into_iter().flat_map(|often_first| {
        [0, 1, 2, 3].map(|quarter| Way::Swept {
            often_first,
            quarter,
        })
    });
    shared.chain(swept)
}

/// Which weights are wanted when, by their places in a list of them.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Pages of each weight.
    pub pages: Vec<u64>,
    /// Copies of each weight in a pass.
    times: Vec<u64>,
    /// The weights that are wanted at each moment, once for each tenancy; then pairs of neighbours.
    rows: Vec<Row>,
    /// How many of them are moments.
    moments: usize,
    /// The moments of each weight.
    rows_of: Vec<Vec<usize>>,
}

#[derive(Debug)]
struct Row {
    weights: Vec<usize>,
    /// For how many moments from this one on each is wanted.
    further: Vec<usize>,
}

impl Wanted {
    /// `moments` are those of a pass, in order; `neighbours` others, at which the second of two is wanted longer.
    pub(super) fn new(
        pages: Vec<u64>,
        times: Vec<u64>,
        moments: Vec<Vec<usize>>,
        neighbours: Vec<Vec<usize>>,
    ) -> Wanted {
        let count = moments.len();
        let further = further(&moments, pages.len());
        let beside = neighbours.iter().map(|pair| (0..pair.len()).collect());
        let further: Vec<Vec<usize>> = further.into_iter().chain(beside).collect();
        let all = moments.into_iter().chain(neighbours).zip(further);
        let rows: Vec<Row> = all
            .map(|(weights, further)| Row { weights, further })
            .collect();
        let mut rows_of = vec![Vec::new(); pages.len()];
        for (number, row) in rows.iter().enumerate() {
            row.weights.iter().for_each(|&at| rows_of[at].push(number));
        }
        Wanted {
            pages,
            times,
            moments: count,
            rows,
            rows_of,
        }
    }

    /// How many are wanted at all moments together: what a search takes is in proportion to it.
    pub(super) fn in_rows(&self) -> usize {
        self.rows.iter().map(|row| row.weights.len()).sum()
    }

    pub(super) fn times(&self, at: usize) -> u64 {
        self.times[at]
    }

    /// Pages that tails of these lengths need at one time, at most.
    pub(super) fn together(&self, tails: &[u64]) -> u64 {
        self.rows
            .iter()
            .map(|row| row.pages(tails))
            .max()
            .unwrap_or(0)
    }

    /// Tails of which no more than `ring` pages are wanted at any moment.
    pub(super) fn tails(&self, ring: u64, way: Way) -> Vec<u64> {
        let mut all: Vec<usize> = (0..self.pages.len()).collect();
        match way {
            Way::Shared { evenly, rare_first } => {
                let mut tails = vec![0; all.len()];
                let mut left = vec![ring; self.rows.len()];
                // Unevenly, everyone gets a quarter of an equal part.
                let rounds = if evenly { (ROUNDS, 1) } else { (1, 4) };
                if rare_first {
                    all.sort_by_key(|&at| self.times(at));
                }
                for group in all.chunk_by(|&a, &b| !rare_first || self.times(a) == self.times(b)) {
                    self.share(group, rounds, &mut tails, &mut left);
                }
                tails
            }
            Way::Swept {
                often_first,
                quarter,
            } => {
                let mut tails = self.swept(ring, often_first, quarter);
                let mut left: Vec<u64> = self
                    .rows
                    .iter()
                    .map(|row| ring - row.pages(&tails))
                    .collect();
                all.sort_by_key(|&at| self.times(at));
                self.share(&all, (0, 1), &mut tails, &mut left);
                tails
            }
        }
    }

    /// Some rounds in which each of `group` gets its part of what is left, and one in which each, one after the other, gets as
    /// much as there is.
    fn share(
        &self,
        group: &[usize],
        (rounds, of_part): (usize, u64),
        tails: &mut [u64],
        left: &mut [u64],
    ) {
        for round in 0..=rounds {
            let mut open = vec![0u64; left.len()];
            for &at in group.iter().filter(|&&at| tails[at] < self.pages[at]) {
                self.rows_of[at].iter().for_each(|&row| open[row] += 1);
            }
            let parts: Vec<u64> = left.iter().zip(&open).map(|(l, o)| l / o.max(&1)).collect();
            for &at in group {
                let rows = &self.rows_of[at];
                // It may be there twice at one moment.
                let twice = rows.chunk_by(|a, b| a == b);
                let room = twice.map(|same| left[same[0]] / same.len() as u64).min();
                let mut more = room.unwrap_or(0).min(self.pages[at] - tails[at]);
                if round < rounds {
                    let part = rows.iter().map(|&row| parts[row]).min().unwrap_or(0);
                    more = more.min(part.div_ceil(of_part));
                }
                tails[at] += more;
                rows.iter().for_each(|&row| left[row] -= more);
            }
        }
    }

    fn swept(&self, ring: u64, often_first: bool, quarter: usize) -> Vec<u64> {
        let mut tails = self.pages.clone();
        let (moments, neighbours) = self.rows.split_at(self.moments);
        let (last, first) = moments.split_at(self.moments * quarter / 4);
        for row in first.iter().chain(last).chain(neighbours) {
            let mut over = row.pages(&tails).saturating_sub(ring);
            let mut order: Vec<(u64, usize, usize)> = (row.weights.iter().zip(&row.further))
                .map(|(&at, &further)| (if often_first { self.times(at) } else { 0 }, further, at))
                .collect();
            order.sort_unstable();
            while over > 0 {
                let Some((_, _, at)) = order.pop() else { break };
                // It may be there twice, and gives way for both.
                let same = row.weights.iter().filter(|&&other| other == at).count() as u64;
                let less = over.div_ceil(same).min(tails[at]);
                tails[at] -= less;
                over = over.saturating_sub(less * same);
            }
        }
        tails
    }
}

impl Row {
    fn pages(&self, tails: &[u64]) -> u64 {
        self.weights.iter().map(|&at| tails[at]).sum()
    }
}

/// For each of these moments, which follow each other around, how many more each of its weights is wanted at.
fn further(moments: &[Vec<usize>], weights: usize) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new(); moments.len()];
    let (mut seen, mut last) = (vec![usize::MAX; weights], vec![0; weights]);
    // Backwards, and twice, as it goes on around the end.
    for time in (0..2 * moments.len()).rev() {
        let number = time % moments.len();
        for &at in &moments[number] {
            if seen[at] != time + 1 && seen[at] != time {
                last[at] = time;
            }
            seen[at] = time;
            if time < moments.len() {
                found[number].push(last[at] - time);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_wanted_longest_yields() {
        // The second weight is wanted at three moments, beside one of the others at each.
        let moments = vec![vec![0, 1], vec![1, 2], vec![1, 3], vec![3, 0]];
        assert_eq!(
            further(&moments, 4),
            [vec![0, 2], vec![1, 0], vec![0, 1], vec![0, 1]]
        );
        let wanted = Wanted::new(vec![10; 4], vec![1; 4], moments, vec![]);
        let swept = Way::Swept {
            often_first: true,
            quarter: 0,
        };
        // Without it the others are there as a whole, except at the last moment, which the first of them outlasts.
        assert_eq!(wanted.tails(10, swept), [0, 0, 10, 10]);
        let evenly = Way::Shared {
            evenly: true,
            rare_first: true,
        };
        assert_eq!(wanted.tails(10, evenly), [5, 5, 5, 5]);
    }

    proptest! {
        #[test]
        fn tails_fit_at_every_moment_and_none_could_be_longer(
            moments in prop::collection::vec(prop::collection::vec(0..9usize, 1..5), 1..20),
            pages in prop::collection::vec(0..40u64, 9),
            times in prop::collection::vec(1..4u64, 9),
            ring in 0..100u64,
        ) {
            let wanted = Wanted::new(pages, times, moments.clone(), vec![]);
            for way in ways() {
                let tails = wanted.tails(ring, way);
                prop_assert!(wanted.together(&tails) <= ring, "{way:?}: {tails:?}");
                for at in (0..9).filter(|&at| tails[at] < wanted.pages[at]) {
                    let mut longer = tails.clone();
                    longer[at] += 1;
                    prop_assert!(wanted.rows_of[at].is_empty() || wanted.together(&longer) > ring, "{way:?}: {at} of {tails:?}");
                }
            }
        }
    }
}
