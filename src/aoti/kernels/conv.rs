//! Convolutions as matrix products over unfolded windows, and their transposes.
#![deny(unsafe_code)]

use super::gemm::accumulate;
use crate::aoti::tensor::{contiguous_strides, numel};
use crate::aoti::view::{Real, TensorView};

/// The arguments of a convolution, per spatial dimension.
#[derive(Debug, Clone, Copy)]
pub struct Convolution<'a> {
    /// Step of the window.
    pub stride: &'a [i64],
    /// Zeros around the input.
    pub padding: &'a [i64],
    /// Step within the window.
    pub dilation: &'a [i64],
    /// Whether it is the transpose of a convolution.
    pub transposed: bool,
    /// Rows added to one side of a transposed convolution's output.
    pub output_padding: &'a [i64],
    /// Number of groups of channels.
    pub groups: i64,
}

/// Extents of three spatial dimensions; the leading ones of fewer are one.
type Space = [usize; 3];

/// One convolution in numbers.
struct Plan {
    batch: usize,
    groups: usize,
    /// Channels per group of the side that the window slides over, and of the other.
    wide: usize,
    narrow: usize,
    /// Spatial extents of the two sides and of the window.
    image: Space,
    grid: Space,
    kernel: Space,
    stride: Space,
    padding: Space,
    dilation: Space,
}

impl Convolution<'_> {
    /// Sizes of the output: batch, channels, space.
    pub fn output_sizes(&self, input: &[i64], weight: &[i64]) -> Result<Vec<i64>, String> {
        let space = weight.len().saturating_sub(2);
        let lists = [self.stride, self.padding, self.dilation];
        let shapes = (1..=3).contains(&space) && input.len() == space + 2;
        if !shapes || lists.iter().any(|list| list.len() != space) || self.groups < 1 {
            return Err(format!(
                "a convolution of sizes {input:?} with a weight of {weight:?}: {self:?}"
            ));
        }
        let channels = if self.transposed {
            weight[0]
        } else {
            weight[1] * self.groups
        };
        if channels != input[1] || (self.transposed && self.output_padding.len() != space) {
            return Err(format!(
                "{} channels for a weight of sizes {weight:?}",
                input[1]
            ));
        }
        if weight[0] % self.groups != 0 || self.stride.iter().chain(self.dilation).any(|v| *v < 1) {
            return Err(format!(
                "{self:?} does not fit a weight of sizes {weight:?}"
            ));
        }
        let mut sizes = vec![
            input[0],
            if self.transposed {
                weight[1] * self.groups
            } else {
                weight[0]
            },
        ];
        for d in 0..space {
            let window = self.dilation[d] * (weight[d + 2] - 1) + 1;
            let size = if self.transposed {
                (input[d + 2] - 1) * self.stride[d] - 2 * self.padding[d]
                    + window
                    + self.output_padding[d]
            } else {
                (input[d + 2] + 2 * self.padding[d] - window).div_euclid(self.stride[d]) + 1
            };
            sizes.push(size);
        }
        match sizes.iter().all(|s| *s >= 0) && self.padding.iter().all(|p| *p >= 0) {
            true => Ok(sizes),
            false => Err(format!("the output would have sizes {sizes:?}")),
        }
    }

    fn plan(&self, input: &[i64], weight: &[i64], output: &[i64]) -> Plan {
        let (image, grid) = if self.transposed {
            (output, input)
        } else {
            (input, output)
        };
        Plan {
            batch: input[0] as usize,
            groups: self.groups as usize,
            wide: (image[1] / self.groups) as usize,
            narrow: (grid[1] / self.groups) as usize,
            image: space(&image[2..], 1),
            grid: space(&grid[2..], 1),
            kernel: space(&weight[2..], 1),
            stride: space(self.stride, 1),
            padding: space(self.padding, 0),
            dilation: space(self.dilation, 1),
        }
    }

    /// Computes the convolution in `T` and writes it, rounded, to `out`.
    pub fn run<T: Real>(
        &self,
        out: &TensorView,
        input: &TensorView,
        weight: &TensorView,
        bias: Option<&TensorView>,
    ) -> Result<(), String> {
        let plan = self.plan(&input.sizes, &weight.sizes, &out.sizes);
        let (input, weight) = (input.dense::<T>()?, weight.dense::<T>()?);
        let channels = out.sizes[1].max(1) as usize;
        let mut result = match bias {
            Some(bias) if bias.numel() != channels => {
                return Err(format!(
                    "a bias of sizes {:?} for {channels} channels",
                    bias.sizes
                ));
            }
            Some(bias) => spread(
                &bias.dense::<T>()?,
                out.numel(),
                channels,
                out.sizes[0].max(1) as usize,
            ),
            None => vec![T::default(); out.numel()],
        };
        if !result.is_empty() && !input.is_empty() {
            plan.compute(self.transposed, &mut result, &input, &weight);
        }
        out.write_dense(&mut result)
    }
}

fn space(values: &[i64], fill: usize) -> Space {
    let mut all = [fill; 3];
    for (to, from) in all.iter_mut().rev().zip(values.iter().rev()) {
        *to = *from as usize;
    }
    all
}

/// The bias at every place of the output.
fn spread<T: Real>(bias: &[T], total: usize, channels: usize, batch: usize) -> Vec<T> {
    let plane = total / (channels * batch);
    (0..total)
        .map(|i| bias[i / plane.max(1) % channels])
        .collect()
}

