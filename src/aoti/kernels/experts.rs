//! Products of rows, each with the matrix of many that its number names: the experts of a mixture. Only matrices that are named are read.

use super::gemm::{by_rows, product as dense_product, Affine};
use super::quantized;
use crate::aoti::dtype::DType;
use crate::aoti::placed::Placed;
use crate::aoti::view::{over, TensorView};
use std::collections::BTreeMap;

/// Rows of a matrix in scratch memory.
const ROWS: usize = 64;

/// Many matrices of one size.
pub enum Matrices {
    /// `[count, n, k]`; `[count, k, n]` if they are transposed.
    Dense {
        /// Their elements.
        all: Placed,
        /// Whether columns come first.
        transposed: bool,
    },
    /// As [`quantized::product`] takes each: `[count, n, k]`, or `[count, n, k / 2]` of four bits, and scales `[count, n, k / group]`.
    Quantized {
        /// Their integers.
        packed: Placed,
        /// What these are multiplied by.
        scales: Placed,
        /// Columns of one scale.
        group: i64,
    },
}

/// Row `i` of `out [.., n]` is row `i / c` of `x [.., k]` times the matrix `numbers[i]`; there are `c` numbers for each row of `x`. Rows of
/// one matrix are multiplied together, in their order. Sums are in f32.
pub fn product(
    out: &TensorView,
    x: &TensorView,
    numbers: &[i64],
    matrices: &Matrices,
) -> Result<(), String> {
    let k = x.sizes.last().copied().unwrap_or(0) as usize;
    let n = out.sizes.last().copied().unwrap_or(0) as usize;
    let rows = x.numel() / k.max(1);
    if rows == 0
        || n == 0
        || !numbers.len().is_multiple_of(rows)
        || out.numel() != numbers.len() * n
    {
        return Err(format!(
            "rows {:?} with {} numbers of matrices do not give {:?}",
            x.sizes,
            numbers.len(),
            out.sizes
        ));
    }
    let (x, each) = (x.dense::<f32>()?, numbers.len() / rows);
    let mut sum = vec![0f32; numbers.len() * n];
    for (number, rows) in by_matrix(numbers) {
        let given: Vec<f32> = rows
            .iter()
            .flat_map(|&row| &x[row / each * k..(row / each + 1) * k])
            .copied()
            .collect();
        let mut found = vec![0f32; rows.len() * n];
        matrices.multiply(number, &mut found, &given, [rows.len(), n, k])?;
        for (row, found) in rows.iter().zip(found.chunks(n)) {
            sum[row * n..(row + 1) * n].copy_from_slice(found);
        }
    }
    matrices.count(numbers)?;
    out.write_dense(&mut sum)
}

/// Which rows each matrix has.
fn by_matrix(numbers: &[i64]) -> BTreeMap<i64, Vec<usize>> {
    let mut found: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (row, &number) in numbers.iter().enumerate() {
        found.entry(number).or_default().push(row);
    }
    found
}

impl Matrices {
    /// How many results a row has.
    pub fn columns(&self) -> i64 {
        let (all, columns) = match self {
            Matrices::Dense { all, transposed } => (all, if *transposed { 2 } else { 1 }),
            Matrices::Quantized { packed, .. } => (packed, 1),
        };
        all.all().sizes.get(columns).copied().unwrap_or(0)
    }

    fn count(&self, numbers: &[i64]) -> Result<(), String> {
        match self {
            Matrices::Dense { all, .. } => all.count(numbers),
            Matrices::Quantized { packed, scales, .. } => {
                packed.count(numbers)?;
                scales.count(numbers)
            }
        }
    }

    fn multiply(
        &self,
        number: i64,
        out: &mut [f32],
        x: &[f32],
        [m, n, k]: [usize; 3],
    ) -> Result<(), String> {
        let all = match self {
            Matrices::Dense { all, .. } => all.all(),
            Matrices::Quantized { packed, .. } => packed.all(),
        };
        if all.ndim() != 3 || !(0..all.sizes[0]).contains(&number) {
            return Err(format!(
                "expert {number} of {:?}: expected a number below the first size",
                all.sizes
            ));
        }
        match self {
            Matrices::Dense { all, transposed } => {
                let one = all.part(number)?;
                let one = if *transposed { one.to_last(0) } else { one };
                dense(out, x, &one, [m, n, k])
            }
            Matrices::Quantized {
                packed,
                scales,
                group,
            } => quantized::rows(
                out,
                x,
                k,
                &packed.part(number)?,
                &scales.part(number)?,
                *group,
            ),
        }
    }
}

/// `x [m, k]` times the matrix `[n, k]`.
fn dense(
    out: &mut [f32],
    x: &[f32],
    matrix: &TensorView,
    [m, n, k]: [usize; 3],
) -> Result<(), String> {
    if matrix.sizes[..] != [n as i64, k as i64] {
        return Err(format!(
            "a matrix {:?} for {k} columns and {n} results",
            matrix.sizes
        ));
    }
    if matrix.dtype == DType::F32 {
        // As they lie, without a copy.
        let mut x = x.to_vec();
        let (out, x) = (
            over(out, &[m as i64, n as i64]),
            over(&mut x, &[m as i64, k as i64]),
        );
        return dense_product(&out, &x, &matrix.to_last(0), Affine::PRODUCT);
    }
    for first in (0..n).step_by(ROWS) {
        let rows = ROWS.min(n - first);
        let part = matrix.narrow(0, first as i64, rows as i64)?;
        by_rows([m, rows, k], &mut out[first..], n, x, &part.dense::<f32>()?);
    }
    Ok(())
}
