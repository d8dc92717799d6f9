//! Convolution.

use super::super::context::{Context, Shim};
use super::super::dtype::DType;
use super::super::kernels::conv::{format_strides, Convolution};
use super::super::slab::Handle;
use super::super::view::TensorView;
use super::args::{per_dimension, run, List, Maybe, Out};
use super::table::shim_table;

shim_table! { aoti_torch_cpu_convolution }

#[allow(clippy::too_many_arguments)] // the signature is PyTorch's
extern "C" fn aoti_torch_cpu_convolution(
    input: Handle,
    weight: Handle,
    bias: Maybe<Handle>,
    stride: List<i64>,
    stride_len: i64,
    padding: List<i64>,
    padding_len: i64,
    dilation: List<i64>,
    dilation_len: i64,
    transposed: i32,
    output_padding: List<i64>,
    output_padding_len: i64,
    groups: i64,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_convolution", |c| {
        let (input, weight) = (c.view(input)?, c.view(weight)?);
        let space = weight.ndim().saturating_sub(2);
        let each = |name, list: &List<i64>, len| -> Shim<Vec<i64>> {
            Ok(per_dimension(name, list.get(len)?, space)?)
        };
        let convolution = Convolution {
            stride: &each("stride", &stride, stride_len)?,
            padding: &each("padding", &padding, padding_len)?,
            dilation: &each("dilation", &dilation, dilation_len)?,
            transposed: transposed != 0,
            output_padding: &each("output_padding", &output_padding, output_padding_len)?,
            groups,
        };
        ret.set(convolve(c, &convolution, &input, &weight, bias.get())?)
    })
}

fn convolve(
    c: &mut Context<'_>,
    convolution: &Convolution<'_>,
    input: &TensorView,
    weight: &TensorView,
    bias: Option<Handle>,
) -> Shim<Handle> {
    let bias = bias.map(|bias| c.view(bias)).transpose()?;
    if input.dtype != weight.dtype || !input.dtype.is_float() {
        return Err(format!(
            "a {} input and a {} weight",
            input.dtype.name(),
            weight.dtype.name()
        )
        .into());
    }
    let sizes = convolution.output_sizes(&input.sizes, &weight.sizes)?;
    let guides = [
        (&input.sizes[..], &input.strides[..]),
        (&weight.sizes, &weight.strides),
    ];
    let (fresh, out) = c.result_strided(input.dtype, &sizes, &format_strides(&sizes, &guides))?;
    let [handle] = c.filling([fresh], || {
        match out.dtype {
            DType::F64 => convolution.run::<f64>(&out, input, weight, bias.as_ref())?,
            _ => convolution.run::<f32>(&out, input, weight, bias.as_ref())?,
        }
        Ok(())
    })?;
    Ok(handle)
}