impl Plan {
    fn compute<T: Real>(&self, transposed: bool, out: &mut [T], input: &[T], weight: &[T]) {
        let volume = |s: Space| s.iter().product::<usize>();
        let (places, window) = (volume(self.grid), self.wide * volume(self.kernel));
        let (image, grid) = (self.wide * volume(self.image), self.narrow * places);
        let mut columns = vec![T::default(); window * places];
        for part in 0..self.batch * self.groups {
            let group = part % self.groups;
            let weight = &weight[group * self.narrow * window..][..self.narrow * window];
            if transposed {
                let grid = &input[part * grid..][..grid];
                columns.fill(T::default());
                accumulate(
                    [window, places, self.narrow],
                    &mut columns,
                    weight,
                    grid,
                    true,
                );
                let image = &mut out[part * image..][..image];
                self.windows(|column, place| image[place] += columns[column]);
            } else {
                let image = &input[part * image..][..image];
                columns.fill(T::default());
                self.windows(|column, place| columns[column] = image[place]);
                let out = &mut out[part * grid..][..grid];
                accumulate([self.narrow, places, window], out, weight, &columns, false);
            }
        }
    }

    /// Calls `body` with (index into the columns, index into the image) for every element of every window
    /// that lies inside the image.
    fn windows(&self, mut body: impl FnMut(usize, usize)) {
        let [kd, kh, kw] = self.kernel;
        let [gd, gh, gw] = self.grid;
        let [id, ih, iw] = self.image;
        let mut row = 0;
        for channel in 0..self.wide {
            for (a, b, c) in triples([kd, kh, kw]) {
                for x in 0..gd {
                    let Some(x0) = self.place(0, x, a, id) else {
                        continue;
                    };
                    for y in 0..gh {
                        let Some(y0) = self.place(1, y, b, ih) else {
                            continue;
                        };
                        let (column, image) = (
                            row + (x * gh + y) * gw,
                            ((channel * id + x0) * ih + y0) * iw,
                        );
                        for z in 0..gw {
                            if let Some(z0) = self.place(2, z, c, iw) {
                                body(column + z, image + z0);
                            }
                        }
                    }
                }
                row += gd * gh * gw;
            }
        }
    }

    fn place(&self, d: usize, at: usize, within: usize, extent: usize) -> Option<usize> {
        let place =
            (at * self.stride[d] + within * self.dilation[d]).checked_sub(self.padding[d])?;
        (place < extent).then_some(place)
    }
}

fn triples([a, b, c]: Space) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
}

/// Strides that PyTorch gives the output of a convolution or pooling: channels last if one of `guides` (sizes
/// and strides) is, else row-major.
pub fn format_strides(sizes: &[i64], guides: &[(&[i64], &[i64])]) -> Vec<i64> {
    if !guides
        .iter()
        .any(|(sizes, strides)| is_channels_last(sizes, strides))
        || numel(sizes) == Some(0)
    {
        return contiguous_strides(sizes);
    }
    let mut strides = vec![0; sizes.len()];
    let mut next = 1;
    for d in std::iter::once(1).chain((2..sizes.len()).rev()).chain([0]) {
        strides[d] = next;
        next *= sizes[d];
    }
    strides
}

/// PyTorch's test for the order batch, space, channels; ambiguous cases count as row-major.
fn is_channels_last(sizes: &[i64], strides: &[i64]) -> bool {
    if !(4..=5).contains(&sizes.len()) || strides[1] == 0 {
        return false;
    }
    let mut least = 0;
    for d in std::iter::once(1).chain((2..sizes.len()).rev()).chain([0]) {
        if sizes[d] == 0 || strides[d] < least || (d == 0 && least == strides[1]) {
            return false;
        }
        least = strides[d] * sizes[d].max(1);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_last_is_told_from_row_major() {
        assert!(is_channels_last(&[2, 3, 4, 5], &[60, 1, 15, 3]));
        assert!(!is_channels_last(&[2, 3, 4, 5], &[60, 20, 5, 1]));
        assert!(!is_channels_last(&[2, 1, 1, 1], &[1, 1, 1, 1]), "ambiguous");
        assert_eq!(
            format_strides(&[2, 3, 4, 5], &[(&[1, 2, 2, 2], &[8, 1, 4, 2])]),
            [60, 1, 15, 3]
        );
        assert_eq!(
            format_strides(&[2, 3, 4], &[(&[2, 3, 4], &[12, 4, 1])]),
            [12, 4, 1]
        );
    }

    #[test]
    fn impossible_convolutions_are_refused() {
        let plain = Convolution {
            stride: &[1, 1],
            padding: &[0, 0],
            dilation: &[1, 1],
            transposed: false,
            output_padding: &[0, 0],
            groups: 1,
        };
        assert_eq!(
            plain.output_sizes(&[2, 3, 5, 5], &[4, 3, 3, 3]).unwrap(),
            [2, 4, 3, 3]
        );
        assert!(
            plain.output_sizes(&[2, 4, 5, 5], &[4, 3, 3, 3]).is_err(),
            "channels"
        );
        assert!(
            plain.output_sizes(&[2, 3, 1, 5], &[4, 3, 3, 3]).is_err(),
            "too small"
        );
        assert!(
            plain.output_sizes(&[2, 3, 5], &[4, 3, 3, 3]).is_err(),
            "dimensions"
        );
        assert!(Convolution { groups: 0, ..plain }
            .output_sizes(&[2, 3, 5, 5], &[4, 3, 3, 3])
            .is_err());
        let zero = Convolution {
            stride: &[0, 1],
            ..plain
        };
        assert!(zero.output_sizes(&[2, 3, 5, 5], &[4, 3, 3, 3]).is_err());
    }
}
