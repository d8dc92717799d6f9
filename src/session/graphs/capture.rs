//! A pass as a graph: captured once, copies included, and replayed.

use super::cache::PassGraphs;
use super::captured::{prime, Begun, CapturedPass};
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::session::Session;
use std::ops::Range;

impl<D: Device> Session<D> {
    /// From now on passes can be captured. Refused where each pass differs from the one before it.
    pub fn allow_capture(&mut self) -> Result<()> {
        if self.graphs.is_some() {
            return Ok(());
        }
        // rule: captured-pass-is-periodic
        if !self.store.policy().is_periodic() {
            return Err(Error::Unsupported(format!(
                "a pass under the policy '{}' leaves the device as the next one does not expect it, so that it cannot be \
                 captured as a graph: take 'planned', or another budget",
                self.policy()
            )));
        }
        if self.store.verifies() || self.pass().in_flight.every_kernel {
            return Err(Error::Internal(
                "a pass that is looked at on its way cannot be captured".to_owned(),
            ));
        }
        self.graphs = Some(PassGraphs::new());
        Ok(())
    }

    /// Between passes: what is issued from now on goes into a graph, the pass and its activations. The pass before was one
    /// over the same shapes.
    pub fn begin_capture(&mut self) -> Result<()> {
        let reach = self.graphs()?.0.scratch.reach();
        self.begin_capture_over(0, reach).map(drop)
    }

    /// Begins a capture of a pass with `inputs` bytes of inputs, whose activations reach so far. The address of the inputs.
    pub(super) fn begin_capture_over(&mut self, inputs: u64, reach: u64) -> Result<DevicePtr> {
        let (graphs, store, pass) = self.graphs()?;
        let inputs = inputs.checked_next_multiple_of(store.device.granule());
        let bytes = inputs.and_then(|inputs| inputs.checked_add(reach));
        let (Some(inputs), Some(bytes)) = (inputs, bytes) else {
            return Err(Error::Internal("inputs larger than any device".to_owned()));
        };
        let block = &mut graphs.scratch.block;
        block.finish_replays(&mut store.device)?;
        store.device.synchronize()?;
        let held = block.hold(&mut store.device, bytes)?;
        // rule: capture-forgets-earlier-events
        store.forget_events();
        if let Err(error) = store.device.begin_capture() {
            block.let_go(&mut store.device, &held)?;
            return Err(error);
        }
        pass.activations.peak = pass.activations.peak.max(reach);
        let Range { start, end } = held.range();
        graphs.scratch.lie_in(Some(start + inputs..end));
        graphs.begun = Some(Begun {
            held,
            primed: store.state(),
            counted: store.stats,
        });
        Ok(DevicePtr(start))
    }

    /// Ends the capture, after the end of a complete pass. On an error nothing is left of it, and the next pass starts afresh.
    pub fn end_capture(&mut self) -> Result<CapturedPass<D>> {
        let mut pass = self.leave_capture()?;
        let ended = self.store.device.end_capture();
        let graph = ended.and_then(|graph| match self.store.state() == pass.primed {
            true => Ok(graph),
            false => Err(Error::Unsupported(
                "the pass left other weights on the device than it found, so that it cannot be replayed as a graph"
                    .to_owned(),
            )),
        });
        match graph {
            Ok(graph) => {
                // It is counted when it is replayed.
                let after = std::mem::replace(&mut self.store.stats, pass.counted);
                pass.counted = after.since(&pass.counted);
                self.store.stats.captures += 1;
                Ok(CapturedPass { graph, pass })
            }
            Err(error) => {
                self.undo_capture(pass)?;
                Err(error)
            }
        }
    }

    /// Ends the capture of a pass that failed: the next one starts afresh.
    pub fn abandon_capture(&mut self) -> Result<()> {
        let pass = self.leave_capture()?;
        let ended = self.store.device.abandon_capture();
        self.undo_capture(pass).and(ended)
    }

    fn leave_capture(&mut self) -> Result<Begun> {
        let (graphs, store, _) = self.graphs()?;
        graphs.scratch.lie_in(None);
        store.forget_events();
        let begun = graphs.begun.take();
        begun.ok_or_else(|| Error::Internal("no pass is being captured".to_owned()))
    }

    /// Nothing that was captured has happened.
    fn undo_capture(&mut self, pass: Begun) -> Result<()> {
        let (graphs, store, _) = self.graphs()?;
        store.stats = pass.counted;
        let block = &mut graphs.scratch.block;
        block.let_go(&mut store.device, &pass.held)?;
        store.device.synchronize()?;
        // rule: failed-capture-starts-afresh
        self.start_afresh();
        Ok(())
    }

    /// Whether the device is as the captured pass found it.
    pub fn is_primed(&self, captured: &CapturedPass<D>) -> bool {
        captured.is_primed(&self.store)
    }

    /// Whether the weights were moved since the pass was captured, or its activations' memory is gone: it can never be
    /// replayed again.
    pub fn is_outdated(&self, captured: &CapturedPass<D>) -> bool {
        let block = self.graphs.as_ref().map(|graphs| &graphs.scratch.block);
        block.is_none_or(|block| captured.is_outdated(&self.store, block))
    }

    /// Brings the device to where the captured pass found it, if other passes ran since: the ring gets the tails that it had
    /// then. `false` if that cannot be had; then a complete pass brings it back.
    pub fn prime(&mut self, captured: &CapturedPass<D>) -> Result<bool> {
        let (graphs, store, pass) = self.graphs()?;
        prime(
            &captured.pass.primed,
            store,
            pass,
            &mut graphs.scratch.block,
        )
    }

    /// Issues the captured pass, after everything issued so far.
    pub fn replay(&mut self, captured: &CapturedPass<D>) -> Result<()> {
        let (graphs, store, pass) = self.graphs()?;
        captured.replay(store, pass, &mut graphs.scratch.block)
    }

    /// Gives a captured pass and the memory of its activations up.
    pub fn forget_graph(&mut self, captured: CapturedPass<D>) -> Result<()> {
        let (graphs, store, _) = self.graphs()?;
        captured.end(store, &mut graphs.scratch.block)
    }

    /// Nothing of a replay runs after this.
    pub(in crate::session) fn finish_replays(&mut self) -> Result<()> {
        let block = self.graphs.as_mut().map(|graphs| &mut graphs.scratch.block);
        block.map_or(Ok(()), |block| block.finish_replays(&mut self.store.device))
    }

    /// Addresses of what is there, the same, after each replay: inputs and activations of the captured pass, and direct
    /// constants.
    pub fn lasting(&self, captured: &CapturedPass<D>) -> Vec<Range<u64>> {
        let (direct, bytes) = self.store.direct_range();
        vec![captured.pass.held.range(), direct.0..direct.0 + bytes]
    }
}
