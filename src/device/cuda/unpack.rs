//! Packed weights: the copy engine brings their blocks into a ring of slots, and a kernel decodes them from there to where they
//! are wanted, on a stream of its own, while the next blocks are on their way.
//!
//! ```text
//! link     | blocks 0.. to slot 0 | blocks 1024.. to slot 1 | ..2048 to slot 2 | ..3072 to slot 0, once it is free |
//! unpack                          |  slot 0 -> the weight   | slot 1 -> ...    | ...
//! ```
//!
//! # Order
//! - Copies into slots have a stream of their own, the link's. They wait for nothing but slots, so that the link is busy while
//!   kernels of the model still read what will be overwritten.
//! - The kernel waits for the copy into its slot, and for what the copy stream has waited for: the last readers of the weight's
//!   memory.
//! - A copy into a slot waits for the kernel that read it last.
//! - An event of the copies is recorded on the kernels' stream, behind both.
//! - What is copied raw, or freed, goes by the copy stream alone. Where a kernel may still write there, and nobody waited for it, the copy
//!   stream waits first ([`Unpacking::settle`]).
//! - A graph has slots of the same ring: it comes after all kernels that were issued, and what is issued after it waits for its end.

use super::context::{Entered, PrimaryContext};
use super::module::{Kernel, Module};
use super::stream::{CudaEvent, Events, Stream};
use super::unpack_pieces::{directory_bytes, most_bytes, pieces, slot_bytes, StoredPiece, SLOTS};
use crate::device::{BlockCode, DevicePtr, HostBytes, Source};
use crate::error::{Error, Result};
use crate::figures::NumberForm;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::Arc;

/// The code of the kernels, for any GPU from compute capability 7.5 on.
const KERNELS: &str = include_str!("unpack.ptx");

/// Blocks of threads at the most, four for each multiprocessor of a large card. Fewer of them take longer, and the model's kernels lose
/// more by that than by a full card for a short time.
const BLOCKS: u32 = 528;
/// Threads of each.
const THREADS: u32 = 256;

/// The ring, the directories on the device, and the stream of the kernels.
pub(super) struct Unpacking {
    slots: [Slot; SLOTS],
    next: usize,
    /// Raw bytes whose blocks a slot holds.
    slot: u64,
    /// Where each weight's directory is on the device, by its address on the host.
    directories: BTreeMap<usize, DevicePtr>,
    /// Memory that kernels write which nobody may have waited for, in the order of issue.
    written: VecDeque<(Range<u64>, Arc<CudaEvent>)>,
    /// What is issued is kept for a graph, and does not run.
    captured: bool,
    /// One for each form that a weight has.
    kernels: Vec<(NumberForm, Kernel)>,
    /// Of copies into slots.
    link: Stream,
    /// Of kernels.
    stream: Stream,
}

/// What is needed to issue.
pub(super) struct Issue<'a> {
    /// The copy stream.
    pub copy: &'a Stream,
    /// All copies go there: what they come from counts them.
    pub one_stream: bool,
    pub events: &'a Arc<Events>,
    pub entered: &'a Entered<'a>,
}

impl Issue<'_> {
    /// Has `after` wait for everything that was issued to `before`.
    fn joined(&self, before: &Stream, after: &Stream) -> Result<()> {
        let event = self.events.take(self.entered)?;
        before.record(&event, self.entered)?;
        after.wait(&event, self.entered)
    }
}

/// Where a part of a weight goes.
struct Destination<'a> {
    dst: DevicePtr,
    /// The first of the weight's bytes that goes there.
    start: u64,
    /// The weight's directory on the device.
    directory: DevicePtr,
    code: BlockCode<'a>,
}

struct Slot {
    at: DevicePtr,
    /// The kernel that read it last.
    read: Option<Arc<CudaEvent>>,
}

impl Unpacking {
    /// In `bytes` of memory at `at`, for all packed weights among `sources`.
    pub(super) fn new(
        context: &Arc<PrimaryContext>,
        (at, bytes): (DevicePtr, u64),
        sources: &[Source],
        entered: &Entered<'_>,
    ) -> Result<Unpacking> {
        let module = Module::load(context, KERNELS, entered)?;
        let codes = || sources.iter().filter_map(Source::blocks);
        let mut kernels = Vec::new();
        for form in NumberForm::ALL {
            if codes().any(|code| code.form == form) {
                kernels.push((form, module.kernel(kernel_name(form), entered)?));
            }
        }
        let slot = most_bytes(codes());
        let place = |index| Slot {
            at: at.offset(index as u64 * slot_bytes(slot)),
            read: None,
        };
        let stream = Stream::new(context)?;
        let mut places = BTreeMap::new();
        let mut to = at.offset(SLOTS as u64 * slot_bytes(slot));
        for directory in codes().map(|code| code.directory) {
            let words: Vec<u8> = { directory.iter() }
                .flat_map(|word| word.to_le_bytes())
                .collect();
            let end = to.offset(directory_bytes(directory));
            if end.0 > at.0 + bytes {
                return Err(Error::Internal(format!(
                    "{bytes} bytes for decoding are too few for all directories"
                )));
            }
            // SAFETY: just checked to lie in the memory that this was made with, which stays until the device's end.
            unsafe { stream.upload(to, &words, entered) }?;
            places.insert(directory.as_ptr().addr(), to);
            to = end;
        }
        stream.synchronize(entered)?;
        Ok(Unpacking {
            slots: std::array::from_fn(place),
            next: 0,
            slot,
            directories: places,
            written: VecDeque::new(),
            captured: false,
            kernels,
            link: Stream::new(context)?,
            stream,
        })
    }

