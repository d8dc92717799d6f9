//! Views of the tensors that go into a call, and of the room for those that come out of it.
#![deny(unsafe_code)]

use crate::aoti::outputs::Output;
use crate::device::{DeviceBytes, HostRoom};
use crate::error::{Error, Result};

/// Where the bytes of an input lie.
#[derive(Debug, Clone, Copy)]
pub enum Memory<'a> {
    /// In the process's own memory.
    Host(&'a [u8]),
    /// In memory of the GPU that the method runs on.
    Device(DeviceBytes),
}

impl Memory<'_> {
    /// Number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Memory::Host(bytes) => bytes.len() as u64,
            Memory::Device(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One input of a call.
#[derive(Debug, Clone, Copy)]
pub struct InputTensor<'a> {
    /// Scalar type in the numbering of ExecuTorch and PyTorch.
    pub dtype: i32,
    /// Extents, outermost first.
    pub sizes: &'a [i64],
    /// Strides in elements; `None` for a contiguous tensor.
    pub strides: Option<&'a [i64]>,
    /// The bytes from the first element on.
    pub memory: Memory<'a>,
}

/// Where the bytes of an output go.
#[derive(Debug)]
pub enum Room<'a> {
    /// To the process's own memory.
    Host(&'a mut [u8]),
    /// To the same, by the end of the call that it is given to.
    Call(HostRoom),
    /// To memory of the GPU that the method runs on.
    Device(DeviceBytes),
}

/// What an output is expected to be, and the memory for it.
#[derive(Debug)]
pub struct OutputTensor<'a> {
    /// Scalar type in the numbering of ExecuTorch and PyTorch.
    pub dtype: i32,
    /// Extents, outermost first.
    pub sizes: &'a [i64],
    /// Strides in elements, dense in some order of dimensions; `None` for a contiguous tensor.
    pub strides: Option<&'a [i64]>,
    /// Memory of at least as many bytes as the output has.
    pub room: Room<'a>,
}

impl OutputTensor<'_> {
    /// Copies an output into its memory.
    pub fn take(&mut self, output: &Output<'_>) -> Result<()> {
        if self.dtype != output.dtype.0 || self.sizes != output.sizes {
            return Err(Error::InvalidInput(format!(
                "it has sizes {:?} and dtype number {}, and room was given for sizes {:?} and dtype number {}",
                output.sizes, output.dtype.0, self.sizes, self.dtype
            )));
        }
        let contiguous = contiguous_strides(self.sizes);
        let strides = self.strides.unwrap_or(&contiguous);
        let needed = output.nbytes();
        let given = match &self.room {
            Room::Host(room) => room.len() as u64,
            Room::Call(room) => room.len() as u64,
            Room::Device(room) => room.len(),
        };
        if given < needed as u64 {
            return Err(Error::InvalidInput(format!(
                "it has {needed} bytes, and room was given for {given}"
            )));
        }
        match &mut self.room {
            Room::Host(room) => output.copy_to(&mut room[..needed], strides),
            Room::Call(room) => output.copy_out(room.first(needed), strides),
            Room::Device(room) => output.copy_to_caller(room.first(needed as u64), strides),
        }
    }
}

/// Strides of a contiguous tensor.
pub fn contiguous_strides(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    for dim in (0..sizes.len().saturating_sub(1)).rev() {
        strides[dim] = strides[dim + 1] * sizes[dim + 1].max(1);
    }
    strides
}

/// Whether a tensor of these sizes and strides is contiguous. The stride of a dimension of extent one
/// is never used, and a tensor without elements has no layout.
pub fn is_contiguous(sizes: &[i64], strides: &[i64]) -> bool {
    if sizes.len() != strides.len() {
        return false;
    }
    if sizes.contains(&0) {
        return true;
    }
    let dense = contiguous_strides(sizes);
    (0..sizes.len()).all(|dim| sizes[dim] == 1 || strides[dim] == dense[dim])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguity_ignores_extent_one_and_empty_tensors() {
        assert!(is_contiguous(&[2, 3], &[3, 1]));
        assert!(!is_contiguous(&[2, 3], &[1, 2]));
        assert!(is_contiguous(&[2, 1, 3], &[3, 77, 1]));
        assert!(is_contiguous(&[0, 3], &[9, 9]));
        assert!(is_contiguous(&[], &[]));
        assert!(!is_contiguous(&[2], &[]));
        assert_eq!(contiguous_strides(&[2, 3, 4]), [12, 4, 1]);
    }
}
