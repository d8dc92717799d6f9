//! Random numbers: the seeds from which the compiled code makes its own.
//!
//! A pass asks once for as many seeds as it has random operators, and each operator runs a counter-based
//! generator on its seed. The seeds of a loaded program are one sequence: passes differ, and a program
//! that is loaded again draws the same numbers in the same passes.

use super::super::slab::Handle;
use super::args::{run, List};
use super::table::shim_table;

shim_table! {
    aoti_torch_cpu_randint_low_out,
}

/// The next number of the sequence with this state (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number from `low` to `high`, without `high`.
fn between(state: &mut u64, low: i64, high: i64) -> i64 {
    let span = (i128::from(high) - i128::from(low)) as u128;
    let step = (u128::from(next(state)) * span) >> 64;
    (i128::from(low) + step as i128) as i64
}

extern "C" fn aoti_torch_cpu_randint_low_out(
    out: Handle,
    low: i64,
    high: i64,
    sizes: List<i64>,
    ndim: i64,
) -> i32 {
    run("aoti_torch_cpu_randint_low_out", |c| {
        let view = c.view(out)?;
        if low >= high {
            return Err(format!("there is no number from {low} up to {high}").into());
        }
        if view.sizes != sizes.get(ndim)? {
            return Err(format!("{:?} for {:?}", view.sizes, sizes.get(ndim)?).into());
        }
        let drawn: Vec<i64> = (0..view.numel())
            .map(|_| between(&mut c.random, low, high))
            .collect();
        Ok(view.write(&drawn)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_range_and_fill_it() {
        let mut state = 0;
        let drawn: Vec<i64> = (0..1000).map(|_| between(&mut state, -3, 2)).collect();
        for value in -3..2 {
            let count = drawn.iter().filter(|v| **v == value).count();
            assert!((150..250).contains(&count), "{value} came {count} times");
        }
        assert!(drawn.iter().all(|v| (-3..2).contains(v)));
        assert_eq!(between(&mut state, 7, 8), 7);
    }

    #[test]
    fn the_widest_range_has_no_overflow_and_both_signs() {
        let mut state = 0;
        let drawn: Vec<i64> = (0..100)
            .map(|_| between(&mut state, i64::MIN, i64::MAX))
            .collect();
        let negative = drawn.iter().filter(|v| **v < 0).count();
        assert!((30..70).contains(&negative), "{negative}");
    }
}
