//! Weights that the caller has read into memory, and keeps there: ExecuTorch's `LoadMode::File`, eager modules.
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
//! - a copy of the weight to the device is one of up to three pieces, which takes 2 to 3 % longer than one at 18 MB;
//! - an allocation that has a mapping of its own shares no page: it is registered as a whole, and has no edges;
//! - weights of several loads or modules that are the same memory, or a part of it, share a registration, and so do mappings of files;
//! - memory that the caller has pinned is copied from as it is;
//! - a weight that overlaps with what is registered in any other way is copied into pinned memory as a whole.
//!
//! So is a small weight: three copies would take longer than one.

use super::kept_pages::{taken, Registered, Taken};
use super::pinned::Pinned;
use super::pointer::is_pinned;
use super::register::{mapped_address, RegisterAccess, PAGE};
use super::CudaDevice;
use crate::device::file::ReadAt;
use crate::device::{DevicePtr, HostBytes};
use crate::error::{Error, Result};
use std::cmp::Reverse;
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
    /// Memory that is pinned already.
    fn pinned(part: HostBytes) -> Cut {
        let Range { start, end } = addresses(part);
        Cut {
            in_place: start..end,
            copied: [start..start, end..end],
        }
    }

    fn of(part: HostBytes, taken: &Taken) -> Cut {
        let Range { start, end } = addresses(part);
        let inside = start.next_multiple_of(PAGE)..end / PAGE * PAGE;
        let pages = own_mapping(part).unwrap_or(inside);
        let large = pages.start < pages.end && pages.end - pages.start >= LEAST;
        match large && !matches!(taken.of(&pages), Registered::Some) {
            true => Cut {
                copied: [start..pages.start.max(start), pages.end.min(end)..end],
                in_place: pages,
            },
            false => Cut {
                in_place: end..end,
                copied: [start..end, end..end],
            },
        }
    }
}

/// The pages of a whole allocation, if glibc's `malloc` made a mapping for it: of large ones, as tensors are. In front of what `malloc`
/// returns stand the bytes from there to the mapping's start, and the size of the rest with a bit that says so. Other allocators have
/// other bytes there, which do not fit; then nothing is known.
fn own_mapping(part: HostBytes) -> Option<Range<u64>> {
    const WORD: u64 = 8;
    const HAS_MAPPING: u64 = 2;
    let Range { start, end } = addresses(part);
    let inside = cfg!(all(target_env = "gnu", target_pointer_width = "64"))
        && start.is_multiple_of(2 * WORD)
        && start % PAGE >= 2 * WORD;
    if !inside {
        return None;
    }
    let words = part.as_ptr().cast::<u64>();
    // SAFETY: two words in front of the part, on the page of its first byte, which is mapped. Whoever owns them may write them meanwhile.
    let (before, size) = unsafe { (words.sub(2).read_volatile(), words.sub(1).read_volatile()) };
    let chunk = start - 2 * WORD;
    let first = chunk.checked_sub(before)?;
    let last = chunk.checked_add(size & !7)?;
    let pages = start / PAGE * PAGE..end.next_multiple_of(PAGE);
    // Aligned allocations may have a page more than they fill.
    let ends = [pages.end, pages.end + PAGE].contains(&last);
    (size & 7 == HAS_MAPPING && first == pages.start && ends).then_some(pages)
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
    /// As [`CudaDevice::register_host`], of the mapping of a whole file, which others of this process may have registered.
    pub(in crate::device) fn share_host(&mut self, bytes: HostBytes, cuts: &[u64]) -> Result<()> {
        let Range { start, end } = addresses(bytes);
        // A mapping has its last page as a whole.
        let pages = start..end.next_multiple_of(PAGE);
        let (access, entered) = (RegisterAccess::ReadOnly, self.context.enter()?);
        // SAFETY: the pages are mapped, and stay until the device is dropped (`HostBytes::new`), which ends its registrations first.
        let registration =
            unsafe { taken().register(&self.context, pages, cuts, access, &entered) }?;
        self.shared.push(registration);
        Ok(())
    }

    /// Makes ready for copies from memory that weights were read into. Returns what each part is to be copied from.
    pub fn keep_parts(&mut self, parts: &[HostBytes]) -> Result<Vec<HostBytes>> {
        self.keeps_memory |= !parts.is_empty();
        let cuts = self.register_parts(parts)?;
        let copied = cuts.iter().flat_map(|(part, cut)| {
            let start = addresses(*part).start;
            let filled = cut.copied.iter().filter(|range| !range.is_empty());
            filled.map(move |range| part.slice(range.start - start..range.end - start))
        });
        let mut copied: Vec<HostBytes> = copied.collect();
        // Of what begins at the same byte, as tied constants do, the longest one.
        copied.sort_by_key(|part| (part.as_ptr(), Reverse(part.len())));
        copied.dedup_by_key(|part| part.as_ptr());
        let ranges: Vec<_> = copied.iter().map(|part| addresses(*part)).collect();
        for (original, copy) in copied.iter().zip(self.pin_parts(parts, &ranges)?) {
            self.edges.insert(*original, copy);
        }
        let place = |(part, cut): &(HostBytes, Cut)| match cut.in_place.is_empty() {
            true => self.edges.pieces(*part).next().unwrap_or(*part),
            false => *part,
        };
        Ok(cuts.iter().map(place).collect())
    }

    /// Registers what is not copied. Each part, with what is done with it.
    fn register_parts(&mut self, parts: &[HostBytes]) -> Result<Vec<(HostBytes, Cut)>> {
        let mut cuts: Vec<(HostBytes, Option<Cut>)> =
            parts.iter().map(|part| (*part, None)).collect();
        // By address, and the longest first: what lies inside of another part shares its registration.
        let mut order: Vec<_> = cuts.iter_mut().collect();
        order.sort_by_key(|(part, _)| (part.as_ptr(), Reverse(part.len())));
        let entered = self.context.enter()?;
        let mut taken = taken();
        for (part, cut) in order {
            let pages = addresses(*part);
            let unknown = matches!(taken.of(&pages), Registered::Nothing);
            if unknown && !part.is_empty() && is_pinned(*part, &entered)? {
                self.pinned_by_caller.push(*part);
                *cut = Some(Cut::pinned(*part));
                continue;
            }
            let found = Cut::of(*part, &taken);
            if !found.in_place.is_empty() {
                let (pages, access) = (found.in_place.clone(), RegisterAccess::ReadWrite);
                // SAFETY: each of them has bytes of the part, which stay until the device is dropped (`HostBytes::new`).
                let registration =
                    unsafe { taken.register(&self.context, pages, &[], access, &entered) };
                let during = || "registering weights where they lie in host memory".to_owned();
                self.shared
                    .push(registration.map_err(|error| error.during(during))?);
            }
            *cut = Some(found);
        }
        Ok(cuts
            .into_iter()
            .filter_map(|(part, cut)| Some((part, cut?)))
            .collect())
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

    /// Where kernels read these bytes in place: of a weight with edges in a copy, since a kernel takes one address.
    pub(super) fn kept_in_place(&mut self, bytes: HostBytes) -> Result<Option<DevicePtr>> {
        let range = addresses(bytes);
        let has = |one: &HostBytes| {
            let all = addresses(*one);
            all.start <= range.start && range.end <= all.end
        };
        if self.pinned_by_caller.iter().any(has) {
            let entered = self.context.enter()?;
            return mapped_address(bytes.as_ptr(), &entered).map(|at| Some(DevicePtr(at)));
        }
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
#[path = "kept_tests.rs"]
mod tests;
