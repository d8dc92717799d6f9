//! Pooling over windows of an image.
#![deny(unsafe_code)]

use crate::aoti::dtype::Number;

/// Windows along one dimension.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    /// Elements of the window.
    pub kernel: i64,
    /// Step between windows.
    pub stride: i64,
    /// Elements before and after the image.
    pub padding: i64,
    /// Step within the window.
    pub dilation: i64,
}

impl Axis {
    /// Number of windows over `size` elements. With `ceil` a last, incomplete window counts if it starts
    /// inside the image or the padding before it.
    pub fn count(&self, size: i64, ceil: bool) -> Result<i64, String> {
        if self.kernel < 1 || self.stride < 1 || self.padding < 0 || self.dilation < 1 {
            return Err(format!("no windows of {self:?}"));
        }
        let room = size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1;
        let extra = if ceil { self.stride - 1 } else { 0 };
        let mut count = (room + extra).div_euclid(self.stride) + 1;
        if ceil && (count - 1) * self.stride >= size + self.padding {
            count -= 1;
        }
        if count < 1 {
            Err(format!("{size} elements hold no window of {self:?}"))
        } else {
            Ok(count)
        }
    }

    /// First place of window `at`, and the place after its last, both within the padded image.
    fn span(&self, at: i64, size: i64) -> (i64, i64) {
        let start = at * self.stride - self.padding;
        (
            start,
            (start + self.dilation * (self.kernel - 1) + 1).min(size + self.padding),
        )
    }
}

/// How the elements of a window become one.
#[derive(Debug, Clone, Copy)]
pub enum Average {
    /// Divide by the elements inside the image.
    Inside,
    /// Divide by the elements of the window, padding included.
    Padded,
    /// Divide by this number.
    By(i64),
}

/// Means over windows of one image, of up to three dimensions, in row-major order.
pub fn average(
    image: &[f64],
    sizes: &[i64],
    axes: &[Axis],
    counts: &[i64],
    how: Average,
) -> Vec<f64> {
    let mut means = Vec::new();
    windows(counts, |at| {
        let (mut sum, mut inside) = (0.0, 0i64);
        let spans: Vec<_> = at
            .iter()
            .zip(axes)
            .zip(sizes)
            .map(|((at, axis), n)| axis.span(*at, *n))
            .collect();
        let padded: i64 = spans.iter().map(|(a, b)| b - a).product();
        let clipped: Vec<_> = spans
            .iter()
            .zip(sizes)
            .map(|((a, b), n)| ((*a).max(0), (*b).min(*n), 1))
            .collect();
        places(&clipped, sizes, |place| {
            sum += image[place];
            inside += 1;
        });
        let divisor = match how {
            Average::Inside => inside,
            Average::Padded => padded,
            Average::By(n) => n,
        };
        means.push(sum / divisor as f64);
    });
    means
}

/// Means over the parts of one image that `counts` cut it into.
pub fn adaptive_average(image: &[f64], sizes: &[i64], counts: &[i64]) -> Vec<f64> {
    let mut means = Vec::new();
    windows(counts, |at| {
        let cut = |((at, n), count): ((&i64, &i64), &i64)| {
            (at * n / count, ((at + 1) * n + count - 1) / count, 1)
        };
        let spans: Vec<_> = at.iter().zip(sizes).zip(counts).map(cut).collect();
        let (mut sum, mut inside) = (0.0, 0);
        places(&spans, sizes, |place| {
            sum += image[place];
            inside += 1;
        });
        means.push(sum / f64::from(inside));
    });
    means
}

/// Greatest elements of windows of one image, and their places. A NaN is greater than all.
pub fn maximum<N: Number>(
    image: &[N],
    sizes: &[i64],
    axes: &[Axis],
    counts: &[i64],
) -> (Vec<N>, Vec<i64>) {
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    windows(counts, |at| {
        let spans: Vec<_> = at
            .iter()
            .zip(axes)
            .zip(sizes)
            .map(|((at, axis), n)| {
                let (mut start, _) = axis.span(*at, *n);
                let end = (start + axis.dilation * (axis.kernel - 1) + 1).min(*n);
                while start < 0 {
                    start += axis.dilation;
                }
                (start, end, axis.dilation)
            })
            .collect();
        let mut best: Option<usize> = None;
        places(&spans, sizes, |place| {
            let better = best.is_none_or(|b| image[place] > image[b] || image[place].is_nan());
            best = if better { Some(place) } else { best };
        });
        let best = best.unwrap_or(0);
        values.push(image[best]);
        indices.push(best as i64);
    });
    (values, indices)
}

/// Every index within `counts`, in row-major order.
fn windows(counts: &[i64], mut body: impl FnMut(&[i64])) {
    let total: i64 = counts.iter().product();
    let mut at = vec![0; counts.len()];
    for mut flat in 0..total {
        for d in (0..counts.len()).rev() {
            at[d] = flat % counts[d];
            flat /= counts[d];
        }
        body(&at);
    }
}

/// Every place of the box `(start, end, step)` per dimension, within an image of `sizes`.
fn places(spans: &[(i64, i64, i64)], sizes: &[i64], mut body: impl FnMut(usize)) {
    fn walk(spans: &[(i64, i64, i64)], sizes: &[i64], base: i64, body: &mut dyn FnMut(usize)) {
        let Some(((start, end, step), rest)) = spans.split_first() else {
            return body(base as usize);
        };
        let mut at = *start;
        while at < *end {
            walk(rest, &sizes[1..], base * sizes[0] + at, body);
            at += step;
        }
    }
    walk(spans, sizes, 0, &mut body);
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXIS: Axis = Axis {
        kernel: 2,
        stride: 2,
        padding: 0,
        dilation: 1,
    };

    #[test]
    fn windows_are_counted_as_pytorch_does() {
        assert_eq!(AXIS.count(5, false), Ok(2));
        assert_eq!(AXIS.count(5, true), Ok(3));
        assert_eq!(
            Axis { padding: 1, ..AXIS }.count(5, true),
            Ok(3),
            "no window starts after the image"
        );
        assert!(AXIS.count(1, false).is_err());
        assert!(Axis { stride: 0, ..AXIS }.count(5, false).is_err());
    }

    #[test]
    fn pools_over_one_dimension() {
        let image = [1.0, 5.0, 2.0, 3.0, 9.0];
        assert_eq!(
            average(&image, &[5], &[AXIS], &[3], Average::Inside),
            [3.0, 2.5, 9.0]
        );
        let padded = Axis { padding: 1, ..AXIS };
        assert_eq!(
            average(&image, &[5], &[padded], &[3], Average::Padded),
            [0.5, 3.5, 6.0]
        );
        assert_eq!(
            average(&image, &[5], &[AXIS], &[2], Average::By(4)),
            [1.5, 1.25]
        );
        assert_eq!(
            adaptive_average(&image, &[5], &[2]),
            [8.0 / 3.0, 14.0 / 3.0]
        );
        assert_eq!(
            maximum(&image, &[5], &[AXIS], &[2]),
            (vec![5.0, 3.0], vec![1, 3])
        );
        let nan = [1.0, f64::NAN, 7.0];
        assert_eq!(
            maximum(&nan, &[3], &[Axis { kernel: 3, ..AXIS }], &[1]).1,
            [1]
        );
    }
}
