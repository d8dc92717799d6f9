//! Matrix products over strided views, on one thread.

use crate::aoti::dtype::{DType, Number};
use crate::aoti::view::{copy, View};
use gemm::{gemm, Parallelism};

/// `out = beta * add + alpha * a x b` with `add` broadcast to `out`'s sizes. `beta` of zero ignores the
/// values of `add`. All are of one dtype; `out` overlaps neither `a` nor `b`.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// Added to the product.
    pub add: Option<&'a View>,
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
pub fn product(out: &View, a: &View, b: &View, affine: Affine<'_>) -> Result<(), String> {
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

fn check(out: &View, a: &View, b: &View) -> Result<(), String> {
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
    if a.dtype != b.dtype {
        return Err(format!(
            "the matrices are {} and {}",
            a.dtype.name(),
            b.dtype.name()
        ));
    }
    Ok(())
}

fn matrix(
    out: &View,
    a: &View,
    b: &View,
    add: Option<&View>,
    affine: Affine<'_>,
) -> Result<(), String> {
    if out.numel() == 0 {
        return Ok(());
    }
    match (out.dtype, a.dtype) {
        (DType::F32, DType::F32) => {
            start(out, add)?;
            let (alpha, beta) = (affine.beta as f32, affine.alpha as f32);
            // SAFETY: these are views of f32 whose sizes fit (`check`); `out` overlaps no operand.
            unsafe { direct::<f32>(out, a, b, add.is_some(), alpha, beta) };
            Ok(())
        }
        (DType::F64, DType::F64) => {
            start(out, add)?;
            // SAFETY: as above, for f64.
            unsafe { direct::<f64>(out, a, b, add.is_some(), affine.beta, affine.alpha) };
            Ok(())
        }
        (DType::BF16, DType::BF16) | (DType::F16, DType::F16) => half(out, a, b, add, affine),
        (o, i) if o.is_int() && i.is_int() => integer(out, a, b, add, affine),
        (o, i) => Err(format!(
            "no product of {} matrices into {}",
            i.name(),
            o.name()
        )),
    }
}

fn start(out: &View, add: Option<&View>) -> Result<(), String> {
    add.map_or(Ok(()), |add| copy(out, add))
}

/// `out = alpha * out + beta * a x b`, without reading `out` unless `read`.
///
/// # Safety
/// The views are two-dimensional, of element type `T`, with sizes that fit; `out` overlaps no operand.
unsafe fn direct<T: 'static>(out: &View, a: &View, b: &View, read: bool, alpha: T, beta: T) {
    let (m, n, k) = (
        out.sizes[0] as usize,
        out.sizes[1] as usize,
        a.sizes[1] as usize,
    );
    let (rows, columns) = (
        |v: &View| v.strides[0] as isize,
        |v: &View| v.strides[1] as isize,
    );
    // SAFETY: passed on from the caller; `View` guarantees that every element is accessible.
    unsafe {
        gemm(
            m,
            n,
            k,
            out.ptr().cast::<T>(),
            columns(out),
            rows(out),
            read,
            a.ptr().cast::<T>(),
            columns(a),
            rows(a),
            b.ptr().cast::<T>(),
            columns(b),
            rows(b),
            alpha,
            beta,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Half precision: products and sums in f32, rounded once at the end.
fn half(
    out: &View,
    a: &View,
    b: &View,
    add: Option<&View>,
    affine: Affine<'_>,
) -> Result<(), String> {
    let mut buffers = [wide(a)?, wide(b)?, vec![0f32; out.numel()]];
    if let Some(add) = add {
        buffers[2] = wide(add)?;
    }
    let [left, right, sum] = &mut buffers;
    let (a, b, wide_out) = (dense(left, a)?, dense(right, b)?, dense(sum, out)?);
    let (alpha, beta) = (affine.beta as f32, affine.alpha as f32);
    // SAFETY: views of three buffers of f32, of the sizes that were checked for the originals.
    unsafe { direct::<f32>(&wide_out, &a, &b, add.is_some(), alpha, beta) };
    copy(out, &wide_out)
}

fn wide(view: &View) -> Result<Vec<f32>, String> {
    let mut values = vec![0f32; view.numel()];
    copy(&dense(&mut values, view)?, view)?;
    Ok(values)
}

/// A row-major f32 view of `values` with the sizes of `like`.
fn dense(values: &mut [f32], like: &View) -> Result<View, String> {
    let strides = crate::aoti::tensor::contiguous_strides(&like.sizes);
    // SAFETY: `values` has `like.numel()` elements, which the row-major strides cover exactly; the view is
    // used while the buffer lives.
    unsafe {
        View::new(
            values.as_mut_ptr().cast(),
            DType::F32,
            like.sizes.clone(),
            strides,
        )
    }
}

fn integer(
    out: &View,
    a: &View,
    b: &View,
    add: Option<&View>,
    affine: Affine<'_>,
) -> Result<(), String> {
    let (m, n, k) = (
        a.sizes[0] as usize,
        b.sizes[1] as usize,
        a.sizes[1] as usize,
    );
    let (left, right) = (a.read::<i64>()?, b.read::<i64>()?);
    let (beta, alpha) = (affine.beta as i64, affine.alpha as i64);
    let mut sum = add.map_or_else(|| Ok(vec![0i64; m * n]), View::read)?;
    for row in 0..m {
        for column in 0..n {
            let dot = (0..k).fold(0i64, |s, i| {
                s.add(left[row * k + i].mul(right[i * n + column]))
            });
            let at = &mut sum[row * n + column];
            *at = at.mul(beta).add(dot.mul(alpha));
        }
    }
    out.write(&sum)
}
