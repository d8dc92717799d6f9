//! One trait for every device, and the ordering contract that everything above relies on.
//!
//! # Ordering contract
//! A device has two ordered streams: *compute*, on which the compiled kernels run, and *copy*, on which
//! weight bytes arrive. Nothing is ordered between them but by events.
//! - [`Device::record_compute`] marks all compute work issued so far; [`Device::copy_wait`] makes every
//!   later copy wait for it. This orders a copy after the last reader of the bytes it overwrites.
//! - [`Device::record_copy`] marks all copies issued so far; [`Device::compute_wait`] makes every later
//!   kernel wait for it. This orders a kernel after the copy of the bytes it reads.
//! - [`Device::alloc`] and [`Device::free`] act in copy-stream order: memory freed here may be handed out
//!   again at once, but only to copies issued later. [`Device::alloc_scratch`] and
//!   [`Device::free_scratch`] act in compute-stream order: the memory of activations.
//!   [`Device::upload`] and [`Device::download`] move the bytes of inputs and outputs in that order too.
//! - Bytes that a device has to read from a file may fail to arrive. The copy completes all the same, and then every
//!   call that waits for it ([`Device::finish_compute`], [`Device::download`], [`Device::synchronize`]) and every later
//!   copy is an error, so that no result can be believed. The device stays as it is: it has to be dropped.
//! - An event may be queried or waited for any number of times, and lives as long as its value.
//!
//! The callers validate; a device reports only what the caller cannot foresee: memory ([`Error::OutOfMemory`]), a lost device.
//! What would touch memory that it does not own it refuses ([`Error::Internal`]), so that nothing above needs unsafe code: an address
//! that it did not hand out, the end of a block, a block that is freed with another size or by another call. No bytes touch nothing, at
//! any address. Dropping a device ends its copies and frees all its memory.

mod address_table;
mod any_pages;
mod bytes;
pub mod caller;
pub mod cuda;
#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub mod faulty;
pub(crate) mod file;
pub mod host;
pub mod host_storage;
mod models;
mod pages;
#[cfg(feature = "sim")]
pub mod sim;
mod source;
mod weight_device;

use std::ffi::c_void;

use crate::error::{Error, Result};
use crate::figures::{DeviceModel, Link, PackedResidents};

pub use address_table::{AddressTable, Frame};
pub use any_pages::{while_captured, AnyEvent, AnyPages};
pub use bytes::{DevicePtr, HostBytes};
pub use caller::{CallerStream, DeviceBytes, HostRoom};
pub use cuda::{CudaDevice, CudaPages};
pub use file::{HostFile, HostSource};
pub use host::{HostDevice, HostPages};
pub use models::{model_of, staging_bytes};
pub use pages::{PageAccess, Pages, Purpose, UserStream, UserStreams};
#[cfg(feature = "sim")]
pub use sim::Sim;
pub use source::{BlockCode, Decode, Source};
pub use weight_device::{HostAccess, HostStorage, WeightDevice};

/// Device memory of one node of a graph: what drivers were seen to take for a kernel, of which most nodes are.
pub const NODE_BYTES: u64 = 2458;

/// Drivers take device memory for graphs in steps of so many bytes, and use the rest for later graphs.
pub const GRAPH_STEP: u64 = 2 << 20;

