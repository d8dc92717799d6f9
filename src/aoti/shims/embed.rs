//! Bags of embeddings.

use super::super::context::{Context, Shim};
use super::super::dtype::DType;
use super::super::slab::Handle;
use super::super::view::TensorView;
use super::args::{run, Maybe, Out};
use super::table::shim_table;

shim_table! { aoti_torch_cpu__embedding_bag_forward_only }

/// What becomes of the rows of one bag (PyTorch's numbers).
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Sum = 0,
    Mean = 1,
    Max = 2,
}

struct Bags {
    table: TensorView,
    indices: Vec<i64>,
    /// Start of each bag, and the end of the last.
    bounds: Vec<i64>,
    weights: Option<Vec<f64>>,
    mode: Mode,
    skip: i64,
}

/// Results of all bags.
#[derive(Default)]
struct Found {
    rows: Vec<f64>,
    sizes: Vec<i64>,
    owners: Vec<i64>,
    greatest: Vec<i64>,
}

impl Bags {
    fn check(&self) -> Shim {
        let (count, end) = (self.table.sizes[0], self.indices.len() as i64);
        if let Some(bad) = self.indices.iter().find(|i| !(0..count).contains(*i)) {
            return Err(format!("index {bad} is out of bounds for {count} rows").into());
        }
        let ordered = self.bounds.windows(2).all(|pair| pair[0] <= pair[1]);
        if !ordered || self.bounds.first() != Some(&0) || self.bounds.last() != Some(&end) {
            return Err(format!("offsets {:?} do not cut {end} indices", self.bounds).into());
        }
        if self
            .weights
            .as_ref()
            .is_some_and(|weights| weights.len() != self.indices.len())
        {
            return Err("as many weights as indices are needed".into());
        }
        Ok(())
    }

    fn compute(&self) -> Shim<Found> {
        let width = self.table.sizes[1] as usize;
        let mut found = Found::default();
        for (bag, bound) in self.bounds.windows(2).enumerate() {
            let (mut row, mut places, mut count) = (vec![0.0; width], vec![-1i64; width], 0i64);
            for at in bound[0] as usize..bound[1] as usize {
                found.owners.push(bag as i64);
                let index = self.indices[at];
                if index == self.skip {
                    continue;
                }
                let weight = self.weights.as_ref().map_or(1.0, |weights| weights[at]);
                for (i, value) in self
                    .table
                    .select(0, index)?
                    .read::<f64>()?
                    .into_iter()
                    .enumerate()
                {
                    match self.mode {
                        Mode::Max if count > 0 && value <= row[i] => {}
                        Mode::Max => (row[i], places[i]) = (value, index),
                        _ => row[i] += value * weight,
                    }
                }
                count += 1;
            }
            if self.mode == Mode::Mean && count > 0 {
                row.iter_mut().for_each(|v| *v /= count as f64);
            }
            found.rows.extend(row);
            found.sizes.push(count);
            found.greatest.extend(places.iter().map(|p| (*p).max(0)));
        }
        Ok(found)
    }
}

#[allow(clippy::too_many_arguments)] // the signature is PyTorch's
extern "C" fn aoti_torch_cpu__embedding_bag_forward_only(
    table: Handle,
    indices: Handle,
    offsets: Handle,
    _scale_grad_by_freq: i32,
    mode: i64,
    _sparse: i32,
    weights: Maybe<Handle>,
    include_last: i32,
    padding: i64,
    ret0: Out<Handle>,
    ret1: Out<Handle>,
    ret2: Out<Handle>,
    ret3: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu__embedding_bag_forward_only", |c| {
        let (table, indices) = (c.view(table)?, c.view(indices)?);
        let mut bounds = c.view(offsets)?.read::<i64>()?;
        if include_last == 0 {
            bounds.push(indices.numel() as i64);
        }
        let weights = weights.get().map(|w| c.view(w)).transpose()?;
        let mode = match mode {
            0 => Mode::Sum,
            1 => Mode::Mean,
            2 => Mode::Max,
            other => return Err(format!("mode {other} is unknown").into()),
        };
        let weights = weights.map(|w| w.read::<f64>()).transpose()?;
        if table.ndim() != 2 {
            return Err(format!("a table of sizes {:?}", table.sizes).into());
        }
        let (ints, indices) = (indices.dtype, indices.read::<i64>()?);
        let bags = Bags {
            table,
            indices,
            bounds,
            weights,
            mode,
            skip: padding,
        };
        bags.check()?;
        let [rows, owners, sizes, greatest] = write(c, &bags, ints)?;
        ret0.set(rows)?;
        ret1.set(owners)?;
        ret2.set(sizes)?;
        ret3.set(greatest)
    })
}

fn write(c: &mut Context<'_>, bags: &Bags, ints: DType) -> Shim<[Handle; 4]> {
    let found = bags.compute()?;
    let (count, width) = (found.sizes.len() as i64, bags.table.sizes[1]);
    let (a, rows) = c.result(bags.table.dtype, &[count, width])?;
    let (b, owners) = c.result_beside([&a], ints, &[found.owners.len() as i64], &[1])?;
    let (d, lengths) = c.result_beside([&a, &b], ints, &[count], &[1])?;
    let (e, greatest) = c.result_beside([&a, &b, &d], ints, &[count, width], &[width.max(1), 1])?;
    c.filling([a, b, d, e], || {
        rows.write(&found.rows)?;
        owners.write(&found.owners)?;
        lengths.write(&found.sizes)?;
        Ok(greatest.write(&found.greatest)?)
    })
}
