//! Registration of host memory: of the `.ptd` mapping, so that the copy engine reads the file's own pages at full
//! link speed, and of memory of our own.
//!
//! A read-only mapping can only be registered as read-only, which not every device can. That is asked first:
//! another way to hold the weights is the user's choice, never a fallback.

use super::context::{Entered, PrimaryContext};
use super::library::{check, log_failure};
use crate::device::HostBytes;
use crate::error::{bytes_text, Error, Result};
use cudarc::driver::sys::{self, CUdevice_attribute};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// The most that is registered in one call.
pub(super) const CHUNK: u64 = 64 << 30;

/// Chunks start at pages.
pub(super) const PAGE: u64 = 4096;

/// What a registration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RegisterAccess {
    /// Mapped for reading only.
    ReadOnly,
    /// Memory of our own.
    ReadWrite,
}

impl RegisterAccess {
    fn flags(self) -> u32 {
        let both = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
        match self {
            RegisterAccess::ReadOnly => both | sys::CU_MEMHOSTREGISTER_READ_ONLY,
            RegisterAccess::ReadWrite => both,
        }
    }

    /// What is registered, for messages.
    fn describe(self) -> &'static str {
        match self {
            RegisterAccess::ReadOnly => "mapped weights, read-only",
            RegisterAccess::ReadWrite => "pinned host memory",
        }
    }
}

/// Whether the device can read a mapping that is read-only.
pub(super) fn can_read_only(context: &PrimaryContext) -> Result<bool> {
    let able = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
    Ok(context.attribute(able)? != 0)
}

/// The device's address of memory that is pinned or registered.
pub(super) fn mapped_address(host: *const u8, _entered: &Entered<'_>) -> Result<u64> {
    let mut at = 0;
    // SAFETY: the driver reads nothing at the address, and writes one of the device; of memory that it does not know it says so.
    check("cuMemHostGetDevicePointer", unsafe {
        sys::cuMemHostGetDevicePointer_v2(&mut at, host.cast_mut().cast(), 0)
    })?;
    Ok(at)
}

/// What one call registered.
struct Chunk {
    start: usize,
    len: usize,
}

/// Host memory that the device may read, until this is dropped.
pub(super) struct Registration {
    chunks: Vec<Chunk>,
    bytes: u64,
    context: Arc<PrimaryContext>,
}

impl Registration {
    /// Registers `bytes`, in chunks that end at some of `cuts` (ascending offsets into `bytes`): a copy must
    /// not cross from one chunk into the next.
    pub(super) fn new(
        context: &Arc<PrimaryContext>,
        bytes: HostBytes,
        cuts: &[u64],
        access: RegisterAccess,
        entered: &Entered<'_>,
    ) -> Result<Registration> {
        let start = bytes.as_ptr().addr() as u64;
        // SAFETY: the bytes are mapped, and stay until the device is dropped (`HostBytes::new`), which ends this registration first.
        unsafe {
            Registration::of_pages(context, start..start + bytes.len(), cuts, access, entered)
        }
    }

    /// As [`Registration::new`].
    ///
    /// # Safety
    /// The pages are mapped, and stay so until this is dropped.
    pub(super) unsafe fn of_pages(
        context: &Arc<PrimaryContext>,
        pages: Range<u64>,
        cuts: &[u64],
        access: RegisterAccess,
        entered: &Entered<'_>,
    ) -> Result<Registration> {
        if access == RegisterAccess::ReadOnly && !can_read_only(context)? {
            return Err(unable(context.name()));
        }
        let mut registration = Registration {
            chunks: Vec::new(),
            bytes: 0,
            context: Arc::clone(context),
        };
        for chunk in chunks(pages.start, pages.end - pages.start, cuts, CHUNK)? {
            // On an error the chunks so far are unregistered by `drop`.
            // SAFETY: by the caller's promise; a chunk lies in the pages.
            unsafe { registration.add(&pages, chunk, access, entered) }?;
        }
        Ok(registration)
    }

    /// Whether a chunk begins at this address: a copy must not cross it.
    pub(super) fn begins_at(&self, address: usize) -> bool {
        self.chunks.iter().any(|chunk| chunk.start == address)
    }

    /// The device's address of these bytes, if they lie in one chunk.
    pub(super) fn device_address(
        &self,
        bytes: HostBytes,
        entered: &Entered<'_>,
    ) -> Result<Option<u64>> {
        let (start, end) = (
            bytes.as_ptr() as usize,
            bytes.as_ptr() as usize + bytes.len() as usize,
        );
        let inside = |chunk: &&Chunk| chunk.start <= start && end <= chunk.start + chunk.len;
        let Some(chunk) = self.chunks.iter().find(inside) else {
            return Ok(None);
        };
        let address = mapped_address(chunk.start as *const u8, entered)?;
        Ok(Some(address + (start - chunk.start) as u64))
    }

