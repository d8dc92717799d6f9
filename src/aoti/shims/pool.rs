//! Pooling, for windows that Inductor does not unroll.

use super::super::context::{Context, Shim};
use super::super::dtype::{DType, Number};
use super::super::kernels::conv::format_strides;
use super::super::kernels::pool::{adaptive_average, average, maximum, Average, Axis};
use super::super::slab::Handle;
use super::super::view::TensorView;
use super::args::{per_dimension, run, List, Maybe, Out};
use super::table::shim_table;

shim_table! {
    aoti_torch_cpu_avg_pool2d, aoti_torch_cpu_avg_pool3d, aoti_torch_cpu__adaptive_avg_pool2d,
    aoti_torch_cpu__adaptive_avg_pool3d, aoti_torch_cpu_max_pool2d_with_indices,
    aoti_torch_cpu_max_pool3d_with_indices,
}

/// One value per dimension from a list that may hold one for all, or none for the default.
fn expand(list: &List<i64>, len: i64, space: usize, default: &[i64]) -> Shim<Vec<i64>> {
    match list.get(len)? {
        [] => Ok(default.to_vec()),
        list => Ok(per_dimension("a list of the pool", list, space)?),
    }
}

/// Splits a view into images of `space` dimensions, in dense row-major order.
struct Images {
    view: TensorView,
    space: usize,
}

impl Images {
    fn new(c: &Context<'_>, input: Handle, space: usize) -> Shim<Images> {
        let view = c.view(input)?;
        if view.ndim() != space + 1 && view.ndim() != space + 2 {
            return Err(
                format!("sizes {:?} for a pool over {space} dimensions", view.sizes).into(),
            );
        }
        Ok(Images { view, space })
    }

    fn sizes(&self) -> &[i64] {
        &self.view.sizes[self.view.ndim() - self.space..]
    }

    /// Sizes and strides of the result.
    fn shape(&self, counts: &[i64]) -> (Vec<i64>, Vec<i64>) {
        let mut sizes = self.view.sizes[..self.view.ndim() - self.space].to_vec();
        sizes.extend(counts);
        // As PyTorch, which looks at sizes with a batch only.
        let strides = format_strides(&sizes, &[(&self.view.sizes, &self.view.strides)]);
        (sizes, strides)
    }

    fn map<N: Number>(&self, mut body: impl FnMut(&[N])) -> Shim {
        let values = self.view.read::<N>()?;
        let each: i64 = self.sizes().iter().product();
        values.chunks(each.max(1) as usize).for_each(&mut body);
        Ok(())
    }
}

fn axes(kernel: &[i64], stride: &[i64], padding: &[i64], dilation: &[i64]) -> Vec<Axis> {
    (0..kernel.len())
        .map(|d| Axis {
            kernel: kernel[d],
            stride: stride[d],
            padding: padding[d],
            dilation: dilation[d],
        })
        .collect()
}

fn counts(axes: &[Axis], sizes: &[i64], ceil: i32) -> Result<Vec<i64>, String> {
    axes.iter()
        .zip(sizes)
        .map(|(axis, size)| axis.count(*size, ceil != 0))
        .collect()
}

fn averaged(
    c: &mut Context<'_>,
    images: &Images,
    axes: &[Axis],
    ceil: i32,
    how: Average,
) -> Shim<Handle> {
    let counts = counts(axes, images.sizes(), ceil)?;
    let (sizes, strides) = images.shape(&counts);
    let (fresh, out) = c.result_strided(images.view.dtype, &sizes, &strides)?;
    let [handle] = c.filling([fresh], || {
        let mut means = Vec::new();
        images.map(|image| means.extend(average(image, images.sizes(), axes, &counts, how)))?;
        Ok(out.write(&means)?)
    })?;
    Ok(handle)
}

