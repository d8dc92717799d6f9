//! Inputs in any layout. Compiled code takes dense, row-major ones; an input that lies otherwise is copied once, before the pass,
//! to memory that stays for the next call. One in a device's memory goes through the host.
#![deny(unsafe_code)]

use super::dense::{grow, Copied, Copies};
use super::{graphs::EngineGraphs, DelegateDevice, Turn};
use crate::delegate::inputs::Signature;
use crate::delegate::run_pass::TakeOutputs;
use crate::delegate::tensor::{pack, InputTensor, Memory};
use crate::device::DeviceBytes;
use crate::error::{Error, Result};
use crate::format::ScalarType;

impl<D: DelegateDevice> Turn<'_, D> {
    /// One pass over inputs of any layout.
    pub(super) fn run_any(
        &mut self,
        copies: &mut Copies,
        graph: &mut Option<EngineGraphs>,
        signature: &Signature<'_>,
        inputs: &[InputTensor<'_>],
        outputs: TakeOutputs<'_>,
    ) -> Result<()> {
        let is_copied =
            |index: usize| !inputs[index].is_row_major() && signature.wiring.is_used(index);
        if !(0..inputs.len()).any(is_copied) {
            return self.run_dense(graph, signature, inputs, outputs);
        }
        copies.of.resize_with(inputs.len(), Copied::default);
        let copied = (0..inputs.len())
            .filter(|&index| is_copied(index))
            .try_for_each(|index| {
                let copied = self.copy_dense(copies, index, &inputs[index]);
                let name = || signature.input_name(index);
                copied.map_err(|error| error.about(&name()).during(name))
            });
        copied.and_then(|()| {
            let dense = inputs.iter().zip(&copies.of).enumerate();
            let dense = dense.map(|(index, (input, copied))| match is_copied(index) {
                false => *input,
                true => InputTensor {
                    strides: None,
                    memory: Memory::Host(copied.bytes()),
                    ..*input
                },
            });
            let dense: Vec<InputTensor<'_>> = dense.collect();
            self.run_dense(graph, signature, &dense, outputs)
        })
    }

    fn copy_dense(
        &mut self,
        copies: &mut Copies,
        index: usize,
        input: &InputTensor<'_>,
    ) -> Result<()> {
        let unknown = || Error::Internal("an input was not checked".to_owned());
        let dtype = ScalarType::from_number(i64::from(input.dtype)).ok_or_else(unknown)?;
        let strides = input.strides.ok_or_else(unknown)?;
        let bytes = dtype.dense_bytes(input.sizes.iter().copied());
        let bytes = bytes.ok_or_else(unknown)?;
        let source = match input.memory {
            Memory::Host(bytes) => bytes,
            Memory::Device(bytes) => {
                let reach = input.reach(dtype.itemsize()).ok_or_else(unknown)?;
                self.fetch(bytes.first(reach), &mut copies.fetched)?;
                &copies.fetched
            }
        };
        let room = copies.of[index].room(bytes as usize)?;
        let item = dtype.itemsize() as usize;
        pack(room, source, item, input.sizes, strides)?;
        *self.inputs_copied += 1;
        Ok(())
    }

    /// The bytes of an input in the device's memory.
    fn fetch(&mut self, bytes: DeviceBytes, into: &mut Vec<u8>) -> Result<()> {
        let length = bytes.len() as usize;
        grow(into, length)?;
        let memory = Memory::Device(bytes);
        let device = self.session.device_mut();
        let ptr = device.place_input(&memory)?;
        let fetched = device.download(ptr, &mut into[..length]);
        fetched.and(device.end_input(ptr, &memory))
    }
}
