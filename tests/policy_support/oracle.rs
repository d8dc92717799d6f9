//! Which byte of which weight is where: byte by byte, without a device.

use std::ops::Range;
use weightstream::residency::{Backing, Layout};
use weightstream::schedule::WeightIndex;

/// What is known of one weight.
#[derive(Debug, Clone, Default)]
struct Weight {
    /// Its bytes that were loaded at the start, and the window through which they were.
    stays: Option<(Range<u64>, u32)>,
    /// Its bytes that copies of passes brought, and the window through which they are seen.
    copied: Option<(Range<u64>, u32)>,
}

pub struct Oracle {
    layout: Layout,
    weights: Vec<Weight>,
    /// The bytes of a block or of mapped memory: each is no weight's, or one byte of one weight.
    memory: Vec<Option<(WeightIndex, u64)>>,
}

impl Oracle {
    pub fn new(layout: &Layout, weights: usize) -> Oracle {
        Oracle {
            memory: vec![None; layout.bytes() as usize],
            layout: layout.clone(),
            weights: vec![Weight::default(); weights],
        }
    }

    /// Whether copies of passes brought something of it that is there.
    pub fn is_copied(&self, weight: WeightIndex) -> bool {
        self.weights[weight as usize].copied.is_some()
    }

    /// The window through which it is read.
    pub fn window(&self, weight: WeightIndex) -> Option<u32> {
        let Weight { stays, copied } = &self.weights[weight as usize];
        let seen = copied.as_ref().or(stays.as_ref());
        seen.map(|(_, window)| *window)
    }

    /// The bytes that copies of passes brought of it.
    pub fn copied(&self, weight: WeightIndex) -> Range<u64> {
        let copied = self.weights[weight as usize].copied.clone();
        copied.map_or(0..0, |(range, _)| range)
    }

    /// What is where, to be compared.
    pub fn state(&self) -> Vec<(u64, Option<u32>)> {
        let all = 0..self.weights.len() as WeightIndex;
        all.map(|weight| (self.copied(weight).end, self.window(weight)))
            .collect()
    }

    pub fn load(&mut self, weight: WeightIndex, range: Range<u64>, window: u32, start: bool) {
        self.put(weight, &range, window, true);
        let one = &mut self.weights[weight as usize];
        let there = if start {
            &mut one.stays
        } else {
            &mut one.copied
        };
        assert_eq!(*there, None, "weight {weight} is loaded twice");
        *there = Some((range, window));
    }

    pub fn evict(&mut self, weight: WeightIndex) {
        let Some((range, window)) = self.weights[weight as usize].copied.take() else {
            panic!("weight {weight} is evicted, and nothing of it was copied");
        };
        self.put(weight, &range, window, false);
    }

    /// Bytes of a weight come to memory that is no weight's, or go and leave it so.
    fn put(&mut self, weight: WeightIndex, range: &Range<u64>, window: u32, comes: bool) {
        let mut bytes = range.clone();
        for memory in self.behind(weight, range, window) {
            for (place, byte) in self.memory[memory].iter_mut().zip(&mut bytes) {
                let own = Some((weight, byte));
                let (before, after) = if comes { (None, own) } else { (own, None) };
                assert_eq!(*place, before, "byte {byte} of weight {weight}");
                *place = after;
            }
        }
    }

    /// Panics unless all bytes of the weight are there, where they are seen through its window.
    pub fn check_read(&self, weight: WeightIndex, bytes: u64) {
        let Weight { stays, copied } = &self.weights[weight as usize];
        let mut there: Vec<Range<u64>> = [stays, copied]
            .into_iter()
            .flatten()
            .map(|(range, _)| range.clone())
            .collect();
        there.sort_unstable_by_key(|range| range.start);
        let mut end = 0;
        for range in there {
            assert!(
                range.start <= end,
                "weight {weight} is there from {} on",
                range.start
            );
            end = end.max(range.end);
        }
        assert!(
            end >= bytes,
            "{end} of {bytes} bytes of weight {weight} are there"
        );
        let Some(window) = self.window(weight) else {
            return;
        };
        let mut expected = 0..bytes;
        for memory in self.behind(weight, &(0..bytes), window) {
            for (found, byte) in self.memory[memory].iter().zip(&mut expected) {
                assert_eq!(
                    *found,
                    Some((weight, byte)),
                    "byte {byte} of weight {weight}"
                );
            }
        }
    }

    /// Bytes that are in a block or in mapped memory are those of the weights that are there.
    pub fn check(&self) {
        if self.layout.memory == Backing::PerWeight {
            return;
        }
        let length = |there: &Option<(Range<u64>, u32)>| {
            let range = there.as_ref().map(|(range, _)| range.clone());
            range.map_or(0, |range| range.end - range.start)
        };
        let known = self.weights.iter();
        let known: u64 = known
            .map(|one| length(&one.stays) + length(&one.copied))
            .sum();
        let found = self.memory.iter().filter(|byte| byte.is_some()).count();
        assert_eq!(found as u64, known, "bytes in memory, and of weights");
    }

    /// The memory behind bytes of a weight, as seen through a window; none if the weight has memory of its own.
    fn behind(&self, weight: WeightIndex, bytes: &Range<u64>, window: u32) -> Vec<Range<usize>> {
        let seen = || {
            let first = self.layout.windows[window as usize];
            first + bytes.start..first + bytes.end
        };
        let memory = match &self.layout.memory {
            Backing::PerWeight => Vec::new(),
            Backing::Block(_) => Vec::from([seen()]),
            Backing::Mapped(view) => view
                .behind(seen())
                .unwrap_or_else(|| panic!("bytes {bytes:?} of weight {weight} are nowhere")),
        };
        let places = memory.into_iter();
        places
            .map(|part| part.start as usize..part.end as usize)
            .collect()
    }
}
