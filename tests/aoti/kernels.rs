//! The arithmetic behind the functions that compiled code calls, against naive loops.

use proptest::prelude::*;
use weightstream::aoti::dtype::DType;
use weightstream::aoti::kernels::conv::{format_strides, Convolution};
use weightstream::aoti::kernels::experts::{self, Matrices};
use weightstream::aoti::kernels::gemm::{grouped, product, Affine};
use weightstream::aoti::kernels::index::{coordinates, nonzero, put, scatter, Reduce};
use weightstream::aoti::tensor::{contiguous_strides, reach};
use weightstream::aoti::view::{copy, for_each, TensorView};

/// Memory with a window over it.
struct Owned {
    _words: Vec<u64>,
    view: TensorView,
}

impl Owned {
    fn strided(dtype: DType, sizes: &[i64], strides: &[i64]) -> Owned {
        let elements = reach(sizes, strides).unwrap() as usize;
        let mut words = vec![0u64; elements * 8 / 8 + 1];
        let ptr = words.as_mut_ptr().cast();
        // SAFETY: no element is wider than a word, and there is a word for each; the words live beside.
        let view =
            unsafe { TensorView::new(ptr, dtype, sizes.to_vec(), strides.to_vec()) }.unwrap();
        Owned {
            _words: words,
            view,
        }
    }

    /// Small whole numbers, so that sums are exact in every type.
    fn numbers(dtype: DType, sizes: &[i64], order: u8, seed: i64) -> Owned {
        let owned = Owned::strided(dtype, sizes, &some_strides(sizes, order));
        let values: Vec<i64> = (0..owned.view.numel() as i64)
            .map(|i| (i * 7 + seed * 3) % 5 - 2)
            .collect();
        owned.view.write(&values).unwrap();
        owned
    }

    fn ints(&self) -> Vec<i64> {
        self.view
            .read::<f64>()
            .unwrap()
            .into_iter()
            .map(|v| v as i64)
            .collect()
    }
}

/// Row-major, transposed, or with gaps.
fn some_strides(sizes: &[i64], order: u8) -> Vec<i64> {
    match order % 3 {
        0 => contiguous_strides(sizes),
        1 => {
            let turned: Vec<i64> = sizes.iter().rev().copied().collect();
            contiguous_strides(&turned).into_iter().rev().collect()
        }
        _ => contiguous_strides(sizes).iter().map(|s| s * 2).collect(),
    }
}

const TYPES: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::BF16,
    DType::F16,
    DType::I64,
    DType::I32,
];

