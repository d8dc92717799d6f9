//! Convolutions whose lists hold one value for all dimensions, against plain loops.

use super::*;

type Lists<'a> = [&'a [i64]; 4];

type Convolve = unsafe extern "C" fn(
    Handle,
    Handle,
    *const Handle,
    *const i64,
    i64,
    *const i64,
    i64,
    *const i64,
    i64,
    i32,
    *const i64,
    i64,
    i64,
    *mut Handle,
) -> i32;

fn convolve(input: Handle, weight: Handle, lists: Lists<'_>, transposed: bool) -> (i32, Handle) {
    let mut out = Handle::NULL;
    let [stride, padding, dilation, output_padding] =
        lists.map(|list| (list.as_ptr(), list.len() as i64));
    let convolution = shim!(aoti_torch_cpu_convolution: Convolve);
    // SAFETY: lists of the given lengths and a place for a handle.
    let code = unsafe {
        convolution(
            input,
            weight,
            std::ptr::null(),
            stride.0,
            stride.1,
            padding.0,
            padding.1,
            dilation.0,
            dilation.1,
            i32::from(transposed),
            output_padding.0,
            output_padding.1,
            1,
            &mut out,
        )
    };
    (code, out)
}

/// Small whole numbers, so that sums are exact.
fn numbers(sizes: &[i64], seed: usize) -> Vec<f32> {
    let count = sizes.iter().product::<i64>() as usize;
    (0..count)
        .map(|i| ((i * 7 + seed) % 5) as f32 - 2.0)
        .collect()
}

/// All indices into `sizes`, row-major.
fn indices(sizes: &[i64]) -> Vec<Vec<i64>> {
    sizes.iter().fold(vec![vec![]], |all, &size| {
        let longer = |index: Vec<i64>| (0..size).map(move |i| [&index[..], &[i]].concat());
        all.into_iter().flat_map(longer).collect()
    })
}

fn flat(index: &[i64], sizes: &[i64]) -> usize {
    index.iter().zip(sizes).fold(0, |f, (i, s)| f * s + i) as usize
}

/// Output sizes and values; every list holds one value.
fn naive(x: &[i64], w: &[i64], lists: Lists<'_>, transposed: bool) -> (Vec<i64>, Vec<f64>) {
    let [stride, padding, dilation, output_padding] = lists.map(|list| list[0]);
    let space = w.len() - 2;
    let mut sizes = vec![x[0], if transposed { w[1] } else { w[0] }];
    for d in 2..space + 2 {
        let window = dilation * (w[d] - 1) + 1;
        sizes.push(match transposed {
            true => (x[d] - 1) * stride - 2 * padding + window + output_padding,
            false => (x[d] + 2 * padding - window) / stride + 1,
        });
    }
    let (xs, ws) = (numbers(x, 1), numbers(w, 2));
    let mut out = vec![0.0; sizes.iter().product::<i64>() as usize];
    // The window slides over the input, or over the output of a transposed one.
    let (image, grid) = if transposed {
        (&sizes[..], x)
    } else {
        (x, &sizes[..])
    };
    for g in indices(grid) {
        for k in indices(&w[1..]) {
            let at = |d: usize| g[d + 2] * stride - padding + k[d + 1] * dilation;
            let place: Vec<i64> = [g[0], k[0]].into_iter().chain((0..space).map(at)).collect();
            if place.iter().zip(image).any(|(p, s)| p < &0 || p >= s) {
                continue;
            }
            let weight = ws[flat(&[&[g[1]], &k[..]].concat(), w)];
            match transposed {
                true => out[flat(&place, image)] += f64::from(xs[flat(&g, grid)] * weight),
                false => out[flat(&g, grid)] += f64::from(xs[flat(&place, image)] * weight),
            }
        }
    }
    (sizes, out)
}

#[test]
fn one_value_stands_for_all_dimensions() {
    for (space, transposed) in (1..=3).flat_map(|space| [(space, false), (space, true)]) {
        let extents = [5, 4, 6];
        let lists: Lists<'_> = [&[2], &[1], &[2], &[1]];
        let x = [&[2, if transposed { 2 } else { 3 }], &extents[..space]].concat();
        let w = [&[2, 3], &[3, 2, 2][..space]].concat();
        let (sizes, expected) = naive(&x, &w, lists, transposed);
        let (xs, ws) = (numbers(&x, 1), numbers(&w, 2));
        let all: Vec<Vec<i64>> = lists.iter().map(|list| vec![list[0]; space]).collect();
        let all: Lists<'_> = [&all[0], &all[1], &all[2], &all[3]];
        for lists in [lists, all] {
            let (_, error, left) = pass_with(Fake::default(), |context| {
                let (input, weight) = (input(context, &xs, &x), input(context, &ws, &w));
                let (code, out) = context.with(|| convolve(input, weight, lists, transposed));
                assert_eq!(code, 0, "{space} {transposed}: {:?}", context.take_error());
                let view = context.view(out).unwrap();
                assert_eq!(
                    (&view.sizes, view.read::<f64>().unwrap()),
                    (&sizes, expected.clone())
                );
                { [input, weight, out] }
                    .into_iter()
                    .for_each(|handle| context.discard(handle));
            });
            assert_eq!((error, left), (None, 0));
        }
    }
}

#[test]
fn a_list_of_another_length_is_named_with_both_lengths() {
    let (x, w) = ([1, 1, 4, 4], [1, 1, 2, 2]);
    let (xs, ws) = (numbers(&x, 1), numbers(&w, 2));
    for (at, name) in ["stride", "padding", "dilation", "output_padding"]
        .into_iter()
        .enumerate()
    {
        for wrong in [&[1, 1, 1][..], &[]] {
            let mut lists: Lists<'_> = [&[1], &[0], &[1], &[0]];
            lists[at] = wrong;
            let (_, error, left) = pass_with(Fake::default(), |context| {
                let (input, weight) = (input(context, &xs, &x), input(context, &ws, &w));
                assert_eq!(context.with(|| convolve(input, weight, lists, true)).0, 1);
                { [input, weight] }
                    .into_iter()
                    .for_each(|handle| context.discard(handle));
            });
            let text = error.unwrap().to_string();
            let expected = format!("{name} has {} values", wrong.len());
            assert!(
                text.contains(&expected) && text.contains("2 dimensions take 2 or 1"),
                "{text}"
            );
            assert_eq!(left, 0);
        }
    }
}
