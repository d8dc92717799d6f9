//! A pass as a graph: captured once, copies included, and replayed.
//!
//! A replay issues what the captured pass issued, so it is only right where that pass was: with the same weights on the device
//! in the same places. A pass of a plan leaves them as it found them, once the first one is over; whether it did is compared.
//! Whatever else runs in between (a pass that was not captured, one that failed) leaves the graph unprimed, until a complete
//! pass has brought that state back.

use super::block::Blocks;
use super::cache::{Capture, Graphs};
use super::captured::{Begun, CapturedPass};
use super::scratch::Scratch;
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::store::StoreState;
use std::ops::Range;

impl<D: Device> Session<D> {
    /// From now on passes can be captured. Refused where each pass differs from the one before it.
    pub fn allow_capture(&mut self) -> Result<()> {
        if self.capture.is_some() {
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
        self.capture = Some(Capture {
            graphs: Graphs::default(),
            scratch: Scratch::new(),
            blocks: Blocks::default(),
            now: None,
            replayed: false,
        });
        Ok(())
    }

    /// Between passes: what is issued from now on goes into a graph, the pass and its activations. The pass before was one
    /// over the same shapes.
    pub fn begin_capture(&mut self) -> Result<()> {
        let reach = self.capture()?.scratch.reach();
        self.begin_capture_over(0, reach).map(drop)
    }

    /// The same for a pass with `inputs` bytes of inputs, whose activations reach so far. The address of the inputs.
    pub(super) fn begin_capture_over(&mut self, inputs: u64, reach: u64) -> Result<DevicePtr> {
        let granule = self.device().granule();
        let inputs = inputs.checked_next_multiple_of(granule);
        let bytes = inputs.and_then(|inputs| inputs.checked_add(reach));
        let (Some(inputs), Some(bytes)) = (inputs, bytes) else {
            return Err(Error::Internal("inputs larger than any device".to_owned()));
        };
        self.finish_replays()?;
        self.store.device.synchronize()?;
        let capture = self.capture.as_mut().ok_or_else(captures_nothing)?;
        let held = capture.blocks.hold(&mut self.store.device, bytes)?;
        // rule: capture-forgets-earlier-events
        self.store.forget_events();
        if let Err(error) = self.store.device.begin_capture() {
            capture.blocks.let_go(&mut self.store.device, &held)?;
            return Err(error);
        }
        let activations = &mut self.passes[self.method].activations;
        activations.peak = activations.peak.max(reach);
        let Range { start, end } = held.range();
        capture.scratch.lie_in(Some(start + inputs..end));
        capture.now = Some(Begun {
            held,
            primed: self.store.state(),
            counted: self.store.stats,
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
        let capture = self.capture()?;
        capture.scratch.lie_in(None);
        let begun = capture.now.take();
        self.store.forget_events();
        begun.ok_or_else(|| Error::Internal("no pass is being captured".to_owned()))
    }

    /// Nothing that was captured has happened.
    fn undo_capture(&mut self, pass: Begun) -> Result<()> {
        self.store.stats = pass.counted;
        let blocks = &mut self.capture.as_mut().ok_or_else(captures_nothing)?.blocks;
        blocks.let_go(&mut self.store.device, &pass.held)?;
        self.store.device.synchronize()?;
        // rule: failed-capture-starts-afresh
        self.start_afresh();
        Ok(())
    }

    /// Whether what is issued goes into a graph.
    #[inline]
    pub(in crate::session) fn is_capturing(&self) -> bool {
        let capture = self.capture.as_ref();
        capture.is_some_and(|capture| capture.now.is_some())
    }

    /// Whether the device is as the captured pass found it.
    pub fn is_primed(&self, captured: &CapturedPass<D>) -> bool {
        // rule: replay-finds-the-captured-state
        captured.pass.primed == self.store.state()
    }

    /// Whether the weights were moved since the pass was captured, or its activations' memory is gone: it can never be
    /// replayed again.
    pub fn is_outdated(&self, captured: &CapturedPass<D>) -> bool {
        let capture = self.capture.as_ref();
        let gone = capture.is_none_or(|capture| capture.blocks.is_gone(&captured.pass.held));
        gone || self.store.has_moved_since(&captured.pass.primed)
    }

    /// Brings the device to where the captured pass found it, if other passes ran since: the ring gets the tails that it had
    /// then. `false` if that cannot be had; then a complete pass brings it back.
    pub fn prime(&mut self, captured: &CapturedPass<D>) -> Result<bool> {
        self.prime_to(&captured.pass.primed)
    }

    pub(super) fn prime_to(&mut self, state: &StoreState) -> Result<bool> {
        // rule: graphs-begin-with-the-ring-full
        if *state == self.store.state() {
            return Ok(true);
        }
        self.pass().check_may_begin(self.store.constants())?;
        self.finish_replays()?;
        // rule: graph-is-primed
        self.store.return_to(state)?;
        Ok(*state == self.store.state())
    }

    /// Issues the captured pass, after everything issued so far.
    pub fn replay(&mut self, captured: &CapturedPass<D>) -> Result<()> {
        self.store.check_usable()?;
        if self.pass().running || !self.is_primed(captured) || self.is_outdated(captured) {
            return Err(Error::Internal(
                "a graph was to be replayed where its pass was not captured".to_owned(),
            ));
        }
        self.capture()?.blocks.take_turn()?;
        let replayed = self.issue_replay(captured);
        if replayed.is_err() {
            self.capture()?.blocks.end_turn();
        }
        replayed
    }

    fn issue_replay(&mut self, captured: &CapturedPass<D>) -> Result<()> {
        if !self.capture()?.replayed {
            // Its copies wait for no others.
            // rule: replay-waits-for-the-pass-before
            self.store.device.synchronize()?;
            self.store.forget_events();
        }
        let pass = self.pass_mut();
        pass.in_flight.begin();
        pass.in_flight.end(pass.method.trace.order().len());
        self.capture()?.replayed = true;
        self.store.device.replay(&captured.graph)?;
        self.store.stats.add(&captured.pass.counted);
        self.store.stats.replays += 1;
        Ok(())
    }

    /// A pass, call by call, waits for the events of its own calls only.
    pub(in crate::session) fn finish_replays(&mut self) -> Result<()> {
        if let Some(capture) = self.capture.as_mut().filter(|capture| capture.replayed) {
            // rule: pass-waits-for-the-replay-before
            self.store.device.synchronize()?;
            capture.replayed = false;
            capture.blocks.end_turn();
        }
        Ok(())
    }

    /// The kernels of all replays have ended: the next one may use the memory of activations.
    pub(in crate::session) fn end_replay(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.blocks.end_turn();
        }
    }

    /// Gives a captured pass and the memory of its activations up.
    pub fn forget_graph(&mut self, captured: CapturedPass<D>) -> Result<()> {
        self.finish_replays()?;
        let CapturedPass { graph, pass } = captured;
        drop(graph);
        let blocks = &mut self.capture.as_mut().ok_or_else(captures_nothing)?.blocks;
        blocks.let_go(&mut self.store.device, &pass.held)
    }

    /// Addresses of what is there, the same, after each replay: inputs and activations of the captured pass, and direct
    /// constants.
    pub fn lasting(&self, captured: &CapturedPass<D>) -> Vec<Range<u64>> {
        let (direct, bytes) = self.store.direct_range();
        vec![captured.pass.held.range(), direct.0..direct.0 + bytes]
    }

    pub(super) fn capture(&mut self) -> Result<&mut Capture<D>> {
        self.capture.as_mut().ok_or_else(captures_nothing)
    }
}

#[cold]
fn captures_nothing() -> Error {
    Error::Internal("this session captures nothing".to_owned())
}
