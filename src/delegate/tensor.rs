//! Views of the tensors that go into a call and come out of it, and the strided copy between layouts.
#![deny(unsafe_code)]

use crate::error::{Error, Result};

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
    pub bytes: &'a [u8],
}

/// One output of a call, valid while the receiver looks at it.
#[derive(Debug, Clone, Copy)]
pub struct OutputTensor<'a> {
    /// Scalar type in the numbering of ExecuTorch and PyTorch.
    pub dtype: i32,
    /// Bytes per element.
    pub item: usize,
    /// Extents, outermost first.
    pub sizes: &'a [i64],
    /// Strides in elements.
    pub strides: &'a [i64],
    /// The bytes from the first element to the last.
    pub bytes: &'a [u8],
}

impl OutputTensor<'_> {
    /// Bytes of the tensor when it is contiguous.
    pub fn dense_bytes(&self) -> usize {
        elements(self.sizes) * self.item
    }

    /// Copies the tensor into `to`, which has `strides` (in elements).
    pub fn copy_to(&self, to: &mut [u8], strides: &[i64]) -> Result<()> {
        let walk = Walk {
            sizes: self.sizes,
            from: self.strides,
            to: strides,
            item: self.item,
        };
        walk.copy(self.bytes, to)
    }
}

/// Number of elements of these sizes.
pub fn elements(sizes: &[i64]) -> usize {
    sizes
        .iter()
        .map(|&size| usize::try_from(size).unwrap_or(0))
        .product()
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
    if elements(sizes) == 0 {
        return true;
    }
    let mut expected = 1;
    for (&size, &stride) in sizes.iter().zip(strides).rev() {
        if size != 1 && stride != expected {
            return false;
        }
        expected *= size;
    }
    true
}

struct Walk<'a> {
    sizes: &'a [i64],
    from: &'a [i64],
    to: &'a [i64],
    item: usize,
}

impl Walk<'_> {
    fn copy(&self, from: &[u8], to: &mut [u8]) -> Result<()> {
        let bytes = elements(self.sizes) * self.item;
        if bytes == 0 {
            return Ok(());
        }
        if is_contiguous(self.sizes, self.from) && is_contiguous(self.sizes, self.to) {
            let source = from.get(..bytes).ok_or_else(outside)?;
            to.get_mut(..bytes)
                .ok_or_else(outside)?
                .copy_from_slice(source);
            return Ok(());
        }
        self.copy_dim(0, from, 0, to, 0)
    }

    fn copy_dim(
        &self,
        dim: usize,
        from: &[u8],
        from_at: usize,
        to: &mut [u8],
        to_at: usize,
    ) -> Result<()> {
        if dim == self.sizes.len() {
            let source = range(from_at, self.item)
                .and_then(|range| from.get(range))
                .ok_or_else(outside)?;
            let target = range(to_at, self.item)
                .and_then(|range| to.get_mut(range))
                .ok_or_else(outside)?;
            target.copy_from_slice(source);
            return Ok(());
        }
        for index in 0..self.sizes[dim] {
            let from_at = from_at + self.step(self.from, dim, index)?;
            let to_at = to_at + self.step(self.to, dim, index)?;
            self.copy_dim(dim + 1, from, from_at, to, to_at)?;
        }
        Ok(())
    }

    fn step(&self, strides: &[i64], dim: usize, index: i64) -> Result<usize> {
        let stride = strides.get(dim).ok_or_else(outside)?;
        let elements = usize::try_from(index * stride).map_err(|_| outside())?;
        Ok(elements * self.item)
    }
}

fn range(start: usize, length: usize) -> Option<std::ops::Range<usize>> {
    Some(start..start.checked_add(length)?)
}

fn outside() -> Error {
    Error::Internal("a tensor's layout reaches outside its bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output<'a>(sizes: &'a [i64], strides: &'a [i64], bytes: &'a [u8]) -> OutputTensor<'a> {
        OutputTensor {
            dtype: 0,
            item: 1,
            sizes,
            strides,
            bytes,
        }
    }

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

    #[test]
    fn a_transposed_output_is_copied_in_logical_order() {
        let mut to = [0; 6];
        output(&[2, 3], &[1, 2], &[1, 4, 2, 5, 3, 6])
            .copy_to(&mut to, &[3, 1])
            .unwrap();
        assert_eq!(to, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn an_expanded_output_is_copied_element_by_element() {
        let mut to = [0; 6];
        output(&[2, 3], &[0, 1], &[7, 8, 9])
            .copy_to(&mut to, &[3, 1])
            .unwrap();
        assert_eq!(to, [7, 8, 9, 7, 8, 9]);
    }

    #[test]
    fn items_of_several_bytes_stay_together() {
        let tensor = OutputTensor {
            dtype: 5,
            item: 2,
            sizes: &[2, 2],
            strides: &[1, 2],
            bytes: &[1, 10, 3, 30, 2, 20, 4, 40],
        };
        let mut to = [0; 8];
        tensor.copy_to(&mut to, &[2, 1]).unwrap();
        assert_eq!(to, [1, 10, 2, 20, 3, 30, 4, 40]);
    }

    #[test]
    fn a_layout_outside_its_bytes_is_an_error() {
        let mut to = [0; 6];
        assert!(output(&[2, 3], &[3, 1], &[0; 5])
            .copy_to(&mut to, &[3, 1])
            .is_err());
        assert!(output(&[2, 3], &[1, 2], &[0; 5])
            .copy_to(&mut to, &[3, 1])
            .is_err());
        assert!(output(&[2, 3], &[3, 1], &[0; 6])
            .copy_to(&mut to[..5], &[3, 1])
            .is_err());
    }
}
