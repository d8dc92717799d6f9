//! Products with weights of four bits, two to a byte, and of eight. A few rows of the weight are dequantized at a time, into scratch memory
//! that stays in the cache.

use super::gemm::by_rows;
use crate::aoti::dtype::DType;
use crate::aoti::view::TensorView;

/// Rows of the weight in scratch memory.
const ROWS: usize = 64;
/// What is added to a weight's integers of four bits, so that none is negative.
const MIDDLE: f32 = 8.0;

/// How a weight's elements are stored.
#[derive(Clone, Copy)]
enum Kind {
    Int4,
    Int8,
    /// `float8_e4m3fn`, each byte's value.
    Fp8(&'static [f32; 256]),
}

/// `x [.., k]` times the weight of `packed [n, k]`, or `[n, k / 2]` of four bits, and `scales [n, k / group]`: `out [.., n]`. Sums are
/// in f32.
pub fn product(
    out: &TensorView,
    x: &TensorView,
    packed: &TensorView,
    scales: &TensorView,
    group: i64,
) -> Result<(), String> {
    let ([n, m, k], kind) = check(&out.sizes, &x.sizes, packed, scales, group)?;
    let (x, scales) = (x.dense::<f32>()?, scales.dense::<f32>()?);
    let mut sum = vec![0f32; m * n];
    multiply(
        [m, n, k],
        kind,
        &mut sum,
        &x,
        packed.bytes()?,
        &scales,
        group as usize,
    );
    out.write_dense(&mut sum)
}

/// The same of rows in memory: `out [m, n]`, row-major, from `x [m, k]`.
pub(super) fn rows(
    out: &mut [f32],
    x: &[f32],
    k: usize,
    packed: &TensorView,
    scales: &TensorView,
    group: i64,
) -> Result<(), String> {
    let m = (x.len() / k.max(1)) as i64;
    let n = packed.sizes.first().copied().unwrap_or(0);
    let (mnk, kind) = check(&[m, n], &[m, k as i64], packed, scales, group)?;
    let [n, m, k] = mnk;
    let scales = scales.dense::<f32>()?;
    multiply(
        [m, n, k],
        kind,
        out,
        x,
        packed.bytes()?,
        &scales,
        group as usize,
    );
    Ok(())
}

fn multiply(
    [m, n, k]: [usize; 3],
    kind: Kind,
    sum: &mut [f32],
    x: &[f32],
    packed: &[u8],
    scales: &[f32],
    group: usize,
) {
    let (width, groups) = (packed.len() / n.max(1), k / group);
    let mut scratch = vec![0f32; ROWS.min(n) * k];
    for first in (0..n).step_by(ROWS) {
        let rows = ROWS.min(n - first);
        for row in 0..rows {
            let at = first + row;
            let scales = &scales[at * groups..(at + 1) * groups];
            let bytes = &packed[at * width..(at + 1) * width];
            let to = &mut scratch[row * k..(row + 1) * k];
            match kind {
                Kind::Int4 => row_of_halves(to, bytes, scales, group),
                Kind::Int8 => row_of(to, bytes, scales, group, |byte| f32::from(byte as i8)),
                Kind::Fp8(values) => row_of(to, bytes, scales, group, |byte| values[byte as usize]),
            }
        }
        by_rows([m, rows, k], &mut sum[first..], n, x, &scratch[..rows * k]);
    }
}

fn row_of(row: &mut [f32], bytes: &[u8], scales: &[f32], group: usize, value: impl Fn(u8) -> f32) {
    let parts = row.chunks_mut(group).zip(bytes.chunks(group)).zip(scales);
    for ((row, bytes), scale) in parts {
        for (to, byte) in row.iter_mut().zip(bytes) {
            *to = value(*byte) * scale;
        }
    }
}

/// The values of `float8_e4m3fn`: a sign, four bits of exponent with a bias of 7, three of fraction; all ones are no number.
static E4M3FN: [f32; 256] = {
    let mut values = [0f32; 256];
    let mut byte = 0;
    while byte < 256 {
        let (exponent, fraction) = ((byte >> 3) & 15, byte & 7);
        // Eighths times a power of two, by the bits of an f32.
        let power =
            f32::from_bits(((127 - 7 + if exponent == 0 { 1 } else { exponent }) as u32) << 23);
        let eighths = if exponent == 0 {
            fraction
        } else {
            8 + fraction
        };
        let size = if byte & 127 == 127 {
            f32::NAN
        } else {
            eighths as f32 / 8.0 * power
        };
        values[byte] = if byte >= 128 { -size } else { size };
        byte += 1;
    }
    values
};

/// Dequantizes a row: its first half is in the low halves of bytes, its second half in the high ones.
fn row_of_halves(row: &mut [f32], bytes: &[u8], scales: &[f32], group: usize) {
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

/// `n`, `m` and `k`, and how the weight is stored.
fn check(
    out: &[i64],
    x: &[i64],
    packed: &TensorView,
    scales: &TensorView,
    group: i64,
) -> Result<([usize; 3], Kind), String> {
    let k = x.last().copied().unwrap_or(0);
    let n = packed.sizes.first().copied().unwrap_or(0);
    let m: i64 = x[..x.len().saturating_sub(1)].iter().product();
    let width = packed.sizes.get(1).copied().unwrap_or(0);
    let kind = match packed.dtype {
        DType::I8 if 2 * width == k => Some(Kind::Int4),
        DType::I8 if width == k => Some(Kind::Int8),
        DType::F8E4M3FN if width == k => Some(Kind::Fp8(&E4M3FN)),
        _ => None,
    };
    let fits = packed.ndim() == 2
        && group > 0
        && k > 0
        && k % group == 0
        && scales.sizes[..] == [n, k / group]
        && out.iter().product::<i64>() == m * n;
    match kind.filter(|_| fits) {
        Some(kind) => Ok(([n as usize, m as usize, k as usize], kind)),
        None => Err(format!(
            "{:?} times {:?} of {}, or of four bits, two to a byte, with scales {:?} of groups of {group}, does not give {:?}",
            x,
            packed.sizes,
            packed.dtype.name(),
            scales.sizes,
            out
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
            row_of_halves(&mut row, &bytes, &scales, group);
            for (at, found) in row.iter().enumerate() {
                let byte = bytes[at % (k / 2)];
                let value = if at < k / 2 { byte & 15 } else { byte >> 4 };
                assert_eq!(*found, (f32::from(value) - 8.0) * scales[at / group]);
            }
        }
    }

    #[test]
    fn floats_of_eight_bits_are_those_of_the_format() {
        let cases = [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x07, 0.013671875),
            (0x08, 0.015625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xb8, -1.0),
            (0xfe, -448.0),
        ];
        for (byte, value) in cases {
            assert_eq!(E4M3FN[byte], value);
        }
        assert!(E4M3FN[0x7f].is_nan() && E4M3FN[0xff].is_nan());
        assert_eq!(E4M3FN.iter().filter(|value| value.is_nan()).count(), 2);
    }
}
