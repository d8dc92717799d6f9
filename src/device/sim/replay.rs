//! Captures calls, and plays a captured pass again call by call.

use super::graph::{refused, Call, SimGraph};
use super::{Sim, SimEvent};
use crate::device::Device;
use crate::error::{Error, Result};

impl Sim {
    pub(super) fn start_capture(&mut self) -> Result<()> {
        self.graphs.refuse("a capture")?;
        if !self.copy_idle() || !self.compute_idle() {
            return Err(refused("what is still under way when it begins"));
        }
        self.graphs.number += 1;
        self.graphs.events = 0;
        self.graphs.calls = Some(Vec::new());
        Ok(())
    }

    pub(super) fn stop_capture(&mut self) -> Result<SimGraph> {
        let calls = self.graphs.calls.take();
        let calls = calls.ok_or_else(|| Error::Internal("nothing is being captured".to_owned()))?;
        Ok(SimGraph::new(calls, &self.graphs.live))
    }

    pub(super) fn play_graph(&mut self, graph: &SimGraph) -> Result<()> {
        if !self.copy_idle() && self.copy.issued != self.graphs.replayed {
            return Err(Error::Internal(
                "a graph does not wait for copies that are under way".to_owned(),
            ));
        }
        // After everything issued to the compute stream, and before all that is issued later.
        let begin = self.record_compute()?;
        self.copy_wait(&begin)?;
        let mut events: Vec<SimEvent> = Vec::new();
        for call in &graph.0 {
            match *call {
                Call::Kernel(number, ref reads) => self.kernel(number, reads)?,
                Call::Copy(dst, ref src) => self.bring(dst, src.clone())?,
                Call::Discard(ptr, bytes) => self.discard(ptr, bytes)?,
                Call::Across(dst, src, bytes) => self.copy_across(dst, src, bytes)?,
                Call::Zero(ptr, bytes) => self.zero(ptr, bytes)?,
                Call::RecordCompute => events.push(self.record_compute()?),
                Call::RecordCopy => events.push(self.record_copy()?),
                Call::CopyWaits(event) => self.copy_wait(&events[event])?,
                Call::ComputeWaits(event) => self.compute_wait(&events[event])?,
            }
        }
        let end = self.record_copy()?;
        self.graphs.replayed = self.copy.issued;
        self.compute_wait(&end)
    }
}
