//! The compiled code, its session and the bytes of both, joined for a pass. Each of them leaves one
//! promise to its user: this file, `code` and `source` make these promises, and are the only unsafe code here.

use std::any::Any;
use std::sync::{Arc, Mutex};

mod dense;
mod graphs;
mod layouts;
mod replay;
mod source;
mod up_front;

pub(super) use source::new_session;

use super::code::MethodCode;
use super::compiled::compiled;
use super::delegate_device::DelegateDevice;
use super::inputs::{self, Signature};
use super::locked;
use super::option_checks::captures;
use super::request::LoadRequest;
use super::run_pass::{Parts, RunPass, TakeOutputs};
use super::shared::{ProgramState, SessionState, Shared};
use super::tensor::{contiguous_strides, InputTensor};
use crate::aoti::container::Input;
use crate::aoti::dtype::DType;
use crate::aoti::outputs::Outputs as PassOutputs;
use crate::config::Options;
use crate::device::DevicePtr;
use crate::elastic::PassNeeds;
use crate::error::{Error, Result};
use crate::format::OutputSource;
use crate::session::{Session, State, Stats};
use crate::tenancy::{settle_grant, take_grant};

/// One method on one kind of device. The order of the fields is the order in which they end: the compiled code points into the
/// session's memory.
pub(super) struct Engine<D: DelegateDevice> {
    /// Taken when it ends.
    code: Option<MethodCode<D>>,
    shared: Arc<Shared<D>>,
    /// Where the buffers lie that it writes; `None`: with the direct constants.
    state: Option<Arc<SessionState<D>>>,
    /// Which of the program's methods.
    method: usize,
    /// Of inputs that are not row-major.
    copies: dense::Copies,
    /// If passes are captured.
    graph: Option<graphs::EngineGraphs>,
}

impl<D: DelegateDevice> Engine<D> {
    /// `code` is the method's if it was opened already.
    pub fn new(
        code: Option<MethodCode<D>>,
        shared: Arc<Shared<D>>,
        state: Option<Arc<SessionState<D>>>,
        request: &LoadRequest<'_>,
        options: &Options,
    ) -> Result<Engine<D>> {
        let (method, record) = (request.records.method(), request.records.own());
        let mut running = shared.turn()?;
        let captures = captures(options, running.data.held, running.session.store().policy())?;
        if captures {
            running.session.allow_capture()?;
            running.session.raise_graph_cap(options.graph_bytes)?;
        }
        let mut code = match code.or_else(|| shared.take_code(method)) {
            Some(code) => code,
            None => MethodCode::open(running.session.device(), request)?,
        };
        let index = shared.union.index.get(method);
        let index = index.ok_or_else(|| Error::Internal(format!("there is no method {method}")))?;
        let own = state.as_ref().and_then(|state| state.state());
        // SAFETY: the code ends before the session, by the order of the fields of `Engine` and of `Shared`, and here because an
        // error ends it. It runs only for this engine, which keeps the state; another one binds it again first.
        unsafe { code.bind(record, index, &running.session, own) }?;
        keep_times(&mut running);
        drop(running);
        Ok(Engine {
            code: Some(code),
            shared,
            state,
            method,
            copies: dense::Copies::default(),
            graph: captures.then(graphs::EngineGraphs::new),
        })
    }

    /// Passes of this method, while no others run over its store.
    fn in_turn(
        &mut self,
        passes: impl FnOnce(
            &mut Turn<'_, D>,
            &mut dense::Copies,
            &mut Option<graphs::EngineGraphs>,
        ) -> Result<()>,
    ) -> Result<()> {
        let mut running = self.shared.turn()?;
        if let Some(why) = &running.poisoned {
            return Err(Error::Poisoned(why.clone()));
        }
        running.session.turn_to(self.method)?;
        take_grant(
            self.shared.membership.as_deref(),
            &mut running.session,
            0,
            PassNeeds::default(),
        )?;
        let ProgramState {
            session,
            poisoned,
            io_bytes,
            inputs_copied,
            ..
        } = &mut *running;
        let ended = || Error::Internal("a method ran that had ended".to_owned());
        let mut turn = Turn {
            code: self.code.as_mut().ok_or_else(ended)?,
            session,
            poisoned,
            io_bytes,
            inputs_copied,
            state: self.state.as_ref().and_then(|one| one.state()),
        };
        let (copies, graph) = (&mut self.copies, &mut self.graph);
        let outcome = passes(&mut turn, copies, graph);
        settle_grant(self.shared.membership.as_deref(), &mut running.session, 0);
        keep_times(&mut running);
        *locked(&self.shared.stats) = running.stats();
        let session = &running.session;
        outcome.map_err(|error| match session.device().is_lost() {
            true => error.lost(session.weights_in_use()),
            false => error,
        })
    }
}

