//! For tests: a device around another one, that fails one call, or delivers one copy with a bit flipped, and
//! counts what is alive.

mod faults;

use std::ffi::c_void;

pub use faults::{Fault, Faults, FaultyEvent, FaultyMemory, LiveCounts};

use super::{
    pages_of, Device, DeviceBytes, DevicePtr, HostAccess, HostBytes, HostRoom, HostSource,
    HostStorage, Link, MemoryOf, PageAccess, Pages, Purpose, Source, WeightDevice,
};
use crate::error::Result;
use crate::figures::DeviceId;

/// A device around another one. The order of the fields is the order in which they end.
pub struct Faulty<D> {
    pub(crate) inner: D,
    pub(crate) faults: Faults,
    /// What was copied with a bit flipped; the inner device may read it until it ends.
    flipped: Vec<Box<[u8]>>,
    /// The constant of the inner device's pages.
    unit: u64,
}

impl<D> Faulty<D> {
    /// Puts `faults` around `inner`.
    pub fn new(inner: D, faults: &Faults) -> Faulty<D> {
        faults.state().live.devices += 1;
        Faulty {
            inner,
            faults: faults.clone(),
            flipped: Vec::new(),
            unit: 0,
        }
    }

    fn flip(&mut self, src: HostBytes) -> HostBytes {
        // SAFETY: a HostBytes is readable for its length as long as the device that it was handed to lives.
        let bytes = unsafe { std::slice::from_raw_parts(src.as_ptr(), src.len() as usize) };
        let mut bytes: Box<[u8]> = bytes.into();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x40;
        // SAFETY: kept until the inner device has ended, by the order of the fields; a box that is moved leaves its
        // bytes in place.
        let flipped = unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) };
        self.flipped.push(bytes);
        flipped
    }
}

impl<D> Drop for Faulty<D> {
    fn drop(&mut self) {
        // The inner one frees all its memory when it ends, which is right after this.
        let live = &mut self.faults.state().live;
        live.devices -= 1;
        (live.bytes, live.scratch_bytes) = (0, 0);
    }
}

impl<D: Device> Device for Faulty<D> {
    type Event = FaultyEvent<D::Event>;
    type Graph = D::Graph;
    type Pages = Self;

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn granule(&self) -> u64 {
        self.inner.granule()
    }

