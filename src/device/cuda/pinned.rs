//! Host memory of our own that the device reads: a copy of the weights, or the staging ring.
//!
//! It is mapped here and registered with the driver, instead of allocated by it: so several threads fill a
//! copy, and touch its pages for the first time, before the driver pins them. It is kept out of forked
//! processes, whose first write would take pages away from under the device.

use super::context::{Entered, PrimaryContext};
use super::register::{RegisterAccess, Registration};
use crate::device::file::ReadAt;
use crate::device::HostBytes;
use crate::error::{bytes_text, Error, Result};
use memmap2::{Advice, MmapMut};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Pieces in which a copy is filled. Large ones, since each is one call of the system; small enough that threads
/// end at about the same time.
const FILL: usize = 16 << 20;

/// Each part of a copy begins at a multiple of this, as in the file, so that a registration can be cut there.
const PAGE: u64 = 4096;

/// The most threads that read. More do not fill memory faster.
const MOST_READERS: usize = 8;

/// How many threads read from files.
pub(super) fn readers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.min(MOST_READERS)
}

/// Anonymous memory, registered with the device until it is dropped.
pub(super) struct Pinned {
    /// Ended before the memory is.
    registration: ManuallyDrop<Registration>,
    memory: ManuallyDrop<MmapMut>,
}

impl Pinned {
    /// See [`Registration::begins_at`].
    pub(super) fn begins_at(&self, address: usize) -> bool {
        self.registration.begins_at(address)
    }

    /// Its registration.
    pub(super) fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Registers memory. `cuts` as for [`Registration::new`].
    fn register(
        context: &Arc<PrimaryContext>,
        mut memory: MmapMut,
        cuts: &[u64],
        entered: &Entered<'_>,
    ) -> Result<Pinned> {
        // SAFETY: the registration is the only one that gets this value, and ends before the memory does.
        let bytes = unsafe { HostBytes::new(memory.as_mut_ptr(), memory.len() as u64) };
        let registration =
            Registration::new(context, bytes, cuts, RegisterAccess::ReadWrite, entered)
                .map_err(|error| refused(bytes.len(), error))?;
        Ok(Pinned {
            registration: ManuallyDrop::new(registration),
            memory: ManuallyDrop::new(memory),
        })
    }

    /// Zeroed memory of `bytes`, rounded up to pages, for `what`.
    pub(super) fn zeroed(
        context: &Arc<PrimaryContext>,
        bytes: u64,
        what: &str,
        entered: &Entered<'_>,
    ) -> Result<Pinned> {
        let memory = anonymous(bytes.next_multiple_of(PAGE), what)?;
        Pinned::register(context, memory, &[], entered)
    }

    /// A copy of these ranges of `source`, which messages call `name`, with what each of them became. Equal ranges are
    /// copied once.
    pub(super) fn copy_of(
        context: &Arc<PrimaryContext>,
        source: &dyn ReadAt,
        name: &str,
        ranges: &[Range<u64>],
        entered: &Entered<'_>,
    ) -> Result<(Pinned, Vec<HostBytes>)> {
        let began = Instant::now();
        let layout = CopyLayout::of(ranges);
        let what = format!("a pinned copy of {name}");
        let mut memory = anonymous(layout.bytes.max(PAGE), &what)?;
        let threads = readers();
        fill(&mut memory, &layout, source, threads)?;
        let filled = began.elapsed();
        let pinned = Pinned::register(context, memory, &layout.cuts(), entered)?;
        log::info!(
            "{}: pinned a copy of {} of {name}, read by {threads} threads in {:.2} s, registered in {:.2} s",
            context.name(),
            bytes_text(layout.bytes),
            filled.as_secs_f64(),
            (began.elapsed() - filled).as_secs_f64()
        );
        // SAFETY: the memory is written only where nothing is copied from it (`overwrite`), and its owner is the device, which waits
        // for its copies before it lets go of it.
        let all = unsafe { HostBytes::new(pinned.memory.as_ptr(), pinned.memory.len() as u64) };
        let places = ranges.iter().map(|range| {
            let at = layout.place(range);
            all.slice(at..at + (range.end - range.start))
        });
        let places = places.collect();
        Ok((pinned, places))
    }