    /// Brings a part of a packed weight to `dst`. `copy_in` copies stored bytes to a slot, on the stream that it is given: the link's, or `copy`
    /// where that one has to have all copies.
    ///
    /// # Safety
    /// `dst` is device memory of at least `src.len()` bytes up to a whole 16, until everything issued here has run. What the source keeps on
    /// the device is there as long.
    pub(super) unsafe fn bring(
        &mut self,
        dst: DevicePtr,
        src: &Source,
        issue: &Issue<'_>,
        copy_in: impl Fn(DevicePtr, HostBytes, &Stream) -> Result<()>,
    ) -> Result<()> {
        let target = self.target(dst, src, issue)?;
        self.forget_done(issue.entered)?;
        // The waits for the readers of `dst` were issued there, and what stays packed was copied.
        issue.joined(issue.copy, &self.stream)?;
        let (kept_at, kept) = src.kept().unwrap_or((DevicePtr::EMPTY, 0));
        let written = dst.0..dst.0 + src.len();
        for piece in pieces(target.code, src.range(), self.slot, kept) {
            let payload = match piece.kept {
                true => kept_at.offset(piece.stored.start),
                false => {
                    self.fill_slot(src.stored().slice(piece.stored.clone()), issue, &copy_in)?
                }
            };
            // Taken first: nothing but a lost device fails between the kernel and its event.
            let read = Arc::new(issue.events.take(issue.entered)?);
            // SAFETY: the stored bytes of the piece are there for what this stream does from now on. What is written are elements of the
            // piece inside of `dst`, by the caller's promise.
            unsafe { self.launch(&piece, payload, &target, issue.entered) }?;
            self.stream.record(&read, issue.entered)?;
            if !piece.kept {
                self.slots[self.next].read = Some(Arc::clone(&read));
                self.next = (self.next + 1) % SLOTS;
            }
            // At once: a later piece may fail.
            self.written.push_back((written.clone(), read));
        }
        Ok(())
    }

