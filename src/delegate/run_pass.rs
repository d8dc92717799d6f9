//! A method that runs, as the delegate sees it: on whatever device.
#![deny(unsafe_code)]

use std::any::Any;
use std::sync::{Arc, Mutex};

use super::inputs::Signature;
use super::tensor::InputTensor;
use crate::aoti::outputs::Output;
use crate::counters::Stats;
use crate::elastic::Membership;
use crate::error::Result;

/// Receives the outputs of a pass, one after the other, once the pass has completed.
pub type TakeOutputs<'a> = &'a mut dyn FnMut(usize, &Output<'_>) -> Result<()>;

/// A program and a session, whatever device they are on.
#[derive(Clone)]
pub struct Parts {
    /// `Shared` of its device.
    pub program: Arc<dyn Any + Send + Sync>,
    /// `SessionState` of its device; `None` for the first session.
    pub state: Option<Arc<dyn Any + Send + Sync>>,
    /// The program's place in the device's pool, if the budget is shared.
    pub membership: Option<Arc<Membership>>,
}

/// One method, ready to run, on whatever device.
pub trait RunPass: Send {
    /// Runs one pass over inputs that were checked.
    fn run(
        &mut self,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()>;

    /// The buffers that the method writes get their initial bytes back.
    fn reset_state(&mut self) -> Result<()>;

    /// Another budget for all methods and sessions of the program, from the next pass on.
    fn set_budget(&mut self, bytes: u64) -> Result<()>;

    /// What another method or session of the program finds its weights by.
    fn parts(&self) -> Parts;

    /// The program's counters after its last pass.
    fn stats(&self) -> Arc<Mutex<Stats>>;
}