    /// Writes `from` over `copy`, which is as long, if that lies here. Nothing is being copied from it.
    pub(super) fn overwrite(&mut self, copy: HostBytes, from: HostBytes) -> bool {
        let start = self.memory.as_ptr().addr();
        let at = copy.as_ptr().addr().wrapping_sub(start);
        let bytes = copy.len() as usize;
        let Some(into) = self.memory.get_mut(at..at.saturating_add(bytes)) else {
            return false;
        };
        assert_eq!(from.len(), copy.len(), "a copy is as long as its original");
        // SAFETY: bytes that are readable, and that nobody writes now (`HostBytes::new`); and as many of our own, which are others.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), bytes) };
        true
    }

    /// Bytes pinned.
    pub(super) fn bytes(&self) -> u64 {
        self.registration.bytes()
    }

    /// All of it. Whoever had something copied there has waited for it.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.memory
    }

    /// Address of the first byte.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let ended = self.registration.end();
        // SAFETY: neither is used after this.
        unsafe {
            ManuallyDrop::drop(&mut self.registration);
            // What the device may still read is left to the end of the process.
            if ended {
                ManuallyDrop::drop(&mut self.memory);
            }
        }
    }
}

/// Memory that no file is behind.
fn anonymous(bytes: u64, what: &str) -> Result<MmapMut> {
    let refused = |why: String| {
        Error::OutOfMemory {
        what: format!(
            "{what}, in host memory ({why}); choose weight_offload_host='staged' with a weight_offload_staging_mb \
             that fits, or 'mapped' where the device can"
        ),
        bytes,
    }
    };
    let len = usize::try_from(bytes).map_err(|error| refused(error.to_string()))?;
    let memory = MmapMut::map_anon(len).map_err(|error| refused(error.to_string()))?;
    // A forked process would share the pages, and the next write would move ours away from the device.
    memory
        .advise(Advice::DontFork)
        .map_err(|error| refused(error.to_string()))?;
    // Fewer and larger pages are touched and pinned faster. A kernel without them says no, and all is well.
    if let Err(error) = memory.advise(Advice::HugePage) {
        log::debug!("no huge pages for {what}: {error}");
    }
    Ok(memory)
}

#[cold]
fn refused(bytes: u64, error: Error) -> Error {
    match error {
        Error::Device { call, what } if what.starts_with("CUDA_ERROR_OUT_OF_MEMORY") => {
            Error::OutOfMemory {
                what: format!(
                    "pinned host memory ({call}: {what}); choose weight_offload_host='staged' with a \
                     weight_offload_staging_mb that fits, or 'mapped' where the device can"
                ),
                bytes,
            }
        }
        other => other,
    }
}

/// Where each range of the file lies in its copy.
struct CopyLayout {
    /// By where it begins and ends in the file.
    places: BTreeMap<(u64, u64), u64>,
    bytes: u64,
}

impl CopyLayout {
    fn of(ranges: &[Range<u64>]) -> CopyLayout {
        let filled = ranges.iter().filter(|range| range.start < range.end);
        let mut places: BTreeMap<_, _> = filled.map(|r| ((r.start, r.end), 0)).collect();
        let mut bytes = 0;
        for ((start, end), at) in &mut places {
            *at = bytes;
            bytes += (end - start).next_multiple_of(PAGE);
        }
        CopyLayout { places, bytes }
    }

    /// Where a range begins; the start for one without bytes.
    fn place(&self, range: &Range<u64>) -> u64 {
        let place = self.places.get(&(range.start, range.end));
        place.copied().unwrap_or(0)
    }

    /// Offsets at which ranges begin, ascending.
    fn cuts(&self) -> Vec<u64> {
        self.places.values().copied().collect()
    }

