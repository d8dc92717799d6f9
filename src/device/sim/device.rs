//! The device's trait: every call is counted and may fail, every access is checked when it is issued.

use super::clock::{Access, Actor, What};
use super::graph::{Call, SimGraph};
use super::streams::Op;
use super::{space, stray, Issued, Sim, SimEvent};
use crate::device::{Device, DevicePtr, HostBytes, HostRoom, Source, NODE_BYTES};
use crate::error::{Error, Result};
use crate::figures::Link;
use std::ops::Range;

const GRANULE: u64 = 64;

impl Sim {
    /// Where the first stored bytes of a source are, which the copy stream reads.
    fn kept(&mut self, src: &Source, access: Access) -> Result<Vec<Range<u64>>> {
        let Some((at, bytes)) = src.kept() else {
            return Ok(Vec::new());
        };
        let memory = self.of_weights(at, bytes)?;
        for range in &memory {
            self.reads(range.clone(), access);
        }
        Ok(memory)
    }
}

impl Device for Sim {
    type Event = SimEvent;
    type Graph = SimGraph;
    type Pages = Sim;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn granule(&self) -> u64 {
        GRANULE
    }

    fn bytes_per_copy(&self) -> u64 {
        match self.link {
            (Some(link), true) => link.bytes_per_copy(),
            _ => 0,
        }
    }

    fn calibrate(&mut self, _source: HostBytes) -> Result<Option<Link>> {
        self.call("calibrate")?;
        self.link.1 = true;
        Ok(self.link.0)
    }

    fn times_kernels(&self) -> bool {
        self.times.is_some()
    }

    fn mark(&mut self) -> Result<()> {
        self.call("mark")?;
        self.marks += 1;
        Ok(())
    }

    fn take_marks(&mut self) -> Result<Vec<u64>> {
        self.call("take_marks")?;
        let spans = std::mem::take(&mut self.marks).saturating_sub(1);
        let times = self.times.iter().flatten().copied();
        Ok(times.chain(std::iter::repeat(0)).take(spans).collect())
    }

