//! Weights that the caller has read into memory, and keeps there (ExecuTorch's `LoadMode::File`).
//!
//! ```text
//! pages      |           |           |           |           |
//! a weight          [....|===========|===========|......]
//!                    edge     registered in place  edge
//! ```
//!
//! The driver registers whole pages, and each page once. It refuses a copy of which some bytes are registered and others are not.
//! The heap puts other things on a weight's first and last page: another load's weights, the caller's inputs. So
//! - only pages that one weight fills are registered;
//! - the bytes on its other two pages, the edges, are copied into pinned memory;
//! - a copy of the weight to the device is one of up to three pieces.
//!
//! A small weight is copied into pinned memory as a whole: three copies would take longer than one.

use super::pinned::Pinned;
use super::register::{Access, Registration, PAGE};
use super::CudaDevice;
use crate::device::file::ReadAt;
use crate::device::{DevicePtr, HostBytes};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// Whole pages of less than this are not worth two copies of edges.
const LEAST: u64 = 64 << 10;

/// What messages call the bytes that are copied.
const COPIED: &str = "the weights in host memory, as far as they share pages with other memory";

/// What is done with the bytes of one weight, by address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    /// Registered.
    in_place: Range<u64>,
    /// Copied: the two edges, or all of it.
    copied: [Range<u64>; 2],
}

impl Cut {
    fn of(part: HostBytes) -> Cut {
        let Range { start, end } = addresses(part);
        let (first, last) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
        match last.saturating_sub(first) < LEAST {
            true => Cut {
                in_place: end..end,
                copied: [start..end, end..end],
            },
            false => Cut {
                in_place: first..last,
                copied: [start..first, last..end],
            },
        }
    }
}

fn addresses(bytes: HostBytes) -> Range<u64> {
    let start = bytes.as_ptr().addr() as u64;
    start..start + bytes.len()
}

/// The copies of edges and of small weights, by the address of what was copied.
#[derive(Default)]
pub(super) struct Edges {
    copies: BTreeMap<u64, HostBytes>,
    originals: BTreeMap<u64, HostBytes>,
    /// Weights that kernels read in place, and the copies that they read.
    whole: Vec<(HostBytes, HostBytes)>,
}

impl Edges {
    fn insert(&mut self, original: HostBytes, copy: HostBytes) {
        let start = addresses(original).start;
        self.copies.insert(start, copy);
        self.originals.insert(start, original);
    }

    /// What was copied of a weight, and where to: `src` is what the device copies of it.
    fn of(&self, src: HostBytes) -> Vec<(HostBytes, HostBytes)> {
        let src = addresses(src);
        let both = self.originals.values().zip(self.copies.values());
        let of_src = both.filter(|(original, copy)| {
            let starts = [addresses(**original).start, addresses(**copy).start];
            starts.iter().any(|start| src.contains(start))
        });
        let edges = of_src.map(|(original, copy)| (*original, *copy));
        let whole = { self.whole.iter() }.filter(|(one, _)| addresses(*one) == src);
        edges.chain(whole.copied()).collect()
    }

    /// What is copied to the device instead of `src`, in order.
    pub(super) fn pieces(&self, src: HostBytes) -> impl Iterator<Item = HostBytes> + '_ {
        let Range { start, end } = addresses(src);
        let mut at = start;
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let before = self.copies.range(..=at).next_back();
            let piece = match before.filter(|(from, copy)| at - **from < copy.len()) {
                Some((from, copy)) => copy.slice(at - from..copy.len().min(end - from)),
                None => {
                    let next = self.copies.range(at..end).next();
                    let until = next.map_or(end, |(from, _)| *from);
                    src.slice(at - start..until - start)
                }
            };
            at += piece.len();
            Some(piece)
        })
    }

    /// Whether an edge begins at this address: a copy must not cross it.
    pub(super) fn begins_at(&self, address: usize) -> bool {
        self.copies.contains_key(&(address as u64))
    }
}

/// The weights' bytes, read by their addresses.
struct Parts<'a>(&'a [HostBytes]);