    /// The parts of `memory`, each with the place in the file that it is filled from.
    fn parts<'a>(&self, mut memory: &'a mut [u8], most: usize) -> Vec<(u64, &'a mut [u8])> {
        let mut parts = Vec::new();
        for (start, end) in self.places.keys() {
            let len = (end - start) as usize;
            let (own, rest) = memory.split_at_mut(len.next_multiple_of(PAGE as usize));
            memory = rest;
            let offsets = (*start..*end).step_by(most);
            parts.extend(offsets.zip(own[..len].chunks_mut(most)));
        }
        parts
    }
}

/// Fills the memory from `source`, several threads at once. The first error ends it.
fn fill(memory: &mut [u8], layout: &CopyLayout, source: &dyn ReadAt, threads: usize) -> Result<()> {
    let parts = Mutex::new(Ok(layout.parts(memory, FILL).into_iter()));
    let next = || match &mut *parts.lock().unwrap_or_else(PoisonError::into_inner) {
        Ok(left) => left.next(),
        Err(_) => None,
    };
    let keep = |error| {
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.is_ok() {
            *parts = Err(error);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((offset, into)) = next() {
                    if let Err(error) = source.read_at(offset, into) {
                        keep(error);
                    }
                }
            });
        }
    });
    let left = parts.into_inner().unwrap_or_else(PoisonError::into_inner);
    left.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    /// So many bytes.
    struct Bytes(u64);

    impl ReadAt for Bytes {
        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
            if offset + into.len() as u64 > self.0 {
                return Err(Error::Io {
                    file: "model.ptd".to_owned(),
                    what: format!("byte {offset}"),
                });
            }
            for (at, byte) in (offset..).zip(into) {
                *byte = (at % 251) as u8 + 1;
            }
            Ok(())
        }
    }

    #[test]
    fn ranges_are_copied_once_and_begin_at_pages() {
        let ranges = [
            40_960..50_000,
            0..10,
            4096..4096,
            40_960..50_000,
            8192..8193,
        ];
        let layout = CopyLayout::of(&ranges);
        assert_eq!(layout.bytes, PAGE + PAGE + 3 * PAGE);
        assert_eq!(layout.cuts(), [0, PAGE, 2 * PAGE]);
        let mut memory = vec![0; layout.bytes as usize];
        fill(&mut memory, &layout, &Bytes(MB), 3).unwrap();
        for range in &ranges {
            let at = layout.place(range) as usize;
            for (offset, found) in range.clone().zip(&memory[at..]) {
                assert_eq!(*found, (offset % 251) as u8 + 1, "{offset}");
            }
        }
        assert!(memory[10..PAGE as usize].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn parts_are_small_and_cover_everything() {
        let layout = CopyLayout::of(&[0..100_000, 200_704..200_705]);
        let mut memory = vec![0; layout.bytes as usize];
        let parts = layout.parts(&mut memory, 4096 * 3);
        assert!(parts.iter().all(|(_, part)| part.len() <= 4096 * 3));
        assert_eq!(
            parts.iter().map(|(_, part)| part.len()).sum::<usize>(),
            100_001
        );
        assert_eq!(parts.last().unwrap().0, 200_704);
    }

    #[test]
    fn a_read_that_fails_is_the_error() {
        let layout = CopyLayout::of(&[0..MB, MB..40 * MB]);
        let mut memory = vec![0; layout.bytes as usize];
        let error = fill(&mut memory, &layout, &Bytes(20 * MB), 4).unwrap_err();
        assert!(error.to_string().contains("model.ptd: byte"), "{error}");
    }

    #[test]
    fn memory_that_cannot_be_had_says_what_to_choose() {
        let text = anonymous(1 << 62, "a test").unwrap_err().to_string();
        assert!(
            text.contains("4611686018427387904 bytes")
                && text.contains("weight_offload_host='staged'"),
            "{text}"
        );
    }
}
