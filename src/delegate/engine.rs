//! The compiled code, its session and the bytes behind both, joined for a pass. Each of them leaves one
//! promise to whoever joins them: this file makes these promises, and is the only unsafe code here.

use super::inputs;
use super::tensor::{contiguous_strides, InputTensor};
use super::Outputs;
use crate::aoti::container::{Binding, Container, Input};
use crate::aoti::dtype::DType;
use crate::aoti::outputs::Outputs as PassOutputs;
use crate::device::{DevicePtr, HostBytes, HostDevice};
use crate::error::{Error, Result};
use crate::format::{ConstantKind, Record};
use crate::session::{Program, Session, SessionOptions, Stats};
use crate::weights::Catalog;

/// One method, ready to run. The order of the fields is the order in which they end: the compiled code
/// points into the session's memory, and the session's copies read the catalog's bytes.
pub struct Engine {
    container: Container,
    session: Session<HostDevice>,
    _catalog: Catalog,
    poisoned: Option<String>,
}

impl Engine {
    /// `constants` holds the catalog index of each of the container's constants.
    pub fn new(
        mut container: Container,
        program: Program,
        catalog: Catalog,
        constants: &[usize],
        options: SessionOptions,
    ) -> Result<Engine> {
        let session = Session::new(HostDevice::new()?, program, host_bytes(&catalog), options)?;
        let bindings = bindings(&catalog, &session, constants)?;
        // SAFETY: the memory of direct constants is the session's, which keeps it in place for its whole
        // life, and the container ends first: by the order of this structure's fields, and here because
        // an error leaves nothing bound.
        unsafe { container.bind_constants(&bindings) }?;
        Ok(Engine { container, session, _catalog: catalog, poisoned: None })
    }

    /// Counters since load.
    pub fn stats(&self) -> Stats {
        self.session.stats()
    }

    /// Runs one pass over inputs that were checked.
    pub fn run(&mut self, record: &Record, inputs: &[InputTensor<'_>], outputs: Outputs<'_>) -> Result<()> {
        if let Some(why) = &self.poisoned {
            return Err(Error::Poisoned(why.clone()));
        }
        let strides: Vec<Vec<i64>> = inputs.iter().map(|input| contiguous_strides(input.sizes)).collect();
        let views: Vec<Input<'_>> =
            inputs.iter().zip(&strides).map(|(input, strides)| view(input, strides)).collect();
        self.session.begin_pass()?;
        // SAFETY: the inputs' slices live during this call and were checked against their sizes. The
        // session answers with memory that it holds under a lease, by the recorded layouts.
        let ran = unsafe {
            self.container.run(&mut self.session, &views, |pass| deliver(record, pass, outputs))
        };
        // Told in any case, so that the next pass starts afresh; the pass's own error comes first.
        let ended = self.session.end_pass(ran.is_ok());
        self.check_no_handles()?;
        ran.and(ended)
    }

    /// A handle that outlives its pass would keep its lease, and a later pass would run into it.
    fn check_no_handles(&mut self) -> Result<()> {
        match self.container.live_handles() {
            0 => Ok(()),
            live => {
                let why = format!("{live} tensor handles outlived their pass");
                self.poisoned = Some(why.clone());
                Err(Error::Poisoned(why))
            }
        }
    }
}

fn host_bytes(catalog: &Catalog) -> Vec<HostBytes> {
    let bytes = |segment| &catalog.segment(segment).bytes;
    catalog
        .constants()
        .iter()
        .map(|constant| {
            let bytes = bytes(constant.segment);
            // SAFETY: the catalog keeps the mapping, and `Engine` ends its session, and with it the
            // device, before its catalog. A session that fails in `Session::new` ends there.
            unsafe { HostBytes::new(bytes.addr(), bytes.len()) }
        })
        .collect()
}

fn bindings<'a>(
    catalog: &'a Catalog,
    session: &Session<HostDevice>,
    constants: &[usize],
) -> Result<Vec<Binding<'a>>> {
    let binding = |&index: &usize| {
        let constant = &catalog.constants()[index];
        if constant.kind == ConstantKind::Weight {
            return Ok(Binding::Placeholder);
        }
        let ptr = session
            .direct_address(index)
            .ok_or_else(|| Error::Internal(format!("direct constant '{}' has no memory", constant.fqn)))?;
        Ok(Binding::Direct {
            ptr,
            nbytes: constant.nbytes,
            sizes: &constant.sizes,
            strides: &constant.strides,
        })
    };
    constants.iter().map(binding).collect()
}

fn view<'a>(input: &InputTensor<'a>, strides: &'a [i64]) -> Input<'a> {
    Input {
        ptr: DevicePtr(input.bytes.as_ptr().expose_provenance() as u64),
        dtype: DType(input.dtype),
        sizes: input.sizes,
        strides,
    }
}

/// Hands the outputs on, once all of them are what the record says.
fn deliver(record: &Record, pass: &PassOutputs<'_>, outputs: Outputs<'_>) -> Result<()> {
    for (index, (spec, output)) in record.outputs.iter().zip(pass.list()).enumerate() {
        inputs::check_output(index, spec, output.dtype.0, output.sizes)?;
    }
    pass.list().iter().enumerate().try_for_each(|(index, output)| outputs(index, output))
}
