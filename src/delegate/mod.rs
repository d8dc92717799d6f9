//! Load, execute and destroy one delegate.
#![deny(unsafe_code)]

mod inputs;
pub mod mapped;
pub mod program;
mod tensor;

use std::path::PathBuf;

use crate::config::Options;
use crate::error::{Error, Result};
use crate::format::Record;
use crate::session::Stats;

pub use program::Program;
pub use tensor::{contiguous_strides, InputTensor, OutputTensor};

/// What a load needs beside the options.
pub struct LoadRequest<'a> {
    /// What the export recorded about the method.
    pub record: Record,
    /// Gives the bytes of the compiled library by its key.
    pub library: &'a dyn Fn(&str) -> Result<&'a [u8]>,
    /// Path of the `.ptd`.
    pub data: PathBuf,
}

/// Receives the outputs of a pass, one after the other, once the pass has completed.
pub type Outputs<'a> = &'a mut dyn FnMut(usize, &OutputTensor<'_>) -> Result<()>;

/// One loaded method.
pub struct Delegate {
    record: Record,
}

impl Delegate {
    /// STUB
    pub fn load(request: LoadRequest<'_>, _options: &Options) -> Result<Delegate> {
        let data = crate::weights::MappedPtd::open(&request.data)?;
        crate::weights::Catalog::build(&request.record, &data)?;
        Ok(Delegate {
            record: request.record,
        })
    }

    /// STUB
    pub fn execute(&self, inputs: &[InputTensor<'_>], _outputs: Outputs<'_>) -> Result<()> {
        inputs::check(&self.record.inputs, inputs)?;
        Err(Error::Unsupported("stub".to_owned()))
    }

    /// Number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.record.inputs.len()
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.record.method
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
