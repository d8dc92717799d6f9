//! Sorting, scanning and searching along one dimension: each function takes one line of elements.
#![deny(unsafe_code)]

use std::cmp::Ordering;

use crate::aoti::dtype::Number;

/// Order of numbers in which a NaN is greater than all others.
fn order<N: Number>(a: N, b: N) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        _ => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
    }
}

/// Places of the elements in sorted order; equal ones keep theirs.
pub fn sorted<N: Number>(line: &[N], descending: bool) -> Vec<usize> {
    let mut places: Vec<usize> = (0..line.len()).collect();
    if descending {
        places.sort_by(|a, b| order(line[*b], line[*a]));
    } else {
        places.sort_by(|a, b| order(line[*a], line[*b]));
    }
    places
}

/// Replaces each element by `combine` of all up to it.
pub fn scan<N: Number>(line: &mut [N], combine: impl Fn(N, N) -> N) {
    for i in 1..line.len() {
        line[i] = combine(line[i - 1], line[i]);
    }
}

/// `ln(exp(a) + exp(b))` without overflow.
pub fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = (a.min(b), a.max(b));
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    if low == high && low.is_infinite() {
        low
    } else {
        high + (low - high).exp().ln_1p()
    }
}

/// Running extreme and the place of its last occurrence. A NaN stays.
pub fn extremes<N: Number>(line: &mut [N], greatest: bool) -> Vec<i64> {
    let mut best = 0;
    let mut places = Vec::with_capacity(line.len());
    for i in 0..line.len() {
        let (new, old) = (line[i], line[best]);
        let beats = if greatest { new >= old } else { new <= old };
        if new.is_nan() || (!old.is_nan() && beats) {
            best = i;
        }
        places.push(best as i64);
        line[i] = line[best];
    }
    places
}

/// Number of elements of the sorted `line` that are before `value`: smaller, or, with `right`, not greater.
pub fn search<N: Number>(line: &[N], value: N, right: bool) -> i64 {
    let before = |x: &N| {
        if right {
            order(*x, value) != Ordering::Greater
        } else {
            order(*x, value) == Ordering::Less
        }
    };
    line.partition_point(before) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_keep_equal_elements_and_put_nan_on_top() {
        assert_eq!(sorted(&[3i64, 1, 3, 2], false), [1, 3, 0, 2]);
        assert_eq!(sorted(&[3i64, 1, 3, 2], true), [0, 2, 3, 1]);
        assert_eq!(sorted(&[f64::NAN, 1.0, f64::INFINITY], true), [0, 2, 1]);
    }

    #[test]
    fn scans_run() {
        let mut line = [1i64, 2, 3];
        scan(&mut line, Number::add);
        assert_eq!(line, [1, 3, 6]);
        let mut line = [2.0, f64::NAN, 5.0];
        assert_eq!(extremes(&mut line, true), [0, 1, 1]);
        let mut line = [2i64, 2, 1, 5];
        assert_eq!(
            (extremes(&mut line, false), line),
            (vec![0, 1, 2, 2], [2, 2, 1, 1])
        );
        assert!((log_add(1000.0, 1000.0) - 1000.0 - 2f64.ln()).abs() < 1e-12);
        assert_eq!(
            log_add(f64::NEG_INFINITY, f64::NEG_INFINITY),
            f64::NEG_INFINITY
        );
    }

    #[test]
    fn searches_find_both_sides() {
        let line = [1i64, 3, 3, 5];
        assert_eq!([0, 1, 3, 6].map(|v| search(&line, v, false)), [0, 0, 1, 4]);
        assert_eq!([0, 1, 3, 6].map(|v| search(&line, v, true)), [0, 1, 3, 4]);
    }
}
