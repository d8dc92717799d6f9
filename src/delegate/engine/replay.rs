//! Passes by graph: the first ones over some shapes are issued call by call, then one is captured, and the rest are replays
//! of it. Inputs are copied to addresses that stay; outputs are read from where the captured pass left them.
#![deny(unsafe_code)]

use super::graphs::{give_back, give_inputs_back, Captured, Graphs, Shapes};
use super::{deliver, inputs, view, DelegateDevice, Turn};
use crate::aoti::container::Input;
use crate::aoti::outputs::{with_kept, Kept, Outputs as PassOutputs};
use crate::delegate::inputs::Signature;
use crate::delegate::run_pass::TakeOutputs;
use crate::delegate::tensor::{contiguous_strides, InputTensor, Memory};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use crate::session::CapturedPass;

/// Complete passes before a capture: the first one loads the kernels and fills the ring, and the second one is what all
/// others are.
const WARM_UP: u32 = 2;

impl<D: DelegateDevice> Turn<'_, D> {
    pub(super) fn run_by_graph(
        &mut self,
        graph: &mut Graphs<D>,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        if let Some(refused) = &graph.refused {
            return Err(refused.clone());
        }
        let shapes = shapes_of(inputs);
        if shapes != graph.shapes {
            self.forget(graph, &shapes)?;
        }
        self.forget_outdated(graph)?;
        if graph.captured.is_none() && graph.passes >= WARM_UP && self.again {
            let captured = self.capture(signature, inputs);
            graph.captured = Some(captured.inspect_err(|error| {
                graph.passes = 0;
                if let Error::Unsupported(_) = error {
                    graph.refused = Some(error.clone());
                }
            })?);
        }
        match &graph.captured {
            Some(captured) if self.session.prime(&captured.pass)? => {
                self.replay(captured, signature, inputs, outputs)
            }
            _ => {
                let plans = self.session.stats().replans;
                let ran = self.run_once(signature, inputs, outputs);
                graph.passes = match &ran {
                    Err(_) => 0,
                    // The ring of another plan is empty: one more pass fills it.
                    Ok(()) if self.session.stats().replans > plans => WARM_UP - 1,
                    Ok(()) => graph.passes + 1,
                };
                ran
            }
        }
    }

    /// Weights that have moved since lie elsewhere: another pass fills the ring, and then one is captured again.
    fn forget_outdated(&mut self, graph: &mut Graphs<D>) -> Result<()> {
        let outdated = |captured: &mut Captured<D>| self.session.is_outdated(&captured.pass);
        match graph.captured.take_if(outdated) {
            None => Ok(()),
            Some(captured) => {
                graph.passes = WARM_UP - 1;
                give_back(self.session, captured)
            }
        }
    }

    /// Other shapes have another graph.
    fn forget(&mut self, graph: &mut Graphs<D>, shapes: &Shapes) -> Result<()> {
        if let Some(captured) = graph.captured.take() {
            log::info!(
                "the shapes of the inputs changed from {:?} to {shapes:?}: the graph is given up, and captured again \
                 after {WARM_UP} passes",
                graph.shapes
            );
            give_back(self.session, captured)?;
        }
        graph.shapes.clone_from(shapes);
        graph.passes = 0;
        Ok(())
    }

    fn capture(
        &mut self,
        signature: &Signature<'_>,
        given: &[InputTensor<'_>],
    ) -> Result<Captured<D>> {
        let mut fixed: Vec<Option<(DevicePtr, u64)>> = Vec::with_capacity(given.len());
        for (index, input) in given.iter().enumerate() {
            let bytes = input.memory.len();
            let used = signature.wiring.is_used(index);
            let taken = used.then(|| self.session.device_mut().alloc_scratch(bytes));
            fixed.push(taken.transpose()?.map(|ptr| (ptr, bytes)));
        }
        let taken = fixed.iter().flatten().map(|(_, bytes)| bytes).sum();
        *self.io_bytes = (*self.io_bytes).max(taken);
        let outcome = self.capture_over(signature, given, &fixed);
        match outcome {
            Ok((pass, outputs)) => {
                log::info!(
                    "captured a pass as a graph, with inputs {:?}: from here on it is replayed",
                    shapes_of(given)
                );
                Ok(Captured {
                    pass,
                    inputs: fixed,
                    outputs,
                })
            }
            Err(error) => {
                // The first error says more.
                let _ = give_inputs_back(self.session, &fixed);
                Err(error.during(|| "capturing a pass as a graph".into()))
            }
        }
    }

    fn capture_over(
        &mut self,
        signature: &Signature<'_>,
        given: &[InputTensor<'_>],
        fixed: &[Option<(DevicePtr, u64)>],
    ) -> Result<(CapturedPass<D>, Vec<Kept>)> {
        let strides = strides_of(given);
        let placed = placed(given, &strides, fixed);
        let mut kept = Vec::new();
        self.session.begin_capture()?;
        let ran = self.pass(signature, &placed, |pass| {
            inputs::check_outputs(signature, pass.list())?;
            kept = pass.list().iter().map(|output| output.keep()).collect();
            Ok(())
        });
        if let Err(error) = ran {
            // The first error says more.
            let _ = self.session.abandon_capture();
            return Err(error);
        }
        let captured = self.session.end_capture()?;
        match self.check_kept(&captured, &kept, fixed) {
            Ok(()) => Ok((captured, kept)),
            Err(error) => {
                self.session.forget_graph(captured)?;
                Err(error)
            }
        }
    }

    /// An output may lie in a weight's memory, where a replay has copied another weight by its end.
    fn check_kept(
        &self,
        captured: &CapturedPass<D>,
        kept: &[Kept],
        fixed: &[Option<(DevicePtr, u64)>],
    ) -> Result<()> {
        let inputs = fixed.iter().flatten();
        let mut lasting = self.session.lasting(captured);
        lasting.extend(self.state.clone());
        lasting.extend(inputs.map(|&(ptr, bytes)| ptr.0..ptr.0 + bytes));
        for (index, one) in kept.iter().enumerate() {
            let range = one.range();
            let stays =
                |there: &std::ops::Range<u64>| there.start <= range.start && range.end <= there.end;
            if !range.is_empty() && !lasting.iter().any(stays) {
                return Err(Error::Unsupported(format!(
                    "output {index} of the delegate lies in the memory of a weight, which other weights take before the pass is over: load \
                     the program without weight_offload_cuda_graph"
                )));
            }
        }
        Ok(())
    }

    fn replay(
        &mut self,
        captured: &Captured<D>,
        signature: &Signature<'_>,
        given: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        for (index, (input, fixed)) in given.iter().zip(&captured.inputs).enumerate() {
            if let Some((ptr, bytes)) = fixed {
                // A caller may give more bytes than an input has, and more this time than at the capture.
                let filled = self.fill(*ptr, &input.memory.first(*bytes));
                filled.map_err(|error| error.during(|| signature.input_name(index)))?;
            }
        }
        let strides = strides_of(given);
        let placed = placed(given, &strides, &captured.inputs);
        let replayed = self.session.replay(&captured.pass);
        let ran = replayed.and_then(|()| {
            let take = |pass: &PassOutputs<'_>| deliver(signature, &placed, pass, outputs);
            with_kept(self.session, &captured.outputs, take)
        });
        let settled = self.settle();
        ran.and(settled)
    }

    /// Copies an input to where the graph reads it.
    fn fill(&mut self, to: DevicePtr, memory: &Memory<'_>) -> Result<()> {
        let device = self.session.device_mut();
        match memory {
            Memory::Host(bytes) => device.upload(to, bytes),
            Memory::Device(bytes) => {
                let ptr = device.place_input(memory)?;
                let copied = device.copy_across(to, ptr, bytes.len());
                copied.and(device.end_input(ptr, memory))
            }
        }
    }
}

fn shapes_of(inputs: &[InputTensor<'_>]) -> Shapes {
    let shape = |input: &InputTensor<'_>| (input.dtype, input.sizes.to_vec());
    inputs.iter().map(shape).collect()
}

fn strides_of(inputs: &[InputTensor<'_>]) -> Vec<Vec<i64>> {
    let strides = |input: &InputTensor<'_>| contiguous_strides(input.sizes);
    inputs.iter().map(strides).collect()
}

fn placed<'a>(
    given: &[InputTensor<'a>],
    strides: &'a [Vec<i64>],
    fixed: &[Option<(DevicePtr, u64)>],
) -> Vec<Option<Input<'a>>> {
    let both = given.iter().zip(strides).zip(fixed);
    both.map(|((input, strides), fixed)| fixed.map(|(ptr, _)| view(input, strides, ptr)))
        .collect()
}
