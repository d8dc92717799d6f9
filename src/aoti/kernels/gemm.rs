//! Matrix products over strided views, on one thread.

use crate::aoti::dtype::{DType, Number};
use crate::aoti::view::{copy, Real, TensorView};
use gemm::{gemm, Parallelism};

/// `out = beta * add + alpha * a x b` with `add` broadcast to `out`'s sizes. `beta` of zero ignores the
/// values of `add`. All are of one dtype; `out` overlaps neither `a` nor `b`.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// Added to the product.
    pub add: Option<&'a TensorView>,
    /// Factor of `add`.
    pub beta: f64,
    /// Factor of the product.
    pub alpha: f64,
}

impl Affine<'_> {
    /// The product alone.
    pub const PRODUCT: Affine<'static> = Affine {
        add: None,
        beta: 0.0,
        alpha: 1.0,
    };
}

/// Product of two matrices, or of two equally long batches of matrices.
pub fn product(
    out: &TensorView,
    a: &TensorView,
    b: &TensorView,
    affine: Affine<'_>,
) -> Result<(), String> {
    check(out, a, b)?;
    let add = match affine.add {
        Some(add) if affine.beta != 0.0 => Some(add.expand(&out.sizes)?),
        _ => None,
    };
    if out.ndim() == 2 {
        return matrix(out, a, b, add.as_ref(), affine);
    }
    for i in 0..out.sizes[0] {
        let add = add.as_ref().map(|add| add.select(0, i)).transpose()?;
        matrix(
            &out.select(0, i)?,
            &a.select(0, i)?,
            &b.select(0, i)?,
            add.as_ref(),
            affine,
        )?;
    }
    Ok(())
}

/// Rows up to the first of `ends` are multiplied by the first matrix, rows up to the second by the second,
/// and so on. Rows after the last end become zero.
pub fn grouped(
    out: &TensorView,
    rows: &TensorView,
    matrices: &TensorView,
    ends: &[i64],
) -> Result<(), String> {
    if ends.len() as i64 != matrices.sizes[0] {
        return Err(format!(
            "{} groups for {:?} matrices",
            ends.len(),
            matrices.sizes
        ));
    }
    let mut start = 0;
    for (group, &end) in ends.iter().enumerate() {
        if end < start || end > rows.sizes[0] {
            return Err(format!(
                "group {group} ends at row {end}; expected {start} to {}",
                rows.sizes[0]
            ));
        }
        if end > start {
            let matrix = matrices.select(0, group as i64)?;
            let (part, count) = (rows.narrow(0, start, end - start)?, end - start);
            product(
                &out.narrow(0, start, count)?,
                &part,
                &matrix,
                Affine::PRODUCT,
            )?;
        }
        start = end;
    }
    out.narrow(0, start, rows.sizes[0] - start)?.fill(0i64)
}

fn check(out: &TensorView, a: &TensorView, b: &TensorView) -> Result<(), String> {
    let n = out.ndim();
    let fits = (n == 2 || n == 3) && a.ndim() == n && b.ndim() == n && {
        let (o, a, b) = (&out.sizes, &a.sizes, &b.sizes);
        let inner = o[n - 2] == a[n - 2] && o[n - 1] == b[n - 1] && a[n - 1] == b[n - 2];
        inner && (n == 2 || (o[0] == a[0] && a[0] == b[0]))
    };
    if !fits {
        let [o, a, b] = [&out.sizes, &a.sizes, &b.sizes];
        return Err(format!("{a:?} x {b:?} does not give {o:?}"));
    }
    if a.dtype != b.dtype && !(a.dtype.is_int() && b.dtype.is_int()) {
        return Err(format!(
            "the matrices are {} and {}",
            a.dtype.name(),
            b.dtype.name()
        ));
    }
    Ok(())
}

