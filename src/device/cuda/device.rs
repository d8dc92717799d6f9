//! The device's trait: each call checks the addresses that it is given, then goes to the pools and the streams.

use super::context::Entered;
use super::graph::Graph;
use super::pinned::Pinned;
use super::pool::MemPool;
use super::stage::Stage;
use super::stream::{CudaEvent, Events, Stream};
use super::unpack::{Issue, Unpacking};
use super::{no_budget, CudaDevice, CudaPages, BYTES_PER_COPY, GRANULE};
use crate::device::{
    Device, DeviceBytes, DevicePtr, HostBytes, HostRoom, Pages, Source, NODE_BYTES,
};
use crate::error::{Error, Result};
use crate::figures::Link;
use std::ffi::c_void;
use std::sync::Arc;

impl CudaDevice {
    /// Starts a copy of weights, from wherever they are kept.
    ///
    /// # Safety
    /// `dst` is device memory of at least `src.len()` bytes, until the copy is done.
    unsafe fn issue_copy(
        &self,
        dst: DevicePtr,
        src: HostBytes,
        stream: &Stream,
        entered: &Entered<'_>,
    ) -> Result<()> {
        // Beside staged files there may be weights that are kept in memory.
        let staged = |one: &&Stage| !self.keeps_memory || one.has(src);
        if let Some(stage) = self.stage.as_ref().filter(staged) {
            // SAFETY: by the caller's promise.
            return unsafe { stage.copy_in(dst, src, stream, entered) };
        }
        let mut to = dst;
        for piece in self.edges.pieces(src) {
            // SAFETY: by the caller's promise: the pieces are as long as `src`.
            unsafe { stream.copy_in(to, piece, entered) }?;
            to = to.offset(piece.len());
        }
        Ok(())
    }
}

impl CudaDevice {
    /// Starts to bring a weight, or a part of it.
    ///
    /// # Safety
    /// `dst` is device memory of at least `src.len()` bytes, up to a whole granule where the weight ends, until everything issued here
    /// has run.
    unsafe fn issue(&mut self, dst: DevicePtr, src: &Source) -> Result<()> {
        let context = Arc::clone(&self.context);
        let entered = context.enter()?;
        // It is put back below: while it works, the device copies.
        let mut unpacking = self.unpacking.take();
        let issued = match (src.as_stored(), &mut unpacking) {
            (Some(stored), settling) => {
                let settled = settling.as_mut().map_or(Ok(()), |unpacking| {
                    unpacking.settle(dst, stored.len(), &self.copy, &entered)
                });
                // SAFETY: by the caller's promise.
                settled.and_then(|()| unsafe { self.issue_copy(dst, stored, &self.copy, &entered) })
            }
            (None, Some(unpacking)) => {
                // SAFETY: `bring` gives slots of the ring, with room for what it has copied there.
                let copy_in = |at, stored, stream: &Stream| unsafe {
                    self.issue_copy(at, stored, stream, &entered)
                };
                let issue = self.issuing(&entered);
                // SAFETY: by the caller's promise.
                unsafe { unpacking.bring(dst, src, &issue, copy_in) }
            }
            (None, None) => Err(Error::Internal(format!(
                "{}: a weight is to be decoded, and there is no memory for that",
                self.context.name()
            ))),
        };
        self.unpacking = unpacking;
        issued
    }

    /// Copies from staged files are counted in the order of one stream.
    pub(super) fn issuing<'a>(&'a self, entered: &'a Entered<'a>) -> Issue<'a> {
        Issue {
            copy: &self.copy,
            one_stream: self.stage.is_some(),
            events: &self.events,
            entered,
        }
    }

    /// Memory is about to be freed in the order of the copies.
    fn settle(&mut self, at: DevicePtr, bytes: u64) -> Result<()> {
        let Some(unpacking) = &mut self.unpacking else {
            return Ok(());
        };
        unpacking.settle(at, bytes, &self.copy, &self.context.enter()?)
    }
}

impl Device for CudaDevice {
    type Event = CudaEvent;
    type Graph = Graph;
    type Pages = CudaPages;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn granule(&self) -> u64 {
        GRANULE
    }

    fn bytes_per_copy(&self) -> u64 {
        self.link
            .map_or(BYTES_PER_COPY, |link| link.bytes_per_copy())
    }

    fn calibrate(&mut self, source: HostBytes) -> Result<Option<Link>> {
        if self.times_link && self.link.is_none() {
            self.link = self.found_link(source)?;
        }
        Ok(self.link)
    }

    fn times_kernels(&self) -> bool {
        super::marks::tell_times()
    }

