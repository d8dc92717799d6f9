//! Who wrote and who read each byte last: an interval map. An access that is not ordered after what it depends on is
//! found when it is issued, in whichever order the streams run later.

use super::clock::{Access, Actor, Clock};
use super::Violation;
use std::collections::BTreeMap;
use std::ops::Range;

/// The history of neighbouring bytes that had the same one.
#[derive(Debug, Clone, Copy)]
struct Region {
    end: u64,
    /// The last write; giving bytes up is one too.
    write: Option<Access>,
    /// The last write brought bytes that may be read.
    valid: bool,
    /// The last read of each stream since that write.
    reads: [Option<Access>; 2],
}

/// The history of an address range.
#[derive(Debug, Default)]
pub(super) struct Regions(BTreeMap<u64, Region>);

impl Regions {
    /// A write of `range` by the owner of `clock`; `valid` says that the bytes may be read afterwards.
    pub(super) fn write(
        &mut self,
        range: Range<u64>,
        access: Access,
        clock: &Clock,
        valid: bool,
    ) -> Option<Violation> {
        let problem = self.unordered(&range, access, clock);
        self.replace(range, access, valid);
        problem
    }

    /// An earlier access that the owner of `clock` knows nothing of. Cuts the ends of `range`.
    pub(super) fn unordered(
        &mut self,
        range: &Range<u64>,
        access: Access,
        clock: &Clock,
    ) -> Option<Violation> {
        self.cut(range);
        let regions = self.0.range(range.clone()).map(|(_, region)| region);
        let earlier = |region: &Region| {
            let all = region.reads.iter().flatten().chain(&region.write);
            all.copied().find(|one| !one.is_before(clock))
        };
        let first = regions.into_iter().find_map(earlier)?;
        Some(race(first, access, range))
    }

    /// A read of `range` by the owner of `clock`.
    pub(super) fn read(
        &mut self,
        range: Range<u64>,
        access: Access,
        clock: &Clock,
    ) -> Option<Violation> {
        self.cut(&range);
        self.fill(&range);
        let mut problem = None;
        for (_, region) in self.0.range_mut(range.clone()) {
            problem = problem.or(match region.write {
                Some(write) if !write.is_before(clock) => Some(race(write, access, &range)),
                write if !region.valid => Some(worthless(access, write, &range)),
                _ => None,
            });
            region.reads[slot(access.stream)] = Some(access);
        }
        problem
    }

    /// A read of `range` that may find bytes without value: how many bytes have some and how many have none, in their order.
    #[allow(clippy::type_complexity, reason = "one call")]
    pub(super) fn copied(
        &mut self,
        range: Range<u64>,
        access: Access,
        clock: &Clock,
    ) -> (Vec<(u64, bool)>, Option<Violation>) {
        self.cut(&range);
        self.fill(&range);
        let mut parts = Vec::new();
        let mut problem = None;
        for (start, region) in self.0.range_mut(range.clone()) {
            problem = problem.or(match region.write {
                Some(write) if !write.is_before(clock) => Some(race(write, access, &range)),
                _ => None,
            });
            region.reads[slot(access.stream)] = Some(access);
            parts.push((region.end - start, region.valid));
        }
        (parts, problem)
    }

    /// Regions for what nobody wrote, so that reads of it are known as well.
    fn fill(&mut self, range: &Range<u64>) {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (&start, region) in self.0.range(range.clone()) {
            if start > at {
                gaps.push(at..start);
            }
            at = region.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps {
            let region = Region {
                end: gap.end,
                write: None,
                valid: false,
                reads: [None, None],
            };
            self.0.insert(gap.start, region);
        }
    }

    /// Makes both ends of `range` ends of regions.
    fn cut(&mut self, range: &Range<u64>) {
        for at in [range.start, range.end] {
            if let Some((_, region)) = self.0.range_mut(..at).next_back() {
                if region.end > at {
                    let behind = *region;
                    region.end = at;
                    self.0.insert(at, behind);
                }
            }
        }
    }

    /// One region for all of `range`, whose ends were cut.
    fn replace(&mut self, range: Range<u64>, access: Access, valid: bool) {
        while let Some((&start, _)) = self.0.range(range.clone()).next() {
            self.0.remove(&start);
        }
        let region = Region {
            end: range.end,
            write: Some(access),
            valid,
            reads: [None, None],
        };
        self.0.insert(range.start, region);
    }

    /// An error says what is wrong with the map itself.
    #[cfg(test)]
    pub(super) fn validate(&self) -> Result<(), String> {
        let mut end = 0;
        for (&start, region) in &self.0 {
            if start < end || region.end <= start {
                return Err(format!("{start}..{} after {end}", region.end));
            }
            end = region.end;
        }
        Ok(())
    }
}

fn slot(stream: Actor) -> usize {
    usize::from(stream == Actor::Copy)
}

fn race(first: Access, second: Access, range: &Range<u64>) -> Violation {
    Violation::Race {
        first,
        second,
        range: range.clone(),
    }
}

fn worthless(read: Access, given_up: Option<Access>, range: &Range<u64>) -> Violation {
    Violation::Worthless {
        read,
        given_up,
        range: range.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::What;
    use super::*;
    use proptest::prelude::*;

    /// Each byte for itself: what the interval map must agree with.
    #[derive(Default, Clone, Copy)]
    struct Byte {
        write: Option<Access>,
        valid: bool,
        reads: [Option<Access>; 2],
    }

    proptest! {
        #[test]
        fn agrees_with_a_history_of_each_byte(
            steps in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), 0..4u8, 0..40u64, 1..24u64), 1..60),
        ) {
            let mut regions = Regions::default();
            let mut bytes = [Byte::default(); 64];
            let mut clocks = [Clock::default(), Clock::default()];
            for (call, (copies, writes, valid, joins, start, len)) in (1..).zip(steps) {
                let stream = if copies { Actor::Copy } else { Actor::Compute };
                if joins == 0 {
                    let other = clocks[1 - slot(stream)];
                    clocks[slot(stream)].join(&other);
                }
                let clock = &mut clocks[slot(stream)];
                let epoch = clock.tick(stream);
                let access = Access { what: What::Kernel(0), stream, epoch, call };
                let range = start..start + len;
                let touched = &mut bytes[start as usize..(start + len) as usize];
                let found = match writes {
                    true => regions.write(range, access, clock, valid),
                    false => regions.read(range, access, clock),
                };
                let wrong = touched.iter().any(|byte| match writes {
                    true => byte.reads.iter().flatten().chain(&byte.write).any(|a| !a.is_before(clock)),
                    false => byte.write.is_none_or(|w| !w.is_before(clock) || !byte.valid),
                });
                for byte in touched {
                    match writes {
                        true => *byte = Byte { write: Some(access), valid, reads: [None, None] },
                        false => byte.reads[slot(stream)] = Some(access),
                    }
                }
                prop_assert_eq!(found.is_some(), wrong, "call {}: {:?}", call, found);
                prop_assert_eq!(regions.validate(), Ok(()));
            }
        }
    }
}
