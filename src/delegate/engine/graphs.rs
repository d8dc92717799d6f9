//! How far the capture of passes as graphs is.
#![deny(unsafe_code)]

use crate::aoti::outputs::Kept;
use crate::delegate::delegate_device::DelegateDevice;
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use crate::session::{CapturedPass, Session};

/// What a graph was captured for: the type and the sizes of each input.
pub(super) type Shapes = Vec<(i32, Vec<i64>)>;

/// How far the capture of passes is.
pub(super) struct Graphs<D: DelegateDevice> {
    pub shapes: Shapes,
    /// Complete passes over these shapes, one after the other.
    pub passes: u32,
    pub captured: Option<Captured<D>>,
    /// Why no pass of this program can be captured.
    pub refused: Option<Error>,
}

impl<D: DelegateDevice> Default for Graphs<D> {
    fn default() -> Self {
        Graphs {
            shapes: Shapes::new(),
            passes: 0,
            captured: None,
            refused: None,
        }
    }
}

pub(super) struct Captured<D: DelegateDevice> {
    pub pass: CapturedPass<D>,
    /// Address and bytes of each input that is used.
    pub inputs: Vec<Option<(DevicePtr, u64)>>,
    pub outputs: Vec<Kept>,
}

/// Gives the memory of a captured pass back.
pub(super) fn give_back<D: DelegateDevice>(
    session: &mut Session<D>,
    captured: Captured<D>,
) -> Result<()> {
    let Captured { pass, inputs, .. } = captured;
    session.forget_graph(pass)?;
    give_inputs_back(session, &inputs)
}

pub(super) fn give_inputs_back<D: DelegateDevice>(
    session: &mut Session<D>,
    inputs: &[Option<(DevicePtr, u64)>],
) -> Result<()> {
    let device = session.device_mut();
    let all = inputs.iter().flatten();
    all.map(|&(ptr, bytes)| device.free_scratch(ptr, bytes))
        .fold(Ok(()), Result::and)
}
