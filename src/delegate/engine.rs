//! The compiled code, its session and the bytes of both, joined for a pass. Each of them leaves one
//! promise to its user: this file makes these promises, and is the only unsafe code here.

mod dense;
mod graphs;
mod layouts;
mod replay;

use super::compiled::compiled;
use super::delegate_device::DelegateDevice;
use super::host_storage::HostStorage;
use super::inputs::{self, Signature};
use super::run_pass::{RunPass, TakeOutputs};
use super::tensor::{contiguous_strides, InputTensor};
use super::times::TimesFile;
use crate::aoti::container::{Binding, Container, Input};
use crate::aoti::dtype::DType;
use crate::aoti::outputs::Outputs as PassOutputs;
use crate::config::Verify;
use crate::device::{DevicePtr, HostBytes, HostFile, HostSource};
use crate::error::{Error, Result};
use crate::format::{ConstantKind, Source};
use crate::session::{Session, Stats};
use crate::store::{Constants, Method, StoreOptions};
use crate::weights::{Catalog, HostBytes as KeptBytes, MappedPtd};

/// The bytes of a method's constants, and where they are.
pub struct Data {
    /// The constants.
    pub catalog: Catalog,
    /// The file that they lie in; `None` where they are in memory that the caller keeps.
    pub file: Option<MappedPtd>,
    /// How they are held for copies.
    pub held: HostStorage,
    /// When they are compared with their checksums.
    pub verify: Verify,
    /// Whether every kernel is waited for.
    pub sync: bool,
    /// Whether passes are captured as graphs.
    pub graph: bool,
    /// Where the times of kernels go, once there are any.
    pub times_file: Option<TimesFile>,
}

/// One method on one kind of device. The order of the fields is the order in which they end: the compiled
/// code points into the session's memory, and the session's copies read the data.
pub struct Engine<D: DelegateDevice> {
    container: Container,
    session: Session<D>,
    scope: D::Scope,
    data: Data,
    /// Most device memory that the inputs of a call took.
    io_bytes: u64,
    /// Of inputs that are not row-major.
    copies: dense::Copies,
    poisoned: Option<String>,
    /// If passes are captured.
    graph: Option<graphs::Graphs<D>>,
}

impl<D: DelegateDevice> Engine<D> {
    /// `constants` holds the catalog index of each of the container's constants.
    pub fn new(
        device: D,
        mut container: Container,
        program: (Constants, Method),
        data: Data,
        constants: &[usize],
        options: StoreOptions,
    ) -> Result<Engine<D>> {
        let scope = device.scope();
        // All as placeholders first: a container that refuses them does so before any weight is loaded.
        let placeholders: Vec<_> = constants.iter().map(|_| Binding::Placeholder).collect();
        // SAFETY: placeholders are the container's own memory; no address of ours is bound.
        compiled(&scope, "binding placeholders to", || unsafe {
            container.bind_constants(&placeholders)
        })?;
        let from = host_source(&data);
        // After the budget was accepted: a refused one costs no registration, and no copy.
        let prepared = || format!("preparing all weights on the host, '{}'", data.held.name());
        let source = |device: &mut D| {
            let source = device.prepare_source(from, data.held);
            source.map_err(|error| error.during(prepared))
        };
        let mut session = Session::with_source(device, program, source, options)?;
        if data.verify == Verify::EveryRead {
            session.verify_every_read(checksums(&data.catalog))?;
        }
        if data.sync {
            session.wait_for_every_kernel();
        }
        if data.graph {
            session.allow_capture()?;
        }
        let bindings = bindings(&data.catalog, &session, constants)?;
        // SAFETY: the memory of direct constants is the session's, which keeps it in place for its whole
        // life, and the container ends first: by the order of this structure's fields, and here because
        // an error leaves nothing bound.
        compiled(&scope, "binding direct constants to", || unsafe {
            container.bind_constants(&bindings)
        })?;
        let mut engine = Engine {
            container,
            session,
            scope,
            graph: data.graph.then(graphs::Graphs::default),
            data,
            io_bytes: 0,
            copies: dense::Copies::default(),
            poisoned: None,
        };
        engine.keep_times();
        Ok(engine)
    }

