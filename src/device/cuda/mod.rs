//! An NVIDIA GPU, over the driver's API. The library is found at run time; without it everything but this
//! device works.
//!
//! | file | what it knows |
//! |---|---|
//! | `library` | whether the driver is there, what is missing if not, when the process exits |
//! | `context` | the primary context, current around each entry and never left behind |
//! | `device` | the device's trait: what is refused before the driver is asked |
//! | `graph` | a pass captured as a graph, and issued again by one call |
//! | `stream` | the two streams, the copies on them, events that are used again |
//! | `pool` | stream-ordered memory and its cap |
//! | `lasting` | memory beside the pool, that stays until the end |
//! | `pages` | addresses, the memory behind them, and the streams of callers that use it |
//! | `physical` | physical memory, and who may access it where |
//! | `caller`, `pointer` | memory of the caller's: what is lent for a call, and what the driver says about an address |
//! | `memory` | plain memory for callers, outside of every budget |
//! | `register` | the mapped file, registered for the copy engine |
//! | `pinned` | memory of our own, registered: a copy of the weights |
//! | `kept` | memory that the caller has read weights into: which pages of it are registered |
//! | `output_staging` | outputs on their way to the caller, through pinned memory |
//! | `stage`, `stage_ring`, `stage_shape` | copies through a ring of pinned memory; the threads that fill it |
//! | `module` | the crate's own kernels |
//! | `unpack`, `unpack_pieces` | packed weights: copies through a ring on the device, and the kernel that decodes them |
//! | `runtime` | what compiled code asks of CUDA's runtime library, asked of the driver |
//!
//! The compute stream is the caller's or one of our own; the copy stream is our own, and waits for nothing but
//! events. Weights come from a capped pool in copy-stream order, activations from a second pool in
//! compute-stream order.
//!
//! # The end
//! A device that is dropped ends its readers, waits for its streams, frees its memory, ends the registrations and then goes,
//! streams and context last. What fails on the way is logged. Once the process has begun to exit nothing
//! is called any more.

mod caller;
mod capture;
mod context;
mod counters;
mod device;
mod graph;
mod kept;
mod kept_pages;
mod lasting;
mod library;
mod link;
mod marks;
pub mod memory;
mod module;
mod output_staging;
mod pages;
mod physical;
mod pinned;
mod pointer;
mod pool;
mod register;
pub(crate) mod runtime;
mod stage;
mod stage_ring;
mod stage_shape;
mod stage_turns;
mod stream;
mod units;
mod unpack;
mod unpack_pieces;

pub(in crate::device) use capture::relaxed;
pub use counters::CudaCounters;
pub use pages::CudaPages;
pub use physical::Physical;
pub use stage_shape::{RING_DEFAULT, RING_LEAST};
pub use stream::CudaEvent;

use super::{CallerStream, DeviceBytes, DevicePtr, HostBytes, HostFile, Link};
use crate::error::{Error, Result};
use context::{Entered, PrimaryContext};
use graph::Capture;
pub use graph::Graph;
use kept::Edges;
use kept_pages::SharedRegistration;
use lasting::Lasting;
use library::log_failure;
use marks::Marks;
use output_staging::OutputStaging;
use pinned::Pinned;
use pool::MemPool;
use register::{RegisterAccess, Registration};
use stage::Stage;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{self, Arc};
use stream::{Events, Stream};
pub(in crate::device) use units::{BYTES_PER_COPY, GRANULE, PAGE};
use unpack::Unpacking;
pub(in crate::device) use unpack_pieces::staging_bytes;

/// Number of CUDA devices; an error says what is missing if the driver is not there.
pub fn device_count() -> Result<u32> {
    library::count()
}

/// Refuses a size of a staging ring, bytes, that is below [`RING_LEAST`].
pub fn check_ring(bytes: u64) -> Result<()> {
    stage_shape::Shape::of(bytes).map(|_| ())
}

