//! The memory behind a view: pages of a memory file, and which of them lies where.
//!
//! ```text
//! memory of the view   page 0 | page 1 | page 2 | page 3
//! memory file          page 5 | page 0 | page 1 | page 2
//! ```
//! When memory moves, the pages that are kept stay where they are in the file. Only their place in the view's memory changes.

use super::memory_file::MemoryFile;
use crate::error::{Error, Result};
use crate::figures::KeptPages;
use std::ops::Range;

/// Neighbouring pages of the view's memory that are neighbours in the file too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// Bytes from the start of the view's memory.
    pub memory: u64,
    /// Bytes from the start of the file.
    pub file: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Memory of so many bytes, and where it lies in its file.
pub(super) struct Frames {
    pub file: MemoryFile,
    /// By memory, without a gap.
    runs: Vec<Run>,
}

impl Frames {
    /// Fresh memory, in whole pages.
    pub fn new(bytes: u64) -> Result<Frames> {
        let run = Run {
            memory: 0,
            file: 0,
            bytes,
        };
        Ok(Frames {
            file: MemoryFile::new(bytes)?,
            runs: vec![run],
        })
    }

    /// The same file, with `kept` pages in their new places, and as many others as `bytes` need. What is not needed goes back to
    /// the system.
    pub fn moved(self, bytes: u64, kept: &[KeptPages]) -> Result<Frames> {
        let mut file = self.file;
        let mut runs = Vec::new();
        for one in kept {
            let found = within(&self.runs, one.from..one.from + one.bytes);
            let found = found.ok_or_else(|| {
                Error::Internal(format!("{one:?} is no part of the memory that is moved"))
            })?;
            let there = |run: Run| Run {
                memory: one.to + (run.memory - one.from),
                ..run
            };
            runs.extend(found.into_iter().map(there));
        }
        runs.sort_unstable_by_key(|run| run.memory);
        let mut free = gaps(
            runs.iter().map(|run| run.file..run.file + run.bytes),
            file.bytes(),
        );
        let missing = gaps(
            runs.iter().map(|run| run.memory..run.memory + run.bytes),
            bytes,
        );
        for range in missing {
            runs.extend(file.fill(range, &mut free)?);
        }
        free.into_iter().try_for_each(|range| file.release(range))?;
        runs.sort_unstable_by_key(|run| run.memory);
        Ok(Frames { file, runs })
    }

    /// Where a range of the memory lies in the file, in its order; `None` if it leaves the memory.
    pub fn runs(&self, memory: Range<u64>) -> Option<Vec<Run>> {
        within(&self.runs, memory)
    }
}

/// The parts of runs that a range of memory has.
fn within(runs: &[Run], memory: Range<u64>) -> Option<Vec<Run>> {
    let first = runs.partition_point(|run| run.memory + run.bytes <= memory.start);
    let mut found = Vec::new();
    let mut at = memory.start;
    for run in &runs[first..] {
        if at >= memory.end || run.memory > at {
            break;
        }
        let end = memory.end.min(run.memory + run.bytes);
        found.push(Run {
            memory: at,
            file: run.file + (at - run.memory),
            bytes: end - at,
        });
        at = end;
    }
    (at == memory.end).then_some(found)
}

/// What of `0..end` none of the ranges has, ascending.
fn gaps(ranges: impl Iterator<Item = Range<u64>>, end: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> = ranges.collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut all = Vec::new();
    let mut at = 0;
    for range in ranges {
        if range.start > at {
            all.push(at..range.start);
        }
        at = at.max(range.end);
    }
    if at < end {
        all.push(at..end);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use super::*;

    fn runs(frames: &Frames, page: u64) -> Vec<[u64; 3]> {
        let one = |run: &Run| [run.memory / page, run.file / page, run.bytes / page];
        frames.runs.iter().map(one).collect()
    }

    #[test]
    fn kept_pages_stay_in_the_file_and_others_are_used_again() {
        let page = page().unwrap();
        let frames = Frames::new(8 * page).unwrap();
        let kept = |from, to, pages| KeptPages {
            from: from * page,
            to: to * page,
            bytes: pages * page,
        };
        // Fewer pages: two of those that go are used again, the last ones go back to the system.
        let frames = frames
            .moved(5 * page, &[kept(4, 0, 2), kept(0, 3, 1)])
            .unwrap();
        assert_eq!(
            runs(&frames, page),
            [[0, 4, 2], [2, 1, 1], [3, 0, 1], [4, 2, 1]]
        );
        assert_eq!(frames.file.resident_bytes(), 5 * page);
        // More: what went back is taken again, and then the file grows.
        let frames = frames.moved(9 * page, &[kept(1, 2, 2)]).unwrap();
        let whole = frames.runs(0..9 * page).unwrap();
        assert_eq!(whole.iter().map(|run| run.bytes).sum::<u64>(), 9 * page);
        assert_eq!(
            frames.runs(2 * page..4 * page).unwrap(),
            [
                Run {
                    memory: 2 * page,
                    file: 5 * page,
                    bytes: page
                },
                Run {
                    memory: 3 * page,
                    file: page,
                    bytes: page
                },
            ]
        );
        assert_eq!(frames.file.resident_bytes(), 9 * page);
        assert!(frames.runs(8 * page..10 * page).is_none());
    }

    #[test]
    fn what_is_no_memory_cannot_be_kept() {
        let page = page().unwrap();
        let frames = Frames::new(2 * page).unwrap();
        let kept = KeptPages {
            from: page,
            to: 0,
            bytes: 2 * page,
        };
        assert!(matches!(
            frames.moved(4 * page, &[kept]),
            Err(Error::Internal(_))
        ));
    }
}
