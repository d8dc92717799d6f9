//! What the LRU cannot help copying, told without playing it.
//!
//! The *reuse distance* of a read is the bytes of all that is read since the weight's last lease ended (Mattson et al.,
//! "Evaluation techniques for storage hierarchies", 1970). A read whose distance and weight do not fit together finds
//! its weight absent: whatever is let go stands in the LRU's list behind what was let go before, and is evicted behind
//! it, so that all of them would have to be present at one time. The window of coming reads does not change that: what
//! it claims is present as well. The bound says nothing about holes, which only make the LRU give up more.

use crate::schedule::{Event, Trace, WeightSpec};

/// Bytes that a pass under the LRU copies at least, in the mean of many, with `capacity` bytes for weights: a single one
/// may have been served by copies ahead in the one before it. [`lru_price`](super::lru_price) is what it does copy.
pub fn lru_copies_at_least(
    trace: &Trace,
    weights: &[WeightSpec],
    granule: u64,
    capacity: u64,
) -> u64 {
    let reads = trace.probes().len();
    let mut history = History::new(weights, granule, 2 * reads);
    // The first pass is there for what it leaves: in it all is absent.
    history.pass(trace, |_, _| ());
    let mut bytes = 0;
    history.pass(trace, |weight, distance| {
        if distance > capacity {
            bytes += weights[weight].bytes;
        }
    });
    bytes
}

/// Who was read when, in reads from the beginning of the first pass.
struct History {
    /// Occupied bytes of each weight.
    sizes: Vec<u64>,
    leases: Vec<u32>,
    /// Behind how many reads each weight's last lease ended.
    ended: Vec<usize>,
    /// The last read of each weight.
    last: Vec<Option<usize>>,
    /// Occupied bytes of weights, at their last reads.
    bytes: Sums,
    now: usize,
}

impl History {
    fn new(weights: &[WeightSpec], granule: u64, reads: usize) -> History {
        History {
            sizes: weights
                .iter()
                .map(|weight| weight.occupied(granule))
                .collect(),
            leases: vec![0; weights.len()],
            ended: vec![0; weights.len()],
            last: vec![None; weights.len()],
            bytes: Sums(vec![0; reads + 1]),
            now: 0,
        }
    }

    /// One pass. `seen` gets the weight of each read that no lease keeps present, and all bytes, its own with them, that
    /// would have to be present for it to be.
    fn pass(&mut self, trace: &Trace, mut seen: impl FnMut(usize, u64)) {
        for event in &trace.events()[..trace.tail()] {
            match *event {
                Event::Kernel(_) => {}
                Event::Probe(id) => {
                    let weight = trace.weight(id) as usize;
                    if self.leases[weight] == 0 {
                        seen(weight, self.distance(weight));
                    }
                    self.read(weight);
                }
                Event::Release(id) => self.release(trace.weight(id) as usize),
            }
        }
        // What lasts to the end of the pass ends there.
        for weight in 0..self.leases.len() {
            if self.leases[weight] > 0 {
                self.leases[weight] = 0;
                self.ended[weight] = self.now;
            }
        }
    }

    fn distance(&self, weight: usize) -> u64 {
        self.sizes[weight] + self.bytes.until(self.now) - self.bytes.until(self.ended[weight])
    }

    fn read(&mut self, weight: usize) {
        let size = self.sizes[weight];
        if let Some(before) = self.last[weight].replace(self.now) {
            self.bytes.change(before, |sum| sum - size);
        }
        self.bytes.change(self.now, |sum| sum + size);
        self.leases[weight] += 1;
        self.now += 1;
    }

    fn release(&mut self, weight: usize) {
        self.leases[weight] -= 1;
        if self.leases[weight] == 0 {
            self.ended[weight] = self.now;
        }
    }
}

/// Sums over the beginning of a row of numbers that change: a tree of partial sums (Fenwick, "A new data structure for
/// cumulative frequency tables", 1994). Entry 0 is not used.
struct Sums(Vec<u64>);

impl Sums {
    fn change(&mut self, at: usize, to: impl Fn(u64) -> u64) {
        let mut at = at + 1;
        while at < self.0.len() {
            self.0[at] = to(self.0[at]);
            at += at & at.wrapping_neg();
        }
    }

    /// Of the numbers in front of `at`.
    fn until(&self, mut at: usize) -> u64 {
        let mut sum = 0;
        while at > 0 {
            sum += self.0[at];
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::weights;
    use super::*;

    const GRANULE: u64 = 64;

    fn bound(sizes: &[u64], events: &[Event], reads: &[u32], capacity: u64) -> u64 {
        let weights = weights(sizes);
        let trace = Trace::new(events.to_vec(), reads.to_vec(), weights.len()).unwrap();
        lru_copies_at_least(&trace, &weights, GRANULE, capacity)
    }

    fn one_by_one(reads: u32) -> Vec<Event> {
        (0..reads)
            .flat_map(|id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)])
            .collect()
    }

    #[test]
    fn a_cycle_that_does_not_fit_is_copied_as_a_whole() {
        // Ten bytes occupy a granule.
        let (sizes, events) = ([64, 128, 10, 64], one_by_one(4));
        let reads = [0, 1, 2, 3];
        assert_eq!(bound(&sizes, &events, &reads, 319), 266);
        assert_eq!(bound(&sizes, &events, &reads, 320), 0);
    }

    #[test]
    fn a_weight_that_is_read_again_soon_may_still_be_there() {
        let (sizes, events) = ([64; 4], one_by_one(5));
        // Weight 0 comes back behind one other, then behind two; the others behind all.
        let reads = [0, 1, 0, 2, 3];
        assert_eq!(bound(&sizes, &events, &reads, 256), 0);
        assert_eq!(bound(&sizes, &events, &reads, 255), 64 * 3);
        assert_eq!(bound(&sizes, &events, &reads, 191), 64 * 4);
        assert_eq!(bound(&sizes, &events, &reads, 127), 64 * 5);
    }

    #[test]
    fn what_is_read_during_a_lease_does_not_count_and_neither_does_a_leased_weight() {
        use Event::{Kernel, Probe, Release};
        let events = [
            Probe(0),
            Probe(1),
            Kernel(0),
            Release(1),
            Probe(2),
            Kernel(1),
            Release(2),
            Release(0),
            Probe(3),
            Kernel(2),
            Release(3),
        ];
        // Weight 0 is leased over the reads of 1 and, again, 0. From the lease's end on only 2 is read until it comes again.
        let (sizes, reads) = ([64; 3], [0, 1, 0, 2]);
        assert_eq!(bound(&sizes, &events, &reads, 128), 128);
        assert_eq!(bound(&sizes, &events, &reads, 127), 192);
    }
}