/// One GPU: its memory, a copy stream, and the stream on which the compiled code runs.
///
/// The order of the fields is the order in which they end.
pub struct CudaDevice {
    capture: Capture,
    marks: Marks,
    /// If the device maps any.
    pages: Option<CudaPages>,
    lasting: Lasting,
    /// Made when the budget is known.
    weights: Option<MemPool>,
    activations: MemPool,
    registrations: Vec<Registration>,
    /// Of memory of the process, and of mapped files.
    shared: Vec<SharedRegistration>,
    pinned: Vec<Pinned>,
    edges: Edges,
    /// Some weights lie in memory of the process.
    keeps_memory: bool,
    stage: Option<Stage>,
    returns: OutputStaging,
    /// What copies cost, once that was given or measured.
    link: Option<Link>,
    /// Whether it is measured, if it was not given.
    times_link: bool,
    /// The device's addresses of host memory that kernels read in place.
    in_place: Vec<Range<u64>>,
    /// Inputs of the call that runs, where they lie in the caller's memory.
    lent: Vec<DeviceBytes>,
    /// Weights in memory that is not ours, and was pinned before.
    pinned_by_caller: Vec<HostBytes>,
    /// For packed weights, if there are any.
    unpacking: Option<Unpacking>,
    events: Arc<Events>,
    copy: Arc<Stream>,
    compute: Arc<Stream>,
    /// The default stream, where the compute stream is our own: callers that give none may work on it.
    default: Option<Stream>,
    context: Arc<PrimaryContext>,
}

/// A device's primary context.
#[derive(Clone)]
pub struct CudaContext(Arc<PrimaryContext>);

impl CudaContext {
    /// Runs `body` with the context current on this thread, and then makes the previous one current again.
    pub fn with_current<R>(&self, body: impl FnOnce() -> R) -> Result<R> {
        let _entered = self.0.enter()?;
        Ok(body())
    }
}

impl CudaDevice {
    /// The device of this index, with a compute stream of its own.
    pub fn new(index: u32) -> Result<Self> {
        let context = PrimaryContext::retain(index)?;
        let compute = Stream::new(&context)?;
        // SAFETY: null is the default stream, which exists as long as its context.
        let default = unsafe { Stream::of_caller(&context, std::ptr::null_mut()) }?;
        CudaDevice::on(context, compute, Some(default))
    }

    /// The device of this index, with a stream of the caller's as its compute stream. It must belong to the
    /// device's primary context.
    pub fn on_stream(index: u32, stream: CallerStream) -> Result<Self> {
        // SAFETY: by the promise that `CallerStream::new` asks for.
        unsafe { CudaDevice::with_stream(index, stream.raw()) }
    }

    /// The device of this index, with `stream` (a `CUstream` or `cudaStream_t`; null for the default stream)
    /// as its compute stream. It must belong to the device's primary context.
    ///
    /// # Safety
    /// `stream` is null or a stream that exists until the device is dropped.
    pub unsafe fn with_stream(index: u32, stream: *mut c_void) -> Result<Self> {
        stream::check_caller(stream)?;
        let context = PrimaryContext::retain(index)?;
        // SAFETY: by the caller's promise.
        let compute = unsafe { Stream::of_caller(&context, stream) }?;
        CudaDevice::on(context, compute, None)
    }

    fn on(context: Arc<PrimaryContext>, compute: Stream, default: Option<Stream>) -> Result<Self> {
        let compute = Arc::new(compute);
        let copy = Arc::new(Stream::new(&context)?);
        let activations = MemPool::new(&compute, "activations", None, &context.enter()?)?;
        Ok(CudaDevice {
            capture: Capture::default(),
            marks: Marks::default(),
            pages: CudaPages::of(&context)?,
            lasting: Lasting::default(),
            weights: None,
            activations,
            registrations: Vec::new(),
            shared: Vec::new(),
            pinned: Vec::new(),
            edges: Edges::default(),
            keeps_memory: false,
            stage: None,
            returns: OutputStaging::default(),
            link: None,
            times_link: false,
            in_place: Vec::new(),
            lent: Vec::new(),
            pinned_by_caller: Vec::new(),
            unpacking: None,
            events: Events::new(&context),
            copy,
            compute,
            default,
            context,
        })
    }

