//! Writing to places that another tensor names, and finding such places.
#![deny(unsafe_code)]

use crate::aoti::dtype::Number;
use crate::aoti::tensor::contiguous_strides;
use crate::aoti::view::{copy, for_each, TensorView};

/// What happens where an element of a scatter meets the one that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// It takes its place.
    Replace,
    /// Sum.
    Sum,
    /// Product.
    Product,
    /// Mean; of integers, rounded down.
    Mean,
    /// Greatest.
    Greatest,
    /// Least.
    Least,
}

impl Reduce {
    /// From PyTorch's names.
    pub fn parse(name: &str) -> Result<Reduce, String> {
        Ok(match name {
            "" => Reduce::Replace,
            "sum" | "add" => Reduce::Sum,
            "prod" | "multiply" => Reduce::Product,
            "mean" => Reduce::Mean,
            "amax" => Reduce::Greatest,
            "amin" => Reduce::Least,
            other => return Err(format!("reduction '{other}' is unknown")),
        })
    }

    fn join<N: Number>(self, old: N, new: N) -> N {
        let pick = |better: bool| {
            if new.is_nan() || (better && !old.is_nan()) {
                new
            } else {
                old
            }
        };
        match self {
            Reduce::Replace => new,
            Reduce::Sum | Reduce::Mean => old.add(new),
            Reduce::Product => old.mul(new),
            Reduce::Greatest => pick(new > old),
            Reduce::Least => pick(new < old),
        }
    }
}

/// `out[.., index[i], ..] = src[i]` along dimension `d`, joined with what is there. Without `include_self`
/// the first element for a place takes it.
pub fn scatter<N: Number>(
    out: &TensorView,
    d: usize,
    index: &TensorView,
    src: &TensorView,
    reduce: Reduce,
    include_self: bool,
) -> Result<(), String> {
    let fits = |other: &TensorView| other.ndim() == out.ndim() && d < out.ndim();
    if index.numel() == 0 {
        return Ok(());
    }
    if !fits(index) || !fits(src) {
        return Err(format!(
            "sizes {:?}, index {:?}, source {:?}",
            out.sizes, index.sizes, src.sizes
        ));
    }
    let src = src.restrided(0, &index.sizes, &src.strides)?.read::<N>()?;
    let (index_values, mut values) = (index.read::<i64>()?, out.read::<N>()?);
    let mut counts = vec![u32::from(include_self); values.len()];
    let mut strides = contiguous_strides(&out.sizes);
    let along = std::mem::take(&mut strides[d]);
    if index
        .sizes
        .iter()
        .zip(&out.sizes)
        .enumerate()
        .any(|(at, (i, o))| at != d && i > o)
    {
        return Err(format!(
            "an index of sizes {:?} leaves sizes {:?}",
            index.sizes, out.sizes
        ));
    }
    let (mut flat, mut wrong) = (0, None);
    for_each(&index.sizes, [&strides], |[base]| {
        let place = index_values[flat];
        if place < 0 || place >= out.sizes[d] {
            wrong = Some(place);
        } else {
            let at = base + (place * along) as usize;
            let first = counts[at] == 0;
            values[at] = if first {
                src[flat]
            } else {
                reduce.join(values[at], src[flat])
            };
            counts[at] += 1;
        }
        flat += 1;
    });
    if let Some(place) = wrong {
        return Err(format!(
            "index {place} is out of bounds for a size of {}",
            out.sizes[d]
        ));
    }
    if reduce == Reduce::Mean {
        for (value, count) in values
            .iter_mut()
            .zip(counts)
            .filter(|(_, count)| *count > 1)
        {
            *value = value.div(N::from_i64(i64::from(count)));
        }
    }
    out.write(&values)
}

/// `out[indices] = values` or, accumulating, `+=`. A dimension without index is taken whole.
pub fn put<N: Number>(
    out: &TensorView,
    indices: &[Option<TensorView>],
    values: &TensorView,
    accumulate: bool,
) -> Result<(), String> {
    let places = Places::new(out, indices)?;
    let values = values.expand(&places.result_sizes())?;
    // Where the index dimensions stand in the result.
    let (rest_before, count) = (places.before, places.shape.len());
    let mut rest_strides = values.strides.clone();
    let index_strides: Vec<i64> = rest_strides
        .drain(rest_before..rest_before + count)
        .collect();
    let mut jobs = Vec::new();
    for_each(&places.shape, [&index_strides], |[at]| jobs.push(at as i64));
    for (offset, from) in places.offsets.iter().zip(jobs) {
        let to = out.restrided(*offset, &places.rest_sizes, &places.rest_strides)?;
        let from = values.restrided(from, &places.rest_sizes, &rest_strides)?;
        if accumulate {
            let sum: Vec<N> = to
                .read::<N>()?
                .into_iter()
                .zip(from.read()?)
                .map(|(a, b)| a.add(b))
                .collect();
            to.write(&sum)?;
        } else {
            copy(&to, &from)?;
        }
    }
    Ok(())
}

