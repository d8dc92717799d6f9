//! Views of the tensors that go into a call.
#![deny(unsafe_code)]

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
