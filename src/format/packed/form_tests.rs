//! Numbers of each form come back bit for bit.

use super::tests::{round_trip_of, Random};
use super::*;
use crate::figures::NumberForm;

/// The bytes of other forms, which have more mantissa for their exponent.
#[test]
fn weights_of_each_form_take_what_they_have() {
    let expected = [0.667, 0.852, 0.833, 0.831, 0.706];
    for (form, expected) in NumberForm::ALL.into_iter().zip(expected) {
        let raw = Random(1).weights_of(form, 64 * BLOCK_ELEMENTS);
        let ratio = round_trip_of(form, &raw);
        assert!((ratio - expected).abs() < 0.01, "{form:?}: {ratio}");
    }
}

/// Every number of bits up to 16, and many of 32, in blocks that are coded.
#[test]
fn every_number_of_each_form_comes_back() {
    for form in NumberForm::ALL {
        let mut random = Random(21);
        let mut raw = random.weights_of(form, 17 * (1 << 16) + 5);
        for (at, place) in raw.chunks_exact_mut(form.bytes() * 17).enumerate() {
            let number = match form {
                NumberForm::F32 => random.next() as u32,
                _ => at as u32,
            };
            place[..form.bytes()].copy_from_slice(&number.to_le_bytes()[..form.bytes()]);
        }
        let ratio = round_trip_of(form, &raw);
        assert!(ratio < 0.95, "{form:?}: {ratio}");
        let packed = encode(form, &raw).unwrap();
        // The last block is short.
        let mut full = packed.directory.iter().rev().skip(2);
        assert!(full.all(|entry| entry & RAW == 0), "{form:?}");
    }
}

#[test]
fn any_number_of_bytes_of_each_form_comes_back() {
    for form in NumberForm::ALL {
        let raw = Random(22).weights_of(form, 2 * BLOCK_ELEMENTS);
        let full = BLOCK_ELEMENTS * form.bytes();
        let lengths = (0..130).chain(full - 5..full + 6);
        for length in lengths.chain((0..raw.len()).step_by(509)) {
            round_trip_of(form, &raw[..length]);
        }
    }
}
