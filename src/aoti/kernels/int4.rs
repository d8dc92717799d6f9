//! Products with weights of four bits, two to a byte. A few rows of the weight are dequantized at a time, into scratch memory that stays
//! in the cache.

use super::gemm::by_rows;
use crate::aoti::dtype::DType;
use crate::aoti::view::TensorView;

/// Rows of the weight in scratch memory.
const ROWS: usize = 64;
/// What is added to a weight's integers, so that none is negative.
const MIDDLE: f32 = 8.0;

/// `x [.., k]` times the weight of `packed [n, k / 2]` and `scales [n, k / group]`: `out [.., n]`. Sums are in f32.
pub fn product(
    out: &TensorView,
    x: &TensorView,
    packed: &TensorView,
    scales: &TensorView,
    group: i64,
) -> Result<(), String> {
    let [n, m, k] = check(out, x, packed, scales, group)?;
    let (x, scales) = (x.dense::<f32>()?, scales.dense::<f32>()?);
    let packed = packed.bytes()?;
    let (half, groups, group) = (k / 2, k / group as usize, group as usize);
    let mut sum = vec![0f32; m * n];
    let mut scratch = vec![0f32; ROWS.min(n) * k];
    for first in (0..n).step_by(ROWS) {
        let rows = ROWS.min(n - first);
        for row in 0..rows {
            let at = first + row;
            let scales = &scales[at * groups..(at + 1) * groups];
            let bytes = &packed[at * half..(at + 1) * half];
            row_of(&mut scratch[row * k..(row + 1) * k], bytes, scales, group);
        }
        by_rows([m, rows, k], &mut sum[first..], n, &x, &scratch[..rows * k]);
    }
    out.write_dense(&mut sum)
}

/// Dequantizes a row: its first half is in the low halves of bytes, its second half in the high ones.
fn row_of(row: &mut [f32], bytes: &[u8], scales: &[f32], group: usize) {
    let half = bytes.len();
    let (low, high) = row.split_at_mut(half);
    half_of(low, bytes, |at| scales[at / group], group, |byte| byte & 15);
    let scale = |at: usize| scales[(half + at) / group];
    // Groups of the second half begin where those of a row do, or each element finds its own.
    let group = if half.is_multiple_of(group) { group } else { 1 };
    half_of(high, bytes, scale, group, |byte| byte >> 4);
}

fn half_of(
    row: &mut [f32],
    bytes: &[u8],
    scale: impl Fn(usize) -> f32,
    group: usize,
    value: impl Fn(u8) -> u8,
) {
    let parts = row.chunks_mut(group).zip(bytes.chunks(group));
    for (part, (row, bytes)) in parts.enumerate() {
        let scale = scale(part * group);
        for (to, byte) in row.iter_mut().zip(bytes) {
            *to = (f32::from(value(*byte)) - MIDDLE) * scale;
        }
    }
}

/// `n`, `m` and `k`.
fn check(
    out: &TensorView,
    x: &TensorView,
    packed: &TensorView,
    scales: &TensorView,
    group: i64,
) -> Result<[usize; 3], String> {
    let k = x.sizes.last().copied().unwrap_or(0);
    let n = packed.sizes.first().copied().unwrap_or(0);
    let m: i64 = x.sizes[..x.ndim().saturating_sub(1)].iter().product();
    let fits = packed.ndim() == 2
        && packed.dtype == DType::I8
        && group > 0
        && k > 0
        && k % 2 == 0
        && k % group == 0
        && packed.sizes[1] == k / 2
        && scales.sizes[..] == [n, k / group]
        && out.numel() as i64 == m * n;
    match fits {
        true => Ok([n as usize, m as usize, k as usize]),
        false => Err(format!(
            "{:?} times {:?} of four bits, two to a byte, with scales {:?} of groups of {group}, does not give {:?}",
            x.sizes, packed.sizes, scales.sizes, out.sizes
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each weight against its definition, also where a group is in both halves.
    #[test]
    fn rows_are_dequantized() {
        for (k, group) in [(8, 4), (8, 8), (12, 3), (12, 4), (64, 32), (96, 32)] {
            let bytes: Vec<u8> = (0..k / 2).map(|at| (at * 37 + 11) as u8).collect();
            let scales: Vec<f32> = (0..k / group).map(|at| 0.5 + at as f32).collect();
            let mut row = vec![0f32; k];
            row_of(&mut row, &bytes, &scales, group);
            for (at, found) in row.iter().enumerate() {
                let byte = bytes[at % (k / 2)];
                let value = if at < k / 2 { byte & 15 } else { byte >> 4 };
                assert_eq!(*found, (f32::from(value) - 8.0) * scales[at / group]);
            }
        }
    }
}
