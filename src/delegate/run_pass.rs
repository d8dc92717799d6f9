//! A method that runs, as the delegate sees it: on whatever device.
#![deny(unsafe_code)]

use std::sync::{Arc, Mutex};

use super::inputs::Signature;
use super::tensor::InputTensor;
use crate::aoti::outputs::Output;
use crate::counters::Stats;
use crate::error::Result;

/// Receives the outputs of a pass, one after the other, once the pass has completed.
pub type TakeOutputs<'a> = &'a mut dyn FnMut(usize, &Output<'_>) -> Result<()>;

/// One method, ready to run, on whatever device.
pub trait RunPass: Send {
    /// Runs one pass over inputs that were checked.
    fn run(
        &mut self,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()>;

    /// The program's counters after its last pass.
    fn stats(&self) -> Arc<Mutex<Stats>>;
}
