//! What the compiled code calls during a pass. A probe that hits is the hot path: no allocation, no hashing, no lock,
//! everything indexed by probe id.

use std::ffi::c_void;

use super::graphs::PassGraphs;
use super::timing::Timing;
use super::{Pass, Session};
use crate::aoti::hooks::{PassHooks, ProbeLayout};
use crate::device::{Device, DeviceBytes, DevicePtr, HostRoom};
use crate::error::{Error, Result};
use crate::residency::Served;
use crate::schedule::{Event, ProbeId, WeightIndex};
use crate::store::Store;

impl<D: Device> PassHooks for Session<D> {
    fn probe(&mut self, id: i64) -> Result<DevicePtr> {
        let mut on = self.playing();
        on.check_running()?;
        on.serve(id)
            .inspect_err(|error| on.pass.fail(error.clone()))
    }

    fn probe_layout(&self, id: i64) -> Result<ProbeLayout<'_>> {
        let layout = self.pass().probes.layout(id);
        layout.ok_or_else(|| Error::Internal(format!("no layout of probe {id}")))
    }

    fn release(&mut self, id: i64) {
        let mut on = self.playing();
        if !on.pass.close_lease(id) {
            let name = on.pass.method().probe_name(on.store.constants(), id);
            return on.pass.keep(Error::Internal(format!(
                "a lease of probe {name} ended twice"
            )));
        }
        if on.pass.running && on.pass.failed.is_none() {
            // rule: lease-end-waits-for-its-kernel
            on.pass.failed = on.wait_if_asked().err();
        }
        on.end_lease(id as ProbeId);
    }

    fn alloc_activation(&mut self, bytes: u64) -> Result<DevicePtr> {
        let ptr = self.take_activation(bytes);
        let ptr = ptr.map_err(|error| activation("taking", bytes, error))?;
        self.pass_mut().activations.take(bytes);
        Ok(ptr)
    }

    fn free_activation(&mut self, ptr: DevicePtr, bytes: u64) {
        let device = &mut self.store.device;
        let freed = match &mut self.graphs {
            None => device.free_scratch(ptr, bytes),
            Some(graphs) => graphs.scratch.free(device, ptr, bytes),
        };
        let pass = self.pass_mut();
        match freed {
            Ok(()) => pass.activations.now -= bytes,
            Err(error) => pass.keep(activation("giving back", bytes, error)),
        }
    }

    fn stream(&self) -> *mut c_void {
        self.device().native_stream()
    }

    fn copy_on_device(&mut self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        let copied = self.device_mut().copy_across(dst, src, bytes);
        copied.map_err(|error| activation("copying", bytes, error))
    }

    fn zero_on_device(&mut self, dst: DevicePtr, bytes: u64) -> Result<()> {
        let filled = self.device_mut().zero(dst, bytes);
        filled.map_err(|error| activation("filling", bytes, error))
    }

    fn read_from_device(&mut self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        self.device_mut().download(src, dst)
    }

    fn read_for_caller(&mut self, src: DevicePtr, dst: HostRoom) -> Result<()> {
        self.device_mut().download_out(src, dst)
    }

    fn copy_to_caller(&mut self, dst: DeviceBytes, src: DevicePtr) -> Result<()> {
        self.device_mut().copy_to_caller(dst, src)
    }

    fn upload_to_caller(&mut self, dst: DeviceBytes, src: &[u8]) -> Result<()> {
        self.device_mut().upload_to_caller(dst, src)
    }
}

impl<D: Device> Session<D> {
    /// Memory for an activation. Where there is none, others are asked for it as long as they give some.
    fn take_activation(&mut self, bytes: u64) -> Result<DevicePtr> {
        loop {
            let device = &mut self.store.device;
            let taken = match &mut self.graphs {
                None => device.alloc_scratch(bytes),
                Some(graphs) => graphs.scratch.alloc(device, bytes),
            };
            match taken {
                Err(Error::OutOfMemory { .. }) if self.others_give(bytes) => {}
                taken => return taken,
            }
        }
    }

    #[cold]
    fn others_give(&mut self, bytes: u64) -> bool {
        // What a graph has captured uses the memory that it found.
        let captured = { self.graphs.as_ref() }.is_some_and(PassGraphs::is_capturing);
        match &mut self.when_full {
            Some(ask) if !captured => ask(bytes) > 0,
            _ => false,
        }
    }
}

#[cold]
fn activation(doing: &str, bytes: u64, error: Error) -> Error {
    error.during(|| format!("{doing} an activation of {bytes} bytes"))
}

/// What a probe and a release use. It is found once for each of them: between two probes every cache line counts.
pub(super) struct Playing<'a, D: Device> {
    /// Of the method whose turn it is.
    pub pass: &'a mut Pass,
    pub store: &'a mut Store<D>,
    pub timing: &'a mut Timing,
    graphs: &'a Option<PassGraphs<D>>,
}

impl<D: Device> Session<D> {
    #[inline]
    pub(super) fn playing(&mut self) -> Playing<'_, D> {
        Playing {
            pass: &mut self.passes[self.method],
            store: &mut self.store,
            timing: &mut self.timing,
            graphs: &self.graphs,
        }
    }
}

