//! Typed, strided windows into memory of this process, and how elements are moved between them. All
//! arithmetic of the shims goes through here.

use super::dtype::{load, store, DType, Number};
use super::tensor::{contiguous_strides, is_contiguous, is_dense, numel, reach};

/// A window into host memory whose bounds were checked.
#[derive(Debug, Clone)]
pub struct TensorView {
    ptr: *mut u8,
    item: usize,
    /// Scalar type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub sizes: Vec<i64>,
    /// Strides in elements.
    pub strides: Vec<i64>,
}

impl TensorView {
    /// A window whose first element is at `ptr`.
    ///
    /// # Safety
    /// Every element that `sizes` and `strides` reach from `ptr` must be readable, and writable if the
    /// window is written through, for as long as the value is used. Sizes and strides are not negative.
    pub unsafe fn new(
        ptr: *mut u8,
        dtype: DType,
        sizes: Vec<i64>,
        strides: Vec<i64>,
    ) -> Result<TensorView, String> {
        let item = dtype
            .itemsize()
            .ok_or_else(|| format!("dtype number {} is unknown", dtype.0))?;
        Ok(TensorView {
            ptr,
            item,
            dtype,
            sizes,
            strides,
        })
    }

    /// First element.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        numel(&self.sizes).unwrap_or(0) as usize
    }

    /// Number of dimensions.
    pub fn ndim(&self) -> usize {
        self.sizes.len()
    }

    /// The same memory with other sizes and strides; refused if it would reach beyond this window.
    pub fn restrided(
        &self,
        skip: i64,
        sizes: &[i64],
        strides: &[i64],
    ) -> Result<TensorView, String> {
        let whole = reach(&self.sizes, &self.strides).unwrap_or(0);
        let part = reach(sizes, strides).unwrap_or(i64::MAX);
        if skip < 0 || (part > 0 && skip.checked_add(part).is_none_or(|end| end > whole)) {
            return Err(format!(
                "sizes {sizes:?}, strides {strides:?} from {skip} leave the tensor"
            ));
        }
        let skip = if part == 0 { 0 } else { skip as usize };
        Ok(TensorView {
            // SAFETY: `skip` elements are within this window, checked above.
            ptr: unsafe { self.ptr.add(skip * self.item) },
            sizes: sizes.to_vec(),
            strides: strides.to_vec(),
            ..self.clone()
        })
    }

    /// One index of dimension `d`, which disappears.
    pub fn select(&self, d: usize, index: i64) -> Result<TensorView, String> {
        let (mut sizes, mut strides) = (self.sizes.clone(), self.strides.clone());
        let (size, stride) = (sizes.remove(d), strides.remove(d));
        if index < 0 || index >= size {
            return Err(format!(
                "index {index} is out of bounds for a size of {size}"
            ));
        }
        self.restrided(index * stride, &sizes, &strides)
    }

    /// Indices `start..start + length` of dimension `d`.
    pub fn narrow(&self, d: usize, start: i64, length: i64) -> Result<TensorView, String> {
        if start < 0 || length < 0 || start + length > self.sizes[d] {
            return Err(format!(
                "{start}..{} is out of bounds for a size of {}",
                start + length,
                self.sizes[d]
            ));
        }
        let mut sizes = self.sizes.clone();
        sizes[d] = length;
        let skip = if length == 0 {
            0
        } else {
            start * self.strides[d]
        };
        self.restrided(skip, &sizes, &self.strides.clone())
    }

    /// The window with dimension `d` moved to the end.
    pub fn to_last(&self, d: usize) -> TensorView {
        let mut view = self.clone();
        let (size, stride) = (view.sizes.remove(d), view.strides.remove(d));
        view.sizes.push(size);
        view.strides.push(stride);
        view
    }

    /// The window broadcast to `sizes`.
    pub fn expand(&self, sizes: &[i64]) -> Result<TensorView, String> {
        let fail = || format!("sizes {:?} do not broadcast to {sizes:?}", self.sizes);
        let lead = sizes.len().checked_sub(self.ndim()).ok_or_else(fail)?;
        let mut strides = vec![0; sizes.len()];
        for (d, (size, stride)) in self.sizes.iter().zip(&self.strides).enumerate() {
            strides[lead + d] = match (*size, sizes[lead + d]) {
                (have, want) if have == want => *stride,
                (1, _) => 0,
                _ => return Err(fail()),
            };
        }
        self.restrided(0, sizes, &strides)
    }

    /// All elements in row-major order.
    pub fn read<N: Number>(&self) -> Result<Vec<N>, String> {
        let mut values = Vec::with_capacity(self.numel());
        let mut bad = false;
        for_each(&self.sizes, [&self.strides], |[at]| {
            // SAFETY: `at` counts elements of this window, which are readable (see `new`).
            let bytes =
                unsafe { std::slice::from_raw_parts(self.ptr.add(at * self.item), self.item) };
            match load(self.dtype, bytes) {
                Some(value) => values.push(value),
                None => bad = true,
            }
        });
        if bad {
            Err(self.no_arithmetic())
        } else {
            Ok(values)
        }
    }

    /// Writes all elements, given in row-major order.
    pub fn write<N: Number>(&self, values: &[N]) -> Result<(), String> {
        if values.len() != self.numel() {
            return Err(format!(
                "{} values for sizes {:?}",
                values.len(),
                self.sizes
            ));
        }
        if store(self.dtype, N::ZERO).is_none() {
            return Err(self.no_arithmetic());
        }
        let mut next = values.iter();
        for_each(&self.sizes, [&self.strides], |[at]| {
            if let Some(bytes) = next.next().and_then(|value| store(self.dtype, *value)) {
                // SAFETY: `at` counts elements of this window, which are writable (see `new`), and
                // `bytes` holds at least one element: no type that is stored is wider than 8 bytes.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        bytes.as_ptr(),
                        self.ptr.add(at * self.item),
                        self.item,
                    )
                };
            }
        });
        Ok(())
    }

    /// The bytes of all elements, which lie together in row-major order.
    pub fn bytes(&self) -> Result<&[u8], String> {
        if self.strides != contiguous_strides(&self.sizes) {
            return Err(format!(
                "sizes {:?} with strides {:?} are not dense",
                self.sizes, self.strides
            ));
        }
        // SAFETY: every element is readable (see `new`), and the strides leave no gap between them.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr, self.numel() * self.item) })
    }

    /// All elements in row-major order, as `T`.
    pub fn dense<T: Real>(&self) -> Result<Vec<T>, String> {
        let mut values = vec![T::default(); self.numel()];
        copy(&over(&mut values, &self.sizes), self)?;
        Ok(values)
    }

    /// Writes all elements, given in row-major order and rounded to this window's type.
    pub fn write_dense<T: Real>(&self, values: &mut [T]) -> Result<(), String> {
        if values.len() != self.numel() {
            return Err(format!(
                "{} values for sizes {:?}",
                values.len(),
                self.sizes
            ));
        }
        copy(self, &over(values, &self.sizes))
    }

    /// Sets every element to `value`.
    pub fn fill<N: Number>(&self, value: N) -> Result<(), String> {
        self.write(&vec![value; self.numel()])
    }

    fn no_arithmetic(&self) -> String {
        format!(
            "values of dtype {} are not supported here",
            self.dtype.name()
        )
    }
}