proptest! {
    #[test]
    fn products_are_those_of_three_loops(
        (m, n, k, batch) in (0i64..6, 0i64..6, 0i64..6, 0i64..4),
        orders in any::<[u8; 4]>(), which in 0usize..6, beta in 0i64..3, alpha in 1i64..3, rank in 0usize..3,
    ) {
        let dtype = TYPES[which];
        let whole = |sizes: [i64; 2]| if batch == 0 { sizes.to_vec() } else { vec![batch, sizes[0], sizes[1]] };
        let a = Owned::numbers(dtype, &whole([m, k]), orders[0], 1);
        let b = Owned::numbers(dtype, &whole([k, n]), orders[1], 2);
        let out = Owned::strided(dtype, &whole([m, n]), &some_strides(&whole([m, n]), orders[2]));
        let add_sizes = [vec![n], vec![1, 1], whole([m, n])][rank].clone();
        let add = Owned::numbers(dtype, &add_sizes, orders[3], 3);
        let affine = Affine { add: Some(&add.view), beta: beta as f64, alpha: alpha as f64 };
        product(&out.view, &a.view, &b.view, affine).unwrap();
        let added = Owned::strided(dtype, &out.view.sizes, &contiguous_strides(&out.view.sizes));
        copy(&added.view, &add.view).unwrap();
        let (a, b, added, out) = (a.ints(), b.ints(), added.ints(), out.ints());
        for at in 0..out.len() as i64 {
            let (p, i, j) = (at / (m * n), at / n % m, at % n);
            let dot: i64 = (0..k).map(|x| {
                a[((p * m + i) * k + x) as usize] * b[((p * k + x) * n + j) as usize]
            }).sum();
            prop_assert_eq!(out[at as usize], alpha * dot + beta * added[at as usize]);
        }
    }

    #[test]
    fn convolutions_are_those_of_plain_loops(
        groups in 1i64..3, per in (1i64..3, 1i64..3), space in 1usize..4, seed in 0i64..100,
        numbers in prop::collection::vec((3i64..6, 1i64..4, 1i64..3, 0i64..3, 1i64..3), 3),
        transposed in any::<bool>(), bias in any::<bool>(), order in any::<[u8; 2]>(), double in any::<bool>(),
    ) {
        let pick = |f: fn(&(i64, i64, i64, i64, i64)) -> i64| numbers[..space].iter().map(f).collect::<Vec<_>>();
        let (image, kernel) = (pick(|v| v.0), pick(|v| v.1));
        let (stride, padding, dilation) = (pick(|v| v.2), pick(|v| v.3), pick(|v| v.4));
        let output_padding: Vec<i64> = stride.iter().map(|s| s - 1).collect();
        let conv = Convolution {
            stride: &stride, padding: &padding, dilation: &dilation, transposed,
            output_padding: &output_padding, groups,
        };
        let (wide, narrow) = (per.0 * groups, per.1 * groups);
        let dtype = if double { DType::F64 } else { DType::F32 };
        let input = [&[2, if transposed { narrow } else { wide }], &image[..]].concat();
        let weight = [&[narrow, per.0], &kernel[..]].concat();
        let Ok(sizes) = conv.output_sizes(&input, &weight) else { return Ok(()) };
        prop_assume!(sizes.iter().all(|s| *s > 0));
        let input = Owned::numbers(dtype, &input, order[0], seed);
        let weight = Owned::numbers(dtype, &weight, order[1], seed + 1);
        let bias = bias.then(|| Owned::numbers(dtype, &sizes[1..2], 0, seed));
        let guide = (&[1, 2, 2, 2][..], &[8, 1, 4, 2][..]);
        let out = Owned::strided(dtype, &sizes, &format_strides(&sizes, &[guide]));
        let bias_view = bias.as_ref().map(|b| &b.view);
        match double {
            true => conv.run::<f64>(&out.view, &input.view, &weight.view, bias_view).unwrap(),
            false => conv.run::<f32>(&out.view, &input.view, &weight.view, bias_view).unwrap(),
        }
        prop_assert_eq!(out.ints(), naive_convolution(&conv, &sizes, &input, &weight, bias.as_ref()));
    }

    #[test]
    fn grouped_products_are_those_of_the_groups(
        counts in prop::collection::vec(0i64..4, 0..5), (n, k, rest) in (0i64..5, 0i64..5, 0i64..3),
        orders in any::<[u8; 3]>(), which in 0usize..6,
    ) {
        let (dtype, groups) = (TYPES[which], counts.len() as i64);
        let ends: Vec<i64> = counts.iter().scan(0, |end, count| { *end += count; Some(*end) }).collect();
        let rows = ends.last().unwrap_or(&0) + rest;
        let a = Owned::numbers(dtype, &[rows, k], orders[0], 1);
        let b = Owned::numbers(dtype, &[groups, k, n], orders[1], 2);
        let out = Owned::numbers(dtype, &[rows, n], orders[2], 3);
        grouped(&out.view, &a.view, &b.view, &ends).unwrap();
        let (left, right, found) = (a.ints(), b.ints(), out.ints());
        for row in 0..rows {
            let group = ends.iter().position(|end| row < *end);
            for column in 0..n {
                let dot = |g: usize| (0..k).map(|i| {
                    left[(row * k + i) as usize] * right[((g as i64 * k + i) * n + column) as usize]
                }).sum::<i64>();
                prop_assert_eq!(found[(row * n + column) as usize], group.map_or(0, dot));
            }
        }
    }

    #[test]
    fn copies_keep_every_element(sizes in prop::collection::vec(0i64..4, 0..5), orders in any::<[u8; 2]>(),
                                 from in 0usize..6, to in 0usize..6) {
        let src = Owned::numbers(TYPES[from], &sizes, orders[0], 5);
        let dst = Owned::strided(TYPES[to], &sizes, &some_strides(&sizes, orders[1]));
        copy(&dst.view, &src.view).unwrap();
        prop_assert_eq!(dst.ints(), src.ints());
    }

    #[test]
    fn scatters_are_those_of_a_loop(rows in 1i64..4, size in 1i64..5, picks in prop::collection::vec(0i64..5, 1..12),
                                    which in 0usize..6, own in any::<bool>()) {
        const HOW: [&str; 6] = ["", "sum", "prod", "mean", "amax", "amin"];
        let width = (picks.len() as i64 / rows).max(1);
        let index = Owned::strided(DType::I64, &[rows, width], &[width, 1]);
        let places: Vec<i64> = (0..rows * width).map(|i| picks[i as usize % picks.len()] % size).collect();
        index.view.write(&places).unwrap();
        let out = Owned::numbers(DType::F64, &[rows, size], 1, 4);
        let src = Owned::numbers(DType::F64, &[rows, width], 0, 9);
        let (mut expected, src_values) = (out.view.read::<f64>().unwrap(), src.ints());
        let mut counts = vec![f64::from(u8::from(own)); expected.len()];
        for (flat, place) in places.iter().enumerate() {
            let at = (flat as i64 / width * size + place) as usize;
            let (old, new) = (expected[at], src_values[flat] as f64);
            let joined = [new, old + new, old * new, old + new, old.max(new), old.min(new)][which];
            expected[at] = if counts[at] == 0.0 { new } else { joined };
            counts[at] += 1.0;
        }
        if which == 3 {
            expected.iter_mut().zip(&counts).for_each(|(v, n)| *v /= n.max(1.0));
        }
        scatter::<f64>(&out.view, 1, &index.view, &src.view, Reduce::parse(HOW[which]).unwrap(), own).unwrap();
        prop_assert_eq!(out.view.read::<f64>().unwrap(), expected);
    }
}

