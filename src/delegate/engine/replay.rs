//! Passes by graph: the first one over some shapes is issued call by call, the second one is captured, and the rest are
//! replays. Inputs are copied to addresses that stay; outputs are read from where the captured pass left them.
#![deny(unsafe_code)]

use super::graphs::EngineGraphs;
use super::{deliver, inputs, view, DelegateDevice, Turn};
use crate::aoti::container::Input;
use crate::aoti::outputs::{with_kept, Kept, Outputs as PassOutputs};
use crate::delegate::inputs::Signature;
use crate::delegate::run_pass::TakeOutputs;
use crate::delegate::tensor::{contiguous_strides, InputTensor, Memory};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use crate::session::{ByGraph, CapturedPass, Ends, GraphKey, Shapes, State};

/// Address and bytes of each input that is used.
type Fixed = Vec<Option<(DevicePtr, u64)>>;

impl<D: DelegateDevice> Turn<'_, D> {
    pub(super) fn run_by_graph(
        &mut self,
        graphs: &mut EngineGraphs,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        if let Some(refused) = &graphs.refused {
            return Err(refused.clone());
        }
        let key = self
            .session
            .graph_key(graphs.number, self.state, shapes_of(signature, inputs));
        let kept = match self.session.next_by_graph(&key)? {
            ByGraph::Calls => false,
            ByGraph::Replay => true,
            ByGraph::Capture => {
                let captured = self.capture(&key, signature, inputs);
                let kept = captured.inspect_err(|error| {
                    self.session.forget_shapes(&key);
                    if let Error::Unsupported(_) = error {
                        graphs.refused = Some(error.clone());
                    }
                })?;
                if kept {
                    log::info!(
                        "captured a pass as a graph, with inputs {:?}: from here on it is replayed",
                        shapes_of(signature, inputs)
                    );
                }
                kept
            }
        };
        if kept {
            return self.replay(&key, signature, inputs, outputs);
        }
        self.run_once(signature, inputs, outputs)?;
        self.session.saw(&key)
    }

    /// Captures the pass. Whether its graph was kept: one that is larger than all of them may be is not.
    pub(super) fn capture(
        &mut self,
        key: &GraphKey,
        signature: &Signature<'_>,
        given: &[InputTensor<'_>],
    ) -> Result<bool> {
        let captured = self.capture_over(key, signature, given);
        let (pass, ends) =
            captured.map_err(|error| error.during(|| "capturing a pass as a graph".into()))?;
        let taken = ends.inputs.iter().flatten().map(|(_, bytes)| bytes).sum();
        *self.io_bytes = (*self.io_bytes).max(taken);
        self.session.keep_graph(key, pass, ends)
    }

    fn capture_over(
        &mut self,
        key: &GraphKey,
        signature: &Signature<'_>,
        given: &[InputTensor<'_>],
    ) -> Result<(CapturedPass<D>, Ends)> {
        let (mut fixed, bytes) = self.offsets(signature, given)?;
        let at = self.session.begin_capture_of(key, bytes)?;
        for (ptr, _) in fixed.iter_mut().flatten() {
            *ptr = at.offset(ptr.0);
        }
        let strides = strides_of(given);
        let placed = placed(given, &strides, &fixed);
        let mut kept = Vec::new();
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
        match self.check_kept(&captured, &kept) {
            Ok(()) => Ok((
                captured,
                Ends {
                    inputs: fixed,
                    outputs: kept,
                },
            )),
            Err(error) => {
                self.session.forget_graph(captured)?;
                Err(error)
            }
        }
    }

    /// Where the inputs lie in the block, one after the other from its start; and the bytes of all of them.
    fn offsets(
        &self,
        signature: &Signature<'_>,
        given: &[InputTensor<'_>],
    ) -> Result<(Fixed, u64)> {
        let granule = self.session.device().granule();
        let mut end = 0u64;
        let mut fixed: Fixed = Vec::with_capacity(given.len());
        for (index, input) in given.iter().enumerate() {
            let bytes = input.memory.len();
            let used = signature.wiring.is_used(index);
            fixed.push(used.then_some((DevicePtr(end), bytes)));
            let size = if used { bytes } else { 0 };
            let next = size.checked_next_multiple_of(granule);
            let next = next.and_then(|size| end.checked_add(size));
            end =
                next.ok_or_else(|| Error::Internal("inputs larger than any device".to_owned()))?;
        }
        Ok((fixed, end))
    }

    /// An output may lie in a weight's memory, where a replay has copied another weight by its end.
    fn check_kept(&self, captured: &CapturedPass<D>, kept: &[Kept]) -> Result<()> {
        let mut lasting = self.session.lasting(captured);
        lasting.extend(self.state.map(State::range));
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
        key: &GraphKey,
        signature: &Signature<'_>,
        given: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        let ends = self.session.ends_of(key)?;
        for (index, (input, fixed)) in given.iter().zip(&ends.inputs).enumerate() {
            if let Some((ptr, bytes)) = fixed {
                // A caller may give more bytes than an input has, and more this time than at the capture.
                let filled = self.fill(*ptr, &input.memory.first(*bytes));
                filled.map_err(|error| error.during(|| signature.input_name(index)))?;
            }
        }
        let strides = strides_of(given);
        let placed = placed(given, &strides, &ends.inputs);
        let replayed = self.session.replay_kept(key);
        let ran = replayed.and_then(|()| {
            let take = |pass: &PassOutputs<'_>| deliver(signature, &placed, pass, outputs);
            with_kept(self.session, &ends.outputs, take)
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

/// Of the inputs that the graph reads or hands back.
pub(super) fn shapes_of(signature: &Signature<'_>, inputs: &[InputTensor<'_>]) -> Shapes {
    let used = inputs.iter().enumerate();
    let used = used.filter(|(index, _)| signature.wiring.is_used(*index));
    used.map(|(_, input)| (input.dtype, input.sizes.to_vec()))
        .collect()
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