    fn mark(&mut self) -> Result<()> {
        self.not_while_captured("a mark")?;
        self.marks.add(&self.compute, &self.context.enter()?)
    }

    fn take_marks(&mut self) -> Result<Vec<u64>> {
        self.marks.take(&self.context.enter()?)
    }

    fn set_budget(&mut self, bytes: u64) -> Result<()> {
        if let Some(pool) = &mut self.weights {
            return pool.set_cap(bytes);
        }
        // A maximum of 0 bytes would mean none to the driver.
        if bytes > 0 {
            let entered = self.context.enter()?;
            self.weights = Some(MemPool::new(&self.copy, "weights", Some(bytes), &entered)?);
        }
        Ok(())
    }

    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        let (pool, entered) = self.weights()?;
        pool.alloc(bytes, &entered)
    }

    fn alloc_lasting(&mut self, bytes: u64) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        let entered = self.context.enter()?;
        let pool = self.weights.as_mut().ok_or_else(no_budget)?;
        pool.count(bytes)?;
        let taken = self.lasting.alloc(&self.context, bytes, &entered);
        taken.inspect_err(|_| pool.discount(bytes))
    }

    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.settle(ptr, bytes)?;
        let (pool, entered) = self.weights()?;
        pool.free(ptr, bytes, &entered)
    }

    fn page(&self) -> Option<u64> {
        self.pages.as_ref().map(Pages::page)
    }

    fn pages(&mut self) -> Option<&mut CudaPages> {
        self.pages.as_mut()
    }

    fn in_place(&mut self, bytes: HostBytes) -> Result<Option<DevicePtr>> {
        let entered = self.context.enter()?;
        let pinned = self.pinned.iter().map(Pinned::registration);
        let mut all = self.registrations().chain(pinned);
        let found = all.find_map(|one| one.device_address(bytes, &entered).transpose());
        drop(all);
        if let Some(start) = found.transpose()? {
            self.in_place.push(start..start + bytes.len());
            return Ok(Some(DevicePtr(start)));
        }
        drop(entered);
        let copied = self.kept_in_place(bytes)?;
        let range = copied.map(|start| start.0..start.0 + bytes.len());
        self.in_place.extend(range);
        Ok(copied)
    }

    fn tidy_up(&mut self) -> Result<()> {
        let (pool, entered) = self.weights()?;
        pool.rescue(&entered)
    }

    fn alloc_scratch(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.activations.alloc(bytes, &self.context.enter()?)
    }

    fn free_scratch(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.activations.free(ptr, bytes, &self.context.enter()?)
    }

    fn upload(&mut self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        self.not_while_captured("an upload from the host")?;
        self.check_written(dst, src.len() as u64)?;
        // SAFETY: just checked.
        unsafe { self.compute.upload(dst, src, &self.context.enter()?) }
    }

    fn download(&mut self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        self.not_while_captured("a read of values by the host")?;
        self.check_any(src, dst.len() as u64)?;
        // SAFETY: just checked.
        unsafe { self.compute.download(src, dst, &self.context.enter()?) }?;
        // What was computed from bytes that could not be read is no result.
        self.check_stage()
    }

    fn download_out(&mut self, src: DevicePtr, dst: HostRoom) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        self.not_while_captured("a read of values by the host")?;
        self.check_any(src, dst.len() as u64)?;
        let entered = self.context.enter()?;
        // SAFETY: just checked; freed in stream order, so it is there until the copy ran.
        let left = unsafe { self.returns.queue(src, dst, &self.compute, &entered) }?;
        drop(entered);
        left.map_or(Ok(()), |mut dst| self.download(src, dst.bytes()))
    }

    fn copy_across(&mut self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_written(dst, bytes)?;
        self.check_any(src, bytes)?;
        let entered = self.context.enter()?;
        // SAFETY: both were just checked. Memory is freed in stream order, so it is there until the copy ran.
        unsafe { self.compute.copy_across(dst, src, bytes, &entered) }
    }

    fn zero(&mut self, dst: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_written(dst, bytes)?;
        // SAFETY: just checked; freed in stream order, so it is there until it was written.
        unsafe { self.compute.zero(dst, bytes, &self.context.enter()?) }
    }

    fn copy_to_caller(&mut self, dst: DeviceBytes, src: DevicePtr) -> Result<()> {
        self.copy_out(dst, src)
    }

    fn upload_to_caller(&mut self, dst: DeviceBytes, src: &[u8]) -> Result<()> {
        self.upload_out(dst, src)
    }

    fn native_stream(&self) -> *mut c_void {
        self.compute_stream()
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.start_capture()
    }

    fn end_capture(&mut self) -> Result<Graph> {
        self.stop_capture()
    }

    fn abandon_capture(&mut self) -> Result<()> {
        self.drop_capture()
    }

    fn replay(&mut self, graph: &Graph) -> Result<()> {
        self.launch_graph(graph)
    }

    fn graph_bytes(&self, graph: &Graph) -> u64 {
        graph.nodes() * NODE_BYTES
    }

    fn graphs_taken(&self) -> Option<u64> {
        Some(self.capture.device.bytes())
    }

    fn trim_scratch(&mut self) -> Result<()> {
        self.activations.rescue(&self.context.enter()?)
    }

    fn finish_compute(&mut self) -> Result<()> {
        self.not_while_captured("a wait for kernels")?;
        let waited = self.compute.synchronize(&self.context.enter()?);
        match waited.and_then(|()| self.check_stage()) {
            Ok(()) => {
                self.returns.deliver();
                Ok(())
            }
            Err(error) => {
                self.returns.forget();
                Err(error)
            }
        }
    }

    fn is_lost(&self) -> bool {
        let entered = self.context.enter();
        entered.map_or(true, |entered| self.compute.is_lost(&entered))
    }

    fn source_changed(&mut self, src: HostBytes) {
        self.keep_again(src);
    }

    fn decode_in(&mut self, at: DevicePtr, bytes: u64, sources: &[Source]) -> Result<()> {
        self.check_written(at, bytes)?;
        let entered = self.context.enter()?;
        // Its memory was taken in the order of the copies, and other streams use it.
        self.copy.synchronize(&entered)?;
        let unpacking = Unpacking::new(&self.context, (at, bytes), sources, &entered)?;
        self.unpacking = Some(unpacking);
        Ok(())
    }

    fn bring(&mut self, dst: DevicePtr, src: impl Into<Source>) -> Result<()> {
        let src = src.into();
        if src.is_empty() {
            return Ok(());
        }
        let pages = self.pages.as_ref();
        if let Some(parts) = pages.and_then(|pages| pages.table.targets(dst, src.len())) {
            for (dst, part) in parts? {
                // SAFETY: the addresses have memory in whole pages, by the table, and are unmapped after a wait for their events.
                unsafe { self.issue(dst, &src.part(part)) }?;
            }
            return Ok(());
        }
        if !self.lasting.cover(dst, src.len()) {
            let pool = self.weights.as_ref().ok_or_else(no_budget)?;
            pool.check_target(dst, src.len())?;
        }
        // SAFETY: just checked, and blocks come in whole granules; freed in the order of the same stream, behind what still decodes, so it
        // is there until everything ran.
        unsafe { self.issue(dst, &src) }
    }

    fn copies_across(&self, src: HostBytes) -> bool {
        let start = src.as_ptr() as usize;
        let pinned = self.pinned.iter().any(|one| one.begins_at(start));
        let registered = self.registrations().any(|one| one.begins_at(start));
        let callers = { self.pinned_by_caller.iter() }.any(|one| one.as_ptr().addr() == start);
        let staged = { self.stage.iter() }.any(|stage| stage.begins_at(start));
        !pinned && !registered && !callers && !staged && !self.edges.begins_at(start)
    }

    fn record_compute(&mut self) -> Result<CudaEvent> {
        record(&self.events, &self.compute, &self.context.enter()?)
    }

    fn copy_wait(&mut self, event: &CudaEvent) -> Result<()> {
        self.copy.wait(event, &self.context.enter()?)
    }

    fn record_copy(&mut self) -> Result<CudaEvent> {
        let entered = self.context.enter()?;
        let copied = record(&self.events, &self.copy, &entered)?;
        let Some(unpacking) = &self.unpacking else {
            return Ok(copied);
        };
        unpacking.record_behind(&copied, &self.events, &entered)
    }

    fn compute_wait(&mut self, event: &CudaEvent) -> Result<()> {
        self.compute.wait(event, &self.context.enter()?)
    }

    fn is_done(&self, event: &CudaEvent) -> Result<bool> {
        event.is_done(&self.context.enter()?)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.not_while_captured("a wait for the device")?;
        let entered = self.context.enter()?;
        self.copy.synchronize(&entered)?;
        if let Some(unpacking) = &self.unpacking {
            unpacking.synchronize(&entered)?;
        }
        self.compute.synchronize(&entered)?;
        self.check_stage()
    }
}

fn record(events: &Arc<Events>, stream: &Stream, entered: &Entered<'_>) -> Result<CudaEvent> {
    let event = events.take(entered)?;
    stream.record(&event, entered)?;
    Ok(event)
}