impl ReadAt for Parts<'_> {
    fn read_at(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let end = address + into.len() as u64;
        let inside = |part: &&HostBytes| {
            let all = addresses(**part);
            all.start <= address && end <= all.end
        };
        let part = self.0.iter().find(inside).ok_or_else(|| {
            Error::Internal(format!("no weight has the bytes {address:#x}..{end:#x}"))
        })?;
        let start = addresses(*part).start;
        let from = part.slice(address - start..end - start);
        // SAFETY: bytes that are readable and unchanged (`HostBytes::new`), and as many of our own, which are others.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

impl CudaDevice {
    /// Makes ready for copies from memory that weights were read into. Returns what each part is to be copied from.
    pub fn keep_parts(&mut self, parts: &[HostBytes]) -> Result<Vec<HostBytes>> {
        let cuts: Vec<Cut> = parts.iter().map(|part| Cut::of(*part)).collect();
        let copied = cuts.iter().zip(parts).flat_map(|(cut, part)| {
            let start = addresses(*part).start;
            let filled = cut.copied.iter().filter(|range| !range.is_empty());
            filled.map(move |range| part.slice(range.start - start..range.end - start))
        });
        let copied: Vec<HostBytes> = copied.collect();
        let ranges: Vec<_> = copied.iter().map(|part| addresses(*part)).collect();
        for (original, copy) in copied.iter().zip(self.pin_parts(parts, &ranges)?) {
            self.edges.insert(*original, copy);
        }
        // Tied constants are one part, given twice.
        let whole = cuts.iter().zip(parts);
        let whole = whole.filter(|(cut, _)| !cut.in_place.is_empty());
        let whole: BTreeMap<_, _> = whole
            .map(|(cut, part)| (cut.in_place.start, (cut, part)))
            .collect();
        let entered = self.context.enter()?;
        for (cut, part) in whole.into_values() {
            let start = addresses(*part).start;
            let bytes = part.slice(cut.in_place.start - start..cut.in_place.end - start);
            let registration =
                Registration::new(&self.context, bytes, &[], Access::ReadWrite, &entered);
            let during = || "registering weights where they lie in host memory".to_owned();
            self.registrations
                .push(registration.map_err(|error| error.during(during))?);
        }
        drop(entered);
        let place = |(cut, part): (&Cut, &HostBytes)| match cut.in_place.is_empty() {
            true => self.edges.pieces(*part).next().unwrap_or(*part),
            false => *part,
        };
        Ok(cuts.iter().zip(parts).map(place).collect())
    }

    /// The owner of a weight's bytes has changed them: what was copied of them is copied again. `src` is what
    /// [`CudaDevice::keep_parts`] returned for the weight. Both streams are idle.
    pub(super) fn keep_again(&mut self, src: HostBytes) {
        for (original, copy) in self.edges.of(src) {
            let mut all = self.pinned.iter_mut();
            let found = all.any(|pinned| pinned.overwrite(copy, original));
            assert!(found, "the copies of edges are in pinned memory");
        }
    }

    /// Where kernels read these bytes in place, if they are a weight with edges: a copy, since a kernel takes one address.
    pub(super) fn copied_in_place(&mut self, bytes: HostBytes) -> Result<Option<DevicePtr>> {
        if self.edges.pieces(bytes).nth(1).is_none() {
            return Ok(None);
        }
        let copies = self.pin_parts(&[bytes], &[addresses(bytes)])?;
        let entered = self.context.enter()?;
        let (Some(pinned), Some(copy)) = (self.pinned.last(), copies.first()) else {
            return Ok(None);
        };
        let found = pinned.registration().device_address(*copy, &entered)?;
        self.edges.whole.push((bytes, *copy));
        Ok(found.map(DevicePtr))
    }

    /// Copies these addresses into pinned memory.
    fn pin_parts(&mut self, parts: &[HostBytes], copied: &[Range<u64>]) -> Result<Vec<HostBytes>> {
        if copied.is_empty() {
            return Ok(Vec::new());
        }
        let entered = self.context.enter()?;
        let (pinned, copies) =
            Pinned::copy_of(&self.context, &Parts(parts), COPIED, copied, &entered)?;
        self.pinned.push(pinned);
        Ok(copies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A heap with `parts` in it, and what is known of them.
    struct Heap {
        parts: Vec<HostBytes>,
        cuts: Vec<Cut>,
        edges: Edges,
        copies: Vec<Vec<u8>>,
        _bytes: Vec<u8>,
    }

    fn heap(ranges: &[Range<usize>]) -> Heap {
        let end = ranges.iter().map(|range| range.end).max().unwrap() + 2 * PAGE as usize;
        let bytes: Vec<u8> = (0..end).map(|at| (at % 251) as u8).collect();
        let page = bytes.as_ptr().align_offset(PAGE as usize);
        let part = |range: &Range<usize>| {
            let bytes = &bytes[page..][range.clone()];
            // SAFETY: the heap keeps the bytes, and nobody writes them.
            unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) }
        };
        let parts: Vec<_> = ranges.iter().map(part).collect();
        let cuts: Vec<_> = parts.iter().map(|part| Cut::of(*part)).collect();
        let (mut copies, mut edges) = (Vec::new(), Edges::default());
        for range in cuts.iter().flat_map(|cut| cut.copied.clone()) {
            let mut copy = vec![0; (range.end - range.start) as usize];
            Parts(&parts).read_at(range.start, &mut copy).unwrap();
            // SAFETY: the heap keeps it; a vector's bytes stay in place when it moves.
            let kept = unsafe { HostBytes::new(copy.as_ptr(), copy.len() as u64) };
            if !range.is_empty() {
                // SAFETY: as above; the range is of a part.
                let original = unsafe { HostBytes::new(range.start as *const u8, kept.len()) };
                edges.insert(original, kept);
            }
            copies.push(copy);
        }
        Heap {
            parts,
            cuts,
            edges,
            copies,
            _bytes: bytes,
        }
    }

    fn read(bytes: HostBytes) -> Vec<u8> {
        let mut found = vec![0; bytes.len() as usize];
        Parts(&[bytes])
            .read_at(addresses(bytes).start, &mut found)
            .unwrap();
        found
    }

    /// Weights of all sizes end to end, as a heap of two loads may have them.
    fn end_to_end() -> Vec<Range<usize>> {
        let sizes = [
            70_000, 16, 3, 200_000, 65_536, 8192, 131_072, 100_001, 69_632, 4095, 90_000,
        ];
        let mut at = 0;
        let range = |size| {
            let start = at;
            at += size;
            start..at
        };
        sizes.map(range).to_vec()
    }

    #[test]
    fn only_pages_that_one_weight_fills_are_registered() {
        let heap = heap(&end_to_end());
        let mut registered = 0;
        for (cut, part) in heap.cuts.iter().zip(&heap.parts) {
            let (all, found) = (addresses(*part), &cut.in_place);
            assert!(all.start <= found.start && found.end <= all.end, "{cut:?}");
            if !found.is_empty() {
                assert!(found.start % PAGE == 0 && found.end % PAGE == 0, "{cut:?}");
                assert!(found.end - found.start >= LEAST, "{cut:?}");
                registered += 1;
            }
        }
        assert_eq!(registered, 6);
    }

    #[test]
    fn a_weight_that_fills_its_pages_has_no_edges() {
        let whole = 0..20 * PAGE as usize;
        let heap = heap(std::slice::from_ref(&whole));
        assert_eq!(heap.cuts[0].in_place, addresses(heap.parts[0]));
        assert_eq!(heap.edges.copies.len(), 0);
    }

    /// Every range of a weight comes out whole, from bytes that are registered and from copies alone.
    #[test]
    fn pieces_make_up_the_weight() {
        let heap = heap(&end_to_end());
        let copies: Vec<_> = heap.copies.iter().map(|copy| copy.as_ptr_range()).collect();
        for (cut, part) in heap.cuts.iter().zip(&heap.parts) {
            let borders = [0, 1, 2000, 5000, 66_000, part.len() - 1, part.len()];
            for (from, to) in borders.iter().flat_map(|a| borders.map(|b| (*a, b))) {
                if from > to || to > part.len() {
                    continue;
                }
                let src = part.slice(from..to);
                let pieces: Vec<_> = heap.edges.pieces(src).collect();
                let found: Vec<u8> = pieces.iter().flat_map(|piece| read(*piece)).collect();
                assert!(found == read(src), "{from}..{to} of {cut:?}");
                assert!(pieces.len() <= 3);
                for piece in pieces {
                    let at = addresses(piece);
                    let in_place = cut.in_place.start <= at.start && at.end <= cut.in_place.end;
                    let copied = copies.iter().any(|copy| copy.contains(&piece.as_ptr()));
                    assert!(in_place || copied, "{at:?} of {cut:?}");
                }
            }
        }
    }

    /// Of a weight with edges, and of one that was copied as a whole: what lies in host memory of our own is known by either address.
    #[test]
    fn all_copies_of_a_weight_are_found_again() {
        let heap = heap(&end_to_end());
        for (cut, part) in heap.cuts.iter().zip(&heap.parts) {
            let src = match cut.in_place.is_empty() {
                true => heap.edges.pieces(*part).next().unwrap(),
                false => *part,
            };
            let found = heap.edges.of(src);
            let originals: Vec<_> = found.iter().map(|(one, _)| addresses(*one)).collect();
            let copied = cut.copied.iter().filter(|range| !range.is_empty());
            assert_eq!(originals, copied.cloned().collect::<Vec<_>>());
            for (original, copy) in found {
                assert_eq!(
                    heap.edges.pieces(original).next().unwrap().as_ptr(),
                    copy.as_ptr()
                );
            }
        }
    }

    /// Kernels that read a weight in place read what its owner has written.
    #[test]
    fn the_copy_that_is_read_in_place_is_found_again() {
        let mut heap = heap(&end_to_end());
        let (table, other) = (heap.parts[3], heap.parts[6]);
        let found = |heap: &Heap| [table, other].map(|one| heap.edges.of(one).len());
        let [edges, others] = found(&heap);
        heap.edges.whole.push((table, other));
        assert_eq!(found(&heap), [edges + 1, others]);
    }

    #[test]
    fn no_copy_is_joined_across_an_edge() {
        let heap = heap(&end_to_end());
        for (cut, part) in heap.cuts.iter().zip(&heap.parts) {
            let start = part.as_ptr().addr();
            let known = heap.edges.begins_at(start) || cut.in_place.start == start as u64;
            assert!(known, "{cut:?}");
        }
    }
}
