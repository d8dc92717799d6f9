//! How much is kept over each gap in the long run, if every pass keeps as much as it can.
//!
//! On a line, where passes follow each other for ever, the rule is known that keeps the most: everything is kept, and where that is too
//! much, what is wanted last gives way (Carlisle and Lloyd, "On the k-coloring of intervals", 1995; Belady's rule for caches,
//! byte by byte). It does not keep the same in each pass, but after some of them it often begins anew. What it keeps over a gap in the
//! mean fits at every moment too, as that is a mean of passes that fit: so, where they do begin anew,
//! it is the most that plans could keep, up to fractions of a page.

use super::gaps::Gaps;
use std::collections::BTreeSet;

/// Passes that follow each other.
struct Passes<'a> {
    gaps: &'a Gaps,
    room: u64,
    /// What is kept over each gap if there is room.
    most: &'a [u64],
    /// The gaps that begin at each moment.
    begin: Vec<Vec<usize>>,
    /// The gaps that are open, by the moments behind them, counted from the first pass on.
    open: BTreeSet<(usize, usize)>,
    /// What is kept over each of these, and all of them together.
    now: Vec<u64>,
    there: u64,
    /// What was kept over each gap when it ended last, and in all passes.
    last: Vec<u64>,
    total: Vec<u64>,
    passes: usize,
}

/// The pages that are kept over each gap, of which no more than `room` are there at any moment, [`Gaps::least`] or more: the mean
/// of at most so many passes, and what that leaves for the shortest gaps. Over gap `given_up` nothing is kept.
pub(super) fn steady(gaps: &Gaps, room: u64, passes: usize, given_up: Option<usize>) -> Vec<u64> {
    let mut most: Vec<u64> = (0..gaps.gaps.len()).map(|at| gaps.all_of(at)).collect();
    if let Some(at) = given_up {
        most[at] = 0;
    }
    let mut kept = Passes::new(gaps, room, &most).mean(passes);
    if gaps.together(&kept) > room {
        // Passes that do not begin anew may have kept more before their first moment or behind their last one than fits.
        kept = Passes::new(gaps, room, &kept).once();
    }
    gaps.fill(&mut kept, &most, room);
    kept
}

impl<'a> Passes<'a> {
    fn new(gaps: &'a Gaps, room: u64, most: &'a [u64]) -> Self {
        let mut begin = vec![Vec::new(); gaps.moments];
        let some = (0..gaps.gaps.len()).filter(|&at| gaps.gaps[at].long > 0);
        some.for_each(|at| begin[gaps.gaps[at].from].push(at));
        Passes {
            gaps,
            room,
            most,
            begin,
            open: BTreeSet::new(),
            now: vec![0; most.len()],
            there: 0,
            last: most.to_vec(),
            total: vec![0; most.len()],
            passes: 0,
        }
    }

    /// The mean of the passes from one to the next that is like it, or of the later half of so many.
    fn mean(mut self, passes: usize) -> Vec<u64> {
        let mut before = vec![(self.now.clone(), self.total.clone())];
        let from = loop {
            self.pass();
            if let Some(same) = before.iter().position(|(now, _)| *now == self.now) {
                break same;
            }
            if self.passes >= passes {
                break passes / 2;
            }
            before.push((self.now.clone(), self.total.clone()));
        };
        let count = (self.passes - from) as u64;
        let sums = self.total.iter().zip(&before[from].1);
        let means = sums.map(|(after, before)| (after - before) / count);
        // What lasts no moment takes no room.
        let gaps = self.gaps.gaps.iter().zip(self.most);
        (means.zip(gaps))
            .map(|(mean, (gap, &most))| if gap.long == 0 { most } else { mean })
            .collect()
    }

    /// What one pass keeps if it begins with everything that is open then.
    fn once(mut self) -> Vec<u64> {
        for (at, gap) in self.gaps.gaps.iter().enumerate() {
            let to = gap.from + gap.long;
            if to > self.gaps.moments {
                self.keep(at, to - self.gaps.moments);
            }
        }
        self.pass();
        // Those that are open again keep the less of both times.
        for &(_, at) in &self.open {
            self.last[at] = self.last[at].min(self.now[at]);
        }
        self.last
    }

