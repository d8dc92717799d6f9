//! Which tenancies may not share bytes.

use super::tenancies::Tenancy;

/// Conflicts of each tenancy, one list behind the other.
#[derive(Debug)]
pub(super) struct Conflicts {
    starts: Vec<usize>,
    others: Vec<usize>,
}

impl Conflicts {
    /// The tenancies in conflict with `index`.
    pub(super) fn of(&self, index: usize) -> &[usize] {
        &self.others[self.starts[index]..self.starts[index + 1]]
    }
}

/// Two tenancies conflict if both are wanted at some time, or if the one is among the next `ahead` to stream behind the
/// other: then one copy, or so many, go on while the other's bytes are read. `streamed` is in the order of its first
/// probes, `events` the length of a pass, around whose end time goes on. `None` if so many are wanted at the same time
/// that a plan would cost more memory than it could save; such a program keeps its weights anyway.
pub(super) fn conflicts(streamed: &[&Tenancy], events: usize, ahead: usize) -> Option<Conflicts> {
    let most = 1000 + 64 * streamed.len();
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    let mut active: Vec<(i64, usize)> = Vec::new();
    for (wanted, last, index) in spans(streamed, events as i64) {
        active.retain(|(end, _)| *end >= wanted);
        pairs.extend(active.iter().map(|&(_, other)| (index, other)));
        active.push((last, index));
        if pairs.len() > most {
            return None;
        }
    }
    let count = streamed.len();
    let next = |index| (1..=ahead.min(count)).map(move |step| (index, (index + step) % count));
    pairs.extend((0..count).flat_map(next));
    Some(listed(&pairs, count))
}

/// The tenancies that are wanted at one time, for each moment at which one more is, and those of which the one is the next
/// behind the other. All that conflict are together in one list.
pub(super) fn moments(streamed: &[&Tenancy], events: usize) -> Vec<Vec<usize>> {
    let mut moments: Vec<Vec<usize>> = Vec::new();
    let mut active: Vec<(i64, usize)> = Vec::new();
    for (wanted, last, index) in spans(streamed, events as i64) {
        active.retain(|(end, _)| *end >= wanted);
        active.push((last, index));
        moments.push(active.iter().map(|&(_, index)| index).collect());
    }
    let count = streamed.len();
    if count > 1 {
        moments.extend((0..count).map(|index| vec![index, (index + 1) % count]));
    }
    moments
}

/// What is wanted when, by start, within one pass: what begins in the pass before stands there twice.
fn spans(streamed: &[&Tenancy], events: i64) -> Vec<(i64, i64, usize)> {
    let mut spans: Vec<(i64, i64, usize)> = Vec::with_capacity(streamed.len() + 8);
    for (index, tenancy) in streamed.iter().enumerate() {
        spans.push((tenancy.wanted, tenancy.last as i64, index));
        if tenancy.wanted < 0 {
            spans.push((tenancy.wanted + events, events, index));
        }
    }
    spans.sort_unstable();
    spans
}

/// Both directions of each pair, each once.
fn listed(pairs: &[(usize, usize)], count: usize) -> Conflicts {
    let both = || {
        let apart = pairs.iter().filter(|(a, b)| a != b);
        apart.flat_map(|&(a, b)| [(a, b), (b, a)])
    };
    // Where each list ends, at first; then, as they are filled from behind, where it begins.
    let mut places = vec![0; count + 1];
    both().for_each(|(one, _)| places[one] += 1);
    let mut end = 0;
    for place in &mut places {
        end += *place;
        *place = end;
    }
    let mut all = vec![0; end];
    for (one, other) in both() {
        places[one] -= 1;
        all[places[one]] = other;
    }
    let (mut starts, mut others) = (Vec::with_capacity(count + 1), Vec::with_capacity(end));
    for list in places.windows(2) {
        let list = &mut all[list[0]..list[1]];
        list.sort_unstable();
        starts.push(others.len());
        for (at, &other) in list.iter().enumerate() {
            if at == 0 || list[at - 1] != other {
                others.push(other);
            }
        }
    }
    starts.push(others.len());
    Conflicts { starts, others }
}

/// So many in turn, each wanted with the one before it, around the end of the pass.
#[cfg(test)]
pub(super) fn chain(count: usize) -> Conflicts {
    let tenancy = |i: usize| Tenancy {
        weight: i as u32,
        probes: vec![],
        first: 3 * i,
        last: 3 * i + 2,
        wanted: 3 * i as i64 - 2,
    };
    let all: Vec<_> = (0..count).map(tenancy).collect();
    conflicts(&all.iter().collect::<Vec<_>>(), 3 * count, 1).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenancy(wanted: i64, first: usize, last: usize) -> Tenancy {
        Tenancy {
            weight: 0,
            probes: vec![],
            first,
            last,
            wanted,
        }
    }

    fn lists(spans: &[(i64, usize, usize)], events: usize) -> Vec<Vec<usize>> {
        let all: Vec<_> = spans.iter().map(|&(w, f, l)| tenancy(w, f, l)).collect();
        let found = conflicts(&all.iter().collect::<Vec<_>>(), events, 1).unwrap();
        (0..all.len())
            .map(|index| found.of(index).to_vec())
            .collect()
    }

    #[test]
    fn neighbours_and_what_overlaps_conflict_around_the_end() {
        // A chain of five: each only with its neighbours.
        let chain: Vec<_> = (0..5)
            .map(|i| (3 * i - 2, 3 * i as usize, 3 * i as usize + 2))
            .collect();
        assert_eq!(
            lists(&chain, 15),
            [vec![1, 4], vec![0, 2], vec![1, 3], vec![2, 4], vec![0, 3]]
        );
        // The second one lasts until the third is wanted, and the fourth too.
        let long = [(-2, 0, 2), (1, 3, 11), (4, 6, 8), (7, 9, 11), (10, 12, 14)];
        assert_eq!(lists(&long, 15)[1], [0, 2, 3, 4]);
    }

    #[test]
    fn more_copies_ahead_keep_more_apart() {
        let all: Vec<_> = (0..7)
            .map(|i| tenancy(3 * i - 2, 3 * i as usize, 3 * i as usize + 2))
            .collect();
        let all: Vec<_> = all.iter().collect();
        assert_eq!(conflicts(&all, 21, 2).unwrap().of(3), [1, 2, 4, 5]);
        assert_eq!(conflicts(&all, 21, 2).unwrap().of(0), [1, 2, 5, 6]);
        // Around the whole pass each is apart from all others, and none from itself.
        assert_eq!(conflicts(&all, 21, 9).unwrap().of(3), [0, 1, 2, 4, 5, 6]);
    }

    #[test]
    fn far_too_many_at_one_time_are_no_plan() {
        let all: Vec<_> = (0..300).map(|i| tenancy(0, i, 300)).collect();
        assert!(conflicts(&all.iter().collect::<Vec<_>>(), 300, 1).is_none());
    }
}
