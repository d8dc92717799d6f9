//! Running sums and the like along one dimension.

use super::super::context::{Context, Shim};
use super::super::dtype::{DType, Number};
use super::super::kernels::lines::{extremes, log_add, scan};
use super::super::slab::Handle;
use super::super::view::TensorView;
use super::args::{dim, dtype, run, Maybe, Out};
use super::table::shim_table;

shim_table! {
    aoti_torch_cpu_cumsum, aoti_torch_cpu_cumprod, aoti_torch_cpu_logcumsumexp, aoti_torch_cpu_cummax,
    aoti_torch_cpu_cummin,
}

/// A tensor as lines along one dimension.
pub(super) struct Lines {
    pub(super) view: TensorView,
    dim: Option<usize>,
}

impl Lines {
    pub(super) fn new(c: &Context<'_>, handle: Handle, d: i64) -> Shim<Lines> {
        let view = c.view(handle)?;
        let d = dim(d, view.ndim())?;
        Ok(Lines {
            dim: (view.ndim() > 0).then_some(d),
            view,
        })
    }

    /// A result, with the lines' dimension last.
    pub(super) fn turn(&self, view: &TensorView) -> TensorView {
        self.dim.map_or_else(|| view.clone(), |d| view.to_last(d))
    }

    /// Elements of one line; a scalar is a line of one.
    pub(super) fn length(&self) -> usize {
        self.dim.map_or(1, |d| self.view.sizes[d] as usize)
    }

    /// Sizes with lines of `length`.
    pub(super) fn sizes(&self, length: i64) -> Vec<i64> {
        let mut sizes = self.view.sizes.clone();
        if let Some(d) = self.dim {
            sizes[d] = length;
        }
        sizes
    }

    /// The elements, line after line.
    pub(super) fn read<N: Number>(&self) -> Shim<Vec<N>> {
        Ok(self.turn(&self.view).read()?)
    }
}

fn scanned<N: Number>(lines: &Lines, out: &TensorView, combine: impl Fn(N, N) -> N) -> Shim {
    let mut values = lines.read::<N>()?;
    values
        .chunks_mut(lines.length().max(1))
        .for_each(|line| scan(line, &combine));
    Ok(lines.turn(out).write(&values)?)
}

fn accumulated(
    c: &mut Context<'_>,
    handle: Handle,
    d: i64,
    number: Maybe<i32>,
    floats: fn(f64, f64) -> f64,
    ints: fn(i64, i64) -> i64,
) -> Shim<Handle> {
    let lines = Lines::new(c, handle, d)?;
    let own = if lines.view.dtype.is_int() {
        DType::I64
    } else {
        lines.view.dtype
    };
    let to = number.get().map_or(Ok(own), dtype)?;
    let (fresh, out) = c.result(to, &lines.view.sizes)?;
    let [handle] = c.filling([fresh], || match to.is_float() {
        true => scanned(&lines, &out, floats),
        false => scanned(&lines, &out, ints),
    })?;
    Ok(handle)
}

extern "C" fn aoti_torch_cpu_cumsum(
    handle: Handle,
    d: i64,
    number: Maybe<i32>,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_cumsum", |c| {
        ret.set(accumulated(c, handle, d, number, Number::add, Number::add)?)
    })
}

extern "C" fn aoti_torch_cpu_cumprod(
    handle: Handle,
    d: i64,
    number: Maybe<i32>,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_cumprod", |c| {
        ret.set(accumulated(c, handle, d, number, Number::mul, Number::mul)?)
    })
}

extern "C" fn aoti_torch_cpu_logcumsumexp(handle: Handle, d: i64, ret: Out<Handle>) -> i32 {
    run("aoti_torch_cpu_logcumsumexp", |c| {
        let lines = Lines::new(c, handle, d)?;
        let (fresh, out) = c.result(lines.view.dtype, &lines.view.sizes)?;
        let [handle] = c.filling([fresh], || scanned(&lines, &out, log_add))?;
        ret.set(handle)
    })
}

fn running<N: Number>(lines: &Lines, outs: [&TensorView; 2], greatest: bool) -> Shim {
    let mut values = lines.read::<N>()?;
    let mut places = Vec::with_capacity(values.len());
    values
        .chunks_mut(lines.length().max(1))
        .for_each(|line| places.extend(extremes(line, greatest)));
    lines.turn(outs[0]).write(&values)?;
    Ok(lines.turn(outs[1]).write(&places)?)
}

fn extreme(c: &mut Context<'_>, handle: Handle, d: i64, greatest: bool) -> Shim<[Handle; 2]> {
    let lines = Lines::new(c, handle, d)?;
    let (first, values) = c.result(lines.view.dtype, &lines.view.sizes)?;
    let strides = values.strides.clone();
    let (second, places) = c.result_beside([&first], DType::I64, &lines.view.sizes, &strides)?;
    c.filling([first, second], || match lines.view.dtype.is_float() {
        true => running::<f64>(&lines, [&values, &places], greatest),
        false => running::<i64>(&lines, [&values, &places], greatest),
    })
}

extern "C" fn aoti_torch_cpu_cummax(
    handle: Handle,
    d: i64,
    ret0: Out<Handle>,
    ret1: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_cummax", |c| {
        let [values, places] = extreme(c, handle, d, true)?;
        ret0.set(values)?;
        ret1.set(places)
    })
}

extern "C" fn aoti_torch_cpu_cummin(
    handle: Handle,
    d: i64,
    ret0: Out<Handle>,
    ret1: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_cummin", |c| {
        let [values, places] = extreme(c, handle, d, false)?;
        ret0.set(values)?;
        ret1.set(places)
    })
}