/// Writes the times of kernels once they are known, or says that they will not be.
fn keep_times<D: DelegateDevice>(running: &mut ProgramState<D>) {
    let Some(file) = &running.data.times_file else {
        return;
    };
    let session = &running.session;
    match session.kernel_times() {
        Some(times) => {
            let specs = &session.store().constants().specs;
            let fqn = |&weight: &u32| specs[weight as usize].fqn.as_str();
            file.write(times, session.trace().probes().iter().map(fqn));
        }
        None if session.will_time_kernels() => return,
        None => file.give_up(),
    }
    running.data.times_file = None;
}

/// One pass of one method, and all that it uses.
struct Turn<'a, D: DelegateDevice> {
    code: &'a mut MethodCode<D>,
    session: &'a mut Session<D>,
    poisoned: &'a mut Option<String>,
    io_bytes: &'a mut u64,
    inputs_copied: &'a mut u64,
    /// The state of its session, if that lies beside the direct constants.
    state: Option<&'a State>,
}

impl<D: DelegateDevice> Turn<'_, D> {
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
        let (container, session) = (&mut self.code.container, &mut *self.session);
        // SAFETY: the inputs' memory lives during this call and was checked against their sizes. The session
        // answers with memory that it holds under a lease, by the recorded layouts.
        let ran = compiled(&self.code.scope, "running", || unsafe {
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
        match self.code.container.live_handles() {
            0 => Ok(()),
            live => {
                let why = format!("{live} tensor handles outlived their pass");
                *self.poisoned = Some(why.clone());
                Err(Error::Poisoned(why))
            }
        }
    }

    /// One pass over row-major inputs.
    fn run_dense(
        &mut self,
        graph: &mut Option<graphs::EngineGraphs>,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        match graph {
            None => self.run_once(signature, inputs, outputs),
            Some(graph) => self.run_by_graph(graph, signature, inputs, outputs),
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
        *self.io_bytes = (*self.io_bytes).max(held.sum());
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

impl<D: DelegateDevice + 'static> RunPass for Engine<D> {
    fn run(
        &mut self,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        self.in_turn(|turn, copies, graph| turn.run_any(copies, graph, signature, inputs, outputs))
    }

    fn reset_state(&mut self) -> Result<()> {
        let mut running = self.shared.turn()?;
        if let Some(why) = &running.poisoned {
            return Err(Error::Poisoned(why.clone()));
        }
        let own = self.state.as_ref().and_then(|state| state.state());
        running.session.reset_state(own)
    }

    fn set_budget(&mut self, bytes: u64) -> Result<()> {
        let mut running = self.shared.turn()?;
        if let Some(why) = &running.poisoned {
            return Err(Error::Poisoned(why.clone()));
        }
        if self.shared.membership.is_some() {
            return Err(Error::InvalidInput(
                "this program shares its device: its budget follows the device's, which set_device_budget changes".to_owned(),
            ));
        }
        let changed = running.session.set_budget(bytes);
        *locked(&self.shared.stats) = running.stats();
        changed
    }

    fn parts(&self) -> Parts {
        let state = self.state.clone();
        Parts {
            program: self.shared.clone(),
            state: state.map(|state| state as Arc<dyn Any + Send + Sync>),
            membership: self.shared.membership.clone(),
        }
    }

    fn stats(&self) -> Arc<Mutex<Stats>> {
        self.shared.stats.clone()
    }
}

impl<D: DelegateDevice> Drop for Engine<D> {
    /// The session lives on where the program has other methods or sessions: it gets the memory of the graphs back, and the next
    /// session of this method the compiled code.
    fn drop(&mut self) {
        let Some(mut running) = self.shared.last_turn() else {
            return;
        };
        if self.graph.is_some() {
            let own = self.state.as_ref().and_then(|state| state.state());
            let given = running.session.forget_graphs_of(self.method, own);
            if let Err(error) = given {
                log::warn!("the memory of graphs could not be given back: {error}");
            }
            *locked(&self.shared.stats) = running.stats();
        }
        if let Some(code) = self.code.take().filter(|_| running.poisoned.is_none()) {
            self.shared.keep_code(self.method, code);
        }
    }
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
            OutputSource::Output(own) => pass.list().get(own).copied(),
            OutputSource::Input(input) => placed[input].as_ref().map(|input| pass.input(input)),
        };
        let output = output.ok_or_else(|| {
            Error::Internal(format!("output {index} is {source:?}, which is not there"))
        })?;
        outputs(index, &output).map_err(|error| error.during(|| signature.output_name(index)))
    })
}
