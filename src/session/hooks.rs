//! What the compiled code calls during a pass. A probe that hits is the hot path: no allocation, no
//! hashing, no lock, everything indexed by probe id.

use std::ffi::c_void;

use super::{build, Program, Session};
use crate::aoti::hooks::{PassHooks, ProbeLayout};
use crate::device::{Device, DeviceBytes, DevicePtr, HostRoom};
use crate::error::{Error, Result};
use crate::residency::Served;
use crate::schedule::ProbeId;

impl<D: Device> PassHooks for Session<D> {
    fn probe(&mut self, id: i64) -> Result<DevicePtr> {
        self.check_running()?;
        self.serve(id).inspect_err(|error| {
            self.failed.get_or_insert(error.clone());
        })
    }

    fn probe_layout(&self, id: i64) -> Result<ProbeLayout<'_>> {
        let layout = self.reads.layout(id);
        layout.ok_or_else(|| Error::Internal(format!("no layout of probe {id}")))
    }

    fn release(&mut self, id: i64) {
        let open = usize::try_from(id)
            .ok()
            .and_then(|id| self.leased.get_mut(id));
        match open {
            Some(open) if *open => *open = false,
            _ => {
                let name = build::probe_name(&self.program, id);
                return self.keep(Error::Internal(format!(
                    "a lease of probe {name} ended twice"
                )));
            }
        }
        self.open_leases -= 1;
        if self.in_pass && self.failed.is_none() {
            self.failed = self.wait_if_asked().err();
        }
        self.end_lease(id as ProbeId);
    }

    fn alloc_activation(&mut self, bytes: u64) -> Result<DevicePtr> {
        let ptr = match &mut self.capture {
            None => self.device.alloc_scratch(bytes),
            Some(capture) => capture.scratch.alloc(&mut self.device, bytes),
        };
        let ptr = ptr.map_err(|error| activation("taking", bytes, error))?;
        self.activation_bytes += bytes;
        self.activation_peak = self.activation_peak.max(self.activation_bytes);
        Ok(ptr)
    }

    fn free_activation(&mut self, ptr: DevicePtr, bytes: u64) {
        let freed = match &mut self.capture {
            None => self.device.free_scratch(ptr, bytes),
            Some(capture) => capture.scratch.free(&mut self.device, ptr, bytes),
        };
        match freed {
            Ok(()) => self.activation_bytes -= bytes,
            Err(error) => self.keep(activation("giving back", bytes, error)),
        }
    }

    fn stream(&self) -> *mut c_void {
        self.device.native_stream()
    }

    fn copy_on_device(&mut self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        let copied = self.device.copy_across(dst, src, bytes);
        copied.map_err(|error| activation("copying", bytes, error))
    }

    fn zero_on_device(&mut self, dst: DevicePtr, bytes: u64) -> Result<()> {
        let filled = self.device.zero(dst, bytes);
        filled.map_err(|error| activation("filling", bytes, error))
    }

    fn read_from_device(&mut self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        self.device.download(src, dst)
    }

    fn read_for_caller(&mut self, src: DevicePtr, dst: HostRoom) -> Result<()> {
        self.device.download_out(src, dst)
    }

    fn copy_to_caller(&mut self, dst: DeviceBytes, src: DevicePtr) -> Result<()> {
        self.device.copy_to_caller(dst, src)
    }

    fn upload_to_caller(&mut self, dst: DeviceBytes, src: &[u8]) -> Result<()> {
        self.device.upload_to_caller(dst, src)
    }
}

/// The copy of the weight of probe `id` could not be waited for.
#[cold]
fn lost_copy(program: &Program, id: ProbeId, error: Error) -> Error {
    let name = build::probe_name(program, i64::from(id));
    error.during(|| format!("waiting for the copy for probe {name}"))
}

#[cold]
fn activation(doing: &str, bytes: u64, error: Error) -> Error {
    error.during(|| format!("{doing} an activation of {bytes} bytes"))
}

impl<D: Device> Session<D> {
    fn serve(&mut self, id: i64) -> Result<DevicePtr> {
        self.wait_if_asked()?;
        // Before anything else: the address that follows is only right for this probe.
        let id = self
            .follower
            .probe(id, |id| build::probe_name(&self.program, id))?;
        let place = self.reads.place(id);
        let (served, at) = match place {
            Some(at) => (Served::Hit, at),
            None => self.bring(id)?,
        };
        if self.checksums.is_some() {
            self.verify_read(id, at)?;
        }
        match served {
            Served::Hit => self.stats.hits += 1,
            Served::Miss => self.stats.misses += 1,
        }
        self.leased[id as usize] = true;
        self.open_leases += 1;
        if place.is_none() {
            self.mark_read(id);
            self.policy.lease(id);
            self.look_ahead();
        }
        Ok(at)
    }

    /// Where weights come and go: has the weight of a read there, and says where.
    fn bring(&mut self, id: ProbeId) -> Result<(Served, DevicePtr)> {
        let served = self.policy.demand(id, &mut self.actions)?;
        if !self.actions.is_empty() {
            self.carry_out_demand(id)?;
        }
        self.mark_wait();
        let tenant = &mut self.tenants[self.program.trace.weight(id) as usize];
        if let Some(event) = &tenant.ready {
            let waited = self.device.compute_wait(event);
            waited.map_err(|error| lost_copy(&self.program, id, error))?;
            // One wait orders every later kernel behind the copy, so the next probe needs none.
            tenant.ready = None;
        }
        Ok((served, tenant.address()))
    }

    fn end_lease(&mut self, id: ProbeId) {
        let stays = self.reads.all_stay();
        if !stays && self.in_pass && self.follower.in_tail() {
            self.ended[id as usize] = true;
            if self.open_leases == 0 {
                self.end_tail();
            }
            return;
        }
        let may_go = match stays {
            true => None,
            false => {
                self.mark_end(id);
                self.policy.release(id)
            }
        };
        if let Some(weight) = may_go {
            self.keep_last_read(weight);
        }
        if self.in_pass {
            self.follower.release(id);
        }
        if may_go.is_some() {
            self.use_room();
        }
    }

    /// Ends the leases that lasted until behind the last kernel, all of them in access order. The order in which the
    /// code ends them is not fixed; if it decided what is evicted first, a pass could be one that was never rehearsed.
    pub(super) fn end_tail(&mut self) {
        if self.reads.all_stay() {
            return;
        }
        for at in 0..self.ended.len() {
            let id = self.program.trace.order()[at];
            if std::mem::take(&mut self.ended[id as usize]) {
                if let Some(weight) = self.policy.release(id) {
                    self.keep_last_read(weight);
                }
            }
        }
        self.use_room();
    }

    /// What just became idle may make room. Not after a failure: the pass is being unwound.
    fn use_room(&mut self) {
        if self.in_pass && self.failed.is_none() && self.poisoned.is_none() {
            self.look_ahead();
        }
    }

    #[inline]
    fn check_running(&self) -> Result<()> {
        match self.in_pass && self.failed.is_none() && self.poisoned.is_none() {
            true => Ok(()),
            false => Err(self.why_not_running()),
        }
    }

    #[cold]
    fn why_not_running(&self) -> Error {
        if let Some(why) = &self.poisoned {
            return Error::Poisoned(why.clone());
        }
        match &self.failed {
            Some(error) => error.clone(),
            None => Error::Internal("a probe was called outside of a pass".to_string()),
        }
    }
}
