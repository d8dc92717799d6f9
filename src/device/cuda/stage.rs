//! `staged`: copies through a ring of pinned memory that threads fill from the files.
//!
//! How a piece of a copy waits for its bytes: by operations of the stream on marks in host memory (`stage_ring`
//! has the protocol). A host function in the stream would do too, but all of a process share the thread that runs
//! them, the stream stops for each, and one that waits for a disk would hold up everybody else's. These operations
//! need no thread, and the readers need no call of the driver.

use super::context::{Entered, PrimaryContext};
use super::library::check;
use super::pinned::{readers, Pinned};
use super::register::mapped_address;
use super::stage_ring::{Area, Readers, StagePiece};
use super::stage_shape::{pieces, Shape};
use super::stream::Stream;
use crate::device::file::{HostFile, HostFiles};
use crate::device::{DevicePtr, HostBytes};
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUstreamWaitValue_flags, CUstreamWriteValue_flags};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Mark of the last piece that was copied.
const DONE: u64 = 0;

/// Mark for trying the device.
const TRIAL: u64 = 1;

/// Files that are copied from through a ring. Must be ended ([`Stage::end`]) before its stream is waited for for the
/// last time, and dropped after that.
///
/// The order of the fields is the order in which they end.
pub(super) struct Stage {
    readers: Readers,
    ring: Pinned,
    area: Area,
    shape: Shape,
    /// The marks' address on the device.
    marks: u64,
    files: HostFiles,
}

impl Stage {
    /// A ring of at most `total` bytes, and a page of marks.
    pub(super) fn new(
        files: Vec<HostFile>,
        total: u64,
        copy: &Stream,
        entered: &Entered<'_>,
    ) -> Result<Stage> {
        let shape = Shape::of(total)?;
        let context = copy.context();
        let bytes = shape.bytes() + Area::mark_offset(shape.marks());
        let mut ring = Pinned::zeroed(context, bytes, "the staging ring", entered)?;
        let slots = ring.as_mut_ptr();
        let marks = slots.wrapping_add(shape.bytes() as usize);
        // SAFETY: the ring is zeroed, holds both, begins at a page, and is dropped after the readers.
        let area = unsafe { Area::new(slots, marks, shape) };
        let marks = mapped_address(marks, entered)?;
        try_marks(area, marks, copy, entered)?;
        let files = HostFiles::new(files);
        let readers = Readers::start(area, Arc::new(files.clone()), readers())?;
        log::info!(
            "{}: copies of {} go through {} slots of {} bytes",
            context.name(),
            files.name(),
            shape.slots,
            shape.slot_bytes
        );
        Ok(Stage {
            readers,
            ring,
            area,
            shape,
            marks,
            files,
        })
    }

    /// Bytes pinned.
    pub(super) fn bytes(&self) -> u64 {
        self.ring.bytes()
    }

    /// The first failure of a read. Says something of a copy once the copy was waited for.
    pub(super) fn check(&self) -> Result<()> {
        self.readers.check()
    }

    /// Whether these bytes are of one of the files.
    pub(super) fn has(&self, src: HostBytes) -> bool {
        self.files.have(src)
    }

    /// Whether the mapping of a file begins at this address: a copy must not cross it.
    pub(super) fn begins_at(&self, address: usize) -> bool {
        self.files.begin_at(address)
    }

    /// Starts copying bytes of a file; `src` says which. Waits for no read.
    ///
    /// # Safety
    /// `dst` is device memory of at least `src.len()` bytes, until the copy is done.
    pub(super) unsafe fn copy_in(
        &self,
        dst: DevicePtr,
        src: HostBytes,
        copy: &Stream,
        entered: &Entered<'_>,
    ) -> Result<()> {
        self.check()?;
        if !self.has(src) {
            return Err(Error::Internal(format!(
                "bytes at {:p} are not of {}, staged",
                src.as_ptr(),
                self.files.name()
            )));
        }
        let address = src.as_ptr().addr() as u64;
        for part in pieces(src.len(), self.shape.slot_bytes) {
            let len = part.end - part.start;
            let piece = self.readers.push(address + part.start, len);
            // SAFETY: the part is inside of what the caller promises.
            let issued = unsafe { self.issue(piece, dst.offset(part.start), len, copy, entered) };
            // The stream has lost a mark, and with it the count of the slots that are free.
            issued.inspect_err(|error| self.readers.fail(error.clone()))?;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Stage::copy_in`].
    unsafe fn issue(
        &self,
        piece: StagePiece,
        dst: DevicePtr,
        len: u64,
        copy: &Stream,
        entered: &Entered<'_>,
    ) -> Result<()> {
        wait_for(self.mark(piece.ready_mark()), piece.number, copy, entered)?;
        // SAFETY: the slot is there until the device is dropped, which waits for its streams first, and is not
        // written while it is copied: that is what the marks are for.
        let slot = unsafe { HostBytes::new(self.area.slot(piece.slot), len) };
        // SAFETY: by the caller's promise.
        unsafe { copy.copy_in(dst, slot, entered) }?;
        write(self.mark(DONE), piece.number, copy, entered)
    }

    fn mark(&self, index: u64) -> u64 {
        self.marks + Area::mark_offset(index)
    }

    /// Ends the readers, and lets go of every copy that waits for one: what these bring is of no use.
    pub(super) fn end(&mut self) {
        self.readers.stop();
    }
}

/// Lets everything that is issued later wait until the mark at `at` has come to `value`, cyclically.
fn wait_for(at: u64, value: u32, stream: &Stream, _entered: &Entered<'_>) -> Result<()> {
    let flags = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
    // SAFETY: the stream lives, and the mark is registered memory until the stream was waited for.
    check("cuStreamWaitValue32", unsafe {
        sys::cuStreamWaitValue32_v2(stream.raw(), at, value, flags)
    })
}

/// Sets the mark at `at` after everything issued so far.
fn write(at: u64, value: u32, stream: &Stream, _entered: &Entered<'_>) -> Result<()> {
    let flags = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
    // SAFETY: the stream lives, and the mark is registered memory until the stream was waited for.
    check("cuStreamWriteValue32", unsafe {
        sys::cuStreamWriteValue32_v2(stream.raw(), at, value, flags)
    })
}

/// The operations on marks have no attribute that says whether a device can do them (what there was meant an older
/// interface). So each is tried once, on a mark that nobody waits for.
fn try_marks(area: Area, marks: u64, stream: &Stream, entered: &Entered<'_>) -> Result<()> {
    const FOUND: u32 = 0x5157_4d31;
    let at = marks + Area::mark_offset(TRIAL);
    let tried = wait_for(at, 0, stream, entered)
        .and_then(|()| write(at, FOUND, stream, entered))
        .and_then(|()| stream.synchronize(entered));
    let found = area.mark(TRIAL).load(Ordering::Acquire);
    let why = match tried {
        Ok(()) if found == FOUND => return Ok(()),
        Ok(()) => format!("a mark was {found:#x} instead of {FOUND:#x}"),
        Err(error) => error.to_string(),
    };
    Err(unable(stream.context(), &why))
}

#[cold]
fn unable(context: &PrimaryContext, why: &str) -> Error {
    Error::Unsupported(format!(
        "{} cannot wait for host memory in a stream ({why}), which weight_offload_host='staged' needs; choose \
         'pinned', or 'mapped' where the device can",
        context.name()
    ))
}