/// A type that matrix products are computed in.
pub trait Real: Copy + Default + PartialEq + std::ops::AddAssign + 'static {
    /// Its scalar type.
    const DTYPE: DType;
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
}

impl Real for f32 {
    const DTYPE: DType = DType::F32;
    fn from_f64(value: f64) -> f32 {
        value as f32
    }
}

impl Real for f64 {
    const DTYPE: DType = DType::F64;
    fn from_f64(value: f64) -> f64 {
        value
    }
}

/// A row-major window over `values`; the caller drops it before the buffer.
pub(super) fn over<T: Real>(values: &mut [T], sizes: &[i64]) -> TensorView {
    debug_assert_eq!(numel(sizes), Some(values.len() as i64));
    TensorView {
        ptr: values.as_mut_ptr().cast(),
        item: size_of::<T>(),
        dtype: T::DTYPE,
        sizes: sizes.to_vec(),
        strides: contiguous_strides(sizes),
    }
}

/// Copies `src` into `dst`, broadcasting sizes and converting types. The windows do not overlap, or are the
/// same.
pub fn copy(dst: &TensorView, src: &TensorView) -> Result<(), String> {
    let src = src.expand(&dst.sizes)?;
    if dst.dtype == src.dtype {
        copy_bytes(dst, &src);
        return Ok(());
    }
    match (
        dst.dtype.is_float() || src.dtype.is_float(),
        src.dtype.is_float(),
    ) {
        (true, _) => dst.write(&src.read::<f64>()?),
        _ => dst.write(&src.read::<i64>()?),
    }
}

fn copy_bytes(dst: &TensorView, src: &TensorView) {
    let item = dst.item;
    let same_order = dst.strides == src.strides && is_dense(&dst.sizes, &dst.strides);
    let row_major = |view: &TensorView| is_contiguous(&view.sizes, &view.strides);
    if same_order || (row_major(dst) && row_major(src)) {
        // SAFETY: both windows are dense and in the same order, so each is `numel` elements from its
        // pointer on. `copy` tolerates that they are the same memory.
        unsafe { std::ptr::copy(src.ptr, dst.ptr, dst.numel() * item) };
        return;
    }
    for_each(&dst.sizes, [&dst.strides, &src.strides], |[to, from]| {
        // SAFETY: both count elements of their windows; `copy` tolerates the same element.
        unsafe { std::ptr::copy(src.ptr.add(from * item), dst.ptr.add(to * item), item) };
    });
}

/// Calls `body` with the element offsets of every index of `sizes`, in row-major order.
pub fn for_each<const N: usize>(
    sizes: &[i64],
    strides: [&[i64]; N],
    mut body: impl FnMut([usize; N]),
) {
    if sizes.contains(&0) {
        return;
    }
    let mut index = vec![0i64; sizes.len()];
    let mut at = [0i64; N];
    loop {
        body(at.map(|offset| offset as usize));
        let mut d = sizes.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            for n in 0..N {
                at[n] += strides[n][d];
            }
            if index[d] < sizes[d] {
                break;
            }
            for n in 0..N {
                at[n] -= strides[n][d] * sizes[d];
            }
            index[d] = 0;
        }
    }
}