    fn set_budget(&mut self, bytes: u64) -> Result<()> {
        self.faults.take("set_budget", "weights", bytes)?;
        self.inner.set_budget(bytes)
    }

    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.faults.take("alloc", "weights", bytes)?;
        let ptr = self.inner.alloc(bytes)?;
        self.faults.state().live.bytes += bytes;
        Ok(ptr)
    }

    fn alloc_lasting(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.faults.take("alloc_lasting", "weights", bytes)?;
        let ptr = self.inner.alloc_lasting(bytes)?;
        self.faults.state().live.bytes += bytes;
        Ok(ptr)
    }

    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.faults.call("free")?;
        self.inner.free(ptr, bytes)?;
        self.faults.state().live.bytes -= bytes;
        Ok(())
    }

    fn prefers_one_block(&self) -> bool {
        self.inner.prefers_one_block()
    }

    fn discard(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.faults.call("discard")?;
        self.inner.discard(ptr, bytes)
    }

    fn bytes_per_copy(&self) -> u64 {
        self.inner.bytes_per_copy()
    }

    fn calibrate(&mut self, source: HostBytes) -> Result<Option<Link>> {
        self.faults.call("calibrate")?;
        self.inner.calibrate(source)
    }

    fn times_kernels(&self) -> bool {
        self.inner.times_kernels()
    }

    fn mark(&mut self) -> Result<()> {
        self.faults.call("mark")?;
        self.inner.mark()
    }

    fn take_marks(&mut self) -> Result<Vec<u64>> {
        self.faults.call("take_marks")?;
        self.inner.take_marks()
    }

    fn page(&self) -> Option<u64> {
        self.inner.page()
    }

    fn pages(&mut self) -> Option<&mut Self> {
        let inner = self.inner.pages()?;
        self.unit = inner.unit();
        Some(self)
    }

    fn in_place(&mut self, bytes: HostBytes) -> Result<Option<DevicePtr>> {
        self.faults.call("in_place")?;
        self.inner.in_place(bytes)
    }

    fn tidy_up(&mut self) -> Result<()> {
        self.faults.call("tidy_up")?;
        self.inner.tidy_up()
    }

    fn alloc_scratch(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.faults.take("alloc_scratch", "an activation", bytes)?;
        let ptr = self.inner.alloc_scratch(bytes)?;
        self.faults.state().live.scratch_bytes += bytes;
        Ok(ptr)
    }

    fn free_scratch(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.faults.call("free_scratch")?;
        self.inner.free_scratch(ptr, bytes)?;
        self.faults.state().live.scratch_bytes -= bytes;
        Ok(())
    }

    fn upload(&mut self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        self.faults.call("upload")?;
        self.inner.upload(dst, src)
    }

    fn download(&mut self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        self.faults.call("download")?;
        self.inner.download(src, dst)
    }

    fn download_out(&mut self, src: DevicePtr, dst: HostRoom) -> Result<()> {
        self.faults.call("download")?;
        self.inner.download_out(src, dst)
    }

    fn copy_across(&mut self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        self.faults.call("copy_across")?;
        self.inner.copy_across(dst, src, bytes)
    }

    fn zero(&mut self, dst: DevicePtr, bytes: u64) -> Result<()> {
        self.faults.call("zero")?;
        self.inner.zero(dst, bytes)
    }

    fn copy_to_caller(&mut self, dst: DeviceBytes, src: DevicePtr) -> Result<()> {
        self.faults.call("copy_to_caller")?;
        self.inner.copy_to_caller(dst, src)
    }

    fn upload_to_caller(&mut self, dst: DeviceBytes, src: &[u8]) -> Result<()> {
        self.faults.call("upload_to_caller")?;
        self.inner.upload_to_caller(dst, src)
    }

    fn native_stream(&self) -> *mut c_void {
        self.inner.native_stream()
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.faults.call("begin_capture")?;
        self.inner.begin_capture()
    }

    fn end_capture(&mut self) -> Result<D::Graph> {
        let failed = self.faults.call("end_capture");
        let graph = self.inner.end_capture();
        failed.and(graph)
    }

    fn abandon_capture(&mut self) -> Result<()> {
        let failed = self.faults.call("abandon_capture");
        self.inner.abandon_capture().and(failed)
    }

    fn replay(&mut self, graph: &D::Graph) -> Result<()> {
        self.faults.call("replay")?;
        self.inner.replay(graph)
    }

    fn graph_bytes(&self, graph: &D::Graph) -> u64 {
        self.inner.graph_bytes(graph)
    }

    fn graphs_taken(&self) -> Option<u64> {
        self.inner.graphs_taken()
    }

    fn trim_scratch(&mut self) -> Result<()> {
        self.faults.call("trim_scratch")?;
        self.inner.trim_scratch()
    }

    fn finish_compute(&mut self) -> Result<()> {
        self.faults.call("finish_compute")?;
        self.inner.finish_compute()
    }

    fn is_lost(&self) -> bool {
        self.faults.is_lost() || self.inner.is_lost()
    }

    fn source_changed(&mut self, src: HostBytes) {
        self.inner.source_changed(src);
    }

    fn decode_in(&mut self, at: DevicePtr, bytes: u64, sources: &[Source]) -> Result<()> {
        self.inner.decode_in(at, bytes, sources)
    }

    fn bring(&mut self, dst: DevicePtr, src: impl Into<Source>) -> Result<()> {
        let src = src.into();
        self.faults.call("bring")?;
        let src = match self.faults.flips_this_copy() && !src.is_empty() {
            true => src.as_stored().map_or(src, |bytes| self.flip(bytes).into()),
            false => src,
        };
        self.inner.bring(dst, src)
    }

    fn copies_across(&self, src: HostBytes) -> bool {
        self.inner.copies_across(src)
    }

    fn record_compute(&mut self) -> Result<Self::Event> {
        self.faults.call("record_compute")?;
        let event = self.inner.record_compute()?;
        Ok(self.faults.event(event))
    }

    fn copy_wait(&mut self, event: &Self::Event) -> Result<()> {
        self.faults.call("copy_wait")?;
        self.inner.copy_wait(&event.inner)
    }

    fn record_copy(&mut self) -> Result<Self::Event> {
        self.faults.call("record_copy")?;
        let event = self.inner.record_copy()?;
        Ok(self.faults.event(event))
    }

    fn compute_wait(&mut self, event: &Self::Event) -> Result<()> {
        self.faults.call("compute_wait")?;
        self.inner.compute_wait(&event.inner)
    }

    fn is_done(&self, event: &Self::Event) -> Result<bool> {
        self.faults.call("is_done")?;
        self.inner.is_done(&event.inner)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.faults.call("synchronize")?;
        self.inner.synchronize()
    }
}