    /// Bytes registered.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// # Safety
    /// As of [`Registration::of_pages`]; `chunk` counts from the start of `all`.
    unsafe fn add(
        &mut self,
        all: &Range<u64>,
        chunk: Range<u64>,
        access: RegisterAccess,
        _entered: &Entered<'_>,
    ) -> Result<()> {
        let start = (all.start + chunk.start) as *mut c_void;
        let len = (chunk.end - chunk.start) as usize;
        // SAFETY: by the caller's promise. Nothing is written through `start`.
        let code = unsafe { sys::cuMemHostRegister_v2(start, len, access.flags()) };
        check("cuMemHostRegister", code).map_err(|error| match error {
            Error::Device { call, what } => Error::Device {
                call,
                what: format!(
                    "{what} (bytes {}..{} of {} of {}, on {})",
                    chunk.start,
                    chunk.end,
                    bytes_text(all.end - all.start),
                    access.describe(),
                    self.context.name()
                ),
            },
            other => other,
        })?;
        self.chunks.push(Chunk {
            start: start.addr(),
            len,
        });
        self.bytes += chunk.end - chunk.start;
        Ok(())
    }
}

impl Registration {
    /// Ends it, before it is dropped. Whether the device has let go of the memory: not at the process's exit, and
    /// not if it failed.
    pub(super) fn end(&mut self) -> bool {
        let Some(_entered) = self.context.enter_to_drop() else {
            return self.chunks.is_empty();
        };
        self.chunks.drain(..).fold(true, |ended, chunk| {
            // SAFETY: registered in `add`, and copies from it are done: the device has waited for them.
            let code = unsafe { sys::cuMemHostUnregister(chunk.start as *mut c_void) };
            let outcome = check("cuMemHostUnregister", code);
            let this = outcome.is_ok();
            log_failure(self.context.name(), outcome);
            ended && this
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

#[cold]
fn unable(device: &str) -> Error {
    Error::Unsupported(format!(
        "{device} cannot register a mapping that is read-only, so that weights cannot be copied from the mapped \
         file; choose weight_offload_host='pinned' (a copy in memory) or 'staged' (a ring of buffers)"
    ))
}

/// Cuts `len` bytes at `start` into ranges of at most `limit` bytes, each as long as the cuts allow.
fn chunks(start: u64, len: u64, cuts: &[u64], limit: u64) -> Result<Vec<Range<u64>>> {
    if !start.is_multiple_of(PAGE) {
        return Err(Error::Internal(format!(
            "host memory to register starts at {start:#x}, not at a page"
        )));
    }
    let mut ranges = Vec::new();
    let mut from = 0;
    while len - from > limit {
        let fits = |cut: &&u64| **cut > from && **cut <= from + limit && cut.is_multiple_of(PAGE);
        let Some(&to) = cuts.iter().rev().find(fits) else {
            return Err(Error::Unsupported(format!(
                "the data file has no boundary between two segments, at a multiple of {PAGE}, in bytes {from}..{}, \
                 where its registration with the device must be cut; choose weight_offload_host='pinned' or 'staged'",
                from + limit
            )));
        };
        ranges.push(from..to);
        from = to;
    }
    if len > from {
        ranges.push(from..len);
    }
    Ok(ranges)
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges, some of one"
)]
mod tests {
    use super::*;

    const KB4: u64 = 4096;

    #[test]
    fn chunks_end_at_the_last_cut_that_fits() {
        let cuts = [KB4, 2 * KB4, 3 * KB4, 5 * KB4];
        let cut = |len, limit| chunks(KB4, len, &cuts, limit).unwrap();
        assert_eq!(cut(5 * KB4 + 17, 10 * KB4), vec![0..5 * KB4 + 17]);
        assert_eq!(
            cut(5 * KB4 + 17, 3 * KB4),
            [0..3 * KB4, 3 * KB4..5 * KB4 + 17]
        );
        assert_eq!(
            cut(5 * KB4, 2 * KB4),
            [0..2 * KB4, 2 * KB4..3 * KB4, 3 * KB4..5 * KB4]
        );
        assert_eq!(cut(0, KB4), []);
        assert_eq!(cut(KB4, KB4), vec![0..KB4]);
    }

    #[test]
    fn chunks_cover_everything_once() {
        let cuts: Vec<u64> = (1..100).map(|i| i * i % 97 * KB4).collect();
        let mut sorted = cuts;
        sorted.sort_unstable();
        for limit in [8, 9, 30, 1000] {
            let ranges = chunks(0, 97 * KB4 + 1, &sorted, limit * KB4).unwrap();
            let ends = ranges.iter().fold(0, |at, r| {
                assert!(r.start == at && r.end > at && r.end - at <= limit * KB4);
                r.end
            });
            assert_eq!(ends, 97 * KB4 + 1);
        }
    }

    #[test]
    fn a_device_that_cannot_is_named_and_what_to_choose() {
        let text = unable("cuda:3 (Some GPU)").to_string();
        assert!(
            text.contains("cuda:3 (Some GPU)")
                && text.contains("'pinned'")
                && text.contains("'staged'"),
            "{text}"
        );
    }

    #[test]
    fn a_segment_that_is_too_long_is_refused() {
        let refused = chunks(0, 4 * KB4, &[KB4, 3 * KB4], KB4).unwrap_err();
        assert!(refused.to_string().contains("4096..8192"), "{refused}");
        // Cuts inside a page are of no use.
        assert!(chunks(0, 2 * KB4, &[100], KB4).is_err());
        assert!(matches!(chunks(64, KB4, &[], KB4), Err(Error::Internal(_))));
    }
}
