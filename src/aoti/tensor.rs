//! What a tensor handle stands for: a typed, strided window into a storage.
#![deny(unsafe_code)]

use super::dtype::DType;
use crate::device::DevicePtr;

/// Dimensions up to this many live inside the handle's slot.
const INLINE: usize = 8;

/// Sizes and strides of a tensor, both in elements.
#[derive(Debug, Clone)]
pub struct Dims {
    len: usize,
    inline: [i64; 2 * INLINE],
    heap: Option<Box<[i64]>>,
}

impl Dims {
    /// Of a single element.
    pub const NONE: Dims = Dims {
        len: 0,
        inline: [0; 2 * INLINE],
        heap: None,
    };

    /// Keeps a copy of `sizes` and `strides`, which must be of equal length. Allocates only beyond eight
    /// dimensions.
    pub fn new(sizes: &[i64], strides: &[i64]) -> Result<Dims, String> {
        let mut dims = Dims::NONE;
        dims.set(sizes, strides)?;
        Ok(dims)
    }

    /// The same in place of what was there, which stays on an error.
    pub fn set(&mut self, sizes: &[i64], strides: &[i64]) -> Result<(), String> {
        if sizes.len() != strides.len() {
            return Err(format!(
                "{} sizes but {} strides",
                sizes.len(),
                strides.len()
            ));
        }
        // One sign of all of them: that is quicker than to look for one that is negative.
        if sizes.iter().chain(strides).fold(0, |all, one| all | one) < 0 {
            return Err(negative(sizes, strides));
        }
        self.len = sizes.len();
        self.heap = None;
        if self.len <= INLINE {
            self.inline[..self.len].copy_from_slice(sizes);
            self.inline[INLINE..INLINE + self.len].copy_from_slice(strides);
        } else {
            self.heap = Some([sizes, strides].concat().into_boxed_slice());
        }
        Ok(())
    }

    /// Dimensions of a dense tensor in row-major order.
    pub fn contiguous(sizes: &[i64]) -> Result<Dims, String> {
        Dims::new(sizes, &contiguous_strides(sizes))
    }

    /// Sizes, outermost first.
    pub fn sizes(&self) -> &[i64] {
        match &self.heap {
            Some(both) => &both[..self.len],
            None => &self.inline[..self.len],
        }
    }

    /// Strides in elements, outermost first.
    pub fn strides(&self) -> &[i64] {
        match &self.heap {
            Some(both) => &both[self.len..],
            None => &self.inline[INLINE..INLINE + self.len],
        }
    }

    /// Number of elements; `None` if it does not fit.
    pub fn numel(&self) -> Option<i64> {
        numel(self.sizes())
    }

    /// Elements from the window's first to the end of its last; `None` if it does not fit.
    pub fn reach(&self) -> Option<i64> {
        reach(self.sizes(), self.strides())
    }

    /// Whether the elements lie densely in row-major order.
    pub fn is_contiguous(&self) -> bool {
        is_contiguous(self.sizes(), self.strides())
    }
}

#[cold]
fn negative(sizes: &[i64], strides: &[i64]) -> String {
    let bad = sizes.iter().chain(strides).find(|one| **one < 0);
    let bad = bad.copied().unwrap_or_default();
    format!("sizes {sizes:?} and strides {strides:?}: {bad} is negative")
}

/// Product of `sizes`.
pub fn numel(sizes: &[i64]) -> Option<i64> {
    if sizes.contains(&0) {
        return Some(0);
    }
    sizes.iter().try_fold(1i64, |n, s| n.checked_mul(*s))
}

/// Elements from the first to the end of the last of a strided window.
pub fn reach(sizes: &[i64], strides: &[i64]) -> Option<i64> {
    if sizes.contains(&0) {
        return Some(0);
    }
    let last = sizes
        .iter()
        .zip(strides)
        .try_fold(0i64, |at, (size, stride)| {
            at.checked_add((size - 1).checked_mul(*stride)?)
        })?;
    last.checked_add(1)
}

/// Row-major strides; a size of zero counts as one, as in PyTorch.
pub fn contiguous_strides(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(sizes[d].max(1));
    }
    strides
}

/// Whether a window is dense in row-major order. Strides of dimensions of size one do not matter.
pub fn is_contiguous(sizes: &[i64], strides: &[i64]) -> bool {
    if sizes.contains(&0) {
        return true;
    }
    let mut expected = 1i64;
    for (size, stride) in sizes.iter().zip(strides).rev() {
        if *size != 1 {
            if *stride != expected {
                return false;
            }
            expected = expected.saturating_mul(*size);
        }
    }
    true
}

/// Whether a window covers its elements without holes or overlap, in some order of dimensions.
pub fn is_dense(sizes: &[i64], strides: &[i64]) -> bool {
    let mut order: Vec<usize> = (0..sizes.len()).filter(|d| sizes[*d] != 1).collect();
    order.sort_by_key(|d| strides[*d]);
    let mut expected = 1i64;
    order.into_iter().all(|d| {
        let fits = strides[d] == expected;
        expected = expected.saturating_mul(sizes[d]);
        fits
    })
}

