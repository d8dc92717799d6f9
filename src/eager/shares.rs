//! How often entries run beside each other, and when a plan should follow that.
//!
//! A pipeline runs its encoder once for thirty passes of its transformer: what the encoder reads should stream. Nobody says so
//! beforehand. Passes are counted, and looked at after 2, 4, 8, 16 and so on of them since the weights moved: a plan that fits stays.

/// Shares are off if one is another one by this factor.
const OFF: u128 = 2;

/// The first look after a move.
const FIRST: u64 = 2;

/// After so many passes what was before counts less: entries may run otherwise by now.
const MANY: u64 = 64;

/// Passes of each entry.
#[derive(Debug)]
pub(super) struct Shares {
    /// Complete ones, those before the last plans by half.
    passes: Vec<u32>,
    /// What plans are made for from now on.
    given: Vec<u32>,
    /// What the present plan was made for.
    planned: Vec<u32>,
    /// The store's, under this plan.
    generation: u64,
    /// Complete passes since then, and how many there are at the next look.
    since: u64,
    next: u64,
}

impl Shares {
    /// Of one entry.
    pub(super) fn new() -> Shares {
        Shares {
            passes: vec![0],
            given: vec![1],
            planned: vec![1],
            generation: 0,
            since: 0,
            next: FIRST,
        }
    }

    /// So many entries there are now.
    pub(super) fn resize(&mut self, entries: usize) {
        self.passes.resize(entries, 0);
        self.given.resize(entries, 1);
    }

    /// That of an entry, which may be the next one. One pass more than there were: of few passes little follows.
    pub(super) fn of(&self, entry: usize) -> u32 {
        let passes = self.passes.get(entry).copied().unwrap_or(0);
        passes.saturating_add(1)
    }

    /// A pass was complete.
    pub(super) fn count(&mut self, entry: usize) {
        self.passes[entry] = self.passes[entry].saturating_add(1);
        self.since += 1;
    }

    /// A pass begins: what plans are made for.
    pub(super) fn now(&mut self) -> &[u32] {
        self.given = (0..self.passes.len()).map(|at| self.of(at)).collect();
        &self.given
    }

    /// Whether it is time to plan anew; `generation` is the store's.
    pub(super) fn are_off(&mut self, generation: u64) -> bool {
        if generation != self.generation {
            self.planned_now(generation);
        }
        if self.since < self.next {
            return false;
        }
        self.next *= 2;
        let off = differ(&self.planned, &self.given);
        if off || self.since >= MANY {
            for passes in &mut self.passes {
                *passes = passes.div_ceil(2);
            }
        }
        off
    }

    /// The plan is one for the present shares, with this generation.
    pub(super) fn planned_now(&mut self, generation: u64) {
        self.planned.clone_from(&self.given);
        if generation != self.generation {
            (self.since, self.next) = (0, FIRST);
        }
        self.generation = generation;
    }
}

fn differ(one: &[u32], other: &[u32]) -> bool {
    let sum = |shares: &[u32]| shares.iter().map(|&share| u128::from(share)).sum::<u128>();
    let (ones, others) = (sum(one), sum(other));
    let mut pairs = one.iter().zip(other);
    one.len() != other.len()
        || pairs.any(|(&one, &other)| {
            let (one, other) = (u128::from(one) * others, u128::from(other) * ones);
            one >= OFF * other || other >= OFF * one
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At which of `passes`, which are entries, a plan would be made anew, if each were taken or none.
    fn looks(entries: usize, passes: &[usize], taken: bool) -> Vec<usize> {
        let mut shares = Shares::new();
        shares.resize(entries);
        let mut generation = 1;
        let mut found = Vec::new();
        for (at, &entry) in passes.iter().enumerate() {
            shares.now();
            if shares.are_off(generation) {
                found.push(at);
                generation += u64::from(taken);
                shares.planned_now(generation);
            }
            shares.count(entry);
        }
        found
    }

    #[test]
    fn a_pipeline_settles() {
        let picture: Vec<usize> = [vec![0], vec![1; 28], vec![2]].concat();
        let pictures = picture.repeat(200);
        for taken in [false, true] {
            let found = looks(3, &pictures, taken);
            assert!(found[0] < 30, "{found:?}");
            assert!(found.len() < 12, "{found:?}");
            assert!(found.last() < Some(&1000), "{found:?}");
        }
    }

    #[test]
    fn entries_that_take_turns_keep_their_plan() {
        assert!(looks(2, &[0, 1].repeat(500), true).is_empty());
        assert!(looks(1, &[0; 500], true).is_empty());
    }

    /// Another phase is seen when as many passes were made again.
    #[test]
    fn another_phase_is_seen() {
        let phases: Vec<usize> = [vec![0; 100], vec![1; 200]].concat();
        let found = looks(2, &phases, false);
        assert!(
            found.iter().any(|&at| (100..=256).contains(&at)),
            "{found:?}"
        );
    }
}
