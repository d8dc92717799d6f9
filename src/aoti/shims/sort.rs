//! Sorting, the greatest of many, and searching in sorted lines.

use super::super::context::{Context, Shim};
use super::super::dtype::{DType, Number};
use super::super::kernels::lines::{search, sorted};
use super::super::slab::Handle;
use super::super::tensor::{contiguous_strides, preserved_strides};
use super::super::view::TensorView;
use super::args::{run, Maybe, Out, Text};
use super::scan::Lines;
use super::table::shim_table;

shim_table! {
    aoti_torch_cpu_sort, aoti_torch_cpu_sort_stable, aoti_torch_cpu_topk, aoti_torch_cpu_searchsorted_Tensor,
    aoti_torch_cpu_bucketize_Tensor,
}

/// The first `keep` of each sorted line, and their places.
fn order<N: Number>(lines: &Lines, outs: [&TensorView; 2], keep: usize, descending: bool) -> Shim {
    let values = lines.read::<N>()?;
    let (mut kept, mut places) = (Vec::new(), Vec::new());
    for line in values.chunks(lines.length().max(1)) {
        for place in sorted(line, descending).into_iter().take(keep) {
            kept.push(line[place]);
            places.push(place as i64);
        }
    }
    lines.turn(outs[0]).write(&kept)?;
    Ok(lines.turn(outs[1]).write(&places)?)
}

fn ordered(
    c: &mut Context<'_>,
    lines: &Lines,
    strides: &[i64],
    keep: i64,
    down: bool,
) -> Shim<[Handle; 2]> {
    let sizes = lines.sizes(keep);
    let (first, values) = c.result_strided(lines.view.dtype, &sizes, strides)?;
    let (second, places) = c.result_beside([&first], DType::I64, &sizes, strides)?;
    c.filling([first, second], || match lines.view.dtype.is_float() {
        true => order::<f64>(lines, [&values, &places], keep as usize, down),
        false => order::<i64>(lines, [&values, &places], keep as usize, down),
    })
}

fn sort(c: &mut Context<'_>, handle: Handle, d: i64, descending: i32) -> Shim<[Handle; 2]> {
    let lines = Lines::new(c, handle, d)?;
    let strides = preserved_strides(&lines.view.sizes, &lines.view.strides);
    ordered(c, &lines, &strides, lines.length() as i64, descending != 0)
}

extern "C" fn aoti_torch_cpu_sort(
    handle: Handle,
    d: i64,
    descending: i32,
    ret0: Out<Handle>,
    ret1: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_sort", |c| {
        let [values, places] = sort(c, handle, d, descending)?;
        ret0.set(values)?;
        ret1.set(places)
    })
}

extern "C" fn aoti_torch_cpu_sort_stable(
    handle: Handle,
    _stable: Maybe<i32>,
    d: i64,
    descending: i32,
    ret0: Out<Handle>,
    ret1: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_sort_stable", |c| {
        let [values, places] = sort(c, handle, d, descending)?;
        ret0.set(values)?;
        ret1.set(places)
    })
}

extern "C" fn aoti_torch_cpu_topk(
    handle: Handle,
    k: i64,
    d: i64,
    largest: i32,
    _sorted: i32,
    ret0: Out<Handle>,
    ret1: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_topk", |c| {
        let lines = Lines::new(c, handle, d)?;
        if k < 0 || k > lines.length() as i64 {
            return Err(format!("{k} elements of lines of {}", lines.length()).into());
        }
        let strides = contiguous_strides(&lines.sizes(k));
        let [values, places] = ordered(c, &lines, &strides, k, largest != 0)?;
        ret0.set(values)?;
        ret1.set(places)
    })
}

/// Sorted sequences, and whether a value equal to an element goes after it.
struct Search<'a> {
    sequences: &'a TensorView,
    sorter: Option<&'a TensorView>,
    right: bool,
}

impl Search<'_> {
    fn find<N: Number>(&self, out: &TensorView, values: &TensorView) -> Shim {
        let length = *self
            .sequences
            .sizes
            .last()
            .ok_or("a sequence of no dimensions")? as usize;
        let mut sequences = self.sequences.read::<N>()?;
        if let Some(sorter) = self.sorter {
            let places = sorter.read::<i64>()?;
            if sorter.sizes != self.sequences.sizes
                || places.iter().any(|p| !(0..length as i64).contains(p))
            {
                return Err("the sorter does not fit the sequences".into());
            }
            let at = |(i, place): (usize, &i64)| sequences[i / length * length + *place as usize];
            sequences = places.iter().enumerate().map(at).collect();
        }
        let values_list = values.read::<N>()?;
        let each = match self.sequences.ndim() {
            1 => values_list.len(),
            n if values.ndim() == n && values.sizes[..n - 1] == self.sequences.sizes[..n - 1] => {
                values.sizes[n - 1] as usize
            }
            _ => {
                return Err(format!(
                    "values {:?} in sequences {:?}",
                    values.sizes, self.sequences.sizes
                )
                .into())
            }
        };
        let place = |(i, value): (usize, &N)| {
            let line = if self.sequences.ndim() == 1 {
                0
            } else {
                i / each
            };
            search(&sequences[line * length..][..length], *value, self.right)
        };
        Ok(out.write(
            &values_list
                .iter()
                .enumerate()
                .map(place)
                .collect::<Vec<i64>>(),
        )?)
    }

    fn run(&self, c: &mut Context<'_>, values: &TensorView, int32: i32) -> Shim<Handle> {
        let dtype = if int32 != 0 { DType::I32 } else { DType::I64 };
        let (fresh, out) = c.result(dtype, &values.sizes)?;
        let float = values.dtype.is_float() || self.sequences.dtype.is_float();
        let [handle] = c.filling([fresh], || match float {
            true => self.find::<f64>(&out, values),
            false => self.find::<i64>(&out, values),
        })?;
        Ok(handle)
    }
}

extern "C" fn aoti_torch_cpu_searchsorted_Tensor(
    sequences: Handle,
    values: Handle,
    int32: i32,
    right: i32,
    side: Maybe<Text>,
    sorter: Maybe<Handle>,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_searchsorted_Tensor", |c| {
        let (sequences, values) = (c.view(sequences)?, c.view(values)?);
        let sorter = sorter.get().map(|sorter| c.view(sorter)).transpose()?;
        let right = right != 0 || side.get().is_some_and(|side| side.get() == "right");
        let search = Search {
            sequences: &sequences,
            sorter: sorter.as_ref(),
            right,
        };
        ret.set(search.run(c, &values, int32)?)
    })
}

extern "C" fn aoti_torch_cpu_bucketize_Tensor(
    values: Handle,
    boundaries: Handle,
    int32: i32,
    right: i32,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_bucketize_Tensor", |c| {
        let (sequences, values) = (c.view(boundaries)?, c.view(values)?);
        let search = Search {
            sequences: &sequences,
            sorter: None,
            right: right != 0,
        };
        ret.set(search.run(c, &values, int32)?)
    })
}
