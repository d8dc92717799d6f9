//! A pass as a graph: captured once, copies included, and replayed.
//!
//! A replay issues what the captured pass issued, so it is only right where that pass was: with the same weights on the
//! device in the same places. A pass of a plan leaves them as it found them, once the first one is over; whether it did is
//! compared. Whatever else runs in between (a pass that was not captured, one that failed) leaves the graph unprimed, until
//! a complete pass has brought that state back.

use super::scratch::Scratch;
use super::{Session, Stats};
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use std::ops::Range;

/// What a session that captures keeps.
pub(super) struct Capture {
    pub(super) scratch: Scratch,
    /// The block of the captured pass's activations: address and bytes.
    block: Option<(DevicePtr, u64)>,
    /// A pass is being captured.
    pub(super) now: bool,
    /// What was issued last is a replay: its kernels and copies left no events to wait for.
    replayed: bool,
    /// Which weights were on the device where the captured pass began, and what the policy thought.
    primed: State,
    /// What the captured pass counted.
    counted: Stats,
}

/// What a pass depends on.
type State = (Vec<Option<(DevicePtr, Range<u64>)>>, Vec<u32>);

impl Capture {
    fn new() -> Self {
        Capture {
            scratch: Scratch::new(),
            block: None,
            now: false,
            replayed: false,
            primed: State::default(),
            counted: Stats::default(),
        }
    }
}

impl<D: Device> Session<D> {
    /// From now on passes can be captured. Refused where each pass differs from the one before it.
    pub fn allow_capture(&mut self) -> Result<()> {
        if !self.policy.is_periodic() {
            return Err(Error::Unsupported(format!(
                "a pass under the policy '{}' leaves the device as the next one does not expect it, so that it cannot be \
                 captured as a graph: take 'planned', or another budget",
                self.policy.name()
            )));
        }
        if self.checksums.is_some() || self.in_flight.every_kernel {
            return Err(Error::Internal(
                "a pass that is looked at on its way cannot be captured".to_owned(),
            ));
        }
        self.capture = Some(Capture::new());
        Ok(())
    }

    /// Between passes: what is issued from now on goes into a graph, the pass and its activations. The pass before was one
    /// over the same shapes.
    pub fn begin_capture(&mut self) -> Result<()> {
        let state = self.state();
        let bytes = self.capture()?.scratch.reach();
        self.forget_graph()?;
        self.device.synchronize()?;
        self.forget_events();
        self.device.trim_scratch()?;
        let block = self.device.alloc_scratch(bytes)?;
        let counted = self.stats;
        let capture = self.capture()?;
        capture.block = Some((block, bytes));
        capture.scratch.lie_in(Some(block.0..block.0 + bytes));
        capture.primed = state;
        capture.counted = counted;
        self.activation_peak = self.activation_peak.max(bytes);
        let begun = self.device.begin_capture();
        let capture = self.capture()?;
        match begun {
            Ok(()) => capture.now = true,
            Err(_) => {
                capture.scratch.lie_in(None);
                self.forget_graph()?;
            }
        }
        begun
    }

    /// Ends the capture, behind the end of a pass; one that failed ends behind it. On an error nothing is left of it, and the
    /// next pass starts afresh.
    pub fn end_capture(&mut self, keep: bool) -> Result<()> {
        let capture = self.capture()?;
        capture.now = false;
        capture.scratch.lie_in(None);
        let before = capture.counted;
        self.forget_events();
        let ended = self.device.end_capture(keep).and_then(|()| match keep {
            true => self.check_periodic(),
            false => Ok(()),
        });
        if !keep || ended.is_err() {
            self.stats = before;
            self.forget_graph()?;
            // Nothing that was captured has happened.
            self.device.synchronize()?;
            self.start_afresh();
            return ended;
        }
        let counted = self.stats.since(&before);
        // It is counted when it is replayed.
        self.stats = before;
        self.capture()?.counted = counted;
        Ok(())
    }

    /// Whether what is issued goes into a graph.
    #[inline]
    pub(super) fn is_capturing(&self) -> bool {
        self.capture.as_ref().is_some_and(|capture| capture.now)
    }

    fn check_periodic(&mut self) -> Result<()> {
        let now = self.state();
        match self.capture()?.primed == now {
            true => Ok(()),
            false => Err(Error::Unsupported(
                "the pass left other weights on the device than it found, so that it cannot be replayed as a graph"
                    .to_owned(),
            )),
        }
    }

    /// Whether the device is as the captured pass found it.
    pub fn is_primed(&self) -> bool {
        let state = self.state();
        let capture = self.capture.as_ref();
        capture.is_some_and(|capture| capture.block.is_some() && capture.primed == state)
    }

    /// Issues the captured pass, behind everything issued so far.
    pub fn replay(&mut self) -> Result<()> {
        if let Some(why) = &self.poisoned {
            return Err(Error::Poisoned(why.clone()));
        }
        if self.in_pass || !self.is_primed() {
            return Err(Error::Internal(
                "a graph was to be replayed where its pass was not captured".to_owned(),
            ));
        }
        if !self.capture()?.replayed {
            // Its copies wait for no others.
            self.device.synchronize()?;
            self.forget_events();
        }
        self.in_flight.begin();
        self.in_flight.end(self.program.trace.order().len());
        let capture = self.capture()?;
        capture.replayed = true;
        let counted = capture.counted;
        self.device.replay()?;
        self.stats.add(&counted);
        Ok(())
    }

    /// A pass, call by call, waits for the events of its own calls only.
    pub(super) fn finish_replays(&mut self) -> Result<()> {
        if let Some(capture) = self.capture.as_mut().filter(|capture| capture.replayed) {
            self.device.synchronize()?;
            capture.replayed = false;
        }
        Ok(())
    }

    /// Gives the graph and its activations up.
    pub fn forget_graph(&mut self) -> Result<()> {
        self.finish_replays()?;
        self.device.forget_graph();
        match self.capture()?.block.take() {
            Some((block, bytes)) => self.device.free_scratch(block, bytes),
            None => Ok(()),
        }
    }

    /// Addresses of what is there, the same, behind each replay: the activations of the captured pass, and direct constants.
    pub fn lasting(&self) -> Vec<Range<u64>> {
        let block = self.capture.as_ref().and_then(|capture| capture.block);
        let direct = (self.direct, self.floor.direct);
        let ranges = block.into_iter().chain([direct]);
        ranges.map(|(ptr, bytes)| ptr.0..ptr.0 + bytes).collect()
    }

    fn capture(&mut self) -> Result<&mut Capture> {
        let capture = self.capture.as_mut();
        capture.ok_or_else(|| Error::Internal("this session captures nothing".to_owned()))
    }

    fn state(&self) -> State {
        let tenants = self.tenants.iter();
        let places = tenants.map(|t| (!t.copied.is_empty()).then(|| (t.at, t.copied.clone())));
        (places.collect(), self.policy.fingerprint())
    }

    /// Both streams are idle, or what was recorded is void: nobody has to wait for anything.
    fn forget_events(&mut self) {
        for tenant in &mut self.tenants {
            tenant.ready = None;
            tenant.last_read = None;
        }
    }
}