macro_rules! average_pools {
    ($($name:ident, $space:expr;)*) => {$(
        #[allow(clippy::too_many_arguments)] // the signature is PyTorch's
        extern "C" fn $name(
            input: Handle,
            kernel: List<i64>,
            kernel_len: i64,
            stride: List<i64>,
            stride_len: i64,
            padding: List<i64>,
            padding_len: i64,
            ceil: i32,
            count_padding: i32,
            divisor: Maybe<i64>,
            ret: Out<Handle>,
        ) -> i32 {
            run(stringify!($name), |c| {
                let images = Images::new(c, input, $space)?;
                let kernel = expand(&kernel, kernel_len, $space, &[])?;
                let stride = expand(&stride, stride_len, $space, &kernel)?;
                let padding = expand(&padding, padding_len, $space, &[0; $space])?;
                if kernel.len() != $space {
                    return Err("the window has no sizes".into());
                }
                let how = match (divisor.get(), count_padding) {
                    (Some(0), _) => return Err("the divisor is zero".into()),
                    (Some(n), _) => Average::By(n),
                    (None, 0) => Average::Inside,
                    (None, _) => Average::Padded,
                };
                ret.set(averaged(c, &images, &axes(&kernel, &stride, &padding, &[1; $space]), ceil, how)?)
            })
        }
    )*};
}

average_pools! {
    aoti_torch_cpu_avg_pool2d, 2;
    aoti_torch_cpu_avg_pool3d, 3;
}

macro_rules! adaptive_pools {
    ($($name:ident, $space:expr;)*) => {$(
        extern "C" fn $name(input: Handle, size: List<i64>, size_len: i64, ret: Out<Handle>) -> i32 {
            run(stringify!($name), |c| {
                let images = Images::new(c, input, $space)?;
                let counts = expand(&size, size_len, $space, &[])?;
                if counts.len() != $space || counts.iter().any(|n| *n < 0) || images.sizes().contains(&0) {
                    return Err(format!("{counts:?} parts of an image of {:?}", images.sizes()).into());
                }
                let (sizes, strides) = images.shape(&counts);
                let (fresh, out) = c.result_strided(images.view.dtype, &sizes, &strides)?;
                let [handle] = c.filling([fresh], || {
                    let mut means = Vec::new();
                    images.map(|image| means.extend(adaptive_average(image, images.sizes(), &counts)))?;
                    Ok(out.write(&means)?)
                })?;
                ret.set(handle)
            })
        }
    )*};
}

adaptive_pools! {
    aoti_torch_cpu__adaptive_avg_pool2d, 2;
    aoti_torch_cpu__adaptive_avg_pool3d, 3;
}

fn greatest<N: Number>(
    images: &Images,
    axes: &[Axis],
    counts: &[i64],
    outs: [&TensorView; 2],
) -> Shim {
    let (mut values, mut indices) = (Vec::<N>::new(), Vec::new());
    images.map::<N>(|image| {
        let found = maximum(image, images.sizes(), axes, counts);
        values.extend(found.0);
        indices.extend(found.1);
    })?;
    outs[0].write(&values)?;
    Ok(outs[1].write(&indices)?)
}

macro_rules! maximum_pools {
    ($($name:ident, $space:expr;)*) => {$(
        #[allow(clippy::too_many_arguments)] // the signature is PyTorch's
        extern "C" fn $name(
            input: Handle,
            kernel: List<i64>,
            kernel_len: i64,
            stride: List<i64>,
            stride_len: i64,
            padding: List<i64>,
            padding_len: i64,
            dilation: List<i64>,
            dilation_len: i64,
            ceil: i32,
            ret0: Out<Handle>,
            ret1: Out<Handle>,
        ) -> i32 {
            run(stringify!($name), |c| {
                let images = Images::new(c, input, $space)?;
                let kernel = expand(&kernel, kernel_len, $space, &[])?;
                let stride = expand(&stride, stride_len, $space, &kernel)?;
                let padding = expand(&padding, padding_len, $space, &[0; $space])?;
                let dilation = expand(&dilation, dilation_len, $space, &[1; $space])?;
                if kernel.len() != $space {
                    return Err("the window has no sizes".into());
                }
                let axes = axes(&kernel, &stride, &padding, &dilation);
                let counts = counts(&axes, images.sizes(), ceil)?;
                let (sizes, strides) = images.shape(&counts);
                let dtype = images.view.dtype;
                let (first, values) = c.result_strided(dtype, &sizes, &strides)?;
                let (second, indices) = c.result_beside([&first], DType::I64, &sizes, &strides)?;
                let [values, indices] = c.filling([first, second], || match dtype.is_float() {
                    true => greatest::<f64>(&images, &axes, &counts, [&values, &indices]),
                    false => greatest::<i64>(&images, &axes, &counts, [&values, &indices]),
                })?;
                ret0.set(values)?;
                ret1.set(indices)
            })
        }
    )*};
}

maximum_pools! {
    aoti_torch_cpu_max_pool2d_with_indices, 2;
    aoti_torch_cpu_max_pool3d_with_indices, 3;
}