impl<D: Device> Playing<'_, D> {
    #[inline(always)]
    fn serve(&mut self, id: i64) -> Result<DevicePtr> {
        self.wait_if_asked()?;
        // Before anything else: the address that follows is only right for this probe.
        let (method, constants) = (&self.pass.method, self.store.constants());
        let name = |id| method.probe_name(constants, id);
        // rule: probe-is-the-next-one
        let id = self.pass.follower.probe(id, name)?;
        let place = self.pass.probes.place(id);
        let (served, at) = match place {
            Some(at) => (Served::Hit, at),
            None => self.bring(id)?,
        };
        if self.store.verifies() {
            let weight = self.weight(id);
            self.store.verify_read(weight, id, at)?;
        }
        match served {
            Served::Hit => self.store.stats.hits += 1,
            Served::Miss => self.store.stats.misses += 1,
        }
        self.pass.open_lease(id);
        if place.is_none() {
            self.mark(Some(Event::Probe(id)));
            // rule: policy-hears-of-the-lease
            self.store.lease(id);
            self.look_ahead();
        }
        Ok(at)
    }

    #[inline]
    fn weight(&self, id: ProbeId) -> WeightIndex {
        self.pass.method().trace.weight(id)
    }

    /// Where weights come and go: has the weight of a read there, and says where.
    fn bring(&mut self, id: ProbeId) -> Result<(Served, DevicePtr)> {
        let served = self.store.bring(id)?;
        self.mark(None);
        let at = self.store.address(self.weight(id));
        let at = at.map_err(|error| self.lost_copy(id, error))?;
        Ok((served, at))
    }

    /// The copy of the weight of probe `id` could not be waited for.
    #[cold]
    fn lost_copy(&self, id: ProbeId, error: Error) -> Error {
        let (method, constants) = (self.pass.method(), self.store.constants());
        let name = method.probe_name(constants, i64::from(id));
        error.during(|| format!("waiting for the copy for probe {name}"))
    }

    #[inline(always)]
    fn end_lease(&mut self, id: ProbeId) {
        let stays = self.pass.probes.all_stay();
        if !stays && self.pass.running && self.pass.follower.in_tail() {
            self.pass.ended[id as usize] = true;
            if self.pass.open_leases == 0 {
                self.end_tail();
            }
            return;
        }
        let may_go = match stays {
            true => None,
            false => {
                self.mark(Some(Event::Release(id)));
                self.store.end_lease(id)
            }
        };
        if let Some(weight) = may_go {
            // rule: lease-end-leaves-an-event
            self.keep_last_read(weight);
        }
        if self.pass.running {
            // rule: releases-are-followed
            self.pass.follower.release(id);
        }
        if may_go.is_some() {
            self.use_freed();
        }
    }

    /// Ends the leases that lasted until after the last kernel, all of them in access order. The order in which the code ends
    /// them is not fixed; if it decided what is evicted first, a pass could be one that was never rehearsed.
    pub(super) fn end_tail(&mut self) {
        if self.pass.probes.all_stay() {
            return;
        }
        for at in 0..self.pass.ended.len() {
            let id = self.pass.method().trace.order()[at];
            if std::mem::take(&mut self.pass.ended[id as usize]) {
                if let Some(weight) = self.store.end_lease(id) {
                    // rule: lease-end-in-the-tail-leaves-an-event
                    self.keep_last_read(weight);
                }
            }
        }
        self.use_freed();
    }

    fn keep_last_read(&mut self, weight: WeightIndex) {
        match self.store.keep_last_read(weight) {
            Ok(()) => {}
            // Nothing that was captured happens then.
            Err(error) if self.graphs.as_ref().is_some_and(PassGraphs::is_capturing) => {
                self.pass.fail(error);
            }
            Err(error) => {
                let error = self.store.lost_last_read(weight, error);
                self.pass.keep(error);
            }
        }
    }

    /// What just became idle may be evicted for a copy. Not after a failure: the pass is being unwound.
    fn use_freed(&mut self) {
        // rule: poisoned-pass-looks-not-ahead
        if self.pass.running && self.pass.failed.is_none() && !self.store.is_poisoned() {
            self.look_ahead();
        }
    }

    /// The read that was just served is right whatever happens here, so a failure is kept, and ends the pass at its next
    /// probe.
    fn look_ahead(&mut self) {
        if let Err(error) = self.store.look_ahead() {
            self.pass.fail(error.clone());
            self.pass.keep(error);
        }
    }

    #[inline]
    fn check_running(&self) -> Result<()> {
        // rule: failed-pass-serves-nothing, poisoned-pass-serves-nothing
        match self.pass.running && self.pass.failed.is_none() && !self.store.is_poisoned() {
            true => Ok(()),
            false => Err(self.why_not_running()),
        }
    }

    #[cold]
    fn why_not_running(&self) -> Error {
        if let Err(error) = self.store.check_usable() {
            return error;
        }
        match &self.pass.failed {
            Some(error) => error.clone(),
            None => Error::Internal("a probe was called outside of a pass".to_string()),
        }
    }
}