    /// Registers mapped weights, so that copies from them run at full link speed. `cuts` are the offsets of
    /// the segments, ascending: no later copy may cross from one segment into the next.
    pub fn register_host(&mut self, bytes: HostBytes, cuts: &[u64]) -> Result<()> {
        let entered = self.context.enter()?;
        let access = RegisterAccess::ReadOnly;
        let registration = Registration::new(&self.context, bytes, cuts, access, &entered)?;
        self.registrations.push(registration);
        Ok(())
    }

    /// Whether [`CudaDevice::register_host`] can work: not every device reads a mapping that is read-only.
    pub fn can_register_mapped(&self) -> Result<bool> {
        register::can_read_only(&self.context)
    }

    /// Copies these ranges of a file into pinned memory, for copies at full link speed that touch neither file nor
    /// mapping. Returns what each range became; equal ranges become the same bytes. They are readable as long as
    /// this device lives, and are to be handed to no other.
    pub fn pin_host(&mut self, file: &HostFile, ranges: &[Range<u64>]) -> Result<Vec<HostBytes>> {
        let entered = self.context.enter()?;
        let (pinned, places) = Pinned::copy_of(&self.context, file, file.name(), ranges, &entered)?;
        self.pinned.push(pinned);
        Ok(places)
    }

    /// From now on weights come from the files, through a ring of at most `ring_bytes` of pinned memory
    /// ([`RING_LEAST`] at least): the bytes that are given to [`bring`](super::Device::bring) lie in a file's
    /// mapping, and say which bytes of the file are meant; the mapping itself is not read. Bytes of other memory
    /// are copied from there, if any is kept ([`CudaDevice::keep_parts`]).
    ///
    /// A read that fails is an error of every later call that copies, or that waits for copies.
    pub fn stage_host(&mut self, files: Vec<HostFile>, ring_bytes: u64) -> Result<()> {
        if self.stage.is_some() {
            return Err(Error::Internal(
                "the device was told twice which files to stage".to_string(),
            ));
        }
        let entered = self.context.enter()?;
        self.stage = Some(Stage::new(files, ring_bytes, &self.copy, &entered)?);
        Ok(())
    }

    /// The first failure of a read of a staged file.
    fn check_stage(&self) -> Result<()> {
        self.stage.as_ref().map_or(Ok(()), Stage::check)
    }

    /// The stream on which kernels run, as a `CUstream`.
    pub fn compute_stream(&self) -> *mut c_void {
        self.compute.raw().cast()
    }

    /// The stream on which weights arrive, as a `CUstream`.
    pub fn copy_stream(&self) -> *mut c_void {
        self.copy.raw().cast()
    }

    /// The device's primary context, to be current while compiled code runs.
    pub fn context(&self) -> CudaContext {
        CudaContext(Arc::clone(&self.context))
    }

    /// The version of the device's instructions, as compilers name it: 90 for compute capability 9.0.
    pub fn sm(&self) -> Result<u32> {
        use cudarc::driver::sys::CUdevice_attribute as Attribute;
        let major = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        let minor = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        let sm = 10 * self.context.attribute(major)? + self.context.attribute(minor)?;
        Ok(sm.max(0) as u32)
    }

    /// The device's index, from 0.
    pub fn index(&self) -> u32 {
        self.context.index()
    }

    /// Index and model, for messages: `cuda:0 (NVIDIA H200)`.
    pub fn full_name(&self) -> &str {
        self.context.name()
    }

    /// Memory of the device that nobody uses now, by the driver's count.
    pub fn free_bytes(&self) -> Result<u64> {
        self.context.free_bytes(&self.context.enter()?)
    }