    fn pass(&mut self) {
        for moment in 0..self.gaps.moments {
            let time = self.passes * self.gaps.moments + moment;
            while let Some(&(_, at)) = self.open.first().filter(|(end, _)| *end <= time) {
                self.open.pop_first();
                self.last[at] = std::mem::take(&mut self.now[at]);
                self.there -= self.last[at];
                self.total[at] += self.last[at];
            }
            for number in 0..self.begin[moment].len() {
                let at = self.begin[moment][number];
                self.keep(at, time + self.gaps.gaps[at].long);
            }
            self.yield_down_to(self.room.saturating_sub(self.gaps.wanted[moment]));
        }
        self.passes += 1;
    }

    fn keep(&mut self, at: usize, end: usize) {
        self.open.insert((end, at));
        self.now[at] = self.most[at];
        self.there += self.most[at];
    }

    /// What is wanted last gives way.
    fn yield_down_to(&mut self, most: u64) {
        while let Some(&(_, at)) = self.open.last().filter(|_| self.there > most) {
            let less = self.now[at].min(self.there - most);
            self.now[at] -= less;
            self.there -= less;
            if self.now[at] == 0 {
                self.open.pop_last();
                self.last[at] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::Planner;
    use super::super::test_support::{chain, in_turn, programs, weights, PAGE};
    use super::*;
    use crate::figures::DeviceModel;
    use crate::schedule::{Trace, WeightSpec};
    use proptest::prelude::*;

    fn gaps(trace: &Trace, weights: &[WeightSpec]) -> Gaps {
        let figures = DeviceModel {
            apart: 0,
            granule: 64,
            page: Some(PAGE),
            bytes_per_copy: 0,
        };
        Gaps::new(&Planner::new(trace, weights, &figures, u64::MAX), PAGE)
    }

    /// Each of five weights is away for three of five moments, in a third of which it can be there: one after the other as a whole,
    /// which fits into no single pass.
    #[test]
    fn the_mean_of_passes_keeps_more_than_one_could() {
        let gaps = gaps(&in_turn(5), &weights(&[30 * PAGE; 5]));
        assert_eq!(steady(&gaps, 90, 16, None), [10; 5]);
        assert!(steady(&gaps, 90, 1, None).iter().sum::<u64>() < 50);
    }

    #[test]
    fn passes_that_do_not_begin_anew_are_cut_down_to_what_fits() {
        let reads = [0, 1, 2, 0, 3, 4, 5, 3, 6, 1, 8, 7];
        let sizes = [7, 31, 17, 5, 23, 11, 13, 29, 3].map(|pages| pages * PAGE);
        let gaps = gaps(&chain(&reads, 9), &weights(&sizes));
        for room in gaps.least()..gaps.least() + 60 {
            for passes in 1..5 {
                assert!(gaps.together(&steady(&gaps, room, passes, None)) <= room);
            }
        }
    }

    #[test]
    fn what_is_given_up_makes_room_for_the_others() {
        let gaps = gaps(&in_turn(5), &weights(&[30 * PAGE; 5]));
        let kept = steady(&gaps, 90, 16, Some(2));
        // Two of the others have what was its, and one of them nothing: half of three stays, not a third of five.
        assert_eq!(kept, [0, 15, 0, 15, 15]);
        assert!(gaps.together(&kept) <= 90);
    }

    proptest! {
        #[test]
        fn what_is_kept_fits_and_nothing_more_does((weights, trace) in programs(), more in 0..60u64, passes in 1..20usize) {
            let gaps = gaps(&trace, &weights);
            let room = gaps.least() + more;
            let kept = steady(&gaps, room, passes, None);
            prop_assert!(gaps.together(&kept) <= room);
            for at in (0..kept.len()).filter(|&at| kept[at] < gaps.all_of(at)) {
                let mut longer = kept.clone();
                longer[at] += 1;
                prop_assert!(gaps.together(&longer) > room, "{at} of {kept:?}");
            }
        }
    }
}