/// Where the elements that a list of indices names lie.
struct Places {
    /// Common sizes of the indices.
    shape: Vec<i64>,
    /// Element offsets of each of them.
    offsets: Vec<i64>,
    /// The dimensions without index.
    rest_sizes: Vec<i64>,
    rest_strides: Vec<i64>,
    /// How many of these stand before the index dimensions in the result.
    before: usize,
}

impl Places {
    fn new(out: &TensorView, indices: &[Option<TensorView>]) -> Result<Places, String> {
        let lists: Vec<Option<(Vec<i64>, Vec<i64>)>> = expand_masks(indices)?;
        if lists.len() > out.ndim() {
            return Err(format!("{} indices for sizes {:?}", lists.len(), out.sizes));
        }
        let shape = common(lists.iter().flatten().map(|(sizes, _)| &sizes[..]))?;
        let total = shape.iter().product::<i64>() as usize;
        let mut places = Places {
            offsets: vec![0; total],
            shape,
            rest_sizes: Vec::new(),
            rest_strides: Vec::new(),
            before: 0,
        };
        let used: Vec<usize> = (0..lists.len()).filter(|d| lists[*d].is_some()).collect();
        let adjacent = used.windows(2).all(|pair| pair[1] == pair[0] + 1);
        for d in 0..out.ndim() {
            match lists.get(d) {
                Some(Some((sizes, values))) => places.add(out, d, sizes, values)?,
                _ => {
                    places.rest_sizes.push(out.sizes[d]);
                    places.rest_strides.push(out.strides[d]);
                    places.before +=
                        usize::from(adjacent && used.first().is_some_and(|first| d < *first));
                }
            }
        }
        Ok(places)
    }

    /// Adds dimension `d`'s part to the offsets.
    fn add(
        &mut self,
        out: &TensorView,
        d: usize,
        sizes: &[i64],
        values: &[i64],
    ) -> Result<(), String> {
        let lead = self.shape.len() - sizes.len();
        let mut strides = vec![0; self.shape.len()];
        for (at, stride) in contiguous_strides(sizes).into_iter().enumerate() {
            strides[lead + at] = if sizes[at] == 1 { 0 } else { stride };
        }
        let (mut flat, mut wrong) = (0, None);
        for_each(&self.shape, [&strides], |[at]| {
            let size = out.sizes[d];
            let place = if values[at] < 0 {
                values[at] + size
            } else {
                values[at]
            };
            if place < 0 || place >= size {
                wrong = Some(values[at]);
            } else {
                self.offsets[flat] += place * out.strides[d];
            }
            flat += 1;
        });
        wrong.map_or(Ok(()), |place| {
            Err(format!(
                "index {place} is out of bounds for sizes {:?}",
                out.sizes
            ))
        })
    }

    fn result_sizes(&self) -> Vec<i64> {
        let (before, after) = self.rest_sizes.split_at(self.before);
        [before, &self.shape, after].concat()
    }
}

/// Values of each index; a mask becomes one list per dimension it covers.
#[allow(clippy::type_complexity)]
fn expand_masks(
    indices: &[Option<TensorView>],
) -> Result<Vec<Option<(Vec<i64>, Vec<i64>)>>, String> {
    let mut lists = Vec::new();
    for index in indices {
        match index {
            None => lists.push(None),
            Some(mask) if matches!(mask.dtype.name(), "bool" | "uint8") => {
                let hits = nonzero(&mask.read::<i64>()?);
                let (rank, flat) = (mask.ndim(), coordinates(&hits, &mask.sizes));
                for d in 0..rank {
                    let values = flat.iter().skip(d).step_by(rank).copied().collect();
                    lists.push(Some((vec![hits.len() as i64], values)));
                }
            }
            Some(index) => lists.push(Some((index.sizes.clone(), index.read::<i64>()?))),
        }
    }
    Ok(lists)
}

/// Which of `values` are not zero; NaN is not.
pub fn nonzero<N: Number>(values: &[N]) -> Vec<usize> {
    (0..values.len())
        .filter(|at| values[*at] != N::ZERO)
        .collect()
}

/// The indices of each of `places`, which count elements of `sizes` in row-major order: a row for each.
pub fn coordinates(places: &[usize], sizes: &[i64]) -> Vec<i64> {
    let strides = contiguous_strides(sizes);
    let mut all = Vec::with_capacity(places.len() * sizes.len());
    for place in places {
        let row = sizes.iter().zip(&strides);
        all.extend(row.map(|(size, stride)| *place as i64 / stride % size));
    }
    all
}

fn common<'a>(shapes: impl Iterator<Item = &'a [i64]>) -> Result<Vec<i64>, String> {
    let mut all: Vec<i64> = Vec::new();
    for shape in shapes {
        while all.len() < shape.len() {
            all.insert(0, 1);
        }
        let lead = all.len() - shape.len();
        for (to, size) in all[lead..].iter_mut().zip(shape) {
            match (*to, *size) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *to = b,
                (a, b) => return Err(format!("indices of {a} and {b} elements do not broadcast")),
            }
        }
    }
    Ok(all)
}