/// Every product of an element of the grid and one of the window, added where it belongs.
fn naive_convolution(
    conv: &Convolution<'_>,
    sizes: &[i64],
    input: &Owned,
    weight: &Owned,
    bias: Option<&Owned>,
) -> Vec<i64> {
    let (x, w) = (input.ints(), weight.ints());
    let (in_sizes, w_sizes) = (&input.view.sizes, &weight.view.sizes);
    let (image, grid) = if conv.transposed {
        (sizes, &in_sizes[..])
    } else {
        (&in_sizes[..], sizes)
    };
    let per_narrow = grid[1] / conv.groups;
    let plane: i64 = sizes[2..].iter().product();
    let mut out: Vec<i64> = (0..sizes.iter().product::<i64>())
        .map(|i| bias.map_or(0, |b| b.ints()[(i / plane % sizes[1]) as usize]))
        .collect();
    let flat =
        |at: &[i64], sizes: &[i64]| at.iter().zip(sizes).fold(0, |f, (a, s)| f * s + a) as usize;
    each(grid, |g| {
        each(&w_sizes[1..], |k| {
            let channel = g[1] / per_narrow * w_sizes[1] + k[0];
            let mut place = vec![g[0], channel];
            for d in 0..conv.stride.len() {
                place.push(
                    g[d + 2] * conv.stride[d] - conv.padding[d] + k[d + 1] * conv.dilation[d],
                );
            }
            if place.iter().zip(image).any(|(p, s)| *p < 0 || p >= s) {
                return;
            }
            let weight = w[flat(&[&[g[1]], k].concat(), w_sizes)];
            if conv.transposed {
                out[flat(&place, image)] += x[flat(g, grid)] * weight;
            } else {
                out[flat(g, grid)] += x[flat(&place, image)] * weight;
            }
        });
    });
    out
}

fn each(sizes: &[i64], mut body: impl FnMut(&[i64])) {
    let strides = contiguous_strides(sizes);
    for_each(sizes, [&strides], |[at]| {
        let index: Vec<i64> = sizes
            .iter()
            .zip(&strides)
            .map(|(n, s)| at as i64 / s % n)
            .collect();
        body(&index);
    });
}

fn ints(sizes: &[i64], values: &[i64]) -> Owned {
    let owned = Owned::strided(DType::I64, sizes, &contiguous_strides(sizes));
    owned.view.write(values).unwrap();
    owned
}

#[test]
fn puts_follow_the_rules_of_advanced_indexing() {
    let out = ints(&[2, 3], &[0; 6]);
    let index = ints(&[2], &[2, -3]);
    let values = ints(&[2, 2], &[1, 2, 3, 4]);
    put::<i64>(
        &out.view,
        &[None, Some(index.view.clone())],
        &values.view,
        false,
    )
    .unwrap();
    assert_eq!(out.view.read::<i64>().unwrap(), [2, 0, 1, 4, 0, 3]);
    let (rows, columns, one) = (ints(&[2], &[1, 1]), ints(&[1], &[1]), ints(&[], &[5]));
    let both = [Some(rows.view.clone()), Some(columns.view.clone())];
    put::<i64>(&out.view, &both, &one.view, true).unwrap();
    assert_eq!(
        out.view.read::<i64>().unwrap(),
        [2, 0, 1, 4, 10, 3],
        "the same place twice"
    );
    let far = ints(&[1], &[3]);
    let error =
        put::<i64>(&out.view, &[None, Some(far.view.clone())], &one.view, false).unwrap_err();
    assert!(error.contains("out of bounds"), "{error}");
}

#[test]
fn places_of_what_is_not_zero_are_in_row_major_order() {
    let hits = nonzero(&[0.0, -0.0, 3.0, f64::NAN, 0.0, -1.0]);
    assert_eq!(hits, [2, 3, 5]);
    assert_eq!(coordinates(&hits, &[2, 3]), [0, 2, 1, 0, 1, 2]);
    assert!(coordinates(&[0], &[]).is_empty());
    assert!(nonzero::<i64>(&[]).is_empty());
}