    /// What is counted, as of now.
    pub fn counters(&self) -> Result<CudaCounters> {
        let _entered = self.context.enter()?;
        let weights = self.weights.as_ref();
        let ask = |f: fn(&MemPool) -> Result<u64>| weights.map_or(Ok(0), f);
        Ok(CudaCounters {
            events_created: self.events.created() as u64,
            compactions: weights.map_or(0, MemPool::compactions),
            weight_bytes: weights.map_or(0, MemPool::live_bytes) + self.mapped_bytes(),
            mapped_bytes: self.mapped_bytes(),
            lasting_bytes: self.lasting.bytes(),
            pool_used_bytes: ask(MemPool::used_bytes)?,
            pool_reserved_bytes: ask(MemPool::reserved_bytes)?,
            activation_reserved_bytes: self.activations.reserved_bytes()?,
            host_mapped_bytes: self.host_mapped_bytes(),
            host_pinned_bytes: self.host_pinned_bytes(),
        })
    }

    fn mapped_bytes(&self) -> u64 {
        self.pages.as_ref().map_or(0, |pages| pages.table.bytes())
    }

    /// Whether memory is mapped at these addresses.
    fn is_mapped(&self, ptr: DevicePtr, len: u64) -> bool {
        let pages = self.pages.as_ref();
        pages.is_some_and(|pages| pages.table.cover(ptr, len))
    }

    /// Mapped host memory that is registered, bytes.
    pub fn host_mapped_bytes(&self) -> u64 {
        self.registrations().map(Registration::bytes).sum()
    }

    /// Of the caller's memory.
    fn registrations(&self) -> impl Iterator<Item = &Registration> {
        let shared = self.shared.iter().filter_map(SharedRegistration::get);
        self.registrations.iter().chain(shared)
    }

    /// Host memory of our own that is pinned, bytes: copies of weights, the ring with its page of marks, and what outputs go
    /// through.
    pub fn host_pinned_bytes(&self) -> u64 {
        let copies: u64 = self.pinned.iter().map(Pinned::bytes).sum();
        copies + self.stage.as_ref().map_or(0, Stage::bytes) + self.returns.bytes()
    }

    /// The weights' pool and the entered context: disjoint borrows, which the methods below need at once.
    fn weights(&mut self) -> Result<(&mut MemPool, Entered<'_>)> {
        let entered = self.context.enter()?;
        match &mut self.weights {
            Some(pool) => Ok((pool, entered)),
            None => Err(no_budget()),
        }
    }

    /// Refuses memory that is neither a weight's, nor an input that was lent, nor an activation's.
    fn check_any(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        let weights = self.weights.as_ref();
        let pooled = weights.is_some_and(|pool| pool.covers(ptr, len));
        let mapped = self.is_mapped(ptr, len) || self.is_in_place(ptr, len);
        let beside = mapped || self.lasting.cover(ptr, len);
        match pooled || beside || self.is_lent(ptr, len) {
            true => Ok(()),
            false => self.activations.check_target(ptr, len),
        }
    }

    /// Whether it is host memory that kernels read in place.
    fn is_in_place(&self, ptr: DevicePtr, len: u64) -> bool {
        let inside = |range: &Range<u64>| range.contains(&ptr.0) && len <= range.end - ptr.0;
        self.in_place.iter().any(inside)
    }

    /// The same for what is written, by anything but a copy of weights.
    fn check_written(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        if let Some(pages) = &self.pages {
            pages.table.check_written(self.context.name(), ptr, len)?;
        }
        if self.is_in_place(ptr, 0) {
            return Err(Error::Internal(format!(
                "{} {:#x} is host memory that kernels read in place: nothing writes there",
                self.context.name(),
                ptr.0
            )));
        }
        self.check_any(ptr, len)
    }
}

#[cold]
fn no_budget() -> Error {
    Error::Internal("the device was told no budget, or one of 0 bytes".to_string())
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // First: the streams wait for readers, and these would read on to the last copy that was queued.
        if let Some(stage) = &mut self.stage {
            stage.end();
        }
        let Some(entered) = self.context.enter_to_drop() else {
            return;
        };
        // Both, before anything that they may still use goes.
        log_failure(self.context.name(), self.compute.synchronize(&entered));
        log_failure(self.context.name(), self.copy.synchronize(&entered));
        if let Some(unpacking) = &self.unpacking {
            let done = unpacking.synchronize(&entered);
            log_failure(self.context.name(), done);
        }
    }
}
