//! Graphs captured up front, as the delegate does it: over zeros.

use super::{Call, Rig};
use weightstream::device::{Device, DevicePtr, Sim};
use weightstream::session::{capture_up_front, GraphKey, Session, UpFront};
use weightstream::{Error, Result};

/// Passes over these shapes of one method and one session.
struct Passes<'a> {
    rig: &'a mut Rig,
    calls: &'a [Call],
    /// The capture of this shape fails before this event.
    fails: Option<(usize, usize)>,
}

impl UpFront<Sim> for Passes<'_> {
    fn session(&mut self) -> &mut Session<Sim> {
        &mut self.rig.session
    }

    fn name(&self, shape: usize) -> String {
        format!("rows={}", self.calls[shape].rows)
    }

    fn key(&mut self, shape: usize) -> GraphKey {
        self.rig.key(self.calls[shape])
    }

    fn input_bytes(&self, shape: usize) -> u64 {
        self.calls[shape].rows * 64
    }

    fn by_calls(&mut self, shape: usize) -> Result<()> {
        let call = self.calls[shape];
        self.rig.session.turn_to(call.method)?;
        let device = self.rig.session.device_mut();
        let at = device.alloc_scratch(call.rows * 64)?;
        device.zero(at, call.rows * 64)?;
        let ran = self.rig.pass(call, at, None, |_, _| {});
        let device = self.rig.session.device_mut();
        device.free_scratch(at, call.rows * 64)?;
        self.rig.session.finish_kernels()?;
        ran.map(drop)
    }

    fn capture(&mut self, shape: usize) -> Result<bool> {
        let key = self.key(shape);
        let end = self.fails.filter(|(fails, _)| *fails == shape);
        let call = self.calls[shape];
        let captured = self
            .rig
            .try_capture(&key, call, end.map(|(_, event)| event))?;
        let (pass, ends) = captured.ok_or_else(|| {
            Error::Unsupported("reading a value in the middle of a pass".to_owned())
        })?;
        self.rig.session.keep_graph(&key, pass, ends)
    }
}

impl Rig {
    pub fn up_front(&mut self, calls: &[Call], fails: Option<(usize, usize)>) -> Result<()> {
        let call = calls[0];
        self.session.turn_to(call.method)?;
        let state = self.states[call.session].as_ref();
        let buffers = self.session.buffers_of(state)?;
        let mut passes = Passes {
            rig: self,
            calls,
            fails,
        };
        capture_up_front(&mut passes, calls.len(), &buffers)
    }

    /// Each session's buffer holds what its passes have left there.
    pub fn check_states(&mut self) {
        for session in 0..self.states.len() {
            let (index, at): (usize, DevicePtr) = self.buffer(session);
            let mut found = vec![0; self.expected[session][index].len()];
            let device = self.session.device_mut();
            device.download(at, &mut found).unwrap();
            assert!(
                found == self.expected[session][index],
                "another state of session {session}"
            );
        }
    }
}