fn matrix(
    out: &TensorView,
    a: &TensorView,
    b: &TensorView,
    add: Option<&TensorView>,
    affine: Affine<'_>,
) -> Result<(), String> {
    if out.numel() == 0 {
        return Ok(());
    }
    match (out.dtype, a.dtype) {
        (DType::F32, DType::F32) => direct::<f32>(out, a, b, add, affine),
        (DType::F64, DType::F64) => direct::<f64>(out, a, b, add, affine),
        (DType::BF16, DType::BF16) | (DType::F16, DType::F16) => half(out, a, b, add, affine),
        (o, i) if o.is_int() && i.is_int() => integer(out, a, b, add, affine),
        (o, i) => Err(format!(
            "no product of {} matrices into {}",
            i.name(),
            o.name()
        )),
    }
}

/// A matrix for [`multiply`]: first element, and strides of rows and columns in elements.
struct Matrix<T>(*mut T, isize, isize);

impl<T> Matrix<T> {
    fn of(view: &TensorView) -> Matrix<T> {
        Matrix(
            view.ptr().cast(),
            view.strides[0] as isize,
            view.strides[1] as isize,
        )
    }
}

/// `out = keep * out + factor * a x b` for `[m, k] x [k, n]`, without reading `out` if `keep` is zero.
///
/// # Safety
/// All elements that the sizes and strides reach are accessible, and `out` overlaps no operand.
unsafe fn multiply<T: Real>(
    mnk: [usize; 3],
    out: Matrix<T>,
    a: Matrix<T>,
    b: Matrix<T>,
    keep: T,
    factor: T,
) {
    let ([m, n, k], read) = (mnk, keep != T::default());
    let none = Parallelism::None;
    // SAFETY: passed on from the caller.
    unsafe {
        gemm(
            m, n, k, out.0, out.2, out.1, read, a.0, a.2, a.1, b.0, b.2, b.1, keep, factor, false,
            false, false, none,
        );
    }
}

/// `out += a x b` on row-major slices: `[m, k] x [k, n]`, or with `a` given as `[k, m]` if `transposed`.
pub fn accumulate<T: Real>(mnk: [usize; 3], out: &mut [T], a: &[T], b: &[T], transposed: bool) {
    let [m, n, k] = mnk;
    assert!(
        out.len() == m * n && a.len() == m * k && b.len() == k * n,
        "sizes of slices do not fit"
    );
    if m * n == 0 {
        return;
    }
    let (rows, columns) = if transposed { (1, m) } else { (k, 1) };
    let a = Matrix(a.as_ptr().cast_mut(), rows as isize, columns as isize);
    let (b, out) = (
        Matrix(b.as_ptr().cast_mut(), n as isize, 1),
        Matrix(out.as_mut_ptr(), n as isize, 1),
    );
    // SAFETY: the slices hold exactly the elements that these strides reach; only `out` is written, and as
    // the one mutable borrow it overlaps no other.
    unsafe { multiply(mnk, out, a, b, T::from_f64(1.0), T::from_f64(1.0)) };
}

/// `a x bᵀ` into columns of `out`, from the first on: `[m, k] x [n, k]`, all by rows. Rows of `out` are `stride` elements apart.
pub fn by_rows([m, n, k]: [usize; 3], out: &mut [f32], stride: usize, a: &[f32], b: &[f32]) {
    let reached = if m == 0 { 0 } else { (m - 1) * stride + n };
    assert!(
        n <= stride && out.len() >= reached && a.len() == m * k && b.len() == n * k,
        "sizes of slices do not fit"
    );
    if m * n == 0 {
        return;
    }
    let a = Matrix(a.as_ptr().cast_mut(), k as isize, 1);
    let b = Matrix(b.as_ptr().cast_mut(), 1, k as isize);
    let out = Matrix(out.as_mut_ptr(), stride as isize, 1);
    // SAFETY: the slices hold all elements that these strides reach; only `out` is written, and as the one mutable borrow it overlaps
    // no other.
    unsafe { multiply([m, n, k], out, a, b, 0.0, 1.0) };
}