    fn target<'a>(
        &self,
        dst: DevicePtr,
        src: &'a Source,
        issue: &Issue<'_>,
    ) -> Result<Destination<'a>> {
        let code = src.blocks().ok_or_else(|| unknown_code(issue.copy))?;
        let directory = self.directories.get(&code.directory.as_ptr().addr());
        let directory = *directory.ok_or_else(|| unknown_code(issue.copy))?;
        let start = src.range().start;
        if !start.is_multiple_of(16) || !dst.0.is_multiple_of(16) {
            return Err(Error::Internal(format!(
                "the bytes from {start} on of a packed weight are wanted at {:#x}, and a kernel writes whole 16",
                dst.0
            )));
        }
        Ok(Destination {
            dst,
            start,
            directory,
            code,
        })
    }

    /// Copies a piece to the next slot, once that is free. The stream waits for the copy.
    fn fill_slot(
        &mut self,
        stored: HostBytes,
        issue: &Issue<'_>,
        copy_in: impl Fn(DevicePtr, HostBytes, &Stream) -> Result<()>,
    ) -> Result<DevicePtr> {
        let link = match issue.one_stream {
            true => issue.copy,
            false => &self.link,
        };
        let slot = &mut self.slots[self.next];
        if let Some(read) = &slot.read {
            link.wait(read, issue.entered)?;
        }
        copy_in(slot.at, stored, link)?;
        issue.joined(link, &self.stream)?;
        Ok(slot.at)
    }

    /// # Safety
    /// The stored bytes of the piece are at `payload` for a kernel that is issued now. The target's memory holds what is wanted of the piece, up
    /// to a whole 16 bytes.
    unsafe fn launch(
        &self,
        piece: &StoredPiece,
        payload: DevicePtr,
        target: &Destination<'_>,
        entered: &Entered<'_>,
    ) -> Result<()> {
        let form = target.code.form;
        let kernel = self.kernels.iter().find(|(of, _)| *of == form);
        let (_, kernel) = kernel.ok_or_else(|| unknown_code(&self.stream))?;
        let mut payload = payload.0;
        let first_block = u64::from(piece.blocks.start);
        let mut directory = target.directory.offset(4 * first_block).0;
        // Before `dst` where the range begins inside of the block: nothing is written there.
        let mut out = (target.dst.0 + piece.raw.start).wrapping_sub(target.start);
        let mut blocks = piece.blocks.len() as u32;
        let mut elements = piece.elements;
        let (mut first, mut end) = (piece.wanted.start, piece.wanted.end);
        let mut exponents = [0u8; 16];
        exponents[..target.code.exponents.len()].copy_from_slice(&target.code.exponents);
        // SAFETY: the parameters are those of the kernel, in its order and of its types; its memory by the caller's promise.
        unsafe {
            kernel.launch(
                (BLOCKS.min(blocks.div_ceil(THREADS / 32)), THREADS),
                &mut [
                    (&raw mut payload).cast(),
                    (&raw mut directory).cast(),
                    (&raw mut out).cast(),
                    (&raw mut blocks).cast(),
                    (&raw mut elements).cast(),
                    (&raw mut first).cast(),
                    (&raw mut end).cast(),
                    (&raw mut exponents).cast(),
                ],
                &self.stream,
                entered,
            )
        }
    }

    /// An event behind all copies and all kernels: `copied` is behind those of the copy stream.
    pub(super) fn record_behind(
        &self,
        copied: &CudaEvent,
        events: &Arc<Events>,
        entered: &Entered<'_>,
    ) -> Result<CudaEvent> {
        self.stream.wait(copied, entered)?;
        let all = events.take(entered)?;
        self.stream.record(&all, entered)?;
        Ok(all)
    }

    /// Blocks until both streams are idle.
    pub(super) fn synchronize(&self, entered: &Entered<'_>) -> Result<()> {
        self.link.synchronize(entered)?;
        self.stream.synchronize(entered)
    }

    /// Has the copy stream wait for kernels that write to this memory, before it is copied to or freed.
    pub(super) fn settle(
        &mut self,
        at: DevicePtr,
        bytes: u64,
        copy: &Stream,
        entered: &Entered<'_>,
    ) -> Result<()> {
        let here = |range: &Range<u64>| range.start < at.0 + bytes && at.0 < range.end;
        let last = self.written.iter().rev().find(|(range, _)| here(range));
        last.map_or(Ok(()), |(_, event)| copy.wait(event, entered))
    }

    fn forget_done(&mut self, entered: &Entered<'_>) -> Result<()> {
        if self.captured {
            return Ok(());
        }
        while let Some((_, event)) = self.written.front() {
            if !event.is_done(entered)? {
                break;
            }
            self.written.pop_front();
        }
        Ok(())
    }

    /// A capture begins behind `fork`. All streams are idle, and their events are worth nothing to it.
    pub(super) fn begin_capture(&mut self, fork: &CudaEvent, entered: &Entered<'_>) -> Result<()> {
        self.forget_events();
        self.captured = true;
        self.link.wait(fork, entered)?;
        self.stream.wait(fork, entered)
    }

    /// It ends: events behind everything that was issued to both streams, for `compute` to wait for.
    pub(super) fn end_capture(&mut self, issue: &Issue<'_>, compute: &Stream) -> Result<()> {
        self.forget_events();
        self.captured = false;
        issue.joined(&self.link, compute)?;
        issue.joined(&self.stream, compute)
    }

    fn forget_events(&mut self) {
        self.written.clear();
        for slot in &mut self.slots {
            slot.read = None;
        }
    }

    /// A graph was launched on `compute`, whose copies go through the slots.
    pub(super) fn follow(&mut self, launched: CudaEvent) {
        let launched = Arc::new(launched);
        for slot in &mut self.slots {
            slot.read = Some(Arc::clone(&launched));
        }
    }
}

/// Of the kernel in [`KERNELS`] that decodes numbers of this form.
fn kernel_name(form: NumberForm) -> &'static CStr {
    match form {
        NumberForm::Bf16 => c"weightstream_unpack_bf16",
        NumberForm::F16 => c"weightstream_unpack_f16",
        NumberForm::F32 => c"weightstream_unpack_f32",
        NumberForm::F8E4M3 => c"weightstream_unpack_f8e4m3",
        NumberForm::F8E5M2 => c"weightstream_unpack_f8e5m2",
    }
}

#[cold]
fn unknown_code(copy: &Stream) -> Error {
    Error::Internal(format!(
        "{}: a weight is to be decoded which the device was not told of",
        copy.context().name()
    ))
}