impl<D: Device> Pages for Faulty<D> {
    type Memory = FaultyMemory<MemoryOf<D>>;

    fn page(&self) -> u64 {
        self.inner.page().unwrap_or(1)
    }

    fn unit(&self) -> u64 {
        self.unit
    }

    fn total_bytes(&mut self) -> Result<u64> {
        pages_of(&mut self.inner)?.total_bytes()
    }

    fn reserve(&mut self, bytes: u64, purpose: Purpose) -> Result<DevicePtr> {
        self.faults.call("reserve")?;
        pages_of(&mut self.inner)?.reserve(bytes, purpose)
    }

    fn release(&mut self, start: DevicePtr) -> Result<()> {
        self.faults.call("release")?;
        pages_of(&mut self.inner)?.release(start)
    }

    fn create(&mut self, sizes: &[u64], purpose: Purpose) -> Result<Vec<Self::Memory>> {
        let whole = sizes.iter().sum();
        self.faults.take("create", purpose.name(), whole)?;
        let made = pages_of(&mut self.inner)?.create(sizes, purpose)?;
        let counted = |(memory, bytes): (_, &u64)| self.faults.memory(memory, *bytes, purpose);
        Ok(made.into_iter().zip(sizes).map(counted).collect())
    }

    fn map(&mut self, at: DevicePtr, memory: &Self::Memory) -> Result<()> {
        self.faults.call("map")?;
        pages_of(&mut self.inner)?.map(at, &memory.inner)
    }

    fn allow(&mut self, at: DevicePtr, bytes: u64, access: PageAccess) -> Result<()> {
        self.faults.call("allow")?;
        pages_of(&mut self.inner)?.allow(at, bytes, access)
    }

    fn unmap(&mut self, at: DevicePtr) -> Result<()> {
        self.faults.call("unmap")?;
        pages_of(&mut self.inner)?.unmap(at)
    }
}

impl<D: WeightDevice> WeightDevice for Faulty<D> {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn full_name(&self) -> String {
        self.inner.full_name()
    }

    fn free_bytes(&self) -> Result<u64> {
        self.faults.call("free_bytes")?;
        self.inner.free_bytes()
    }

    fn host_access(&self) -> Result<Option<HostAccess>> {
        self.faults.call("host_access")?;
        self.inner.host_access()
    }

    fn prepare_source(&mut self, source: HostSource, held: HostStorage) -> Result<Vec<HostBytes>> {
        self.faults.call("prepare_source")?;
        self.inner.prepare_source(source, held)
    }

    fn host_bytes(&self) -> (u64, u64) {
        self.inner.host_bytes()
    }
}