fn direct<T: Real>(
    out: &TensorView,
    a: &TensorView,
    b: &TensorView,
    add: Option<&TensorView>,
    affine: Affine<'_>,
) -> Result<(), String> {
    let mut keep = 0.0;
    if let Some(add) = add {
        copy(out, add)?;
        keep = affine.beta;
    }
    let mnk = [
        out.sizes[0] as usize,
        out.sizes[1] as usize,
        a.sizes[1] as usize,
    ];
    // SAFETY: the sizes fit (`check`), a view's elements are accessible, and the compiled code passes an
    // output that overlaps no matrix. The element type is the views'.
    unsafe {
        let (out, a, b) = (Matrix::of(out), Matrix::of(a), Matrix::of(b));
        multiply::<T>(mnk, out, a, b, T::from_f64(keep), T::from_f64(affine.alpha));
    }
    Ok(())
}

/// Half precision: products and sums in f32, rounded once at the end.
fn half(
    out: &TensorView,
    a: &TensorView,
    b: &TensorView,
    add: Option<&TensorView>,
    affine: Affine<'_>,
) -> Result<(), String> {
    let (m, n, k) = (
        out.sizes[0] as usize,
        out.sizes[1] as usize,
        a.sizes[1] as usize,
    );
    let mut sum = vec![0f32; m * n];
    accumulate(
        [m, n, k],
        &mut sum,
        &a.dense::<f32>()?,
        &b.dense::<f32>()?,
        false,
    );
    let (alpha, beta) = (affine.alpha as f32, affine.beta as f32);
    if let Some(add) = add {
        let add = add.dense::<f32>()?;
        sum.iter_mut()
            .zip(add)
            .for_each(|(sum, add)| *sum = alpha * *sum + beta * add);
    } else if alpha != 1.0 {
        sum.iter_mut().for_each(|sum| *sum *= alpha);
    }
    out.write_dense(&mut sum)
}

fn integer(
    out: &TensorView,
    a: &TensorView,
    b: &TensorView,
    add: Option<&TensorView>,
    affine: Affine<'_>,
) -> Result<(), String> {
    let (m, n, k) = (
        a.sizes[0] as usize,
        b.sizes[1] as usize,
        a.sizes[1] as usize,
    );
    let (beta, alpha) = (affine.beta as i64, affine.alpha as i64);
    let mut sum = add.map_or_else(|| Ok(vec![0i64; m * n]), TensorView::read)?;
    for (at, dot) in sum.iter_mut().zip(dots([m, n, k], a, b)?) {
        *at = at.mul(beta).add(dot.mul(alpha));
    }
    out.write(&sum)
}

/// The product of matrices of integers.
fn dots([m, n, k]: [usize; 3], a: &TensorView, b: &TensorView) -> Result<Vec<i64>, String> {
    let bytes = |view: &TensorView| view.dtype.itemsize() == Some(1);
    if bytes(a) && bytes(b) {
        // Sums of 2^37 products of bytes are exact in f64.
        let mut sum = vec![0f64; m * n];
        let [a, b] = [a, b].map(TensorView::read::<i64>);
        let exact = |values: Vec<i64>| values.into_iter().map(|value| value as f64).collect();
        let [a, b]: [Vec<f64>; 2] = [exact(a?), exact(b?)];
        accumulate([m, n, k], &mut sum, &a, &b, false);
        return Ok(sum.into_iter().map(|sum| sum as i64).collect());
    }
    let (left, right) = (a.read::<i64>()?, b.read::<i64>()?);
    let dot = |at: usize| {
        let (row, column) = (at / n, at % n);
        (0..k).fold(0i64, |sum, i| {
            sum.add(left[row * k + i].mul(right[i * n + column]))
        })
    };
    Ok((0..m * n).map(dot).collect())
}