/// Strides that keep the order of dimensions of a dense window, and row-major ones otherwise: what PyTorch
/// gives a copy that preserves its source's format.
pub fn preserved_strides(sizes: &[i64], strides: &[i64]) -> Vec<i64> {
    if is_dense(sizes, strides) && !sizes.contains(&0) {
        strides.to_vec()
    } else {
        contiguous_strides(sizes)
    }
}

/// Who owns the memory of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Somebody else, for longer than any handle: inputs, constants, blobs of the compiled code.
    Borrowed,
    /// An activation: given back through the hooks when the last handle dies.
    Activation,
    /// A weight under lease: released through the hooks, by probe id, when the last handle dies.
    Lease(i64),
}

/// Memory that one or more tensors look into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage {
    /// Who gets it back.
    pub owner: Owner,
    /// Its first byte.
    pub ptr: DevicePtr,
    /// Its length.
    pub bytes: u64,
}

/// A typed, strided window into a storage.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Scalar type.
    pub dtype: DType,
    /// First element, counted from the storage's start.
    pub offset: i64,
    /// Sizes and strides.
    pub dims: Dims,
}

impl Tensor {
    /// Becomes a window of these sizes and strides, from the start of its storage. Returns the bytes that it reaches over. On an
    /// error it may be anything.
    pub fn become_whole(
        &mut self,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
    ) -> Result<u64, String> {
        self.dtype = dtype;
        self.offset = 0;
        self.dims.set(sizes, strides)?;
        let item = self.itemsize()? as i64;
        let bytes = reach(sizes, strides).and_then(|reach| reach.checked_mul(item));
        let bytes =
            bytes.ok_or_else(|| format!("sizes {sizes:?} and strides {strides:?} overflow"))?;
        Ok(bytes as u64)
    }

    fn itemsize(&self) -> Result<usize, String> {
        let known = self.dtype.itemsize();
        known.ok_or_else(|| format!("dtype number {} is unknown", self.dtype.0))
    }

    /// Checks that the whole window lies within `bytes` of storage.
    pub fn check_within(&self, bytes: u64) -> Result<(), String> {
        let item = self.itemsize()?;
        let end = self.dims.reach().and_then(|reach| match reach {
            0 => Some(0),
            n => n.checked_add(self.offset)?.checked_mul(item as i64),
        });
        match end {
            Some(end) if self.offset >= 0 && end as u64 <= bytes => Ok(()),
            _ => Err(format!(
                "a {} tensor of sizes {:?}, strides {:?}, offset {} does not fit a storage of {bytes} bytes",
                self.dtype.name(),
                self.dims.sizes(),
                self.dims.strides(),
                self.offset
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_keep_what_they_are_given_inline_and_on_the_heap() {
        for n in [0usize, 1, 8, 9, 12] {
            let sizes: Vec<i64> = (1..=n as i64).collect();
            let strides: Vec<i64> = sizes.iter().map(|s| s * 10).collect();
            let dims = Dims::new(&sizes, &strides).unwrap();
            assert_eq!((dims.sizes(), dims.strides()), (&sizes[..], &strides[..]));
            assert_eq!(dims.heap.is_some(), n > 8);
        }
        assert!(Dims::new(&[1], &[]).is_err());
        assert!(Dims::new(&[-1], &[1]).is_err());
    }

    #[test]
    fn windows_are_checked_against_their_storage() {
        let window = |sizes: &[i64], strides: &[i64], offset| Tensor {
            dtype: DType::F32,
            offset,
            dims: Dims::new(sizes, strides).unwrap(),
        };
        assert!(window(&[2, 3], &[3, 1], 0).check_within(24).is_ok());
        assert!(window(&[2, 3], &[3, 1], 0).check_within(23).is_err());
        assert!(window(&[2, 3], &[3, 1], 1).check_within(24).is_err());
        assert!(window(&[2, 3], &[3, 1], -1).check_within(24).is_err());
        assert!(
            window(&[2, 0], &[3, 1], 7).check_within(0).is_ok(),
            "an empty window reaches nothing"
        );
        assert!(window(&[i64::MAX, 2], &[i64::MAX, 1], 0)
            .check_within(u64::MAX)
            .is_err());
    }

    #[test]
    fn formats_are_kept_for_dense_windows_only() {
        assert_eq!(preserved_strides(&[2, 3], &[1, 2]), [1, 2]);
        assert_eq!(preserved_strides(&[2, 3], &[6, 2]), [3, 1]);
        assert_eq!(preserved_strides(&[2, 3], &[0, 1]), [3, 1]);
        assert_eq!(
            preserved_strides(&[2, 3, 4, 5], &[60, 1, 15, 3]),
            [60, 1, 15, 3]
        );
    }
}