/// Memory, copies and ordering of one device. See the module's ordering contract.
pub trait Device: Send + 'static {
    /// A point in a stream.
    type Event: Send + Sync;

    /// What was captured between [`Device::begin_capture`] and [`Device::end_capture`]. A value: a device may have many.
    type Graph: Send;

    /// [`Infallible`](std::convert::Infallible) where memory cannot be mapped.
    type Pages: Pages;

    /// The device's name in messages and records: `cpu`, `cuda`.
    fn name(&self) -> &'static str;

    /// Allocation sizes are rounded up to this many bytes; the budget counts rounded sizes.
    fn granule(&self) -> u64;

    /// The most that [`Device::alloc`] and [`Device::pages`] will be asked to hold at one time. Told before the first
    /// allocation, and again when the budget changes. A device that keeps a cap of its own sets it here, and refuses what
    /// it can never hold.
    fn set_budget(&mut self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Reserves `bytes` (already rounded to the granule) in copy-stream order, aligned to at least 64.
    /// No bytes give [`DevicePtr::EMPTY`].
    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr>;

    /// The same for memory that stays until the device's end, and is never freed before. Where [`Device::alloc`] takes
    /// memory from the system in large units, this does not: few bytes cost few.
    fn alloc_lasting(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.alloc(bytes)
    }

    /// Gives back what [`Device::alloc`] returned, in copy-stream order.
    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()>;

    /// Whether memory for weights is best taken as one block and divided by the caller: where the device's own
    /// allocator is slow, or cannot join pieces that were freed apart.
    fn prefers_one_block(&self) -> bool {
        true
    }

    /// Bytes of allocated memory hold nothing of value any more, in copy-stream order: what was copied there
    /// before need not be kept. A device that checks its callers may destroy them.
    fn discard(&mut self, _ptr: DevicePtr, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Bytes of the device's pages, a multiple of the granule; `None` where memory cannot be mapped.
    fn page(&self) -> Option<u64> {
        None
    }

    /// The device's pages: memory that can show at several addresses, or come and go under them. Every call here takes their
    /// addresses. Where kernels only read, uploads are refused, and [`Device::bring`] writes through other addresses of the same
    /// memory ([`AddressTable::targets`]). `None` where [`Device::page`] is.
    fn pages(&mut self) -> Option<&mut Self::Pages> {
        None
    }

    /// The address at which kernels read these bytes of the host, which are never copied, as long as the device lives: only
    /// read, and to be downloaded too. `None` where kernels do not reach them.
    fn in_place(&mut self, _bytes: HostBytes) -> Result<Option<DevicePtr>> {
        Ok(None)
    }

    /// [`Device::alloc`] found no piece that is large enough: waits for the copy stream and tidies up, if
    /// that can help. Slow.
    fn tidy_up(&mut self) -> Result<()> {
        Ok(())
    }

    /// Reserves memory for an activation in compute-stream order, aligned to at least 64. Not part of
    /// the weight budget.
    fn alloc_scratch(&mut self, bytes: u64) -> Result<DevicePtr>;

    /// Gives back what [`Device::alloc_scratch`] returned, in compute-stream order.
    fn free_scratch(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()>;

    /// Copies an input to allocated memory at `dst`, in compute-stream order. `src` may be reused as soon
    /// as this returns.
    fn upload(&mut self, dst: DevicePtr, src: &[u8]) -> Result<()>;

    /// The same for bytes that this device was handed, or may be.
    fn upload_bytes(&mut self, dst: DevicePtr, src: HostBytes) -> Result<()> {
        const PIECE: u64 = 4 << 20;
        let mut at = 0;
        while at < src.len() {
            let piece = src.slice(at..(at + PIECE).min(src.len()));
            // SAFETY: readable and unchanged while a device lives that may be handed them, as `HostBytes::new` demands.
            let bytes = unsafe { std::slice::from_raw_parts(piece.as_ptr(), piece.len() as usize) };
            self.upload(dst.offset(at), bytes)?;
            at += piece.len();
        }
        Ok(())
    }

    /// Copies the bytes of allocated memory at `src` to `dst`, in compute-stream order, and returns when
    /// they are there.
    fn download(&mut self, src: DevicePtr, dst: &mut [u8]) -> Result<()>;

    /// The same to the caller's own memory. The bytes may come as late as in the next [`Device::finish_compute`], so that
    /// the thread waits once for all of them.
    fn download_out(&mut self, src: DevicePtr, mut dst: HostRoom) -> Result<()> {
        self.download(src, dst.bytes())
    }

    /// Copies allocated memory to other allocated memory, in compute-stream order.
    fn copy_across(&mut self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        let mut through = vec![0; bytes as usize];
        self.download(src, &mut through)?;
        self.upload(dst, &through)
    }

    /// Sets allocated memory to zero, in compute-stream order.
    fn zero(&mut self, dst: DevicePtr, bytes: u64) -> Result<()> {
        self.upload(dst, &vec![0; bytes as usize])
    }

    /// Copies to the whole of the caller's memory `dst`, in compute-stream order, from allocated memory at
    /// `src` or from an input of the caller's. The call that `dst` was given for must not return before
    /// [`Device::finish_compute`].
    fn copy_to_caller(&mut self, dst: DeviceBytes, _src: DevicePtr) -> Result<()> {
        Err(not_here(self.name(), dst))
    }

    /// Copies host bytes to the caller's memory `dst`, which is as long, in compute-stream order. `src` may
    /// be reused as soon as this returns.
    fn upload_to_caller(&mut self, dst: DeviceBytes, _src: &[u8]) -> Result<()> {
        Err(not_here(self.name(), dst))
    }

    /// The compute stream, for compiled code that launches kernels on it; null where there is none.
    fn native_stream(&self) -> *mut c_void {
        std::ptr::null_mut()
    }

    /// Starts a graph: from now on what is issued to both streams is kept and not run, until [`Device::end_capture`] or
    /// [`Device::abandon_capture`].
    /// Both streams must be idle. In between nothing can be uploaded, downloaded or waited for by the host, and the
    /// streams can wait for no event that was recorded before.
    fn begin_capture(&mut self) -> Result<()> {
        Err(Error::Unsupported(format!(
            "{} captures no graphs",
            self.name()
        )))
    }

    /// Ends what [`Device::begin_capture`] began, also on an error. Events recorded in between are worth nothing any more.
    fn end_capture(&mut self) -> Result<Self::Graph> {
        Err(Error::Internal("nothing is being captured".to_owned()))
    }

    /// The same, and forgets what was captured.
    fn abandon_capture(&mut self) -> Result<()> {
        Ok(())
    }

    /// Issues a graph of this device, copies and kernels, to the compute stream. It uses the addresses that it was captured
    /// with, which the caller has kept, and its copies do not wait for what was issued to the copy stream.
    fn replay(&mut self, _graph: &Self::Graph) -> Result<()> {
        Err(Error::Internal("there is no graph to replay".to_owned()))
    }

    /// Bytes of device memory that a graph takes by itself, by the number of its nodes.
    fn graph_bytes(&self, _graph: &Self::Graph) -> u64 {
        0
    }

    /// Bytes of device memory that all graphs took, as far as that was seen, and did not give back: whole steps of the driver. It
    /// may keep what graphs had that went, for later ones. `None` where nobody can tell.
    fn graphs_taken(&self) -> Option<u64> {
        None
    }

    /// Waits for the compute stream and gives memory of activations that is not in use back, where the device kept it.
    fn trim_scratch(&mut self) -> Result<()> {
        Ok(())
    }

    /// Blocks until the compute stream is idle; copies for later may go on. On `host` it always is.
    fn finish_compute(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether the device failed in such a way that nothing on it can be used any more.
    fn is_lost(&self) -> bool {
        false
    }

    /// The owner of bytes that are copied from has changed them: a device that has copied them into host memory of its own does so
    /// again. Both streams are idle.
    fn source_changed(&mut self, _src: HostBytes) {}

    /// Memory in which the device decodes what it is brought: `bytes` at `at`, the device's until it ends. Told before the first of
    /// `sources` is brought that has to be decoded, on devices that need any ([`staging_bytes`]).
    fn decode_in(&mut self, _at: DevicePtr, _bytes: u64, _sources: &[Source]) -> Result<()> {
        Ok(())
    }

    /// Starts copying to the device on the copy stream, to allocated memory at `dst`. Bytes that have to be decoded are, on the way; a
    /// device that cannot says so. They are written in whole 16 bytes.
    fn bring(&mut self, dst: DevicePtr, src: impl Into<Source>) -> Result<()>;

    /// Whether one copy may hold the bytes before `src` and `src` itself: host memory may be known to the
    /// device in parts.
    fn copies_across(&self, _src: HostBytes) -> bool {
        true
    }

    /// What a copy costs beyond its bytes, as the bytes that could be copied in that time. For plans.
    fn bytes_per_copy(&self) -> u64 {
        0
    }

    /// Tells what copies cost if it was given, or finds it out with `source`, whose bytes are ready to be copied, if that was
    /// asked for; [`Device::bytes_per_copy`] says it from then on. Before anything is allocated.
    fn calibrate(&mut self, _source: HostBytes) -> Result<Option<Link>> {
        Ok(None)
    }

    /// Whether [`Device::mark`] tells times.
    fn times_kernels(&self) -> bool {
        false
    }

    /// Notes when the compute stream comes here.
    fn mark(&mut self) -> Result<()> {
        Ok(())
    }

    /// Nanoseconds from each mark to the next one, and forgets them all. The compute stream must be idle.
    fn take_marks(&mut self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    /// What a plan needs to know, but for [`DeviceModel::apart`].
    fn model(&self) -> DeviceModel {
        DeviceModel {
            granule: self.granule(),
            page: self.page(),
            bytes_per_copy: self.bytes_per_copy(),
            apart: 0,
            whole_pages: false,
            packed: PackedResidents::Off,
        }
    }

    /// An event after all compute work issued so far.
    fn record_compute(&mut self) -> Result<Self::Event>;

    /// Later copies wait for `event` (a compute event).
    fn copy_wait(&mut self, event: &Self::Event) -> Result<()>;

    /// An event after all copies issued so far.
    fn record_copy(&mut self) -> Result<Self::Event>;

    /// Later kernels wait for `event` (a copy event). On `host` the calling thread is the compute
    /// stream, so this returns when the copy is done.
    fn compute_wait(&mut self, event: &Self::Event) -> Result<()>;

    /// Whether everything before `event` has completed. Never blocks.
    fn is_done(&self, event: &Self::Event) -> Result<bool>;

    /// Blocks until both streams are idle.
    fn synchronize(&mut self) -> Result<()>;
}

/// Memory of a device's pages.
pub type MemoryOf<D> = <<D as Device>::Pages as Pages>::Memory;

/// The pages of a device that has some.
pub(crate) fn pages_of<D: Device>(device: &mut D) -> Result<&mut D::Pages> {
    let name = device.name();
    device.pages().ok_or_else(|| no_pages(name))
}

#[cold]
pub(crate) fn no_pages(name: &str) -> Error {
    Error::Unsupported(format!("{name} maps no memory at several addresses"))
}

/// Refuses memory of a GPU on a device of another kind, called `name`.
pub fn not_here(name: &str, bytes: DeviceBytes) -> Error {
    Error::InvalidInput(format!(
        "its memory is on cuda:{}, and this method was exported for the device '{name}'; give it host memory",
        bytes.index()
    ))
}
