//! Writing to places that another tensor names, and finding such places.

use super::super::context::{Context, Shim};
use super::super::dtype::DType;
use super::super::kernels::index::{coordinates, nonzero, put, scatter, Reduce};
use super::super::slab::Handle;
use super::super::tensor::preserved_strides;
use super::super::view::{copy, TensorView};
use super::args::{dim, run, List, Maybe, Out, Text};
use super::table::shim_table;

shim_table! {
    aoti_torch_scatter_out, aoti_torch_scatter_reduce_out, aoti_torch_cpu_scatter_src_out,
    aoti_torch_cpu_scatter_value_out, aoti_torch_cpu_scatter_reduce_two_out, aoti_torch_index_put_out,
    aoti_torch_cpu_index_put, aoti_torch_cpu_nonzero,
}

/// Arguments that all scatters share.
struct Scatter {
    out: Handle,
    base: Handle,
    d: i64,
    index: Handle,
}

impl Scatter {
    fn run(&self, c: &Context<'_>, src: &TensorView, reduce: Reduce, include_self: bool) -> Shim {
        let (out, index) = (c.view(self.out)?, c.view(self.index)?);
        let d = dim(self.d, out.ndim())?;
        copy(&out, &c.view(self.base)?)?;
        match out.dtype.is_float() {
            true => scatter::<f64>(&out, d, &index, src, reduce, include_self)?,
            false => scatter::<i64>(&out, d, &index, src, reduce, include_self)?,
        }
        Ok(())
    }
}

extern "C" fn aoti_torch_scatter_out(
    out: Handle,
    base: Handle,
    d: i64,
    index: Handle,
    src: Handle,
) -> i32 {
    run("aoti_torch_scatter_out", |c| {
        Scatter {
            out,
            base,
            d,
            index,
        }
        .run(c, &c.view(src)?, Reduce::Replace, true)
    })
}

extern "C" fn aoti_torch_cpu_scatter_src_out(
    out: Handle,
    base: Handle,
    d: i64,
    index: Handle,
    src: Handle,
) -> i32 {
    run("aoti_torch_cpu_scatter_src_out", |c| {
        Scatter {
            out,
            base,
            d,
            index,
        }
        .run(c, &c.view(src)?, Reduce::Replace, true)
    })
}

extern "C" fn aoti_torch_cpu_scatter_value_out(
    out: Handle,
    base: Handle,
    d: i64,
    index: Handle,
    value: f64,
) -> i32 {
    run("aoti_torch_cpu_scatter_value_out", |c| {
        let sizes = c.view(index)?.sizes;
        let (dtype, strides) = (c.view(out)?.dtype, vec![0; sizes.len()]);
        let (fresh, src) = c.result_strided(dtype, &[], &[])?;
        let [scalar] = c.filling([fresh], || match dtype.is_float() {
            true => Ok(src.write(&[value])?),
            false => Ok(src.write(&[value as i64])?),
        })?;
        let spread = match sizes.contains(&0) {
            true => Ok(src),
            false => src.restrided(0, &sizes, &strides),
        };
        let done = spread.map_err(Into::into).and_then(|src| {
            Scatter {
                out,
                base,
                d,
                index,
            }
            .run(c, &src, Reduce::Replace, true)
        });
        c.delete(scalar)?;
        done
    })
}

extern "C" fn aoti_torch_cpu_scatter_reduce_two_out(
    out: Handle,
    base: Handle,
    d: i64,
    index: Handle,
    src: Handle,
    reduce: Text,
    include_self: i32,
) -> i32 {
    run("aoti_torch_cpu_scatter_reduce_two_out", |c| {
        let reduce = Reduce::parse(&reduce.get())?;
        Scatter {
            out,
            base,
            d,
            index,
        }
        .run(c, &c.view(src)?, reduce, include_self != 0)
    })
}

extern "C" fn aoti_torch_scatter_reduce_out(
    out: Handle,
    base: Handle,
    d: i64,
    index: Handle,
    src: Handle,
    reduce: Text,
    include_self: i32,
) -> i32 {
    run("aoti_torch_scatter_reduce_out", |c| {
        let reduce = Reduce::parse(&reduce.get())?;
        Scatter {
            out,
            base,
            d,
            index,
        }
        .run(c, &c.view(src)?, reduce, include_self != 0)
    })
}

fn put_into(
    out: &TensorView,
    indices: &[Option<TensorView>],
    values: &TensorView,
    accumulate: bool,
) -> Shim {
    match out.dtype.is_float() {
        true => put::<f64>(out, indices, values, accumulate)?,
        false => put::<i64>(out, indices, values, accumulate)?,
    }
    Ok(())
}

extern "C" fn aoti_torch_index_put_out(
    out: Handle,
    base: Handle,
    indices: List<Handle>,
    len: u32,
    values: Handle,
    accumulate: bool,
) -> i32 {
    run("aoti_torch_index_put_out", |c| {
        let indices = indices.get(i64::from(len))?.iter();
        let indices = indices.map(|h| optional(c, *h)).collect::<Shim<Vec<_>>>()?;
        let (out, values) = (c.view(out)?, c.view(values)?);
        copy(&out, &c.view(base)?)?;
        put_into(&out, &indices, &values, accumulate)
    })
}

fn optional(c: &Context<'_>, handle: Handle) -> Shim<Option<TensorView>> {
    if handle == Handle::NULL {
        Ok(None)
    } else {
        Ok(Some(c.view(handle)?))
    }
}

extern "C" fn aoti_torch_cpu_index_put(
    base: Handle,
    indices: List<Maybe<Handle>>,
    len: i64,
    values: Handle,
    accumulate: i32,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_index_put", |c| {
        let indices = indices.get(len)?.iter();
        let indices = indices
            .map(|h| optional(c, h.get().unwrap_or(Handle::NULL)))
            .collect::<Shim<Vec<_>>>()?;
        let (base, values) = (c.view(base)?, c.view(values)?);
        let strides = preserved_strides(&base.sizes, &base.strides);
        let (fresh, out) = c.result_strided(base.dtype, &base.sizes, &strides)?;
        let [handle] = c.filling([fresh], || {
            copy(&out, &base)?;
            put_into(&out, &indices, &values, accumulate != 0)
        })?;
        ret.set(handle)
    })
}

/// The places of everything that is not zero, one row each. The compiled code reads it column by column, as
/// PyTorch lays it out.
extern "C" fn aoti_torch_cpu_nonzero(handle: Handle, ret: Out<Handle>) -> i32 {
    run("aoti_torch_cpu_nonzero", |c| {
        let view = c.view(handle)?;
        let hits = match view.dtype.is_float() {
            true => nonzero(&view.read::<f64>()?),
            false => nonzero(&view.read::<i64>()?),
        };
        let count = hits.len() as i64;
        let sizes = [count, view.ndim() as i64];
        let (fresh, out) = c.result_strided(DType::I64, &sizes, &[1, count])?;
        let [found] = c.filling([fresh], || Ok(out.write(&coordinates(&hits, &view.sizes))?))?;
        ret.set(found)
    })
}