#[test]
fn an_index_out_of_bounds_is_refused() {
    let (out, src) = (ints(&[3], &[1, 2, 3]), ints(&[1], &[9]));
    for bad in [3, -1] {
        let index = ints(&[1], &[bad]);
        assert!(
            scatter::<i64>(&out.view, 0, &index.view, &src.view, Reduce::Replace, true).is_err()
        );
    }
    assert_eq!(
        out.view.read::<i64>().unwrap(),
        [1, 2, 3],
        "nothing was written"
    );
}

#[test]
fn matrices_that_do_not_fit_are_refused() {
    let (a, b) = (
        Owned::numbers(DType::F32, &[2, 3], 0, 1),
        Owned::numbers(DType::F32, &[2, 3], 0, 1),
    );
    let out = Owned::numbers(DType::F32, &[2, 3], 0, 1);
    assert!(product(&out.view, &a.view, &b.view, Affine::PRODUCT)
        .unwrap_err()
        .contains("does not give"));
    let half = Owned::numbers(DType::F16, &[3, 3], 0, 1);
    assert!(product(&out.view, &a.view, &half.view, Affine::PRODUCT)
        .unwrap_err()
        .contains("float16"));
}

#[test]
fn each_row_is_multiplied_by_the_matrix_of_its_number() {
    let numbers = [2, 0, 2, 1, 0, 2];
    for (which, transposed) in [(0, false), (1, true), (2, false), (3, true)] {
        let dtype = [DType::F32, DType::F32, DType::BF16, DType::F16][which];
        let (n, k) = (70, 5);
        let x = Owned::numbers(dtype, &[3, k], 0, 1);
        let sizes = if transposed { [3, k, n] } else { [3, n, k] };
        let all = Owned::numbers(dtype, &sizes, 0, 2);
        let out = Owned::numbers(dtype, &[6, n], 0, 3);
        let matrices = Matrices::Dense {
            all: all.view.clone().into(),
            transposed,
        };
        assert_eq!(matrices.columns(), n);
        experts::product(&out.view, &x.view, &numbers, &matrices).unwrap();
        let (x, all, found) = (x.ints(), all.ints(), out.ints());
        for (row, number) in numbers.iter().enumerate() {
            for column in 0..n {
                let of = |i: i64| {
                    let at = match transposed {
                        true => (number * k + i) * n + column,
                        false => (number * n + column) * k + i,
                    };
                    // Each row of `x` has two numbers.
                    x[(row as i64 / 2 * k + i) as usize] * all[at as usize]
                };
                let dot: i64 = (0..k).map(of).sum();
                assert_eq!(found[row * n as usize + column as usize], dot);
            }
        }
    }
}

#[test]
fn numbers_of_no_matrix_are_refused() {
    let [x, out] = [1, 2].map(|seed| Owned::numbers(DType::F32, &[2, 3], 0, seed));
    let owned = Owned::numbers(DType::F32, &[4, 3, 3], 0, 3);
    let all = owned.view.clone().into();
    let matrices = Matrices::Dense {
        all,
        transposed: false,
    };
    let refused =
        |numbers: &[i64]| experts::product(&out.view, &x.view, numbers, &matrices).unwrap_err();
    for number in [-1, 4] {
        assert_eq!(
            refused(&[0, number]),
            format!("expert {number} of [4, 3, 3]: expected a number below the first size")
        );
    }
    assert!(refused(&[0, 1, 2]).contains("do not give [2, 3]"));
}

#[test]
fn groups_that_do_not_fit_are_refused() {
    let [rows, out] = [1, 2].map(|seed| Owned::numbers(DType::F32, &[4, 3], 0, seed));
    let matrices = Owned::numbers(DType::F32, &[2, 3, 3], 0, 3);
    let refused = |ends: &[i64]| grouped(&out.view, &rows.view, &matrices.view, ends).unwrap_err();
    assert_eq!(refused(&[4]), "1 groups for [2, 3, 3] matrices");
    assert_eq!(refused(&[3, 2]), "group 1 ends at row 2; expected 3 to 4");
    assert_eq!(refused(&[1, 5]), "group 1 ends at row 5; expected 1 to 4");
    assert_eq!(refused(&[-1, 4]), "group 0 ends at row -1; expected 0 to 4");
    let narrow = Owned::numbers(DType::F32, &[2, 2, 3], 0, 3);
    assert!(grouped(&out.view, &rows.view, &narrow.view, &[2, 4]).is_err());
}