    fn set_budget(&mut self, bytes: u64) -> Result<()> {
        self.call("set_budget")?;
        self.budget = Some(bytes);
        self.allowance = self.live_bytes();
        Ok(())
    }

    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.call("alloc")?;
        self.graphs.refuse("an allocation")?;
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        if !bytes.is_multiple_of(GRANULE) {
            return Err(Error::Internal(format!(
                "{bytes} bytes asked for, which is no multiple of {GRANULE}"
            )));
        }
        self.take("a weight", bytes)
    }

    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.call("free")?;
        self.graphs.refuse("giving memory back")?;
        if bytes > 0 {
            if self.is_hidden(ptr) {
                return Err(stray(ptr, bytes));
            }
            let range = self.weights.give(ptr, bytes)?;
            self.lose(Actor::Copy, What::Free, ptr, vec![range]);
        }
        Ok(())
    }

    /// Addresses of their own, that hold the bytes before any kernel that is issued later.
    fn in_place(&mut self, bytes: HostBytes) -> Result<Option<DevicePtr>> {
        let size = bytes.len().next_multiple_of(GRANULE);
        let ptr = self.alloc_scratch(size)?;
        self.in_place += size;
        self.upload(ptr, space::read(&bytes))?;
        Ok(Some(ptr))
    }

    fn prefers_one_block(&self) -> bool {
        self.one_block
    }

    fn discard(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.call("discard")?;
        if self.graphs.keep(|| Call::Discard(ptr, bytes)) {
            return Ok(());
        }
        if bytes > 0 {
            let memory = self.of_weights(ptr, bytes)?;
            self.lose(Actor::Copy, What::Discard, ptr, memory);
        }
        Ok(())
    }

    fn page(&self) -> Option<u64> {
        self.page
    }

    fn pages(&mut self) -> Option<&mut Sim> {
        self.page.is_some().then_some(self)
    }

    fn tidy_up(&mut self) -> Result<()> {
        self.call("tidy_up")
    }

    fn alloc_scratch(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.call("alloc_scratch")?;
        self.graphs.refuse("an allocation")?;
        match bytes {
            0 => Ok(DevicePtr::EMPTY),
            _ => self.scratch.take("an activation", bytes),
        }
    }

    fn free_scratch(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.call("free_scratch")?;
        self.graphs.refuse("giving memory back")?;
        if bytes > 0 {
            let range = self.scratch.give(ptr, bytes)?;
            self.lose(Actor::Compute, What::Free, ptr, vec![range]);
        }
        Ok(())
    }

    fn upload(&mut self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        self.call("upload")?;
        self.graphs.refuse("an upload from the host")?;
        if !src.is_empty() {
            let memory = self.written(dst, src.len() as u64)?;
            let op = Op::Upload(memory.clone(), src.to_vec());
            self.write_on_compute(&memory, What::Upload, op);
        }
        Ok(())
    }

    fn download(&mut self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        self.call("download")?;
        self.graphs.refuse("a read of values by the host")?;
        if dst.is_empty() {
            return Ok(());
        }
        let memory = self.read_back(src, dst.len() as u64)?;
        self.compute.push(Op::Download(memory));
        self.block_until_compute_did(self.compute.issued)?;
        self.learn(&self.compute.clock);
        dst.copy_from_slice(&self.fetched);
        Ok(())
    }

    fn download_out(&mut self, src: DevicePtr, dst: HostRoom) -> Result<()> {
        self.call("download")?;
        self.graphs.refuse("a read of values by the host")?;
        if !dst.is_empty() {
            let memory = self.read_back(src, dst.len() as u64)?;
            self.compute.push(Op::Return(memory, self.due.len()));
            self.due.push((Vec::new(), dst));
        }
        Ok(())
    }

    fn copy_across(&mut self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        self.call("copy_across")?;
        if self.graphs.keep(|| Call::Across(dst, src, bytes)) {
            return Ok(());
        }
        if bytes > 0 {
            let from = self.anywhere(src, bytes)?;
            let to = self.written(dst, bytes)?;
            let access = self.issue(Actor::Compute, What::CopyAcross);
            self.copies(&to, &from, access);
            self.compute.push(Op::Across(to, from));
        }
        Ok(())
    }

    fn zero(&mut self, dst: DevicePtr, bytes: u64) -> Result<()> {
        self.call("zero")?;
        if self.graphs.keep(|| Call::Zero(dst, bytes)) {
            return Ok(());
        }
        if bytes > 0 {
            let memory = self.written(dst, bytes)?;
            self.write_on_compute(&memory, What::Zero, Op::Zero(memory.clone()));
        }
        Ok(())
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.call("begin_capture")?;
        self.start_capture()
    }

    fn end_capture(&mut self) -> Result<SimGraph> {
        let failed = self.call("end_capture");
        let graph = self.stop_capture();
        failed.and(graph)
    }

    fn abandon_capture(&mut self) -> Result<()> {
        let failed = self.call("abandon_capture");
        self.stop_capture().and(failed)
    }

    fn replay(&mut self, graph: &SimGraph) -> Result<()> {
        self.call("replay")?;
        self.play_graph(graph)
    }

    fn graph_bytes(&self, graph: &SimGraph) -> u64 {
        graph.nodes() * NODE_BYTES
    }

    fn graphs_taken(&self) -> Option<u64> {
        self.graphs.live.taken()
    }

    fn finish_compute(&mut self) -> Result<()> {
        self.call("finish_compute")?;
        self.graphs.refuse("a wait for kernels")?;
        self.block_until_compute_did(self.compute.issued)?;
        self.learn(&self.compute.clock);
        for (bytes, mut room) in self.due.drain(..) {
            room.bytes().copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn bring(&mut self, dst: DevicePtr, src: impl Into<Source>) -> Result<()> {
        let src = src.into();
        self.call("bring")?;
        if self.graphs.keep(|| Call::Copy(dst, src.clone())) {
            return Ok(());
        }
        if src.is_empty() {
            return Ok(());
        }
        // Where kernels only read it is written through other addresses, which there have to be.
        let targets = self.mapped.table.targets(dst, src.len());
        targets.map_or(Ok(()), |targets| targets.map(drop))?;
        let memory = self.of_weights(dst, src.len())?;
        self.copies += 1;
        let access = self.issue(Actor::Copy, What::Copy(self.copies));
        if let Some(log) = &mut self.log {
            log.push(Issued::Copy {
                to: dst,
                from: src.stored(),
                clock: self.copy.clock,
            });
        }
        let kept = self.kept(&src, access)?;
        let mut at = 0;
        for range in memory {
            let bytes = range.end - range.start;
            self.writes(range.clone(), access, true);
            self.copy
                .push(Op::Copy(range, src.part(at..at + bytes), kept.clone()));
            at += bytes;
        }
        self.bytes_copied += src.stored_bytes();
        Ok(())
    }

    fn record_compute(&mut self) -> Result<SimEvent> {
        self.call("record_compute")?;
        Ok(self.record(Actor::Compute))
    }

    fn copy_wait(&mut self, event: &SimEvent) -> Result<()> {
        self.call("copy_wait")?;
        self.wait(Actor::Copy, event)
    }

    fn record_copy(&mut self) -> Result<SimEvent> {
        self.call("record_copy")?;
        Ok(self.record(Actor::Copy))
    }

    fn compute_wait(&mut self, event: &SimEvent) -> Result<()> {
        self.call("compute_wait")?;
        self.wait(Actor::Compute, event)
    }

    fn is_done(&self, event: &SimEvent) -> Result<bool> {
        self.call("is_done")?;
        self.graphs.refuse("a question about an event")?;
        let done = match event.stream {
            Actor::Copy => self.copy.done,
            _ => self.compute.done,
        };
        if done >= event.count {
            self.learn(&event.clock);
        }
        Ok(done >= event.count)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.call("synchronize")?;
        self.graphs.refuse("a wait for the device")?;
        self.finish_all()
    }
}