    /// Writes the times of kernels once they are known, or says that they will not be.
    fn keep_times(&mut self) {
        let Some(file) = &self.data.times_file else {
            return;
        };
        match self.session.kernel_times() {
            Some(times) => {
                let specs = &self.session.store().constants().specs;
                let fqn = |&weight: &u32| specs[weight as usize].fqn.as_str();
                file.write(times, self.session.trace().probes().iter().map(fqn));
            }
            None if self.session.will_time_kernels() => return,
            None => file.give_up(),
        }
        self.data.times_file = None;
    }

    /// Where the kernels find input `index`, if it is used.
    fn place<'a>(
        &mut self,
        signature: &Signature<'_>,
        index: usize,
        input: &InputTensor<'a>,
        strides: &'a [i64],
    ) -> Result<Option<Input<'a>>> {
        if !signature.wiring.is_used(index) {
            return Ok(None);
        }
        let name = || signature.input_name(index);
        let ptr = self.session.device_mut().place_input(&input.memory);
        let ptr = ptr.map_err(|error| error.about(&name()).during(name))?;
        Ok(Some(view(input, strides, ptr)))
    }

    /// `placed` are the method's inputs, those that are used; `take` gets the outputs while they live.
    fn pass(
        &mut self,
        signature: &Signature<'_>,
        placed: &[Option<Input<'_>>],
        take: impl FnOnce(&PassOutputs<'_>) -> Result<()>,
    ) -> Result<()> {
        let taken = signature.wiring.taken.iter().map(|&index| placed[index]);
        let inputs: Vec<Input<'_>> = taken.flatten().collect();
        self.session.begin_pass()?;
        let (container, session) = (&mut self.container, &mut self.session);
        // SAFETY: the inputs' memory lives during this call and was checked against their sizes. The session
        // answers with memory that it holds under a lease, by the recorded layouts.
        let ran = compiled(&self.scope, "running", || unsafe {
            container.run(session, &inputs, take)
        });
        // Told in any case, so that the next pass starts afresh; the pass's own error comes first.
        let ended = self.session.end_pass(ran.is_ok());
        self.check_no_handles()?;
        ran.and(ended)
    }

    /// Nothing that the pass has issued is left on the compute stream. A device that fails here is lost:
    /// whatever it held cannot be trusted.
    fn settle(&mut self) -> Result<()> {
        self.session
            .finish_kernels()
            .map_err(|error| error.during(|| "waiting for the end of the pass".into()))
            .inspect_err(|error| {
                self.poisoned
                    .get_or_insert(format!("the device failed: {error}"));
            })
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

    /// One pass over row-major inputs.
    fn run_dense(
        &mut self,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        match self.graph.take() {
            None => self.run_once(signature, inputs, outputs),
            Some(mut graph) => {
                let ran = self.run_by_graph(&mut graph, signature, inputs, outputs);
                self.graph = Some(graph);
                ran
            }
        }
    }

    /// One pass, issued call by call.
    fn run_once(
        &mut self,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        let strides: Vec<Vec<i64>> = inputs
            .iter()
            .map(|input| contiguous_strides(input.sizes))
            .collect();
        let mut placed: Vec<Option<Input<'_>>> = Vec::with_capacity(inputs.len());
        let given = inputs.iter().zip(&strides).enumerate();
        let sent = { given }.try_for_each(|(index, (input, strides))| {
            placed.push(self.place(signature, index, input, strides)?);
            Ok(())
        });
        let device = self.session.device();
        let there = || {
            inputs
                .iter()
                .zip(&placed)
                .filter(|(_, view)| view.is_some())
        };
        let held = there().map(|(input, _)| device.placed_bytes(&input.memory));
        self.io_bytes = self.io_bytes.max(held.sum());
        let ran = sent.and_then(|()| {
            let take = |pass: &PassOutputs<'_>| deliver(signature, &placed, pass, outputs);
            self.pass(signature, &placed, take)
        });
        let device = self.session.device_mut();
        let freed = inputs
            .iter()
            .zip(&placed)
            .enumerate()
            .filter_map(|(index, (input, view))| Some((index, input, view.as_ref()?.ptr)))
            .map(|(index, input, ptr)| {
                let ended = device.end_input(ptr, &input.memory);
                ended.map_err(|error| error.during(|| signature.input_name(index)))
            })
            .fold(Ok(()), Result::and);
        // The first error comes first: it is the cause of the others.
        let settled = self.settle();
        ran.and(freed).and(settled)
    }
}

impl<D: DelegateDevice> RunPass for Engine<D> {
    fn run(
        &mut self,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        if let Some(why) = &self.poisoned {
            return Err(Error::Poisoned(why.clone()));
        }
        let outcome = self.run_any(signature, inputs, outputs);
        self.keep_times();
        outcome.map_err(|error| match self.session.device().is_lost() {
            true => error.lost(self.session.weights_in_use()),
            false => error,
        })
    }

    fn stats(&self) -> Stats {
        let (host_pinned_bytes, host_mapped_bytes) = self.session.device().host_bytes();
        Stats {
            host_pinned_bytes,
            host_mapped_bytes,
            activation_peak_bytes: self.session.activation_peak_bytes(),
            io_bytes: self.io_bytes,
            inputs_copied: self.copies.count,
            ..self.session.stats()
        }
    }
}

/// What each constant is copied from, by index.
fn host_source(data: &Data) -> HostSource {
    let segments = data.catalog.constants().iter();
    let segments = segments.map(|constant| &data.catalog.segment(constant.segment).bytes);
    let Some(file) = data.file.as_ref().map(MappedPtd::file) else {
        // SAFETY: `Engine` keeps the catalog, whose bytes stay as they are while it lives, and ends its session, and with it the
        // device, first.
        let bytes = |bytes: &KeptBytes| unsafe { HostBytes::new(bytes.addr(), bytes.len()) };
        return HostSource::Memory(segments.map(bytes).collect());
    };
    let all = file.bytes();
    // SAFETY: `Engine` keeps the mapping, and ends its session, and with it the device, first. A session that
    // fails in `Session::with_source` ends there.
    let mapping = unsafe { HostBytes::new(all.as_ptr(), all.len() as u64) };
    let start = all.as_ptr().addr();
    let range = |bytes: &KeptBytes| {
        let offset = bytes.addr().addr().wrapping_sub(start) as u64;
        // The address of no bytes may be any.
        let offset = if bytes.is_empty() { 0 } else { offset };
        offset..offset + bytes.len()
    };
    let file = HostFile::new(file.name(), file.file().clone(), mapping);
    HostSource::File(file, segments.map(range).collect())
}

/// The recorded CRC-32 of each constant, by index.
fn checksums(catalog: &Catalog) -> Vec<u32> {
    let constants = catalog.constants().iter();
    constants.map(|constant| constant.crc32).collect()
}

fn bindings<'a, D: DelegateDevice>(
    catalog: &'a Catalog,
    session: &Session<D>,
    constants: &[usize],
) -> Result<Vec<Binding<'a>>> {
    let binding = |&index: &usize| {
        let constant = &catalog.constants()[index];
        if constant.kind == ConstantKind::Weight {
            return Ok(Binding::Placeholder);
        }
        let ptr = session.store().direct_address(index).ok_or_else(|| {
            Error::Internal(format!("direct constant '{}' has no memory", constant.fqn))
        })?;
        Ok(Binding::Direct {
            ptr,
            nbytes: constant.nbytes,
            sizes: &constant.sizes,
            strides: &constant.strides,
        })
    };
    constants.iter().map(binding).collect()
}

fn view<'a>(input: &InputTensor<'a>, strides: &'a [i64], ptr: DevicePtr) -> Input<'a> {
    Input {
        ptr,
        dtype: DType(input.dtype),
        sizes: input.sizes,
        strides,
    }
}

/// Hands the method's outputs on, once all of the delegate's are what the record says.
fn deliver(
    signature: &Signature<'_>,
    placed: &[Option<Input<'_>>],
    pass: &PassOutputs<'_>,
    outputs: TakeOutputs<'_>,
) -> Result<()> {
    inputs::check_outputs(signature, pass.list())?;
    let returned = signature.wiring.outputs.iter().enumerate();
    { returned }.try_for_each(|(index, source)| {
        let output = match *source {
            Source::Output(own) => pass.list().get(own).copied(),
            Source::Input(input) => placed[input].as_ref().map(|input| pass.input(input)),
        };
        let output = output.ok_or_else(|| {
            Error::Internal(format!("output {index} is {source:?}, which is not there"))
        })?;
        outputs(index, &output).map_err(|error| error.during(|| signature.output_name(index)))
    })
}
