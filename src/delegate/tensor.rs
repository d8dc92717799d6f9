//! Views of the tensors that go into a call, and of the room for those that come out of it.
#![deny(unsafe_code)]

use crate::aoti::outputs::Output;
use crate::aoti::view::for_each;
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

impl<'a> Memory<'a> {
    /// The first `len` bytes; all if there are not so many.
    pub fn first(&self, len: u64) -> Memory<'a> {
        match self {
            Memory::Host(bytes) => Memory::Host(&bytes[..len.min(bytes.len() as u64) as usize]),
            Memory::Device(bytes) => Memory::Device(bytes.first(len)),
        }
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

impl InputTensor<'_> {
    /// Whether the elements lie as compiled code takes them.
    pub fn is_row_major(&self) -> bool {
        let strides = self.strides;
        strides.is_none_or(|strides| is_contiguous(self.sizes, strides))
    }

    /// Bytes from the first element to the end of the last one, of `item` bytes each; `None` if they cannot be counted, or
    /// a stride goes backwards.
    pub fn reach(&self, item: u64) -> Option<u64> {
        let Some(strides) = self.strides else {
            let mut sizes = self.sizes.iter();
            return sizes.try_fold(item, |bytes, &size| {
                bytes.checked_mul(u64::try_from(size).ok()?)
            });
        };
        if self.sizes.contains(&0) {
            return Some(0);
        }
        let mut dims = self
            .sizes
            .iter()
            .zip(strides)
            .filter(|(&size, _)| size != 1);
        let last = dims.try_fold(0u64, |last, (&size, &stride)| {
            let (steps, stride) = (u64::try_from(size - 1).ok()?, u64::try_from(stride).ok()?);
            last.checked_add(steps.checked_mul(stride)?)
        });
        last?.checked_add(1)?.checked_mul(item)
    }
}

/// Copies elements of `item` bytes that lie in `from` by these strides to `to`, one after the other in row-major order.
pub fn pack(to: &mut [u8], from: &[u8], item: usize, sizes: &[i64], strides: &[i64]) -> Result<()> {
    let mut dims: Vec<(i64, i64)> = sizes.iter().copied().zip(strides.iter().copied()).collect();
    dims.retain(|(size, _)| *size != 1);
    // Elements that follow each other are copied together.
    let mut run = 1;
    while let Some((size, _)) = dims.pop_if(|(size, stride)| *stride == run && *size > 0) {
        run *= size;
    }
    let length = run as usize * item;
    let (sizes, strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
    let mut rooms = to.chunks_exact_mut(length);
    let mut short = false;
    for_each(&sizes, [&strides], |[at]| {
        let source = at
            .checked_mul(item)
            .and_then(|at| from.get(at..)?.get(..length));
        match (rooms.next(), source) {
            (Some(room), Some(source)) => copy_run(room, source),
            _ => short = true,
        }
    });
    match short {
        false => Ok(()),
        true => Err(Error::InvalidInput(
            "its sizes and strides reach beyond its memory".to_owned(),
        )),
    }
}

/// As `copy_from_slice`, without a call for single elements.
fn copy_run(to: &mut [u8], from: &[u8]) {
    fn one<const N: usize>(to: &mut [u8], from: &[u8]) {
        if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
            *to = *from;
        }
    }
    match to.len() {
        1 => one::<1>(to, from),
        2 => one::<2>(to, from),
        4 => one::<4>(to, from),
        8 => one::<8>(to, from),
        _ => to.copy_from_slice(from),
    }
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

    /// Numbers 0, 1, 2, ... of two bytes each, packed by sizes and strides.
    fn packed(count: u16, sizes: &[i64], strides: &[i64]) -> Result<Vec<u16>> {
        let from: Vec<u8> = (0..count).flat_map(u16::to_le_bytes).collect();
        let mut to = vec![0xEE; 2 * sizes.iter().product::<i64>() as usize];
        pack(&mut to, &from, 2, sizes, strides)?;
        let pairs = to.chunks_exact(2);
        Ok(pairs
            .map(|two| u16::from_le_bytes([two[0], two[1]]))
            .collect())
    }

    #[test]
    fn any_layout_is_packed_in_row_major_order() {
        let cases: [(&[i64], &[i64], &[u16]); 8] = [
            (&[2, 3], &[1, 2], &[0, 2, 4, 1, 3, 5]),
            (&[2, 2], &[5, 1], &[0, 1, 5, 6]),
            (&[3], &[4], &[0, 4, 8]),
            (&[2, 3], &[1, 0], &[0, 0, 0, 1, 1, 1]),
            (&[2, 1, 2], &[7, i64::MAX, 1], &[0, 1, 7, 8]),
            (&[2, 3], &[3, 1], &[0, 1, 2, 3, 4, 5]),
            (&[], &[], &[0]),
            (
                &[2, 2, 4],
                &[9, 4, 1],
                &[0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16],
            ),
        ];
        for (sizes, strides, expected) in cases {
            let count = expected.iter().max().unwrap() + 1;
            assert_eq!(
                packed(count, sizes, strides).unwrap(),
                expected,
                "{sizes:?} {strides:?}"
            );
            assert!(
                packed(count - 1, sizes, strides).is_err(),
                "{sizes:?} {strides:?}"
            );
        }
        assert_eq!(packed(0, &[2, 0], &[9, 9]).unwrap(), [0u16; 0]);
        assert_eq!(packed(0, &[0, 2], &[1, 2]).unwrap(), [0u16; 0]);
    }

    #[test]
    fn what_a_layout_reaches_is_counted_exactly() {
        let reach = |sizes: &[i64], strides: Option<&[i64]>| {
            InputTensor {
                dtype: 6,
                sizes,
                strides,
                memory: Memory::Host(&[]),
            }
            .reach(4)
        };
        assert_eq!(reach(&[2, 3], None), Some(24));
        assert_eq!(reach(&[2, 3], Some(&[1, 2])), Some(24));
        assert_eq!(reach(&[2, 3], Some(&[8, 1])), Some(44));
        assert_eq!(reach(&[2, 3], Some(&[0, 0])), Some(4));
        assert_eq!(reach(&[1, 3], Some(&[-7, 1])), Some(12));
        assert_eq!(reach(&[0, 3], Some(&[-7, 1])), Some(0));
        assert_eq!(reach(&[2, 3], Some(&[-1, 1])), None);
        assert_eq!(reach(&[3, 3], Some(&[i64::MAX, i64::MAX])), None);
        assert_eq!(reach(&[-1], None), None);
    }
}
